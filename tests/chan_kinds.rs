//! Channels of the other kinds: one value once, every value for all, the latest value.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use indent::chan::{self, BroadcastError, RecvError, RecvTimeoutError, TryRecvError};
use indent::runtime::{Builder, Runtime};
use indent::{select, time};

mod common;
use common::Random;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(3);

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// On a plain thread, on one worker, and on two.
fn everywhere(check: fn()) {
    check();
    runtime(1).block_on(check);
    runtime(2).block_on(check);
}

/// Preempted all the time.
fn restless() -> Runtime {
    let quantum = Duration::from_micros(200);
    let builder = Builder::new().workers(2).preempt_quantum(quantum);
    builder.build().expect("a runtime")
}

#[test]
fn one_value_arrives_whether_it_is_sent_before_or_after_somebody_waits() {
    everywhere(|| {
        let (tx, mut rx) = chan::oneshot();
        tx.send(1).unwrap();
        assert_eq!(rx.recv(), Ok(1));
        assert_eq!(rx.recv(), Err(RecvError), "there is no other");
        let (tx, mut rx) = chan::oneshot();
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            tx.send(2).unwrap();
        });
        assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(rx.recv(), Ok(2));
        other.join().unwrap();
    });
}

#[test]
fn a_side_that_goes_is_noticed_by_the_other() {
    everywhere(|| {
        let (tx, mut rx) = chan::oneshot::<u8>();
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            drop(tx);
        });
        assert_eq!(rx.recv(), Err(RecvError));
        other.join().unwrap();
        let (tx, rx) = chan::oneshot();
        drop(rx);
        assert!(tx.is_closed());
        assert_eq!(tx.send(5).unwrap_err().into_inner(), 5);
        let (tx, mut rx) = chan::oneshot();
        tx.send(6).unwrap();
        rx.close();
        assert_eq!(rx.recv(), Ok(6), "it was sent before");
    });
}

