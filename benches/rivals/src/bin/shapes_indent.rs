//! The benchmark shapes on indent.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indent::park::{self, Unparker};
use indent::{Runtime, runtime, task};
use indent_rivals::{Gap, Rival, Rounds, WORKERS, mixed};
use rayon::prelude::*;

/// A runtime of indent.
struct Indent(Runtime);

/// What the last fiber of a chain signals.
struct Done {
    /// Whether it has.
    reached: AtomicBool,
    /// Wakes the fiber that waits for it.
    waiter: Unparker,
}

/// One link of the chain.
fn link(left: u64, done: Arc<Done>) {
    if left == 0 {
        done.reached.store(true, Ordering::Release);
        done.waiter.unpark();
    } else {
        drop(indent::spawn(move || link(left - 1, done)));
    }
}

impl Indent {
    /// Spawns `fibers` fibers that make `calls` calls each; returns how many were made.
    fn call(&self, fibers: u64, calls: u64, call: fn(u64) -> u64) -> u64 {
        self.0.block_on(move || {
            let body = move || (0..calls).map(|_| call(1)).sum();
            let handles: Vec<_> = (0..fibers).map(|_| indent::spawn(body)).collect();
            let made = |handle: indent::JoinHandle<u64>| handle.join().expect("no fiber panics");
            handles.into_iter().map(made).sum()
        })
    }
}

impl Rival for Indent {
    fn compute(&self, count: u64) -> u64 {
        self.0.block_on(|| {
            runtime::compute(|| {
                (0..count)
                    .into_par_iter()
                    .map(mixed)
                    .reduce(|| 0, u64::wrapping_add)
            })
        })
    }

    fn blocking(&self, fibers: u64, calls: u64) -> u64 {
        self.call(fibers, calls, |n| runtime::blocking(|| n))
    }

    fn spawn_blocking(&self, fibers: u64, calls: u64) -> u64 {
        self.call(fibers, calls, |n| {
            let call = runtime::spawn_blocking(move || n);
            call.join().expect("no call panics")
        })
    }

    fn spawn_join(&self, count: u64) -> u64 {
        self.0.block_on(move || {
            let handles: Vec<_> = (0..count)
                .map(|index| indent::spawn(move || index))
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("no fiber panics"))
                .sum()
        })
    }

    fn yields(&self, fibers: u64, yields: u64) -> u64 {
        self.0.block_on(move || {
            let handles: Vec<_> = (0..fibers)
                .map(|_| {
                    indent::spawn(move || {
                        for _ in 0..yields {
                            task::yield_now();
                        }
                        yields
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("no fiber panics"))
                .sum()
        })
    }

    fn chain(&self, count: u64) {
        self.0.block_on(move || {
            let done = Arc::new(Done {
                reached: AtomicBool::new(false),
                waiter: park::unparker(),
            });
            link(count, Arc::clone(&done));
            while !done.reached.load(Ordering::Acquire) {
                park::park();
            }
        });
    }

    fn wake(&self, rounds: u64, gap: Gap) -> Duration {
        self.0.block_on(move || {
            let shared = Arc::new(Rounds::default());
            let unparker = park::unparker();
            let driver = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.drive(rounds, gap, || unparker.unpark())
            });
            for round in 1..=rounds {
                park::park();
                while !shared.has_sent(round) {
                    park::park();
                }
                shared.answer(round);
            }
            driver.join().expect("the waking thread does not panic")
        })
    }
}

fn main() -> ExitCode {
    let runtime = runtime::Builder::new()
        .workers(WORKERS)
        .build()
        .expect("the runtime starts");
    indent_rivals::main(&Indent(runtime))
}
