//! Channels: values are received once and in order, and every wait ends with a value or an error.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use indent::chan::{
    self, RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};
use indent::runtime::{Builder, Runtime};
use indent::{task, time};
use proptest::prelude::*;

mod common;
use common::Random;

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Long enough for anything that is going to happen.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(5);

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "it does not happen");
        time::sleep(Duration::from_micros(200));
    }
}

/// Counts the values that are alive.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Counted(alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[test]
fn a_value_whose_drop_panics_does_not_keep_the_others_alive() {
    struct Picky {
        panics: bool,
        _counted: Counted,
    }

    impl Drop for Picky {
        fn drop(&mut self) {
            if self.panics {
                resume_unwind(Box::new("not like this")); // prints no message
            }
        }
    }

    for (tx, rx) in [chan::bounded(100), chan::unbounded()] {
        let alive = Arc::new(AtomicUsize::new(0));
        for n in 0..100 {
            let (panics, _counted) = (n == 40, Counted::new(&alive));
            assert!(tx.send(Picky { panics, _counted }).is_ok());
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(rx)));
        assert!(dropped.is_err());
        assert_eq!(alive.load(SeqCst), 0);
    }
}

#[test]
fn values_may_be_large() {
    const LARGE: usize = 10 << 10; // one block of the buffer is larger than a stack
    runtime(1).block_on(|| {
        let (tx, rx) = chan::unbounded();
        (0..40u8).for_each(|n| tx.send([n; LARGE]).unwrap());
        (0..40).for_each(|n| assert_eq!(rx.recv().unwrap()[LARGE - 1], n));
    });
}

#[test]
fn a_buffered_channel_holds_as_many_values_as_its_capacity_in_order() {
    for capacity in [1, 2, 3, 10, 64] {
        let (tx, rx) = chan::bounded(capacity);
        for round in 0..5 {
            for n in 0..capacity {
                assert_eq!(tx.len(), n);
                tx.send(round * 100 + n).unwrap();
            }
            assert_eq!(tx.try_send(0), Err(TrySendError::Full(0)));
            for n in 0..capacity {
                assert_eq!(rx.recv(), Ok(round * 100 + n));
            }
            assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
        }
    }
}

#[test]
fn a_send_into_a_full_channel_waits_until_there_is_room() {
    runtime(1).block_on(|| {
        let (tx, rx) = chan::bounded(1);
        tx.send(1).unwrap();
        let sent = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (tx.clone(), sent.clone());
        let fiber = indent::spawn(move || {
            theirs.send(2).unwrap();
            flag.store(true, SeqCst);
        });
        time::sleep(SHORT);
        assert!(!sent.load(SeqCst), "backpressure");
        assert_eq!(tx.len(), 1, "a waiting value is not in the channel");
        assert_eq!(rx.recv(), Ok(1));
        fiber.join().unwrap();
        assert_eq!(rx.recv(), Ok(2));
    });
}

