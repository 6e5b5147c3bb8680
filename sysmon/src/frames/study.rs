//! Reads the program's code once, on the first request.
//!
//! Walks request places in the code they do not know; [`study`] resolves them, on the helper's
//! thread. The first time, this takes a survey of all functions, some tenths of a second: a
//! separate thread does that and ends, so that the helper can continue with more urgent work. The
//! survey belongs to the process, not to the runtime that requested it first: nothing waits for it,
//! and its result stays for ever.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::objects::{Object, Objects};
use super::rows::{Row, Unwinder};
use super::sites::{self, Site, sites};
use super::verdict::{InPlace, Nearness};
use super::{Judge, Mobility};

static JUDGE: OnceLock<Judge> = OnceLock::new();
/// The executable, which is never unloaded.
static EXECUTABLE: OnceLock<Object> = OnceLock::new();
static BEGUN: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicBool = AtomicBool::new(false);
static POINTERS_TRUSTED: AtomicBool = AtomicBool::new(false);
/// The thread-locals that stacks take along, in the order of their addresses.
static TAKEN_ALONG: OnceLock<Vec<Range<isize>>> = OnceLock::new();

/// Declares that from now on stacks that move take these thread-locals of the executable along.
///
/// They are given as distances from the thread pointer, sorted. A survey that begins after this
/// relies on it ([`Judge::assumes_own_thread_locals`]): then a stack that does not take them along
/// must not move. Only the first call counts.
///
/// ```
/// use indent_sysmon::{frames, thread_locals::ThreadLocals};
///
/// let all = ThreadLocals::of_executable().unwrap();
/// let rust = all.variables.iter().filter(|v| v.is_rust);
/// frames::assume_own_thread_locals(rust.map(|v| v.range.clone()).collect());
/// assert!(frames::Judge::survey().assumes_own_thread_locals());
/// ```
pub fn assume_own_thread_locals(variables: Vec<Range<isize>>) {
    TAKEN_ALONG.get_or_init(|| variables);
}

/// Whether stacks take along the thread-local at this distance from the thread pointer.
pub(super) fn is_taken_along(offset: i64) -> bool {
    let offset = offset as isize;
    TAKEN_ALONG.get().is_some_and(|variables| {
        let after = variables.partition_point(|v| v.start <= offset);
        after > 0 && variables[after - 1].contains(&offset)
    })
}

/// Makes later surveys assume that calls through pointers leave nothing of their thread behind.
///
/// For tests of verdicts on single functions, in programs with functions that do leave something
/// behind.
///
/// # Safety
/// No stack moves that was left with the address of a thread-local, or with something of its thread
/// in another library, by a function that it called through a pointer.
///
/// ```
/// // SAFETY: no stack of this program moves.
/// unsafe { indent_sysmon::frames::trust_pointers() };
/// assert!(indent_sysmon::frames::Judge::survey().behind_pointers().is_none());
/// ```
#[expect(
    unsafe_code,
    reason = "the caller vouches for all code behind pointers"
)]
pub unsafe fn trust_pointers() {
    POINTERS_TRUSTED.store(true, SeqCst);
}

pub(super) fn trusts_pointers() -> bool {
    POINTERS_TRUSTED.load(SeqCst)
}

pub(super) fn has_own_thread_locals() -> bool {
    TAKEN_ALONG.get().is_some()
}

/// Returns whether walks have requested something since the last [`study`].
///
/// May be called on any thread, and in a signal handler.
///
/// ```
/// use indent_sysmon::frames;
/// assert!(!frames::is_asked()); // no thread has walked a stack yet
/// ```
#[inline]
pub fn is_asked() -> bool {
    sites().is_asked()
}

/// Resolves what walks have requested.
///
/// For the helper's thread. If there has been no survey yet, it is started, and finishes some time
/// later.
///
/// ```
/// use indent_sysmon::frames;
/// frames::study();
/// while frames::judge().is_none() {
///     std::thread::yield_now();
/// }
/// ```
pub fn study() {
    if let Some(judge) = JUDGE.get() {
        sites::resolve_in(sites(), |pc, row| site_of(judge, pc, row));
        return;
    }
    if !BEGUN.swap(true, SeqCst) {
        let thread = std::thread::Builder::new().name("frames-survey".into());
        if thread.spawn(survey).is_err() {
            survey(); // no thread could be created
        }
    }
}

