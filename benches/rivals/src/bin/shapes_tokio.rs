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

use indent_rivals::meet::{Meeting, Side};
use indent_rivals::{
    Begin, CHILDREN, Cancelled, Gap, LOCKING_FIBERS, MPSC_CAPACITY, PRODUCERS, Rival, Rounds,
    WORKERS, lateness, pending_lengths, timer_lengths,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Mutex, Notify, oneshot};
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

/// One task of a pair: sends the numbers below `count` and receives each back. Returns what that took.
async fn ask(count: u64, there: Sender<u64>, mut back: Receiver<u64>) -> Duration {
    let start = Instant::now();
    for number in 0..count {
        there.send(number).await.expect("the other task receives");
        assert_eq!(back.recv().await, Some(number));
    }
    start.elapsed()
}

/// The other one: sends back what it receives.
async fn echo(mut from: Receiver<u64>, to: Sender<u64>) {
    while let Some(number) = from.recv().await {
        to.send(number).await.expect("the other task receives");
    }
}

/// The same by a select over two channels.
async fn echo_selected(mut from: Receiver<u64>, to: Sender<u64>) {
    let (_open, mut never) = mpsc::channel(1);
    loop {
        let number = tokio::select! {
            number = from.recv() => number,
            number = never.recv() => number,
        };
        match number {
            Some(number) => to.send(number).await.expect("the other task receives"),
            None => return,
        }
    }
}

/// Spawns a node of the tree, whose leaves are `size` numbers from `first` on.
fn node(parent: Sender<u64>, first: u64, size: u64) {
    drop(tokio::spawn(async move {
        let sum = if size == 1 {
            first
        } else {
            let (tx, mut rx) = mpsc::channel(CHILDREN as usize);
            for index in 0..CHILDREN {
                let size = size / CHILDREN;
                node(tx.clone(), first + index * size, size);
            }
            drop(tx);
            let mut sum = 0;
            while let Some(part) = rx.recv().await {
                sum += part;
            }
            sum
        };
        parent.send(sum).await.expect("the parent receives");
    }));
}

/// Has two tasks exchange `count` numbers, begun with `first` and the second one by `echo`.
async fn pair<F>(
    count: u64,
    first: impl Fn(Side) + Clone + Send + 'static,
    echo: impl FnOnce(Receiver<u64>, Sender<u64>) -> F + Send + 'static,
) -> Duration
where
    F: Future<Output = ()> + Send,
{
    let (there, from_here) = mpsc::channel(1);
    let (back, from_there) = mpsc::channel(1);
    let arrive = first.clone();
    let asks = tokio::spawn(async move {
        arrive(Side::First);
        ask(count, there, from_there).await
    });
    let answers = tokio::spawn(async move {
        first(Side::Second);
        echo(from_here, back).await;
    });
    let time = asks.await.expect("no task panics");
    answers.await.expect("no task panics");
    time
}

impl Rival for Tokio {
    fn chan_pair(&self, count: u64, begin: Begin) -> Duration {
        let meeting = Arc::new(Meeting::default());
        let first = move |side| match begin {
            Begin::Anywhere => {}
            Begin::Apart => meeting.arrive(side),
        };
        self.on_worker(pair(count, first, echo))
    }

    fn select_pair(&self, count: u64) -> Duration {
        self.on_worker(pair(count, |_| {}, echo_selected))
    }

    fn chan_mpsc(&self, each: u64) -> u64 {
        self.on_worker(async move {
            let (tx, mut rx) = mpsc::channel(MPSC_CAPACITY);
            for _ in 0..PRODUCERS {
                let tx = tx.clone();
                drop(tokio::spawn(async move {
                    for number in 0..each {
                        tx.send(number).await.expect("somebody receives");
                    }
                }));
            }
            drop(tx);
            let mut sum = 0;
            while let Some(number) = rx.recv().await {
                sum += number;
            }
            sum
        })
    }

    fn mutex(&self, each: u64) -> u64 {
        self.on_worker(async move {
            let mutex = Arc::new(Mutex::new(0));
            let handles: Vec<_> = (0..LOCKING_FIBERS)
                .map(|_| {
                    let mutex = Arc::clone(&mutex);
                    tokio::spawn(async move {
                        for _ in 0..each {
                            *mutex.lock().await += 1;
                        }
                    })
                })
                .collect();
            for handle in handles {
                handle.await.expect("no task panics");
            }
            *mutex.lock().await
        })
    }

    fn skynet(&self, leaves: u64) -> u64 {
        self.on_worker(async move {
            let (tx, mut rx) = mpsc::channel(1);
            node(tx, 0, leaves);
            rx.recv().await.expect("the root sends")
        })
    }

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
