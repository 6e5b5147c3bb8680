//! Fibers that parked before the program's code had been read do not keep their threads for long.
//!
//! Alone in its program: the code is read once in a process.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use indent::runtime::{Builder, Survey};

mod common;

/// As many as may start before the survey has ended, with one worker.
const FIBERS: usize = 40;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    static TEXT: Cell<Option<String>> = const { Cell::new(None) };
}

#[inline(never)]
fn set(number: usize) {
    NUMBER.set(number);
    TEXT.set(Some(format!("fiber {number}")));
}

#[inline(never)]
fn get() -> (usize, Option<String>) {
    (NUMBER.get(), TEXT.take())
}

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
    let fibers: Vec<_> = (1..=FIBERS)
        .map(|number| {
            let parked = parked.clone();
            rt.spawn(move || {
                set(number);
                parked.fetch_add(1, SeqCst);
                indent::park::park();
                get()
            })
        })
        .collect();
    common::wait_for("all are parked", || parked.load(SeqCst) == FIBERS);
    if rt
        .handle()
        .wait_until_surveyed(Some(std::time::Duration::ZERO))
        == Survey::Done
    {
        common::skip("the code was read before the fibers parked");
    }
    assert_eq!(rt.wait_until_surveyed(None), Survey::Done);
    common::wait_for("their threads are free", || {
        rt.metrics().carriers_occupied == 0
    });
    for (number, fiber) in (1..).zip(fibers) {
        fiber.unparker().unpark();
        let (own, text) = fiber.join().expect("no panic");
        assert_eq!(own, number, "its own value");
        assert_eq!(text, Some(format!("fiber {number}")));
    }
}
