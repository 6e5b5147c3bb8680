//! Fibers that parked before the survey keep their threads only until the code has been read.
//!
//! This test is alone in its program because the code is read once per process.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use indent::runtime::{Builder, Survey};

mod common;

/// As many fibers as may start before the survey has ended, with one worker.
const FIBERS: usize = 40;

#[test]
fn threads_of_fibers_with_values_of_their_own_are_given_back_when_the_survey_ends() {
    if common::sanitizer_forbids("thread-locals are the threads' there") {
        return;
    }
    if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
        return common::skip("the C library is linked statically");
    }
    let rt = Builder::new().workers(2).build().expect("a runtime");
    let parked = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..FIBERS)
        .map(|_| {
            let parked = parked.clone();
            rt.spawn(move || {
                let before = thread::current().id(); // created for the fiber, in a thread-local
                parked.fetch_add(1, SeqCst);
                indent::park::park();
                (before, thread::current().id())
            })
        })
        .collect();
    common::wait_for("all are parked", || parked.load(SeqCst) == FIBERS);
    if rt.handle().wait_until_surveyed(Some(Duration::ZERO)) == Survey::Done {
        common::skip("the code was read before the fibers parked");
    }
    assert_eq!(rt.wait_until_surveyed(None), Survey::Done);
    common::wait_for("their threads are free", || {
        rt.metrics().carriers_bound == 0
    });
    let mut seen = HashSet::new();
    for fiber in fibers {
        fiber.unparker().unpark();
        let (before, after) = fiber.join().expect("no panic");
        assert_eq!(before, after, "its own value");
        assert!(seen.insert(after), "{after:?} is another fiber's");
    }
}