fn survey() {
    if let Some(executable) = Objects::now().list.into_iter().next() {
        EXECUTABLE.get_or_init(|| executable);
    }
    match std::panic::catch_unwind(Judge::survey) {
        Ok(judge) => {
            JUDGE.get_or_init(|| judge);
            study();
        }
        Err(_) => FAILED.store(true, SeqCst), // everything stays unknown
    }
}

/// Returns whether the survey failed because of a bug in this crate.
///
/// Then nothing will ever be known.
///
/// ```
/// assert!(!indent_sysmon::frames::has_failed());
/// ```
pub fn has_failed() -> bool {
    FAILED.load(SeqCst)
}

fn site_of(judge: &Judge, pc: usize, row: Option<Row>) -> Site {
    let mobility = judge.mobility(pc);
    match judge.asks_caller(pc) {
        true => Site::asking_caller(mobility, row),
        false => Site::new(mobility, row),
    }
}

/// Resolves a place immediately, once there has been a survey.
///
/// A place in the executable is requested as well, so that later walks find it in the map.
#[cold]
pub(crate) fn find_now(unwinder: &mut Unwinder, pc: usize) -> Option<Site> {
    let (judge, executable) = (JUDGE.get()?, EXECUTABLE.get()?);
    if !executable.contains(pc) {
        return Some(Site::BOUND);
    }
    sites().want(pc);
    Some(site_of(judge, pc, unwinder.row(executable, pc)))
}

/// Resolves an interrupted place immediately, once there has been a survey.
///
/// Also returns how its function is related to the runtime. The place need not be kept: it is
/// seldom met again.
#[cold]
pub(crate) fn find_interrupted(unwinder: &mut Unwinder, pc: usize) -> Option<(Site, Nearness)> {
    let (judge, executable) = (JUDGE.get()?, EXECUTABLE.get()?);
    if !executable.contains(pc) {
        return None;
    }
    let site = sites().get(pc);
    let site = site.unwrap_or_else(|| site_of(judge, pc, unwinder.row(executable, pc)));
    Some((site, judge.nearness(pc)))
}

/// Resolves a place of a stack interrupted outside of a region.
///
/// As `find_interrupted`, and also returns what a stack with a frame there may do.
#[cold]
pub(crate) fn find_in_place(unwinder: &mut Unwinder, pc: usize) -> Option<(Site, InPlace)> {
    let judge = JUDGE.get().filter(|judge| judge.allows_in_place())?;
    let (site, _) = find_interrupted(unwinder, pc)?;
    Some((site, judge.in_place(pc)))
}

/// Returns what is known about all functions, once there has been a survey.
///
/// See [`study`] for an example.
pub fn judge() -> Option<&'static Judge> {
    JUDGE.get()
}

/// Returns whether a function may change attributes of its thread, once there has been a survey.
///
/// See [`Judge::changes_thread`]. May be called on any thread; allocates nothing.
///
/// ```
/// use indent_sysmon::frames;
/// assert_eq!(frames::changes_thread(frames::study as fn() as usize), None);
/// ```
#[inline]
pub fn changes_thread(function: usize) -> Option<bool> {
    JUDGE.get().map(|judge| judge.changes_thread(function))
}

/// Returns the verdict on one function, once there has been a survey.
///
/// May be called on any thread; allocates nothing.
///
/// ```
/// use indent_sysmon::frames;
/// let own = || frames::mobility_of(frames::study as fn() as usize);
/// assert!(own().is_none());
/// frames::study();
/// while own().is_none() {
///     std::thread::yield_now();
/// }
/// ```
pub fn mobility_of(address: usize) -> Option<Mobility> {
    JUDGE.get().map(|judge| judge.mobility(address))
}
