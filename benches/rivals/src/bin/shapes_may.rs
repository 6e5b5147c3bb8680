//! The benchmark shapes on may's coroutines.
//!
//! All settings of may but the number of workers are left as they are.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indent_rivals::{Gap, Rival, Rounds, WORKERS};
use may::coroutine::{self, Coroutine};
use may::go;

/// The process-wide scheduler of may.
struct May;

impl May {
    /// Runs a closure as a coroutine, and waits for it.
    fn on_worker<T: Send + 'static>(closure: impl FnOnce() -> T + Send + 'static) -> T {
        go!(closure).join().expect("no coroutine panics")
    }
}

/// What the last coroutine of a chain signals.
struct Done {
    /// Whether it has.
    reached: AtomicBool,
    /// The coroutine that waits for it.
    waiter: Coroutine,
}

/// One link of the chain.
fn link(left: u64, done: Arc<Done>) {
    if left == 0 {
        done.reached.store(true, Ordering::Release);
        done.waiter.unpark();
    } else {
        drop(go!(move || link(left - 1, done)));
    }
}

impl Rival for May {
    fn spawn_join(&self, count: u64) -> u64 {
        Self::on_worker(move || {
            let handles: Vec<_> = (0..count).map(|index| go!(move || index)).collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("no coroutine panics"))
                .sum()
        })
    }

    fn yields(&self, fibers: u64, yields: u64) -> u64 {
        Self::on_worker(move || {
            let handles: Vec<_> = (0..fibers)
                .map(|_| {
                    go!(move || {
                        for _ in 0..yields {
                            coroutine::yield_now();
                        }
                        yields
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("no coroutine panics"))
                .sum()
        })
    }

    fn chain(&self, count: u64) {
        Self::on_worker(move || {
            let done = Arc::new(Done {
                reached: AtomicBool::new(false),
                waiter: coroutine::current(),
            });
            link(count, Arc::clone(&done));
            while !done.reached.load(Ordering::Acquire) {
                coroutine::park();
            }
        });
    }

    fn wake(&self, rounds: u64, gap: Gap) -> Duration {
        Self::on_worker(move || {
            let shared = Arc::new(Rounds::default());
            let woken = coroutine::current();
            let driver = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.drive(rounds, gap, || woken.unpark())
            });
            for round in 1..=rounds {
                coroutine::park();
                while !shared.has_sent(round) {
                    coroutine::park();
                }
                shared.answer(round);
            }
            driver.join().expect("the waking thread does not panic")
        })
    }
}

fn main() -> ExitCode {
    may::config().set_workers(WORKERS);
    indent_rivals::main(&May)
}
