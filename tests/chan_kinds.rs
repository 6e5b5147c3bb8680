//! One-shot, broadcast and watch channels.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use indent::chan::{self, BroadcastError, RecvError, RecvTimeoutError, TryRecvError};
use indent::runtime::{Builder, Runtime};
use indent::{select, task, time};
use proptest::prelude::*;

mod common;
use common::Random;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(3);

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Runs a check on a plain thread, on one worker, and on two.
fn everywhere(check: fn()) {
    check();
    runtime(1).block_on(check);
    runtime(2).block_on(check);
}

/// Starts a runtime that preempts its fibers very often.
fn restless() -> Runtime {
    let quantum = Duration::from_micros(200);
    let builder = Builder::new().workers(2).preempt_quantum(quantum);
    builder.build().expect("a runtime")
}

#[test]
fn a_oneshot_value_arrives_whether_it_is_sent_before_or_after_the_wait_begins() {
    everywhere(|| {
        let (tx, mut rx) = chan::oneshot();
        tx.send(1).unwrap();
        assert_eq!(rx.recv(), Ok(1));
        assert_eq!(rx.recv(), Err(RecvError), "there is no other");
        let (tx, mut rx) = chan::oneshot();
        assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            tx.send(2).unwrap();
        });
        assert_eq!(rx.recv(), Ok(2));
        other.join().unwrap();
    });
}

