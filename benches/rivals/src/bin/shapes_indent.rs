//! The benchmark shapes on indent.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indent::chan::{self, Receiver, Sender};
use indent::park::{self, ParkReason, Unparker, Woken};
use indent::sync::Mutex;
use indent::{JoinHandle, Runtime, runtime, select, task, time};
use indent_rivals::meet::{Meeting, Side};
use indent_rivals::{
    Begin, CANCEL_PARTS, CHILDREN, Cancelled, Gap, LOCKING_FIBERS, MPSC_CAPACITY, PRODUCERS, Rival,
    Rounds, WORKERS, lateness, mixed, pending_lengths, timer_lengths,
};
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

/// Parks as many fibers with deadlines, for as long as nobody unparks them.
fn park_many(count: u64) -> Vec<JoinHandle<()>> {
    let started = Arc::new(AtomicU64::new(0));
    let body = |length| {
        let started = Arc::clone(&started);
        move || {
            started.fetch_add(1, Ordering::Relaxed);
            let woken = park::park_until(Some(Instant::now() + length), ParkReason::Park);
            assert_eq!(woken, Woken::ByWake);
        }
    };
    let fibers = pending_lengths()
        .take(count as usize)
        .map(|length| indent::spawn(body(length)))
        .collect();
    while started.load(Ordering::Relaxed) < count {
        time::sleep(Duration::from_millis(1));
    }
    time::sleep(Duration::from_millis(20)); // those that have started have parked by then
    fibers
}

/// Parks `count` times, saying so before each; returns how long that takes.
fn park_often(
    count: u64,
    turn: &AtomicU64,
    mut deadline: impl FnMut() -> Option<Instant>,
) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        turn.fetch_add(1, Ordering::Relaxed);
        let woken = park::park_until(deadline(), ParkReason::Park);
        assert_eq!(woken, Woken::ByWake);
    }
    start.elapsed()
}

/// For a sibling on the same worker: unparks it once for each of those parks. Once is the point: a
/// second unpark would be kept, and the next park end before its deadline was set.
fn unpark_often(count: u64, turn: &AtomicU64, unparker: &Unparker) {
    for round in 1..=count {
        while turn.load(Ordering::Relaxed) < round {
            task::yield_now();
        }
        unparker.unpark();
        task::yield_now();
    }
}

/// One fiber of a pair: sends the numbers below `count` and receives each back. Returns what that took.
fn ask(count: u64, there: &Sender<u64>, back: &Receiver<u64>) -> Duration {
    let start = Instant::now();
    for number in 0..count {
        there.send(number).expect("the other fiber receives");
        assert_eq!(back.recv(), Ok(number));
    }
    start.elapsed()
}

/// A node of the tree, whose leaves are `size` numbers from `first` on.
fn node(parent: &Sender<u64>, first: u64, size: u64) {
    let sum = if size == 1 {
        first
    } else {
        let (tx, rx) = chan::bounded(CHILDREN as usize);
        for index in 0..CHILDREN {
            let (tx, size) = (tx.clone(), size / CHILDREN);
            drop(indent::spawn(move || node(&tx, first + index * size, size)));
        }
        drop(tx);
        rx.iter().sum()
    };
    parent.send(sum).expect("the parent receives");
}

impl Indent {
    /// Has two fibers exchange `count` numbers, the second of which runs `echo` until nothing comes any
    /// more; each does `first` before it begins.
    fn pair(
        &self,
        count: u64,
        first: impl Fn(Side) + Clone + Send + 'static,
        echo: impl FnOnce(&Receiver<u64>, &Sender<u64>) + Send + 'static,
    ) -> Duration {
        self.0.block_on(move || {
            let (there, from_here) = chan::bounded(1);
            let (back, from_there) = chan::bounded(1);
            let arrive = first.clone();
            let asks = indent::spawn(move || {
                arrive(Side::First);
                ask(count, &there, &from_there)
            });
            let answers = indent::spawn(move || {
                first(Side::Second);
                echo(&from_here, &back);
            });
            let time = asks.join().expect("no fiber panics");
            answers.join().expect("no fiber panics");
            time
        })
    }

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
    fn chan_pair(&self, count: u64, begin: Begin) -> Duration {
        let meeting = Arc::new(Meeting::default());
        let first = move |side| match begin {
            Begin::Anywhere => {}
            Begin::Apart => meeting.arrive(side),
        };
        self.pair(count, first, |rx, tx| {
            rx.iter()
                .for_each(|number| tx.send(number).expect("the other fiber receives"));
        })
    }

