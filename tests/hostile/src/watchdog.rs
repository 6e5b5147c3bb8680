#![expect(unsafe_code, reason = "ends the process at once")]
//! Ends the process when it hangs, and prints what is visible then.
//!
//! A process that hangs may hold any lock, the allocator's too. So the first line was made at the
//! start and is written as it is. A thread of its own gathers the rest, within some seconds. The
//! process ends without running exit handlers.

use std::fmt::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use indent::runtime::Handle;

use crate::say;

/// Exit code of a process that hung.
const HUNG: i32 = 3;
/// Time to print what is visible.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Most fibers and threads that are shown.
const MOST_SHOWN: usize = 100;

/// While this exists the process may run, for a limited time.
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub(crate) fn start(name: &str, runtime: Handle, limit: Duration) -> Self {
        let (alive, over) = mpsc::channel();
        let first = format!("{name} HANGS: not done after {limit:?}\n");
        let watch = move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                say::raw(first.as_bytes());
                last_words(runtime);
                // SAFETY: the call ends the process; no memory is touched after it.
                unsafe { libc::_exit(HUNG) };
            }
        };
        thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watch)
            .expect("a thread");
        Watchdog { _alive: alive }
    }
}

fn last_words(runtime: Handle) {
    let (done, over) = mpsc::channel();
    let tell = move || {
        say::say(&threads());
        say::say(&format!("{:?}", runtime.metrics()));
        say::say(&fibers(&runtime));
        done.send(()).ok(); // the receiver may have stopped waiting
    };
    let teller = thread::Builder::new().spawn(tell);
    if teller.is_err() || over.recv_timeout(LAST_WORDS).is_err() {
        say::raw(b"and not even that can be told: the rest hangs, too\n");
    }
}

/// Lists all threads of the process: their names, their states, where in the kernel they sleep.
fn threads() -> String {
    let mut text = String::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten().take(MOST_SHOWN) {
        let read = |file: &str| {
            let content = std::fs::read_to_string(task.path().join(file));
            content.unwrap_or_default().trim().to_owned()
        };
        let stat = read("stat");
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        let (state, call) = (state.unwrap_or('?'), read("syscall"));
        let id = task.file_name();
        writeln!(
            text,
            "thread {} {} {state} {call}",
            id.display(),
            read("comm")
        )
        .expect("a string");
    }
    text
}

fn fibers(runtime: &Handle) -> String {
    let mut text = String::new();
    for fiber in runtime.fibers().into_iter().take(MOST_SHOWN) {
        let (name, binding) = (fiber.name().unwrap_or("?"), fiber.binding());
        let (phase, reason, verdict) = (fiber.phase(), fiber.park_reason(), binding.mobility());
        writeln!(
            text,
            "fiber {} {name} {phase:?} {reason:?} {verdict:?}",
            fiber.id()
        )
        .expect("a string");
    }
    text
}
