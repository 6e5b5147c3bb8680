//! The benchmark shapes on tokio's multi-threaded runtime.
//!
//! `block_on` runs its future on the calling thread, outside the workers, so that everything
//! measured is in a task spawned from there.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use indent_rivals::{Gap, Rival, Rounds, WORKERS};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};
use tokio::task;

/// A runtime of tokio.
struct Tokio(Runtime);

impl Tokio {
    /// Runs a future as a task on the workers, and waits for it.
    fn on_worker<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.0
            .block_on(async { tokio::spawn(future).await.expect("no task panics") })
    }
}

/// One link of the chain.
fn link(left: u64, done: oneshot::Sender<()>) {
    if left == 0 {
        done.send(())
            .expect("someone waits for the end of the chain");
    } else {
        drop(tokio::spawn(async move { link(left - 1, done) }));
    }
}

impl Rival for Tokio {
    fn spawn_join(&self, count: u64) -> u64 {
        self.on_worker(async move {
            let handles: Vec<_> = (0..count)
                .map(|index| tokio::spawn(async move { index }))
                .collect();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.expect("no task panics");
            }
            sum
        })
    }

    fn yields(&self, fibers: u64, yields: u64) -> u64 {
        self.on_worker(async move {
            let handles: Vec<_> = (0..fibers)
                .map(|_| {
                    tokio::spawn(async move {
                        for _ in 0..yields {
                            task::yield_now().await;
                        }
                        yields
                    })
                })
                .collect();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.expect("no task panics");
            }
            sum
        })
    }

    fn blocking(&self, fibers: u64, calls: u64) -> u64 {
        self.on_worker(async move {
            let handles: Vec<_> = (0..fibers)
                .map(|_| {
                    tokio::spawn(async move {
                        let mut made = 0;
                        for _ in 0..calls {
                            made += task::spawn_blocking(|| 1).await.expect("no call panics");
                        }
                        made
                    })
                })
                .collect();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.expect("no task panics");
            }
            sum
        })
    }

    fn chain(&self, count: u64) {
        self.on_worker(async move {
            let (done, end) = oneshot::channel();
            link(count, done);
            end.await.expect("the chain ends by signalling");
        });
    }

    fn wake(&self, rounds: u64, gap: Gap) -> Duration {
        self.on_worker(async move {
            let shared = Arc::new((Rounds::default(), Notify::new()));
            let driver = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.0.drive(rounds, gap, || shared.1.notify_one())
            });
            for round in 1..=rounds {
                shared.1.notified().await;
                while !shared.0.has_sent(round) {
                    shared.1.notified().await;
                }
                shared.0.answer(round);
            }
            driver.join().expect("the waking thread does not panic")
        })
    }
}

fn main() -> ExitCode {
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .build()
        .expect("the runtime starts");
    indent_rivals::main(&Tokio(runtime))
}
