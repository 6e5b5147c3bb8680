//! The benchmark shapes on tokio's multi-threaded runtime.
//!
//! `block_on` runs its future on the calling thread, outside the workers, so that everything
//! measured is in a task spawned from there. Only the shapes that need it have a time driver.

use std::future;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use indent_rivals::{
    Cancelled, Gap, Rival, Rounds, WORKERS, lateness, pending_lengths, timer_lengths,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};
use tokio::task::{self, JoinHandle};
use tokio::time;

/// Runtimes of tokio, each started when it is first used.
struct Tokio {
    /// Without drivers.
    plain: LazyLock<Runtime>,
    /// With a time driver.
    timed: LazyLock<Runtime>,
}

impl Tokio {
    /// Runs a future as a task on the workers, and waits for it.
    fn on_worker<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        on_worker_of(&self.plain, future)
    }
}

/// Starts a runtime.
fn start(builder: &mut Builder) -> Runtime {
    let builder = builder.worker_threads(WORKERS);
    builder.build().expect("the runtime starts")
}

/// Runs a future as a task on the workers of a runtime, and waits for it.
fn on_worker_of<F>(runtime: &Runtime, future: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    runtime.block_on(async { tokio::spawn(future).await.expect("no task panics") })
}

/// Has as many tasks sleep, until they are aborted.
async fn sleep_many(count: u64) -> Vec<JoinHandle<()>> {
    let started = Arc::new(AtomicU64::new(0));
    let body = async |started: Arc<AtomicU64>, length| {
        started.fetch_add(1, Ordering::Relaxed);
        time::sleep(length).await;
    };
    let tasks = pending_lengths()
        .take(count as usize)
        .map(|length| tokio::spawn(body(Arc::clone(&started), length)))
        .collect();
    while started.load(Ordering::Relaxed) < count {
        time::sleep(Duration::from_millis(1)).await;
    }
    time::sleep(Duration::from_millis(20)).await; // those that have started are asleep by then
    tasks
}

/// Sets a timer, and cancels it without ever waiting for it.
async fn set_and_cancel(length: Duration) {
    let mut sleep = pin!(time::sleep(length));
    future::poll_fn(|cx| {
        assert!(
            sleep.as_mut().poll(cx).is_pending(),
            "set by the first poll"
        );
        Poll::Ready(())
    })
    .await;
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

    fn sleepers(&self, lengths: Vec<Duration>) -> Vec<u64> {
        on_worker_of(&self.timed, async move {
            let handles: Vec<_> = lengths
                .into_iter()
                .map(|length| {
                    tokio::spawn(async move {
                        let start = Instant::now();
                        time::sleep(length).await;
                        lateness(start, length)
                    })
                })
                .collect();
            let mut late = Vec::with_capacity(handles.len());
            for handle in handles {
                late.push(handle.await.expect("no task panics"));
            }
            late
        })
    }

    fn timer_cancel(&self, count: u64, pending: u64) -> Cancelled {
        on_worker_of(&self.timed, async move {
            let others = sleep_many(pending).await;
            // Constrained, a task that does not yield would soon set no timers any more.
            let with = task::unconstrained(async {
                let start = Instant::now();
                for length in timer_lengths().take(count as usize) {
                    set_and_cancel(length).await;
                }
                start.elapsed()
            })
            .await;
            for other in others {
                other.abort();
                assert!(other.await.is_err_and(|error| error.is_cancelled()));
            }
            Cancelled {
                with,
                without: None,
            }
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
    indent_rivals::main(&Tokio {
        plain: LazyLock::new(|| start(&mut Builder::new_multi_thread())),
        timed: LazyLock::new(|| start(Builder::new_multi_thread().enable_time())),
    })
}