#[test]
fn without_a_buffer_a_send_returns_when_the_value_is_received() {
    runtime(2).block_on(|| {
        let (tx, rx) = chan::bounded(0);
        assert_eq!(tx.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
        let received = Arc::new(AtomicBool::new(false));
        let flag = received.clone();
        let fiber = indent::spawn(move || {
            time::sleep(SHORT);
            flag.store(true, SeqCst);
            rx.recv()
        });
        tx.send(7).unwrap();
        assert!(received.load(SeqCst), "the value was not received");
        assert_eq!(fiber.join().unwrap(), Ok(7));
    });
}

#[test]
fn without_a_buffer_tries_succeed_if_the_other_side_waits() {
    runtime(1).block_on(|| {
        let (tx, rx) = chan::bounded(0);
        let other = rx.clone();
        let receiver = indent::spawn(move || other.recv());
        until(|| tx.try_send(1).is_ok());
        assert_eq!(receiver.join().unwrap(), Ok(1));
        let sender = indent::spawn(move || tx.send(2));
        until(|| rx.try_recv() == Ok(2));
        sender.join().unwrap().unwrap();
    });
}

#[test]
fn waiting_receivers_are_served_first_come_first_served() {
    runtime(1).block_on(|| {
        let (tx, rx) = chan::bounded(4);
        let receivers: Vec<_> = (0..10)
            .map(|_| {
                let rx = rx.clone();
                let fiber = indent::spawn(move || rx.recv());
                until(|| fiber.fiber().phase() == task::Phase::Parked);
                fiber
            })
            .collect();
        (0..10).for_each(|n| tx.send(n).unwrap());
        for (n, receiver) in receivers.into_iter().enumerate() {
            assert_eq!(receiver.join().unwrap(), Ok(n));
        }
    });
}

#[test]
fn waiting_senders_are_served_first_come_first_served() {
    for capacity in [0, 1, 3] {
        runtime(1).block_on(|| {
            let (tx, rx) = chan::bounded(capacity);
            for n in 0..10 {
                let tx = tx.clone();
                let fiber = indent::spawn(move || tx.send(n));
                until(|| fiber.is_finished() || fiber.fiber().phase() == task::Phase::Parked);
            }
            drop(tx);
            let received: Vec<_> = rx.iter().collect();
            assert_eq!(received, (0..10).collect::<Vec<_>>(), "capacity {capacity}");
        });
    }
}

#[test]
fn a_closed_channel_is_drained_first() {
    let (tx, rx) = chan::bounded(3);
    tx.send(1).unwrap();
    tx.send(2).unwrap();
    assert!(tx.close());
    assert!(!rx.close(), "once");
    assert!(tx.is_closed() && rx.is_closed());
    assert_eq!(tx.send(3), Err(SendError(3)));
    assert_eq!(tx.try_send(3), Err(TrySendError::Closed(3)));
    assert_eq!(tx.send_timeout(3, LONG), Err(SendTimeoutError::Closed(3)));
    assert_eq!(rx.recv(), Ok(1));
    assert_eq!(rx.recv_timeout(LONG), Ok(2));
    assert_eq!(rx.recv(), Err(RecvError));
    assert_eq!(rx.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(rx.recv_timeout(LONG), Err(RecvTimeoutError::Closed));
}

#[test]
fn closing_ends_all_waits_and_gives_values_back() {
    runtime(2).block_on(|| {
        let (tx, rx) = chan::bounded(0);
        let senders: Vec<_> = (0..5)
            .map(|n| {
                let tx = tx.clone();
                indent::spawn(move || tx.send(n))
            })
            .collect();
        time::sleep(SHORT);
        rx.close();
        for (n, sender) in senders.into_iter().enumerate() {
            assert_eq!(sender.join().unwrap(), Err(SendError(n)));
        }
        let (tx, rx) = chan::bounded::<u8>(1);
        let receivers: Vec<_> = (0..5)
            .map(|_| {
                let rx = rx.clone();
                indent::spawn(move || rx.recv())
            })
            .collect();
        time::sleep(SHORT);
        drop(tx);
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError));
        }
    });
}

#[test]
fn without_receivers_sends_fail_and_buffered_values_are_dropped() {
    let alive = Arc::new(AtomicUsize::new(0));
    for (tx, rx) in [chan::bounded(100), chan::unbounded()] {
        (0..100).for_each(|_| drop(tx.try_send(Counted::new(&alive))));
        assert_eq!(alive.load(SeqCst), 100);
        let other = rx.clone();
        drop(rx);
        assert_eq!(alive.load(SeqCst), 100, "there is another");
        drop(other);
        assert_eq!(alive.load(SeqCst), 0);
        assert!(tx.send(Counted::new(&alive)).is_err());
        assert_eq!(alive.load(SeqCst), 0);
    }
}

#[test]
fn values_not_received_are_dropped_with_the_channel() {
    let alive = Arc::new(AtomicUsize::new(0));
    for (tx, rx) in [chan::bounded(100), chan::unbounded()] {
        (0..70).for_each(|_| drop(tx.send(Counted::new(&alive))));
        (0..40).for_each(|_| drop(rx.recv()));
        assert_eq!(alive.load(SeqCst), 30);
        drop(tx);
        assert_eq!(alive.load(SeqCst), 30, "they can still be received");
        drop(rx);
        assert_eq!(alive.load(SeqCst), 0);
    }
}

#[test]
fn an_unbounded_channel_never_lets_a_sender_wait() {
    let (tx, rx) = chan::unbounded();
    for round in 0..3 {
        (0..10_000).for_each(|n| tx.send(n).unwrap());
        assert_eq!(rx.len(), 10_000);
        for n in 0..10_000 {
            assert_eq!(rx.try_recv(), Ok(n), "round {round}");
        }
        assert!(rx.is_empty());
    }
}