#[test]
fn a_dropped_side_is_noticed_by_the_other() {
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
fn a_value_that_is_not_received_is_dropped_once() {
    let value = Arc::new(());
    let (tx, rx) = chan::oneshot();
    tx.send(value.clone()).unwrap();
    drop(rx);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn stress_replies_that_come_after_a_timeout_are_not_lost() {
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
fn a_slow_receiver_learns_how_many_values_it_has_lost() {
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
fn a_channel_of_any_kind_can_be_closed_by_hand() {
    everywhere(|| {
        let (tx, mut rx) = chan::broadcast(4);
        let mut waits = rx.clone();
        let other = thread::spawn(move || (waits.recv(), waits.recv(), waits.is_closed()));
        tx.send(1).unwrap();
        thread::sleep(SHORT);
        assert!(rx.close() && !tx.close() && tx.is_closed());
        assert_eq!(tx.send(2).unwrap_err().into_inner(), 2);
        assert_eq!(
            other.join().unwrap(),
            (Ok(1), Err(BroadcastError::Closed), true)
        );
        assert_eq!(rx.iter().collect::<Vec<_>>(), [Ok(1)], "it was sent before");
        assert_eq!(tx.subscribe().recv(), Err(BroadcastError::Closed));

        let (tx, mut rx) = chan::watch(0);
        let mut waits = rx.clone();
        let other = thread::spawn(move || waits.wait_for(|n| *n > 5).is_err());
        tx.send(1).unwrap();
        thread::sleep(SHORT);
        assert!(!rx.is_closed() && tx.close() && !rx.close() && rx.is_closed());
        assert_eq!(tx.send(2).unwrap_err().into_inner(), 2);
        assert!(other.join().unwrap(), "it was notified");
        assert_eq!(rx.iter().map(|n| *n).collect::<Vec<_>>(), [1]);
        assert_eq!(rx.try_recv().unwrap_err(), TryRecvError::Closed);
        assert_eq!(*rx.borrow(), 1);
    });
}

#[test]
fn a_wait_for_a_value_that_does_not_come_ends_in_time() {
    everywhere(|| {
        let (tx, mut rx) = chan::watch(0);
        let other = thread::spawn(move || {
            for n in 1.. {
                thread::sleep(Duration::from_micros(300));
                if tx.send(n).is_err() {
                    return;
                }
            }
        });
        let start = Instant::now();
        let late = rx.wait_for_timeout(|n| *n < 0, 3 * SHORT).unwrap_err();
        assert_eq!(
            late,
            RecvTimeoutError::Timeout,
            "changes do not begin it anew"
        );
        assert!(start.elapsed() >= 3 * SHORT);
        assert!(*rx.wait_for_timeout(|n| *n > 5, LONG).unwrap() > 5);
        drop(rx);
        other.join().unwrap();
    });
}

#[test]
fn absent_receivers_of_any_kind_never_fire() {
    everywhere(|| {
        let (tx, mut hears) = chan::broadcast(4);
        tx.send(5).unwrap();
        let mut once: Option<chan::OneshotReceiver<u8>> = None;
        let mut news: Option<chan::BroadcastReceiver<u8>> = None;
        let mut state: Option<chan::WatchReceiver<u8>> = None;
        for heard in [Some(5), None] {
            let fired = select! {
                recv(once.as_mut()) -> _ => unreachable!(),
                recv(news.as_mut()) -> _ => unreachable!(),
                recv(state.as_mut()) -> _ => unreachable!(),
                recv(Some(&mut hears)) -> value => value.ok(),
                after(SHORT) => None,
            };
            assert_eq!(fired, heard);
        }
    });
}

#[test]
fn stress_what_is_broadcast_is_received_in_order_or_known_to_be_lost() {
    const EACH: u64 = 3_000;
    const SENDERS: u64 = 3;
    let runtime = restless();
    let (tx, rx) = chan::broadcast(16);
    let receive = |seed: u64, mut rx: chan::BroadcastReceiver<(u64, u64)>| {
        move || {
            let (_tx, never) = chan::bounded::<u8>(0);
            let mut random = Random::new(seed + 1);
            let (mut all, mut next) = (0, [0; SENDERS as usize]);
            loop {
                let pause = Duration::from_micros(random.below(200));
                let received = match random.below(4) {
                    0 => rx.try_recv(),
                    1 => rx.recv_timeout(pause),
                    2 => time::timeout(pause, || rx.recv()).unwrap_or(Err(BroadcastError::Timeout)),
                    _ => select! {
                        recv(&mut rx) -> value => value,
                        recv(&never) -> _ => unreachable!(),
                        after(pause) => Err(BroadcastError::Timeout),
                    },
                };
                match received {
                    Ok((sender, n)) => {
                        let next = &mut next[sender as usize];
                        assert!(n >= *next, "{n} of {sender}, {next} was expected");
                        (*next, all) = (n + 1, all + 1);
                    }
                    Err(BroadcastError::Lagged(lost)) => all += lost,
                    Err(BroadcastError::Closed) => return all,
                    Err(_) => {}
                }
            }
        }
    };
    let receivers: Vec<_> = (0..6)
        .map(|seed| runtime.spawn(receive(seed, rx.clone())))
        .collect();
    let on_thread = thread::spawn(receive(99, rx));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let tx = tx.clone();
            runtime.spawn(move || {
                for n in 0..EACH {
                    tx.send((sender, n)).unwrap();
                    if n % 32 == 0 {
                        task::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(tx);
    senders.into_iter().for_each(|fiber| fiber.join().unwrap());
    for fiber in receivers {
        assert_eq!(fiber.join().unwrap(), SENDERS * EACH);
    }
    assert_eq!(on_thread.join().unwrap(), SENDERS * EACH);
}

#[test]
fn receives_that_succeed_at_once_are_charged() {
    const BUDGET: u32 = 8;
    let builder = Builder::new().workers(1).preempt(false);
    let runtime = builder.coop_budget(BUDGET).build().expect("a runtime");
    let exhausted = || runtime.metrics().workers[0].budget_exhausted_total;
    let charged = |what: &str, operation: &(dyn Fn() + Sync)| {
        let before = exhausted();
        runtime.block_on(|| (0..100 * BUDGET).for_each(|_| operation()));
        let times = exhausted() - before;
        assert!((90..=110).contains(&times), "{what}: {times}");
    };
    charged("a one-shot", &|| {
        let (tx, mut rx) = chan::oneshot();
        tx.send(1).unwrap();
        assert_eq!(rx.recv(), Ok(1));
    });
    charged("a broadcast", &|| {
        let (tx, mut rx) = chan::broadcast(1);
        tx.send(1).unwrap();
        assert_eq!(rx.recv(), Ok(1));
    });
    charged("a change", &|| {
        let (tx, mut rx) = chan::watch(0);
        tx.send(1).unwrap();
        assert_eq!(*rx.recv().unwrap(), 1);
    });
    charged("a value that is as it should be", &|| {
        let (_tx, mut rx) = chan::watch(0);
        assert!(rx.wait_for(|n| *n == 0).is_ok());
    });
}

/// A step of a random sequence; receivers are numbered.
#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Receive(usize),
    TryReceive(usize),
    Subscribe,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => any::<u8>().prop_map(Step::Send),
        8 => (0..4usize).prop_map(Step::Receive),
        4 => (0..4usize).prop_map(Step::TryReceive),
        2 => Just(Step::Subscribe),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 0..60)
}

/// Runs a check on the only worker, which runs one fiber at a time.
///
/// So the outcome is known when all other fibers wait or have ended.
fn one_after_the_other(
    check: impl FnOnce() -> Result<(), TestCaseError> + Send,
) -> Result<(), TestCaseError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| runtime(1)).block_on(check)
}

/// A receiver: idle, or used by a waiting fiber that returns it with the result.
enum Seat<R, V> {
    AtHand(R),
    Waits(task::JoinHandle<(R, V)>),
}

impl<R: Send + 'static, V: Send + 'static> Seat<R, V> {
    /// Begins a wait, and returns when the fiber waits or has ended.
    fn wait(self, receive: fn(&mut R) -> V) -> Self {
        let Seat::AtHand(mut receiver) = self else {
            return self;
        };
        let fiber = indent::spawn(move || {
            let value = receive(&mut receiver);
            (receiver, value)
        });
        while !fiber.is_finished() && fiber.fiber().phase() != task::Phase::Parked {
            task::yield_now();
        }
        Seat::Waits(fiber)
    }

    /// Returns the result if a value or an error is due; otherwise the wait continues.
    fn settle(self, is_due: bool) -> (Self, Option<V>) {
        match self {
            Seat::Waits(fiber) if is_due => {
                let (receiver, value) = fiber.join().unwrap();
                (Seat::AtHand(receiver), Some(value))
            }
            Seat::Waits(fiber) => {
                assert!(!fiber.is_finished(), "it returned without a change");
                (Seat::Waits(fiber), None)
            }
            at_hand => (at_hand, None),
        }
    }
}

/// The sequential model: all values sent.
///
/// A broadcast receiver gets the next value or has lost some; a watch receiver gets the last one.
struct Written {
    all: Vec<u8>,
    kept: usize,
    closed: bool,
}

impl Written {
    fn is_due(&self, next: usize) -> bool {
        self.all.len() > next || self.closed
    }

    fn next_broadcast(&self, next: &mut usize) -> Result<u8, BroadcastError> {
        let oldest = self.all.len().saturating_sub(self.kept);
        if *next < oldest {
            let lost = oldest - std::mem::replace(next, oldest);
            return Err(BroadcastError::Lagged(lost as u64));
        }
        let value = self.all.get(*next).copied();
        *next += usize::from(value.is_some());
        let closed = self.closed;
        value.ok_or(if closed {
            BroadcastError::Closed
        } else {
            BroadcastError::Empty
        })
    }

    fn next_watched(&self, next: &mut usize) -> Option<u8> {
        let seen = std::mem::replace(next, self.all.len());
        self.all[seen..].last().copied()
    }
}

proptest! {
    #[test]
    fn each_broadcast_receiver_reads_the_same_list(kept in 1..4usize, steps in steps()) {
        one_after_the_other(move || {
            let (tx, rx) = chan::broadcast(kept);
            let mut written = Written { all: Vec::new(), kept, closed: false };
            let mut seats = vec![(Some(Seat::AtHand(rx)), 0)];
            for step in steps.into_iter().chain([Step::Close]) {
                let count = seats.len();
                match step {
                    Step::Send(value) => {
                        let sent = tx.send(value);
                        prop_assert_eq!(sent.is_ok(), !written.closed);
                        written.all.extend(sent.is_ok().then_some(value));
                    }
                    Step::Receive(n) => {
                        let (seat, _) = &mut seats[n % count];
                        *seat = seat.take().map(|seat| seat.wait(|rx| rx.recv()));
                    }
                    Step::TryReceive(n) => {
                        let (seat, next) = &mut seats[n % count];
                        if let Some(Seat::AtHand(rx)) = seat {
                            prop_assert_eq!(rx.len(), written.all.len() - *next);
                            prop_assert_eq!(rx.try_recv(), written.next_broadcast(next));
                        }
                    }
                    Step::Subscribe => seats.push((Some(Seat::AtHand(tx.subscribe())), written.all.len())),
                    Step::Close => {
                        prop_assert_eq!(tx.close(), !written.closed);
                        written.closed = true;
                    }
                }
                for (seat, next) in &mut seats {
                    let settled = seat.take().expect("it is there").settle(written.is_due(*next));
                    if let Some(heard) = settled.1 {
                        prop_assert_eq!(heard, written.next_broadcast(next));
                    }
                    *seat = Some(settled.0);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_watch_is_the_end_of_a_list(steps in steps()) {
        one_after_the_other(move || {
            let (tx, rx) = chan::watch(0);
            let mut written = Written { all: Vec::new(), kept: 1, closed: false };
            let mut seats = vec![(Some(Seat::AtHand(rx)), 0)];
            for step in steps.into_iter().chain([Step::Close]) {
                let count = seats.len();
                match step {
                    Step::Send(value) => {
                        let sent = tx.send(value);
                        prop_assert_eq!(sent.is_ok(), !written.closed);
                        written.all.extend(sent.is_ok().then_some(value));
                    }
                    Step::Receive(n) => {
                        let (seat, _) = &mut seats[n % count];
                        *seat = seat.take().map(|seat| seat.wait(|rx| rx.recv().ok().map(|n| *n)));
                    }
                    Step::TryReceive(n) => {
                        let (seat, next) = &mut seats[n % count];
                        if let Some(Seat::AtHand(rx)) = seat {
                            prop_assert_eq!(rx.has_changed(), written.all.len() > *next);
                            prop_assert_eq!(rx.try_recv().ok().map(|n| *n), written.next_watched(next));
                        }
                    }
                    Step::Subscribe => seats.push((Some(Seat::AtHand(tx.subscribe())), written.all.len())),
                    Step::Close => {
                        prop_assert_eq!(tx.close(), !written.closed);
                        written.closed = true;
                    }
                }
                for (seat, next) in &mut seats {
                    let settled = seat.take().expect("it is there").settle(written.is_due(*next));
                    if let Some(seen) = settled.1 {
                        prop_assert_eq!(seen, written.next_watched(next));
                    }
                    *seat = Some(settled.0);
                }
                prop_assert_eq!(*tx.borrow(), written.all.last().copied().unwrap_or(0));
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_watch_receiver_sees_the_latest_value_and_is_notified_of_changes() {
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
        assert_eq!(*rx.borrow(), 7);
    });
}

#[test]
fn stress_watch_receivers_never_miss_the_last_value_and_never_go_back() {
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
fn a_cancelled_fiber_unwinds_where_it_waits_for_a_change() {
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
