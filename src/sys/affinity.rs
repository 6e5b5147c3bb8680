#![expect(unsafe_code, reason = "system calls")]
//! Moves threads to CPUs, by their affinity masks.
//!
//! A thread that is about to take over the work of another is moved to the CPU that the other
//! leaves: else it queues behind threads that compute on other CPUs (`docs/preemption.md`). Its
//! mask is narrowed while it waits for the work. It widens its mask itself before any user code
//! runs, so that neither threads nor processes started there inherit the narrow mask.
//!
//! **The mask of a thread is the user's, unless it is the runtime's.** It is the runtime's if it
//! equals the mask of the helper's thread ([`Allowed`]) or the last one the runtime gave the thread
//! (which may be out of date: `taskset`, a cpuset, a CPU that was switched on). Any other mask was
//! set by a hook, a fiber or from outside; such a thread is never narrowed. A mask that is set from
//! outside while the thread is narrow stays, too: the thread widens only the very mask that the
//! giver of the work set.
//!
//! **Protocol** (`Placement::state`). *Wide → narrowing*: a giver, before it gives the work; one
//! at a time. *Narrowing → narrow* or *wide*: the same giver, after it has given the work, so the
//! thread runs no user code until it has passed `widen`, which waits out *narrowing*; or *wide*
//! at once if the thread had got work elsewhere: such a thread may run user code, and is not
//! touched. *Narrow → wide*: the thread itself.
//!
//! Limitation: a mask is lost if another thread or process sets it between the two calls of
//! `bring_here`, or if it is exactly the CPU to which the thread is narrowed at that moment.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use crate::sys;

/// CPUs a mask has room for.
const CPUS: usize = 1024;
const WORDS: usize = CPUS / 64;

type Words = [u64; WORDS];

/// All masks that a helper's thread ever had. Compared by value and never freed: readers are signal
/// handlers, and there are few different masks.
static KNOWN: Mutex<Vec<&'static Words>> = Mutex::new(Vec::new());

fn known(mask: Words) -> &'static Words {
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    let found = known.iter().copied().find(|words| **words == mask);
    found.unwrap_or_else(|| {
        let new: &'static Words = Box::leak(Box::new(mask));
        known.push(new);
        new
    })
}

/// The CPUs that the threads of a runtime may use, as last queried; none are known at first.
pub(crate) struct Allowed(AtomicPtr<Words>);

impl Allowed {
    pub(crate) const fn new() -> Self {
        Allowed(AtomicPtr::new(ptr::null_mut()))
    }

    /// Stores the mask of the calling thread: the helper's, whose mask no part of the runtime
    /// changes.
    pub(crate) fn remember(&self) {
        if let Some(now) = get(0) {
            let now = ptr::from_ref(known(now)).cast_mut();
            self.0.store(now, Release);
        }
    }

    fn get(&self) -> Option<&'static Words> {
        // SAFETY: null, or from `known`, which frees nothing.
        unsafe { self.0.load(Acquire).as_ref() }
    }
}

const WIDE: u32 = 0;
const NARROWING: u32 = 1;
/// This value plus `n`: narrowed to CPU `n`.
const NARROW: u32 = 2;

/// The placement of one thread, as far as the runtime has changed it.
pub(crate) struct Placement {
    state: AtomicU32,
    /// The last permanent mask that the runtime gave the thread. Owned by the giver while the state
    /// is *narrowing*, else by the thread.
    given: AtomicPtr<Words>,
}

