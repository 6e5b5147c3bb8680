//! The threads' own thread-locals, beside those of fibers: hooks set them, and settings can name
//! them.
//!
//! These tests have a program of their own because hooks are called through a pointer. If one hook
//! leaves something with the thread, every function that calls through a pointer is bound.

use std::cell::Cell;
use std::sync::Mutex;

use indent::runtime::Builder;
use indent::task;

mod common;

thread_local! {
    static KEPT: Cell<u64> = const { Cell::new(0) };
    static COUNT: Cell<u64> = const { Cell::new(7) };
}

fn builder() -> Builder {
    Builder::new().per_thread("locals_hooks::KEPT").workers(2)
}

/// Reports why a test cannot run where thread-locals belong to threads.
fn cannot_run() -> bool {
    let is_static = cfg!(any(target_env = "musl", target_feature = "crt-static"));
    if is_static {
        common::skip("the C library is linked statically");
    }
    is_static || common::sanitizer_forbids("thread-locals are the threads' there")
}

#[test]
fn a_variable_that_was_named_stays_with_the_thread() {
    if cannot_run() {
        return;
    }
    let rt = builder().on_thread_start(|| KEPT.set(77)).build().unwrap();
    for _ in 0..20 {
        assert_eq!(rt.spawn(|| KEPT.get()).join().unwrap(), 77);
    }
    let late = Builder::new()
        .per_thread("locals_hooks::COUNT")
        .build()
        .unwrap_err();
    assert!(late.to_string().contains("locals_hooks::COUNT"), "{late}");
}

#[test]
fn the_threads_own_values_are_there_when_it_begins_and_ends() {
    if cannot_run() {
        return;
    }
    static ENDED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let rt = builder()
        .on_thread_start(|| COUNT.set(1000))
        .on_thread_stop(|| ENDED.lock().unwrap().push(COUNT.get()))
        .build()
        .unwrap();
    let count = |own| {
        for turn in 0..20 {
            assert_eq!(COUNT.replace(own + turn), if turn == 0 { 7 } else { own });
            task::yield_now();
            assert_eq!(COUNT.replace(own), own + turn);
        }
    };
    let fibers: Vec<_> = (0..50).map(|own| rt.spawn(move || count(own))).collect();
    for fiber in fibers {
        fiber.join().unwrap();
    }
    drop(rt);
    let ended = ENDED.lock().unwrap();
    assert!(
        ended.len() >= 2 && ended.iter().all(|count| *count == 1000),
        "{ended:?}"
    );
}
