//! Locks and channels of std: they block the thread, and the holder of one may be frozen in it.
//!
//! Most fibers here start on one worker, so that the fiber that holds a lock and the fibers that
//! wait for it compete for that worker. None of them calls the runtime in between (`bound.rs` is
//! about fibers that park while others wait for them).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::thread::{self, Thread};
use std::time::Duration;

use super::Program;
use crate::noise::{compute_for, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("mutex", "fought over, and held across preemptions", mutex),
    Program::new("rwlock", "readers and writers, frozen inside", rwlock),
    Program::new(
        "condvar",
        "a ring of siblings that wait for each other",
        condvar,
    )
    .needs_preemption(),
    Program::new("once", "siblings wait for a slow first call", once),
    Program::new("mpsc", "rendezvous and queues between siblings", mpsc).needs_preemption(),
    Program::new(
        "thread-park",
        "a fiber parks its thread, a sibling unparks that",
        thread_park,
    )
    .needs_preemption(),
];

const FIBERS: usize = 8;

/// Checks two values that only the holder of the lock may see differ.
fn mutex(stage: &'static Stage) {
    let pair: &'static Mutex<(u64, u64)> = Box::leak(Box::default());
    let turns: &'static AtomicU64 = Box::leak(Box::default());
    stage.crew(FIBERS, move |i| {
        let mut turn = 0;
        while turn == 0 || !stage.over() {
            let mut held = pair.lock().expect("no panic inside");
            held.0 = black_box(held.0) + 1;
            if (turn + i) % 16 == 0 {
                compute_for(Duration::from_millis(2));
            }
            held.1 = black_box(held.1) + 1;
            if held.0 != held.1 {
                stage.complain(format!("two in one mutex: {held:?}"));
            }
            drop(held);
            turns.fetch_add(1, Relaxed);
            turn += 1;
        }
    });
    let ended = *pair.lock().expect("no panic inside");
    stage.same("the sum of turns", ended.0, turns.load(Relaxed));
}

fn rwlock(stage: &'static Stage) {
    let rows: &'static RwLock<Vec<u64>> = Box::leak(Box::new(RwLock::new(vec![0; 64])));
    stage.crew(FIBERS, move |i| {
        let mut turn = 0;
        while turn == 0 || !stage.over() {
            if i % 4 == 0 {
                let mut rows = rows.write().expect("no panic inside");
                let next = stir(rows[0] + turn);
                rows.iter_mut().for_each(|row| {
                    *row = next;
                    black_box((0..200).fold(1, |x, _| stir(x)));
                });
            } else {
                let rows = rows.read().expect("no panic inside");
                let first = rows[0];
                compute_for(Duration::from_micros(500));
                if rows.iter().any(|&row| row != first) {
                    stage.complain("a reader saw a writer's work half done".to_owned());
                }
            }
            stage.round();
            turn += 1;
            thread::yield_now(); // readers would keep writers out forever
        }
    });
}

/// Passes a token round; all others wait for their number. The last round is complete.
fn condvar(stage: &'static Stage) {
    let turn: &'static (Mutex<u64>, Condvar) = Box::leak(Box::default());
    let rounds: &'static OnceLock<u64> = Box::leak(Box::default());
    stage.crew(FIBERS, move |i| {
        let (number, changed) = turn;
        let mut next = i as u64;
        loop {
            let ended = |now: u64| rounds.get().is_some_and(|&end| now >= end);
            let mut now = number.lock().expect("no panic inside");
            while *now != next && !ended(*now) {
                now = changed.wait(now).expect("no panic inside");
            }
            if ended(*now) {
                return;
            }
            if next.is_multiple_of(32) {
                compute_for(Duration::from_millis(1));
            }
            *now += 1;
            if stage.over() && rounds.get().is_none() {
                rounds.set(*now).expect("under the lock");
            }
            stage.round();
            changed.notify_all();
            drop(now);
            next += FIBERS as u64;
        }
    });
}