impl Placement {
    pub(crate) const fn new() -> Self {
        Placement {
            state: AtomicU32::new(WIDE),
            given: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Own thread, before any user code runs: sets the allowed mask. The thread has inherited the
    /// mask of the thread that started it, which a fiber may have pinned.
    pub(crate) fn begin(&self, allowed: &Allowed) {
        self.given.store(ptr::null_mut(), Relaxed);
        if let Some(all) = allowed.get()
            && get(0).is_some_and(|own| own != *all)
        {
            self.give(0, all);
        }
    }

    fn give(&self, thread: i32, all: &'static Words) {
        if set(thread, all) {
            self.given.store(ptr::from_ref(all).cast_mut(), Relaxed);
        }
    }

    /// Giver, before it gives the work: true if it may [`narrow`](Self::narrow) the thread
    /// afterwards. Then it must do that or [`leave_wide`](Self::leave_wide).
    #[must_use]
    pub(crate) fn claim(&self) -> bool {
        let claimed = (self.state).compare_exchange(WIDE, NARROWING, SeqCst, SeqCst);
        claimed.is_ok()
    }

    /// Giver that claimed the thread: it has given no work.
    pub(crate) fn leave_wide(&self) {
        self.state.store(WIDE, SeqCst);
    }

    /// Giver that claimed the thread and has given work: moves the thread to the caller's CPU, if
    /// its mask is the runtime's. May be called in a signal handler.
    pub(crate) fn narrow(&self, thread: i32, allowed: &Allowed) {
        let state = self
            .bring_here(thread, allowed)
            .map_or(WIDE, |cpu| NARROW + cpu);
        self.state.store(state, SeqCst);
    }

    fn bring_here(&self, thread: i32, allowed: &Allowed) -> Option<u32> {
        let all = allowed.get()?;
        // SAFETY: takes nothing.
        let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        let here = only(cpu)?;
        let is_a_choice = *all != here && all.iter().zip(here).any(|(all, here)| all & here != 0);
        // SAFETY: as in `Allowed::get`.
        let given = unsafe { self.given.load(Relaxed).as_ref() };
        let outdated = given.filter(|given| *given != all);
        if !is_a_choice && outdated.is_none() {
            return None;
        }
        let own = get(thread)?;
        if own != *all && outdated != Some(&own) {
            return None; // the user's
        }
        if !is_a_choice {
            self.give(thread, all);
            return None;
        }
        set(thread, &here).then_some(cpu)
    }

    /// Own thread, before it runs user code: allows all CPUs again, if a giver narrowed it. May be
    /// called in a signal handler.
    #[inline]
    pub(crate) fn widen(&self, allowed: &Allowed) {
        if self.state.load(SeqCst) != WIDE {
            self.widen_now(allowed);
        }
    }

    #[cold]
    fn widen_now(&self, allowed: &Allowed) {
        let mut state = self.state.load(SeqCst);
        while state == NARROWING {
            sys::thread::yield_now(); // for the length of two system calls
            state = self.state.load(SeqCst);
        }
        let Some(cpu) = state.checked_sub(NARROW) else {
            return;
        };
        // If the kernel does not answer any more, the mask is as the runtime left it.
        if get(0).is_none_or(|own| Some(own) == only(cpu))
            && let Some(all) = allowed.get()
        {
            self.give(0, all);
        }
        self.state.store(WIDE, SeqCst);
    }
}

/// Returns the mask of one CPU.
fn only(cpu: u32) -> Option<Words> {
    let cpu = cpu as usize;
    let mut words: Words = [0; WORDS];
    *words.get_mut(cpu / 64)? = 1 << (cpu % 64);
    Some(words)
}

/// Returns the mask of a thread; zero means the calling thread. Never inlined: the frame of its
/// caller may be one that moves.
#[inline(never)]
fn get(thread: i32) -> Option<Words> {
    let mut words: Words = [0; WORDS];
    let (size, at) = (size_of::<Words>(), words.as_mut_ptr());
    // SAFETY: the kernel writes at most that many bytes.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size, at) };
    (bytes > 0).then_some(words)
}

/// Sets the mask of a thread, as for `get`; false if the kernel refuses.
#[inline(never)]
#[must_use]
fn set(thread: i32, words: &Words) -> bool {
    let (size, at) = (size_of::<Words>(), words.as_ptr());
    // SAFETY: the kernel reads that many bytes.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread, size, at) == 0 }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    /// On a thread of its own, whose mask may be changed; not if there is one CPU only.
    fn with_a_choice(test: impl FnOnce(&Allowed, Words) + Send) {
        let body = || {
            let allowed = Allowed::new();
            allowed.remember();
            let all = get(0).unwrap();
            if all.iter().map(|word| word.count_ones()).sum::<u32>() > 1 {
                test(&allowed, all);
            }
        };
        std::thread::scope(|scope| scope.spawn(body).join().unwrap());
    }

    /// The first CPU of a mask.
    fn first(all: &Words) -> Words {
        let cpu = (0..CPUS as u32).find(|cpu| all[*cpu as usize / 64] >> (cpu % 64) & 1 == 1);
        only(cpu.unwrap()).unwrap()
    }

    fn narrow(placement: &Placement, allowed: &Allowed) {
        assert!(placement.claim());
        placement.narrow(0, allowed);
    }

    #[test]
    fn a_thread_that_was_brought_to_a_cpu_widens_again() {
        with_a_choice(|allowed, all| {
            let placement = Placement::new();
            narrow(&placement, &Allowed::new());
            assert_eq!(get(0), Some(all), "nothing is known yet");
            for _ in 0..3 {
                narrow(&placement, allowed);
                assert_eq!(get(0).unwrap().map(u64::count_ones).iter().sum::<u32>(), 1);
                assert!(!placement.claim(), "it is narrow");
                placement.widen(allowed);
                assert_eq!(get(0), Some(all));
            }
            assert!(placement.claim());
            placement.leave_wide();
            placement.widen(allowed);
            assert_eq!(get(0), Some(all));
        });
    }

    #[test]
    fn a_mask_of_the_users_is_not_changed() {
        with_a_choice(|allowed, all| {
            let placement = Placement::new();
            assert!(set(0, &first(&all)));
            narrow(&placement, allowed);
            placement.widen(allowed);
            assert_eq!(get(0), Some(first(&all)));
        });
    }

    #[test]
    fn a_mask_that_is_set_while_the_thread_is_narrow_stays() {
        with_a_choice(|allowed, all| {
            let placement = Placement::new();
            narrow(&placement, allowed);
            let here = get(0).unwrap();
            let other: Words = std::array::from_fn(|i| all[i] & !here[i]);
            assert!(set(0, &other));
            placement.widen(allowed);
            assert_eq!(get(0), Some(other));
        });
    }

    #[test]
    fn a_mask_the_runtime_gave_follows_that_of_the_process() {
        with_a_choice(|allowed, all| {
            // As if all but one CPU had been away when the thread was last widened.
            let fewer = first(&all);
            let placement = Placement::new();
            assert!(set(0, &fewer));
            let given = ptr::from_ref(known(fewer)).cast_mut();
            placement.given.store(given, Relaxed);
            narrow(&placement, allowed);
            placement.widen(allowed);
            assert_eq!(get(0), Some(all));
        });
    }

    #[test]
    fn a_mask_the_runtime_gave_follows_that_of_the_process_to_a_single_cpu() {
        with_a_choice(|allowed, all| {
            let placement = Placement::new();
            narrow(&placement, allowed);
            placement.widen(allowed);
            let one = Allowed::new();
            let only_one = ptr::from_ref(known(first(&all))).cast_mut();
            one.0.store(only_one, Release);
            narrow(&placement, &one);
            placement.widen(&one);
            assert_eq!(get(0), Some(first(&all)));
        });
    }

    #[test]
    fn a_new_thread_does_not_inherit_a_pin() {
        with_a_choice(|allowed, all| {
            assert!(set(0, &first(&all)));
            Placement::new().begin(allowed);
            assert_eq!(get(0), Some(all));
        });
    }
}