    fn select_pair(&self, count: u64) -> Duration {
        let (_open, never) = chan::bounded::<u64>(1);
        let echo = move |rx: &Receiver<u64>, tx: &Sender<u64>| {
            let receive = || {
                select! {
                    recv(rx) -> number => number,
                    recv(&never) -> number => number,
                }
            };
            while let Ok(number) = receive() {
                tx.send(number).expect("the other fiber receives");
            }
        };
        self.pair(count, |_| {}, echo)
    }

    fn chan_mpsc(&self, each: u64) -> u64 {
        self.0.block_on(move || {
            let (tx, rx) = chan::bounded(MPSC_CAPACITY);
            let produce = |tx: Sender<u64>| {
                move || (0..each).for_each(|number| tx.send(number).expect("somebody receives"))
            };
            let producers: Vec<_> = (0..PRODUCERS)
                .map(|_| indent::spawn(produce(tx.clone())))
                .collect();
            drop(tx);
            let sum = rx.iter().sum();
            for producer in producers {
                producer.join().expect("no fiber panics");
            }
            sum
        })
    }

    fn mutex(&self, each: u64) -> u64 {
        self.0.block_on(move || {
            let mutex = Arc::new(Mutex::new(0));
            let body = |mutex: Arc<Mutex<u64>>| {
                move || (0..each).for_each(|_| *mutex.lock().expect("no fiber panics") += 1)
            };
            let fibers: Vec<_> = (0..LOCKING_FIBERS)
                .map(|_| indent::spawn(body(mutex.clone())))
                .collect();
            for fiber in fibers {
                fiber.join().expect("no fiber panics");
            }
            *mutex.lock().expect("no fiber panics")
        })
    }

    fn skynet(&self, leaves: u64) -> u64 {
        self.0.block_on(move || {
            let (tx, rx) = chan::bounded(1);
            drop(indent::spawn(move || node(&tx, 0, leaves)));
            rx.recv().expect("the root sends")
        })
    }

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

    fn sleepers(&self, lengths: Vec<Duration>) -> Vec<u64> {
        self.0.block_on(move || {
            let body = |length| {
                move || {
                    let start = Instant::now();
                    time::sleep(length);
                    lateness(start, length)
                }
            };
            let handles: Vec<_> = lengths
                .into_iter()
                .map(|length| indent::spawn(body(length)))
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("no fiber panics"))
                .collect()
        })
    }

    fn timer_cancel(&self, count: u64, pending: u64) -> Cancelled {
        let on_first = || task::Builder::new().worker(0);
        self.0.block_on(move || {
            let others = park_many(pending);
            let turn = Arc::new(AtomicU64::new(0));
            let parks = on_first().spawn({
                let turn = Arc::clone(&turn);
                move || {
                    let mut lengths = timer_lengths();
                    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
                    for _ in 0..CANCEL_PARTS {
                        let part = count / CANCEL_PARTS;
                        let mut next = || Some(Instant::now() + lengths.next()?);
                        with += park_often(part, &turn, &mut next);
                        without += park_often(part, &turn, || None);
                    }
                    Cancelled {
                        with,
                        without: Some(without),
                    }
                }
            });
            let unparker = parks.unparker();
            let unparks = on_first().spawn(move || unpark_often(2 * count, &turn, &unparker));
            let cancelled = parks.join().expect("no fiber panics");
            unparks.join().expect("no fiber panics");
            for other in others {
                other.unparker().unpark();
                other.join().expect("no fiber panics");
            }
            cancelled
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
    runtime.handle().bind_everything(indent_rivals::is_bound());
    indent_rivals::main(&Indent(runtime))
}
