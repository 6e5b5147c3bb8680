#![expect(unsafe_code, reason = "forks")]
//! `fork` without `exec`, in the middle of a fiber.
//!
//! The child has one thread and no runtime. A spawn reports that instead of hanging; blocking calls
//! behave as on a plain thread; computing continues. Only the forking fibers here take locks of
//! std: a lock that another thread holds at that moment stays locked in the child forever.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason, Woken};
use indent::task;

use super::Program;
use crate::noise::{compute_for, mix};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[Program::new(
    "fork",
    "a child without exec knows that it has no runtime, and goes on as a thread",
    fork,
)
.pure()
.apart()];

/// A child that hangs is ended by a signal after this many seconds.
const CHILD_SECONDS: u32 = 30;

/// Results of a child's checks; zero is success.
const SPAWNED: i32 = 1;
const SILENT: i32 = 2;
const DID_NOT_PANIC: i32 = 3;
const EARLY: i32 = 4;
const WRONG_WAKE: i32 = 5;
const WRONG_SUM: i32 = 6;

fn sum(seed: u64) -> u64 {
    (0..20_000).fold(seed, mix)
}

fn fork(stage: &'static Stage) {
    let expected = sum(stage.seed);
    stage.crew(4, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            pure(|| compute_for(Duration::from_micros(500)));
            if i % 2 == 0 {
                let got = pure(|| sum(stage.seed));
                stage.same("a result beside children", got, expected);
                continue;
            }
            // SAFETY: the child calls the runtime, allocates, and ends by `_exit`.
            let id = unsafe { libc::fork() };
            assert!(id >= 0, "a process");
            if id == 0 {
                let found = child(stage.seed, expected);
                // SAFETY: the call ends the child, whose buffers are the parent's.
                unsafe { libc::_exit(found) };
            }
            stage.same("the status of a child", wait(id), 0);
        }
    });
}

/// Runs the checks in the child; returns the number of the one that failed.
fn child(seed: u64, expected: u64) -> i32 {
    // SAFETY: the default action of the signal ends the process.
    unsafe { libc::alarm(CHILD_SECONDS) };
    match task::Builder::new().try_spawn(|| ()) {
        Ok(_) => return SPAWNED,
        Err(error) if !error.to_string().contains("fork") => return SILENT,
        Err(_) => {}
    }
    if cfg!(panic = "unwind") && !spawning_panics() {
        return DID_NOT_PANIC;
    }
    let (start, nap) = (Instant::now(), Duration::from_millis(2));
    indent::time::sleep(nap);
    if start.elapsed() < nap {
        return EARLY;
    }
    if park::park_until(Some(Instant::now() + nap), ParkReason::Park) != Woken::ByDeadline {
        return WRONG_WAKE;
    }
    park::unparker().unpark();
    park::park();
    if sum(seed) == expected { 0 } else { WRONG_SUM }
}

/// Returns true if `spawn`, which cannot return an error, panics; discards its message.
fn spawning_panics() -> bool {
    let nowhere = File::options().write(true).open("/dev/null");
    // SAFETY: both descriptors are open, and this process is about to end.
    nowhere.is_ok_and(|nowhere| unsafe { libc::dup2(nowhere.as_raw_fd(), 2) } == 2)
        && catch_unwind(|| drop(indent::spawn(|| ()))).is_err()
}

/// Waits for a child and returns its status; blocks the thread.
fn wait(id: libc::pid_t) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: `status` has room for the result.
        let waited = unsafe { libc::waitpid(id, &mut status, 0) };
        if waited == id {
            return status;
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
    }
}