/// Has all fibers ask for the next value at once in each round; one computes it.
fn once(stage: &'static Stage) {
    type Value = (OnceLock<u64>, AtomicU64);
    let values: &'static Mutex<Vec<Arc<Value>>> = Box::leak(Box::default());
    stage.crew(FIBERS, move |_| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            let value = {
                let mut values = values.lock().expect("no panic inside");
                if values.len() <= turn {
                    values.push(Arc::default());
                }
                values[turn].clone()
            };
            let got = *value.0.get_or_init(|| {
                value.1.fetch_add(1, Relaxed);
                compute_for(Duration::from_millis(3));
                stir(turn as u64)
            });
            stage.same("a value made once", got, stir(turn as u64));
            let calls = value.1.load(Relaxed);
            if calls != 1 {
                stage.complain(format!("the first call happened {calls} times"));
            }
        }
    });
}

/// Runs three fibers on one worker.
///
/// One sends by a queue, one hands over directly, one adds up.
fn mpsc(stage: &'static Stage) {
    let trios = stage.runtime.block_on(|| {
        let trio = |i: usize| {
            let (send, queue) = sync_channel(64);
            let (hand, over) = sync_channel(0);
            let worker = Some(i % 2);
            [
                stage.spawn("sender", worker, move || {
                    for n in 0..u64::MAX {
                        if n > 200 && stage.over() {
                            return;
                        }
                        send.send(n).expect("a receiver");
                        if n % 64 == 0 {
                            compute_for(Duration::from_millis(1));
                        }
                    }
                }),
                stage.spawn("between", worker, move || pass_on(&queue, &hand)),
                stage.spawn("receiver", worker, move || {
                    for (expected, (n, stirred)) in (0..).zip(over) {
                        stage.same("a message", (n, stirred), (expected, stir(expected)));
                    }
                }),
            ]
        };
        (0..4).flat_map(trio).collect::<Vec<_>>()
    });
    stage.join(trios);
}

fn pass_on(queue: &Receiver<u64>, hand: &SyncSender<(u64, u64)>) {
    for n in queue {
        hand.send((n, stir(n))).expect("a receiver");
    }
}

/// Place where a sleeper registers the thread to unpark.
#[derive(Default)]
struct Bed {
    thread: Mutex<Option<Thread>>,
    asleep: AtomicBool,
    over: AtomicBool,
}

fn thread_park(stage: &'static Stage) {
    let pairs = stage.runtime.block_on(|| {
        let pair = |i: usize| {
            let bed: &'static Bed = Box::leak(Box::default());
            let worker = Some(i % 2);
            let sleeper = move || {
                for _ in 0..u64::MAX {
                    bed.asleep.store(true, Relaxed);
                    *bed.thread.lock().expect("no panic inside") = Some(thread::current());
                    while bed.asleep.load(Relaxed) && !bed.over.load(Relaxed) {
                        thread::park();
                    }
                    if bed.over.load(Relaxed) {
                        // For a waker that looks for a thread to wake.
                        *bed.thread.lock().expect("no panic inside") = Some(thread::current());
                        return;
                    }
                    stage.round();
                }
            };
            let waker = move || {
                while !stage.over() {
                    let thread = bed.thread.lock().expect("no panic inside").take();
                    match thread {
                        Some(thread) => {
                            compute_for(Duration::from_micros(300));
                            bed.asleep.store(false, Relaxed);
                            thread.unpark();
                        }
                        None => thread::yield_now(),
                    }
                }
                bed.over.store(true, Relaxed);
                // The sleeper may be about to sleep; then it registers soon.
                loop {
                    let thread = bed.thread.lock().expect("no panic inside").clone();
                    match thread {
                        Some(thread) => return thread.unpark(),
                        None => thread::sleep(Duration::from_millis(1)),
                    }
                }
            };
            [
                stage.spawn("sleeper", worker, sleeper),
                stage.spawn("waker", worker, waker),
            ]
        };
        (0..4).flat_map(pair).collect::<Vec<_>>()
    });
    stage.join(pairs);
}