#[test]
fn a_value_that_nobody_receives_is_dropped_once() {
    let value = Arc::new(());
    let (tx, rx) = chan::oneshot();
    tx.send(value.clone()).unwrap();
    drop(rx);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn stress_answers_that_come_when_nobody_waits_any_more_are_not_lost() {
    let runtime = restless();
    let fibers: Vec<_> = (0..200)
        .map(|seed| {
            runtime.spawn(move || {
                let mut random = Random::new(seed);
                for n in 0..50 {
                    let (tx, mut rx) = chan::oneshot();
                    let pause = Duration::from_micros(random.below(200));
                    let sender = indent::spawn(move || tx.send(n).is_ok());
                    let got = match rx.recv_timeout(pause) {
                        Ok(value) => Some(value),
                        Err(RecvTimeoutError::Timeout) => {
                            rx.close();
                            rx.recv().ok()
                        }
                        Err(RecvTimeoutError::Closed) => None,
                    };
                    assert_eq!(got.is_some(), sender.join().unwrap());
                    assert!(got.is_none_or(|value| value == n));
                }
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

#[test]
fn every_receiver_gets_every_value_in_order() {
    let runtime = runtime(2);
    let (tx, rx) = chan::broadcast(64);
    let mut receivers: Vec<_> = (0..3).map(|_| tx.subscribe()).collect();
    receivers.push(rx);
    let fibers: Vec<_> = receivers
        .into_iter()
        .map(|mut rx| {
            runtime.spawn(move || {
                let mut all = Vec::new();
                loop {
                    match rx.recv() {
                        Ok(value) => all.push(value),
                        Err(BroadcastError::Lagged(lost)) => {
                            all.extend(vec![u32::MAX; lost as usize])
                        }
                        Err(_) => return all,
                    }
                }
            })
        })
        .collect();
    for n in 0..1000 {
        assert_eq!(tx.send(n), Ok(4));
        if n % 16 == 0 {
            thread::sleep(Duration::from_micros(100));
        }
    }
    drop(tx);
    for fiber in fibers {
        let got = fiber.join().unwrap();
        assert_eq!(got.len(), 1000, "received or known to be lost");
        let right = |(n, value): (usize, &u32)| *value == n as u32 || *value == u32::MAX;
        assert!(got.iter().enumerate().all(right));
    }
}

#[test]
fn a_receiver_that_is_too_slow_learns_how_many_it_has_lost() {
    let (tx, mut rx) = chan::broadcast(4);
    (0..10).for_each(|n| assert!(tx.send(n).is_ok()));
    assert_eq!(rx.len(), 10);
    assert_eq!(rx.recv(), Err(BroadcastError::Lagged(6)));
    for n in 6..10 {
        assert_eq!(rx.recv(), Ok(n));
    }
    assert_eq!(rx.try_recv(), Err(BroadcastError::Empty));
    assert_eq!(rx.recv_timeout(SHORT), Err(BroadcastError::Timeout));
    drop(tx);
    assert_eq!(rx.recv(), Err(BroadcastError::Closed));
}

#[test]
fn what_is_pushed_out_or_left_over_is_dropped() {
    #[derive(Clone)]
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (tx, rx) = chan::broadcast(4);
    (0..10).for_each(|_| drop(tx.send(Counted(drops.clone()))));
    assert_eq!(drops.load(SeqCst), 6);
    drop(rx);
    assert!(tx.send(Counted(drops.clone())).is_err());
    drop(tx);
    assert_eq!(drops.load(SeqCst), 11);
}

#[test]
fn a_watcher_sees_the_latest_value_and_is_told_of_changes() {
    everywhere(|| {
        let (tx, mut rx) = chan::watch(0);
        assert!(!rx.has_changed());
        assert_eq!(
            rx.recv_timeout(SHORT).unwrap_err(),
            RecvTimeoutError::Timeout
        );
        (1..=5).for_each(|n| tx.send(n).unwrap());
        assert_eq!(*rx.recv().unwrap(), 5);
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            tx.send(6).unwrap();
            tx
        });
        assert_eq!(*rx.recv().unwrap(), 6);
        let tx = other.join().unwrap();
        tx.send(7).unwrap();
        drop(tx);
        assert_eq!(*rx.recv().unwrap(), 7, "the last one is seen first");
        assert!(rx.recv().is_err());
        assert_eq!(*rx.get(), 7);
    });
}

#[test]
fn stress_watchers_never_miss_the_last_value_and_never_go_back() {
    let runtime = restless();
    let (tx, rx) = chan::watch(0u32);
    let watchers: Vec<_> = (0..8)
        .map(|seed| {
            let mut rx = rx.clone();
            runtime.spawn(move || {
                let (mut random, mut last) = (Random::new(seed), 0);
                loop {
                    let pause = Duration::from_micros(random.below(200));
                    match rx.recv_timeout(pause) {
                        Ok(value) => {
                            assert!(*value > last, "{} after {last}", *value);
                            last = *value;
                        }
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Closed) => return last,
                    }
                }
            })
        })
        .collect();
    for n in 1..=5_000 {
        tx.send(n).unwrap();
    }
    drop(tx);
    for watcher in watchers {
        assert_eq!(watcher.join().unwrap(), 5_000);
    }
}

#[test]
fn all_kinds_are_arms_of_a_select() {
    everywhere(|| {
        let (once, mut answer) = chan::oneshot();
        let (news, mut hears) = chan::broadcast(4);
        let (state, mut watches) = chan::watch(0);
        let other = thread::spawn(move || {
            once.send(1).unwrap();
            news.send(2).unwrap();
            state.send(3).unwrap();
            (news, state)
        });
        let (mut seen, mut answered) = ([false; 3], false);
        while seen != [true; 3] {
            select! {
                recv(&mut answer) -> value => {
                    if !answered {
                        assert_eq!(value, Ok(1));
                    }
                    (seen[0], answered) = (true, true);
                    time::sleep(Duration::from_micros(100));
                }
                recv(&mut hears) -> value => {
                    assert_eq!(value, Ok(2));
                    seen[1] = true;
                }
                recv(&mut watches) -> value => {
                    assert_eq!(*value.unwrap(), 3);
                    seen[2] = true;
                }
                after(LONG) => panic!("{seen:?}"),
            }
        }
        let (news, state) = other.join().unwrap();
        let nothing = select! {
            recv(&mut hears) -> _ => false,
            recv(&mut watches) -> _ => false,
            after(SHORT) => true,
        };
        assert!(nothing, "all was received");
        drop((news, state));
    });
}

#[test]
fn a_fiber_that_is_asked_to_end_unwinds_where_it_waits_for_news() {
    let runtime = runtime(1);
    let (_once, mut answer) = chan::oneshot::<u8>();
    let (_news, mut hears) = chan::broadcast::<u8>(1);
    let (_state, mut watches) = chan::watch(0);
    let fibers = [
        runtime.spawn(move || answer.recv().is_ok()),
        runtime.spawn(move || hears.recv().is_ok()),
        runtime.spawn(move || watches.recv().is_ok()),
    ];
    runtime.block_on(|| time::sleep(SHORT));
    drop(runtime);
    for fiber in fibers {
        assert!(fiber.join().unwrap_err().is_cancelled());
    }
}
