//! The runtime's part in reading the program's code, which shows what binds fibers.
//!
//! The collector has the code read by a thread that belongs to the process, and judges all parked
//! fibers again when that is done.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use indent_sysmon::frames::{self, Declaration, Misfit};

use crate::sched::Shared;
use crate::sched::background::helper::STUDY;
use crate::sys::stderr;

/// How often the collector checks whether the program's code has been read.
const STUDY_PAUSE: Duration = Duration::from_millis(2);

/// State of the survey: how far the program's machine code has been read.
///
/// The runtime finds out from it which fibers may change threads; see
/// [`Handle::wait_until_surveyed`](crate::runtime::Handle::wait_until_surveyed).
///
/// ```
/// use indent::runtime::{Builder, Survey};
///
/// let rt = Builder::new().workers(1).build()?;
/// if rt.wait_until_surveyed(None) == Survey::NoSymbols {
///     eprintln!("stripped: expect one thread for each parked fiber");
/// }
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Survey {
    /// The code is still being read. Every started fiber counts as bound to its thread.
    Pending,
    /// All code has been read, and all parked fibers have been judged.
    Done,
    /// Like `Done`, but functions have no names.
    ///
    /// The program was stripped, or its file cannot be read. Nearly every fiber counts as bound,
    /// for good.
    NoSymbols,
    /// Reading the code failed. Every started fiber counts as bound, for good.
    Failed,
}

impl Shared {
    pub(in crate::sched) fn study_if(&self, asked: u32) -> Option<Duration> {
        if asked & STUDY != 0 {
            frames::study();
        }
        if self.watchers.judged_again.load(Relaxed) || frames::has_failed() {
            return None;
        }
        let Some(judge) = frames::judge() else {
            return Some(STUDY_PAUSE);
        };
        self.judge_again();
        self.explain_in_place();
        self.requeue_threadless();
        if judge.lacks_symbols() {
            self.report_missing_symbols();
        }
        report_misfits(judge.misfits());
        self.watchers.judged_again.store(true, SeqCst);
        None
    }

    /// Returns the state of the survey.
    pub(crate) fn survey(&self) -> Survey {
        // Without the collector no fiber is judged again, and a survey may not have begun.
        let looked = self.watchers.judged_again.load(SeqCst);
        match frames::judge() {
            _ if frames::has_failed() => Survey::Failed,
            Some(judge) if looked || self.is_stopping() => match judge.lacks_symbols() {
                true => Survey::NoSymbols,
                false => Survey::Done,
            },
            _ => Survey::Pending,
        }
    }

    /// Reports what missing function names cost, once per process.
    ///
    /// Called on the collector's thread.
    fn report_missing_symbols(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if self.settings.warn_stripped && !SAID.swap(true, SeqCst) {
            stderr::print(
                "indent: the program has no symbols of functions (it was stripped, or its file \
                 cannot be read), so nearly every fiber counts as bound and keeps a thread while it \
                 is parked. Build it with strip = \"debuginfo\" in the Cargo profile, which keeps \
                 the symbols, or set INDENT_WARN_STRIPPED=0 to silence this line\n",
            );
        }
    }
}

/// Reports declarations that match nothing, once per process.
///
/// Called on the collector's thread.
fn report_misfits(misfits: &[Misfit]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if misfits.is_empty() || SAID.swap(true, SeqCst) {
        return;
    }
    for misfit in misfits {
        stderr::print(&misfit_line(misfit));
    }
}

fn misfit_line(misfit: &Misfit) -> String {
    let name = misfit.declaration.name();
    let near = match misfit.near.join(" or ") {
        near if near.is_empty() => String::new(),
        near => format!(" (did you mean {near}?)"),
    };
    match misfit.declaration {
        Declaration::ThreadLocal(_) => format!(
            "indent: Builder::harmless_thread_local has no effect: the program has no thread-local \
             {name}{near}\n"
        ),
        Declaration::Function(_) => format!(
            "indent: Builder::harmless_function has no effect: the program has no function \
             {name}{near}; one that the compiler inlines needs #[inline(never)]\n"
        ),
    }
}
