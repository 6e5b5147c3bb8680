//! Thread-locals: a value that is borrowed, counted or restored there belongs to one fiber at a
//! time.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::Program;
use crate::noise::{compute_for, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[Program::new(
    "thread-local",
    "a RefCell borrowed for 50 ms in `with`, a value put back after a while",
    thread_local,
)];

thread_local! {
    static BUFFER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static DEPTH: Cell<u64> = const { Cell::new(0) };
}

const FIBERS: usize = 6;

/// Uses thread-locals in ways that are right on a thread; nothing here calls the runtime.
fn thread_local(stage: &'static Stage) {
    stage.crew(FIBERS, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            if i % 2 == 0 {
                borrowed(stage, turn);
            } else {
                restored(stage, i as u64 + 1);
            }
        }
    });
}

fn borrowed(stage: &Stage, turn: u64) {
    let thread = std::thread::current().id();
    BUFFER.with(|buffer| {
        let Ok(mut buffer) = buffer.try_borrow_mut() else {
            return stage.complain("somebody else's borrow on this thread".to_owned());
        };
        buffer.clear();
        buffer.extend((0..100).map(|i| stir(turn + i)));
        compute_for(Duration::from_millis(50));
        let intact = (0..100)
            .zip(buffer.iter())
            .all(|(i, &x)| x == stir(turn + i));
        stage.same("the buffer after 50 ms", intact, true);
    });
    stage.same("the thread", std::thread::current().id(), thread);
}

/// Sets a context as crates do: the previous value comes back when the callback returns.
fn restored(stage: &Stage, own: u64) {
    let before = DEPTH.replace(own);
    compute_for(Duration::from_millis(5));
    stage.same("the context", DEPTH.replace(before), own);
    stage.same("the context outside", before, 0);
}