#[test]
fn values_of_any_size_arrive_as_they_were() {
    let (tx, rx) = chan::bounded(2);
    tx.send(()).unwrap();
    assert_eq!(rx.recv(), Ok(()));
    let large = std::array::from_fn::<u64, 500, _>(|n| n as u64);
    runtime(2).block_on(|| {
        for capacity in [0, 1, 5] {
            let (tx, rx) = chan::bounded(capacity);
            let fiber = indent::spawn(move || (0..20).for_each(|_| tx.send(large).unwrap()));
            assert!(rx.iter().all(|value| value == large));
            fiber.join().unwrap();
        }
    });
}

#[test]
fn a_wait_ends_at_its_deadline_and_the_value_comes_back() {
    let here_and_there = |check: fn()| {
        check();
        runtime(1).block_on(check);
    };
    here_and_there(|| {
        let (tx, rx) = chan::bounded(1);
        let start = Instant::now();
        assert_eq!(rx.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        assert!(start.elapsed() >= SHORT);
        tx.send(1).unwrap();
        assert_eq!(tx.send_timeout(2, SHORT), Err(SendTimeoutError::Timeout(2)));
        assert_eq!(
            tx.send_deadline(2, start),
            Err(SendTimeoutError::Timeout(2))
        );
        assert_eq!(rx.recv_deadline(start), Ok(1), "the value was there");
        assert_eq!(rx.recv_deadline(start), Err(RecvTimeoutError::Timeout));
        // No waiter is left in the queues.
        tx.send(3).unwrap();
        assert_eq!(rx.recv(), Ok(3));
    });
}

#[test]
fn a_time_limit_ends_a_wait() {
    let here_and_there = |check: fn()| {
        check();
        runtime(1).block_on(check);
    };
    here_and_there(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let (tx, rx) = chan::bounded(0);
        let sending = || tx.send(Counted::new(&alive)).is_ok();
        assert!(time::timeout(SHORT, sending).is_err());
        assert_eq!(alive.load(SeqCst), 0, "the value is dropped");
        assert!(time::timeout(SHORT, || rx.recv().is_ok()).is_err());
    });
}

#[test]
fn a_cancelled_fiber_unwinds_where_it_waits() {
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(1);
    let (tx, rx) = chan::bounded::<u8>(0);
    let (full, _other) = chan::bounded(0);
    let value = Counted::new(&alive);
    let sender = runtime.spawn(move || full.send(value).is_ok());
    let receiver = runtime.spawn(move || rx.recv().is_ok());
    runtime.block_on(|| time::sleep(SHORT));
    drop(runtime); // cancels all fibers
    assert!(sender.join().unwrap_err().is_cancelled());
    assert!(receiver.join().unwrap_err().is_cancelled());
    assert_eq!(alive.load(SeqCst), 0);
    assert!(tx.is_closed());
}

#[test]
fn fibers_and_plain_threads_use_one_channel() {
    const EACH: usize = 2_000;
    for capacity in [Some(0), Some(1), Some(7), None] {
        let runtime = runtime(2);
        let (tx, rx) = match capacity {
            Some(capacity) => chan::bounded(capacity),
            None => chan::unbounded(),
        };
        let mut threads = Vec::new();
        let mut fibers = Vec::new();
        for side in 0..4 {
            let tx = tx.clone();
            let send = move || {
                (0..EACH).for_each(|n| tx.send(side * EACH + n).unwrap());
                Vec::new()
            };
            let rx = rx.clone();
            let receive = move || rx.iter().collect::<Vec<_>>();
            if side % 2 == 0 {
                threads.push(thread::spawn(send));
                threads.push(thread::spawn(receive));
            } else {
                fibers.push(runtime.spawn(send));
                fibers.push(runtime.spawn(receive));
            }
        }
        drop((tx, rx));
        let threads = threads.into_iter().map(|thread| thread.join().unwrap());
        let fibers = fibers.into_iter().map(|fiber| fiber.join().unwrap());
        let all: Vec<_> = threads.chain(fibers).collect();
        // No receiver gets a later value of a sender before an earlier one.
        for received in &all {
            for side in 0..4 {
                let of = |n: &&usize| **n / EACH == side;
                assert!(received.iter().filter(of).is_sorted(), "{capacity:?}");
            }
        }
        let all: Vec<_> = all.into_iter().flatten().collect();
        assert_eq!(all.len(), 4 * EACH, "{capacity:?}");
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4 * EACH);
    }
}

