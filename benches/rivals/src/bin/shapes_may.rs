//! The benchmark shapes on may's coroutines.
//!
//! All settings of may but the number of workers are left as they are. Its channels have no capacity:
//! they are what it has, also where the others are bounded.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indent_rivals::meet::{Meeting, Side};
use indent_rivals::{Begin, CHILDREN, Gap, LOCKING_FIBERS, PRODUCERS, Rival, Rounds, WORKERS};
use may::coroutine::{self, Coroutine};
use may::go;
use may::sync::Mutex;
use may::sync::mpsc::{self, Receiver, Sender};

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

/// One coroutine of a pair: sends the numbers below `count` and receives each back. Returns what that
/// took.
fn ask(count: u64, there: &Sender<u64>, back: &Receiver<u64>) -> Duration {
    let start = Instant::now();
    for number in 0..count {
        there.send(number).expect("the other coroutine receives");
        assert_eq!(back.recv(), Ok(number));
    }
    start.elapsed()
}

/// Has two coroutines exchange `count` numbers, the second of which runs `echo` until nothing comes any
/// more; each does `first` before it begins.
fn pair(
    count: u64,
    first: impl Fn(Side) + Clone + Send + 'static,
    echo: impl FnOnce(&Receiver<u64>, &Sender<u64>) + Send + 'static,
) -> Duration {
    May::on_worker(move || {
        let (there, from_here) = mpsc::channel();
        let (back, from_there) = mpsc::channel();
        let arrive = first.clone();
        let asks = go!(move || {
            arrive(Side::First);
            ask(count, &there, &from_there)
        });
        let answers = go!(move || {
            first(Side::Second);
            echo(&from_here, &back);
        });
        let time = asks.join().expect("no coroutine panics");
        answers.join().expect("no coroutine panics");
        time
    })
}

/// A node of the tree, whose leaves are `size` numbers from `first` on.
fn node(parent: &Sender<u64>, first: u64, size: u64) {
    let sum = if size == 1 {
        first
    } else {
        let (tx, rx) = mpsc::channel();
        for index in 0..CHILDREN {
            let (tx, size) = (tx.clone(), size / CHILDREN);
            drop(go!(move || node(&tx, first + index * size, size)));
        }
        drop(tx);
        rx.iter().sum()
    };
    parent.send(sum).expect("the parent receives");
}

impl Rival for May {
    fn chan_pair(&self, count: u64, begin: Begin) -> Duration {
        let meeting = Arc::new(Meeting::default());
        let first = move |side| match begin {
            Begin::Anywhere => {}
            Begin::Apart => meeting.arrive(side),
        };
        pair(count, first, |rx, tx| {
            rx.iter()
                .for_each(|number| tx.send(number).expect("the other coroutine receives"));
        })
    }

    fn select_pair(&self, count: u64) -> Duration {
        let (_open, never) = mpsc::channel::<u64>();
        let echo = move |rx: &Receiver<u64>, tx: &Sender<u64>| {
            // Each arm is a coroutine, which also does what follows.
            for _ in 0..count {
                may::select!(
                    number = rx.recv() => tx
                        .send(number.expect("the other coroutine sends"))
                        .expect("the other coroutine receives"),
                    _ = never.recv() => unreachable!("nobody sends")
                );
            }
        };
        pair(count, |_| {}, echo)
    }

    fn chan_mpsc(&self, each: u64) -> u64 {
        Self::on_worker(move || {
            let (tx, rx) = mpsc::channel();
            for _ in 0..PRODUCERS {
                let tx = tx.clone();
                drop(go!(move || {
                    (0..each).for_each(|number| tx.send(number).expect("somebody receives"));
                }));
            }
            drop(tx);
            rx.iter().sum()
        })
    }

    fn mutex(&self, each: u64) -> u64 {
        Self::on_worker(move || {
            let mutex = Arc::new(Mutex::new(0));
            let body = |mutex: Arc<Mutex<u64>>| {
                move || (0..each).for_each(|_| *mutex.lock().expect("no coroutine panics") += 1)
            };
            let handles: Vec<_> = (0..LOCKING_FIBERS)
                .map(|_| go!(body(mutex.clone())))
                .collect();
            for handle in handles {
                handle.join().expect("no coroutine panics");
            }
            *mutex.lock().expect("no coroutine panics")
        })
    }

    fn skynet(&self, leaves: u64) -> u64 {
        Self::on_worker(move || {
            let (tx, rx) = mpsc::channel();
            drop(go!(move || node(&tx, 0, leaves)));
            rx.recv().expect("the root sends")
        })
    }

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
