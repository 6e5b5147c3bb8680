//! Fibers that wait for each other, more of them than there may be threads.
//!
//! A bound fiber keeps its thread while it is parked. The setting `bind_everything` makes all
//! fibers bound, as they are in a stripped program. Where there may not be enough threads, the
//! fibers that have not started end with an error that says so; nothing hangs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use indent::runtime::{Builder, Runtime};
use indent::sync::Barrier;
use indent::task::{JoinHandle, Phase};

/// Sets a limit that holds for starts.
pub(crate) fn at_most_64(builder: Builder) -> Builder {
    builder.max_carriers(64).soft_carriers(64)
}

/// Sets a limit that is exceeded when otherwise nothing makes progress.
pub(crate) fn about_64(builder: Builder) -> Builder {
    builder.soft_carriers(64)
}

fn at_barrier(rt: &Runtime, fibers: usize) -> Vec<JoinHandle<bool>> {
    let barrier = Arc::new(Barrier::new(fibers));
    let wait = || {
        let barrier = barrier.clone();
        rt.spawn(move || barrier.wait().is_leader())
    };
    (0..fibers).map(|_| wait()).collect()
}

/// Checks that within the default limits all fibers arrive, even if each needs a thread.
pub(crate) fn barrier(rt: &Runtime) {
    let fibers = at_barrier(rt, 3000);
    let leaders = fibers.into_iter().map(|fiber| fiber.join().unwrap());
    assert_eq!(leaders.filter(|leads| *leads).count(), 1);
}

/// Checks that at a limit of 64 threads a few fibers arrive, and the others end with the error.
pub(crate) fn barrier_of_bound(rt: &Runtime) {
    rt.handle().bind_everything(true);
    let fibers = at_barrier(rt, 100_000);
    let waits = |fiber: &JoinHandle<bool>| fiber.fiber().phase() == Phase::Parked;
    let mut parked = Vec::new();
    let mut failed = 0;
    for fiber in fibers {
        while !fiber.is_finished() && !waits(&fiber) {
            thread::sleep(Duration::from_millis(10));
        }
        if fiber.is_finished() {
            let error = fiber.join().expect_err("not all came");
            assert!(error.is_no_thread(), "{error}");
            failed += 1;
        } else {
            parked.push(fiber);
        }
    }
    // The two workers may admit one fiber each at the same moment.
    assert!((1..=65).contains(&parked.len()), "{} came", parked.len());
    assert_eq!(failed + parked.len(), 100_000);
}

/// Runs parents that each join a child.
///
/// Returns how many got its result, and how many ended without a thread.
fn parents(rt: &Runtime) -> (usize, usize) {
    rt.handle().bind_everything(true);
    let parent = || match indent::spawn(|| 1).join() {
        Ok(one) => one,
        Err(error) => {
            assert!(error.is_no_thread(), "{error}");
            0
        }
    };
    let parents: Vec<_> = (0..5000).map(|_| rt.spawn(parent)).collect();
    let (mut joined, mut failed) = (0, 0);
    for parent in parents {
        match parent.join() {
            Ok(1) => joined += 1,
            Ok(_) => failed += 1,
            Err(error) => {
                assert!(error.is_no_thread(), "{error}");
                failed += 1;
            }
        }
    }
    (joined, failed)
}

/// Checks that children end with the error while parents hold all threads, until some parents end.
pub(crate) fn parents_of_bound(rt: &Runtime) {
    let (joined, failed) = parents(rt);
    assert_eq!(joined + failed, 5000);
}

/// Checks that more threads are made, so that every parent gets its child's result.
pub(crate) fn parents_beyond_soft(rt: &Runtime) {
    assert_eq!(parents(rt), (5000, 0));
}