#[test]
fn a_pair_that_never_waits_still_lets_others_run() {
    runtime(1).block_on(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let talker = indent::spawn(move || {
            let (tx, rx) = chan::bounded(1);
            while !stopped.load(SeqCst) {
                tx.send(1).unwrap();
                rx.recv().unwrap();
            }
        });
        task::yield_now();
        stop.store(true, SeqCst);
        talker.join().unwrap();
    });
}

#[test]
fn a_pair_keeps_exchanging_values_beside_fibers_that_compute() {
    if common::all_fibers_are_bound() {
        return;
    }
    let runtime = runtime(2);
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..8)
        .map(|_| {
            let stop = stop.clone();
            runtime.spawn(move || while !stop.load(SeqCst) {})
        })
        .collect();
    let (there, from_here) = chan::bounded(1);
    let (back, from_there) = chan::bounded(1);
    let echo = runtime.spawn(move || from_here.iter().try_for_each(|n| back.send(n)));
    let talk = runtime.spawn(move || {
        for n in 0..200 {
            there.send(n).unwrap();
            assert_eq!(from_there.recv_timeout(LONG), Ok(n));
        }
    });
    talk.join().unwrap();
    echo.join().unwrap().unwrap();
    stop.store(true, SeqCst);
    hogs.into_iter().for_each(|hog| hog.join().unwrap());
}

/// A step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Receive,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => any::<u8>().prop_map(Step::Send),
        9 => Just(Step::Receive),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #[test]
    fn a_channel_is_a_queue_with_a_capacity(
        capacity in prop_oneof![(0..5usize).prop_map(Some), Just(None)],
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let (tx, rx) = match capacity {
            Some(capacity) => chan::bounded(capacity),
            None => chan::unbounded(),
        };
        let (mut model, mut closed) = (VecDeque::new(), false);
        for step in steps {
            match step {
                Step::Send(n) => {
                    let expected = if closed {
                        Err(TrySendError::Closed(n))
                    } else if capacity.is_some_and(|most| model.len() >= most) {
                        Err(TrySendError::Full(n))
                    } else {
                        model.push_back(n);
                        Ok(())
                    };
                    prop_assert_eq!(tx.try_send(n), expected);
                }
                Step::Receive => {
                    let none = if closed { TryRecvError::Closed } else { TryRecvError::Empty };
                    prop_assert_eq!(rx.try_recv(), model.pop_front().ok_or(none));
                }
                Step::Close => {
                    prop_assert_eq!(tx.close(), !closed);
                    closed = true;
                }
            }
            prop_assert_eq!(rx.len(), model.len());
            prop_assert_eq!(rx.is_empty(), model.is_empty());
            prop_assert_eq!(rx.is_closed(), closed);
        }
    }
}

/// The result of an operation that may wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    Sent,
    NotSent(u8),
    Got(u8),
    Over,
}

/// The sequential model of a channel.
#[derive(Default)]
struct Written {
    capacity: Option<usize>,
    buffer: VecDeque<u8>,
    senders: VecDeque<(usize, u8)>,
    receivers: VecDeque<usize>,
    closed: bool,
    /// The result of each operation, by its number; `None` while it waits.
    ended: Vec<Option<Ended>>,
}

impl Written {
    fn has_room(&self) -> bool {
        self.capacity.is_none_or(|most| self.buffer.len() < most)
    }

    fn send(&mut self, value: u8) {
        let number = self.ended.len();
        let ended = if self.closed {
            Some(Ended::NotSent(value))
        } else if let Some(first) = self.receivers.pop_front() {
            self.ended[first] = Some(Ended::Got(value));
            Some(Ended::Sent)
        } else if self.has_room() {
            self.buffer.push_back(value);
            Some(Ended::Sent)
        } else {
            self.senders.push_back((number, value));
            None
        };
        self.ended.push(ended);
    }

    fn receive(&mut self) {
        let number = self.ended.len();
        let first = self.buffer.pop_front();
        let ended = if let Some((sender, value)) = self.senders.pop_front() {
            self.ended[sender] = Some(Ended::Sent);
            match first {
                Some(first) => {
                    self.buffer.push_back(value);
                    Some(Ended::Got(first))
                }
                None => Some(Ended::Got(value)),
            }
        } else if let Some(first) = first {
            Some(Ended::Got(first))
        } else if self.closed {
            Some(Ended::Over)
        } else {
            self.receivers.push_back(number);
            None
        };
        self.ended.push(ended);
    }

