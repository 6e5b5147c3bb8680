#![expect(unsafe_code, reason = "points standard error elsewhere")]
//! Panics: counted per thread, unwound with the loader's tables, printed under a lock.

use std::backtrace::Backtrace;
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::time::Duration;

use super::Program;
use crate::noise::{compute_for, mix, stir};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "panic-loop",
        "unwinding, interrupted in the middle",
        panic_loop,
    )
    .pure()
    .unwinds(),
    Program::new(
        "panic-messages",
        "std's own hook prints and traces while siblings panic",
        messages,
    )
    .unwinds()
    .apart(),
    Program::new(
        "panic-joined",
        "fibers that end by a panic, and those who join them",
        joined,
    )
    .pure()
    .unwinds(),
    Program::new(
        "park-in-drop",
        "a destructor parks while its fiber unwinds",
        park_in_drop,
    )
    .pure()
    .unwinds(),
    Program::new(
        "backtrace",
        "walks and names stacks while others do, too",
        backtrace,
    ),
];

const FIBERS: usize = 6;

/// Payload of the panics here; unlike a message it bypasses the hook.
struct Payload(u64);

/// Adds to a sum when it is dropped, slowly.
struct Slow<'a>(&'a mut u64, u64);

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        let stirred = (0..300).fold(self.1, |x, _| stir(black_box(x)));
        *self.0 = mix(*self.0, stirred);
    }
}

/// Recurses with a value to drop in each frame, and panics in the last one.
fn descend(depth: u64, sums: &mut Vec<u64>) {
    let mut own = depth;
    let slow = Slow(&mut own, depth);
    if depth == 0 {
        resume_unwind(Box::new(Payload(sums.len() as u64)));
    }
    sums.push(stir(depth));
    descend(depth - 1, sums);
    drop(slow);
}

pub(super) fn caught(seed: u64) -> u64 {
    let mut sums = Vec::new();
    let mut total = 0;
    for i in 0..10 {
        let depth = 5 + (seed + i) % 20;
        let result = catch_unwind(AssertUnwindSafe(|| descend(depth, &mut sums)));
        let payload = result.expect_err("a panic").downcast::<Payload>();
        total = mix(total, payload.expect("our own").0);
        total = mix(total, u64::from(std::thread::panicking()));
    }
    sums.iter().fold(total, |sum, &value| mix(sum, value))
}

fn panic_loop(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, caught);
}

/// Panics with the message and sometimes the default trace; the output is discarded.
fn messages(stage: &'static Stage) {
    let nowhere = File::options()
        .write(true)
        .open("/dev/null")
        .expect("a file");
    // SAFETY: both descriptors are open; text on standard error from here on is lost, and the
    // framework has its own copy.
    let copied = unsafe { libc::dup2(nowhere.as_raw_fd(), 2) };
    assert_eq!(copied, 2, "a copy");
    stage.repeat(FIBERS, |seed| {
        (0..3).fold(seed, |sum, i| {
            let result = catch_unwind(|| {
                let index = black_box(seed as usize + i);
                black_box([1, 2, 3])[index + 3]
            });
            let payload = result.expect_err("out of bounds");
            let text = payload.downcast::<String>().expect("a message");
            text.bytes()
                .fold(sum, |sum, byte| mix(sum, u64::from(byte)))
        })
    });
}

/// Checks that a panic reaches the joiner, and no other fiber.
fn joined(stage: &'static Stage) {
    stage.crew(4, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            let number = (i * 1000 + turn) as u64;
            let child = indent::spawn(move || {
                pure(|| compute_for(Duration::from_micros(300)));
                let mut sums = Vec::new();
                if !number.is_multiple_of(3) {
                    descend(number % 7, &mut sums);
                }
                number
            });
            match child.join() {
                Ok(got) => stage.same("a result", (got, number % 3), (number, 0)),
                Err(error) => {
                    let payload = error.into_panic().downcast::<Payload>();
                    let carried = payload.map(|payload| payload.0).ok();
                    stage.same("a payload", carried, Some(number % 7));
                }
            }
        }
    });
}

/// Waits briefly while the fiber unwinds, and checks that it still does.
struct Waits<'a>(&'a Stage);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let (thread, unwinding) = (std::thread::current().id(), std::thread::panicking());
        indent::time::sleep(Duration::from_millis(2));
        let after = (std::thread::current().id(), std::thread::panicking());
        self.0
            .same("thread and unwinding", after, (thread, unwinding));
    }
}

/// Parks in destructors while others compute, which must not think they unwind, too.
fn park_in_drop(stage: &'static Stage) {
    stage.crew(FIBERS, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            if i % 2 == 0 {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let _waits = Waits(stage);
                    pure(|| compute_for(Duration::from_millis(1)));
                    panic_quietly(turn)
                }));
                let number = result.err().and_then(|e| e.downcast::<Payload>().ok());
                stage.same("a payload", number.map(|p| p.0), Some(turn));
            } else {
                pure(|| compute_for(Duration::from_millis(2)));
                stage.same("unwinding", std::thread::panicking(), false);
                indent::time::sleep(Duration::from_millis(1));
            }
        }
    });
}

fn panic_quietly(number: u64) {
    if black_box(true) {
        resume_unwind(Box::new(Payload(number)));
    }
    panic_any(number);
}

fn backtrace(stage: &'static Stage) {
    stage.crew(4, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            let trace = deeper(10);
            // Names take long, and need symbols in the program.
            if turn % 8 == i {
                std::hint::black_box(trace.to_string());
            }
            stage.round();
        }
    });
}

#[inline(never)]
fn deeper(depth: u32) -> Backtrace {
    if depth == 0 {
        return Backtrace::force_capture();
    }
    black_box(deeper(black_box(depth - 1)))
}