    fn close(&mut self) {
        self.closed = true;
        for (sender, value) in self.senders.drain(..) {
            self.ended[sender] = Some(Ended::NotSent(value));
        }
        for receiver in self.receivers.drain(..) {
            self.ended[receiver] = Some(Ended::Over);
        }
    }
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

proptest! {
    #[test]
    fn waiters_are_served_in_order_and_get_a_value_or_an_error(
        capacity in prop_oneof![(0..4usize).prop_map(Some), Just(None)],
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        one_after_the_other(move || {
            let (tx, rx) = match capacity {
                Some(capacity) => chan::bounded(capacity),
                None => chan::unbounded(),
            };
            let mut written = Written { capacity, ..Written::default() };
            let mut fibers = Vec::new();
            for step in steps.into_iter().chain([Step::Close]) {
                let (sender, receiver) = (tx.clone(), rx.clone());
                match step {
                    Step::Send(value) => {
                        written.send(value);
                        fibers.push(indent::spawn(move || match sender.send(value) {
                            Ok(()) => Ended::Sent,
                            Err(SendError(value)) => Ended::NotSent(value),
                        }));
                    }
                    Step::Receive => {
                        written.receive();
                        fibers.push(indent::spawn(move || receiver.recv().map_or(Ended::Over, Ended::Got)));
                    }
                    Step::Close => {
                        prop_assert_eq!(tx.close(), !written.closed);
                        written.close();
                    }
                }
                for (fiber, ended) in fibers.iter().zip(&written.ended) {
                    let parked = || fiber.fiber().phase() == task::Phase::Parked;
                    let start = Instant::now();
                    while !(if ended.is_some() { fiber.is_finished() } else { parked() }) {
                        prop_assert!(start.elapsed() < LONG, "{:?}: {:?}", ended, fiber);
                        task::yield_now();
                    }
                    prop_assert!(ended.is_some() || !fiber.is_finished());
                }
                prop_assert_eq!(rx.len(), written.buffer.len());
            }
            for (fiber, ended) in fibers.into_iter().zip(written.ended) {
                prop_assert_eq!(Some(fiber.join().unwrap()), ended);
            }
            Ok(())
        })?;
    }
}

#[test]
fn operations_that_succeed_at_once_are_charged_and_tries_are_not() {
    const BUDGET: u32 = 8;
    // Counts how often the only worker has run other fibers meanwhile.
    let exhausted = |operation: fn(&chan::Sender<u32>, &chan::Receiver<u32>)| {
        let builder = Builder::new().workers(1).preempt(false);
        let runtime = builder.coop_budget(BUDGET).build().expect("a runtime");
        let before = runtime.metrics().workers[0].budget_exhausted_total;
        runtime.block_on(|| {
            let (tx, rx) = chan::unbounded();
            (0..100 * BUDGET).for_each(|_| operation(&tx, &rx));
        });
        runtime.metrics().workers[0].budget_exhausted_total - before
    };
    let send = exhausted(|tx, _| tx.send(1).unwrap());
    assert!((90..=110).contains(&send), "{send}");
    let both = exhausted(|tx, rx| {
        tx.send(1).unwrap();
        rx.recv().unwrap();
    });
    assert!((180..=220).contains(&both), "{both}");
    let in_time = exhausted(|tx, rx| {
        tx.send_timeout(1, LONG).unwrap();
        rx.recv_deadline(Instant::now()).unwrap();
    });
    assert!((180..=220).contains(&in_time), "{in_time}");
    let tries = exhausted(|tx, rx| {
        tx.try_send(1).unwrap();
        assert_eq!(rx.try_iter().count(), 1);
    });
    assert_eq!(tries, 0);
}

const SENT: usize = 1;
const RECEIVED: usize = 2;

/// A value with a number.
struct Numbered {
    number: usize,
    _counted: Counted,
}

/// Records the fate of all values of a run.
struct Ledger {
    alive: Arc<AtomicUsize>,
    values: Vec<AtomicUsize>,
}

impl Ledger {
    fn new(values: usize) -> Arc<Self> {
        Arc::new(Ledger {
            alive: Arc::default(),
            values: (0..values).map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    fn note(&self, number: usize, what: usize) {
        let before = self.values[number].fetch_or(what, SeqCst);
        assert_eq!(before & what, 0, "twice: value {number}, {what}");
    }

    /// Checks that exactly the values sent were received, and that all were dropped.
    fn check(&self) {
        for (number, value) in self.values.iter().enumerate() {
            let value = value.load(SeqCst);
            assert!(
                value == 0 || value == SENT | RECEIVED,
                "value {number}: {value}"
            );
        }
        assert_eq!(self.alive.load(SeqCst), 0, "values that were not dropped");
    }
}

/// Sends the values `numbers` with every kind of send, until the channel is closed.
fn send_somehow(tx: &chan::Sender<Numbered>, ledger: &Ledger, numbers: std::ops::Range<usize>) {
    let mut random = Random::new(numbers.start as u64 + 1);
    for number in numbers {
        let value = Numbered {
            number,
            _counted: Counted::new(&ledger.alive),
        };
        let pause = Duration::from_micros(random.below(400));
        let sent = match random.below(4) {
            0 => tx.try_send(value).is_ok(),
            1 => tx.send_timeout(value, pause).is_ok(),
            2 => time::timeout(pause, || tx.send(value).is_ok()).unwrap_or(false),
            _ => tx.send(value).is_ok(),
        };
        if sent {
            ledger.note(number, SENT);
        }
    }
}

fn receive_somehow(rx: &chan::Receiver<Numbered>, ledger: &Ledger, seed: u64) {
    let mut random = Random::new(seed);
    while !(rx.is_closed() && rx.is_empty()) {
        let pause = Duration::from_micros(random.below(400));
        let received = match random.below(4) {
            0 => rx.try_recv().ok(),
            1 => rx.recv_timeout(pause).ok(),
            2 => time::timeout(pause, || rx.recv().ok()).unwrap_or(None),
            _ => rx.recv().ok(),
        };
        if let Some(value) = received {
            ledger.note(value.number, RECEIVED);
        }
    }
}

#[test]
fn stress_deadlines_at_random_moments_lose_and_double_nothing() {
    const EACH: usize = 1_500;
    for (seed, capacity) in [Some(0), Some(1), Some(3), Some(64), None]
        .iter()
        .enumerate()
    {
        let quantum = Duration::from_micros(200);
        let builder = Builder::new().workers(2).preempt_quantum(quantum);
        let runtime = builder.build().expect("a runtime");
        let ledger = Ledger::new(8 * EACH);
        let (tx, rx) = match capacity {
            Some(capacity) => chan::bounded(*capacity),
            None => chan::unbounded(),
        };
        let (mut fibers, mut threads) = (Vec::new(), Vec::new());
        for side in 0..8 {
            let (tx, l) = (tx.clone(), ledger.clone());
            let send = move || send_somehow(&tx, &l, side * EACH..(side + 1) * EACH);
            let (rx, l) = (rx.clone(), ledger.clone());
            let receive = move || receive_somehow(&rx, &l, (seed * 8 + side) as u64 + 99);
            if side < 2 {
                threads.push(thread::spawn(send));
                threads.push(thread::spawn(receive));
            } else {
                fibers.push(runtime.spawn(send));
                fibers.push(runtime.spawn(receive));
            }
        }
        drop((tx, rx));
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        ledger.check();
    }
}

#[test]
fn stress_cancelled_fibers_lose_and_double_nothing() {
    const EACH: usize = 100_000;
    for round in 0..10 {
        let quantum = Duration::from_micros(200);
        let builder = Builder::new().workers(2).preempt_quantum(quantum);
        let runtime = builder.build().expect("a runtime");
        let ledger = Ledger::new(4 * EACH);
        let (tx, rx) = chan::bounded(round % 3);
        for side in 0..4 {
            let (tx, l) = (tx.clone(), ledger.clone());
            drop(runtime.spawn(move || {
                for number in side * EACH..(side + 1) * EACH {
                    let _counted = Counted::new(&l.alive);
                    if tx.send(Numbered { number, _counted }).is_err() {
                        return;
                    }
                    l.note(number, SENT);
                }
            }));
            let (rx, l) = (rx.clone(), ledger.clone());
            drop(runtime.spawn(move || rx.iter().for_each(|v| l.note(v.number, RECEIVED))));
        }
        drop(tx);
        thread::sleep(Duration::from_millis(10 + round as u64));
        drop(runtime); // cancels all fibers
        rx.iter().for_each(|v| ledger.note(v.number, RECEIVED));
        ledger.check();
    }
}
