//! Select: one arm fires, and the other arms have no effect.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use indent::chan::{self, Receiver, RecvError, SendError, Sender, TrySendError};
use indent::io::Source;
use indent::runtime::{Builder, Runtime};
use indent::select::Select;
use indent::{select, task, time};

mod common;
use common::Random;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(5);

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Runs a check on a plain thread, on one worker, and on two.
fn everywhere(check: fn()) {
    check();
    runtime(1).block_on(check);
    runtime(2).block_on(check);
}

#[test]
fn an_arm_that_is_ready_fires() {
    everywhere(|| {
        let (full, rx) = chan::bounded(1);
        full.send(1).unwrap();
        let (_tx, empty) = chan::bounded::<u8>(1);
        let fired = select! {
            recv(&empty) -> _ => "empty",
            recv(&rx) -> value => { assert_eq!(value, Ok(1)); "rx" }
        };
        assert_eq!(fired, "rx");
        select! {
            send(&full, 2) -> sent => sent.unwrap(),
            recv(&empty) => unreachable!(),
        }
        assert_eq!(rx.recv(), Ok(2));
    });
}

#[test]
fn without_a_ready_arm_the_default_fires_and_the_others_have_no_effect() {
    everywhere(|| {
        let (full, rx) = chan::bounded(1);
        full.send(1).unwrap();
        let (_tx, empty) = chan::bounded::<u8>(0);
        let fired = select! {
            send(&full, 2) => 1,
            recv(&empty) -> _ => 2,
            after(LONG) => 3,
            default => 4,
        };
        assert_eq!(fired, 4);
        assert_eq!((rx.recv(), rx.len()), (Ok(1), 0));
    });
}

#[test]
fn a_waiting_arm_fires_when_another_fiber_makes_it_ready() {
    everywhere(|| {
        for capacity in [0, 1] {
            let (tx, rx) = chan::bounded(capacity);
            let (_never, empty) = chan::bounded::<u8>(0);
            let other = thread::spawn(move || {
                thread::sleep(SHORT);
                tx.send(5).unwrap();
            });
            let got = select! {
                recv(&rx) -> value => value.unwrap(),
                recv(&empty) -> _ => 0,
            };
            assert_eq!(got, 5);
            other.join().unwrap();

            let (tx, rx) = chan::bounded(0);
            let other = thread::spawn(move || {
                thread::sleep(SHORT);
                rx.recv()
            });
            select! {
                send(&tx, 6) -> sent => sent.unwrap(),
                recv(&empty) -> _ => unreachable!(),
            }
            assert_eq!(other.join().unwrap(), Ok(6));
        }
    });
}

#[test]
fn a_closed_channel_fires_with_an_error() {
    everywhere(|| {
        let (tx, rx) = chan::bounded::<u8>(0);
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            drop(tx);
        });
        let closed = select! { recv(&rx) -> value => value };
        assert_eq!(closed, Err(RecvError));
        other.join().unwrap();

        let (tx, rx) = chan::bounded(0);
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            drop(rx);
        });
        let closed = select! { send(&tx, 3) -> sent => sent };
        assert_eq!(closed, Err(SendError(3)));
        other.join().unwrap();
    });
}

#[test]
fn absent_arms_never_fire() {
    everywhere(|| {
        let (tx, rx) = chan::bounded(4);
        tx.send(1).unwrap();
        let (no_receiver, no_sender): (Option<&Receiver<u8>>, Option<&Sender<u8>>) = (None, None);
        let mut nothing = None;
        for _ in 0..100 {
            let fired = select! {
                recv(no_receiver) => 1,
                send(no_sender, 1) => 2,
                send_from(&tx, &mut nothing) => 3,
                at(Instant::now()) => 4,
            };
            assert_eq!(fired, 4);
        }
        assert_eq!(
            select! { recv(Some(&rx)) -> value => value, recv(no_receiver) -> value => value },
            Ok(1)
        );
    });
}

#[test]
fn a_send_that_loses_keeps_its_value() {
    everywhere(|| {
        let (tx, rx) = chan::bounded::<String>(0);
        let mut value = Some("kept".to_owned());
        select! {
            send_from(&tx, &mut value) => unreachable!("there is no receiver"),
            after(SHORT) => {}
        }
        assert_eq!(value.as_deref(), Some("kept"));
        let other = thread::spawn(move || rx.recv());
        select! { send_from(&tx, &mut value) -> sent => sent.unwrap() }
        assert_eq!(value, None);
        assert_eq!(other.join().unwrap().as_deref(), Ok("kept"));
    });
}

#[test]
fn a_timer_arm_fires_at_its_time_and_not_before() {
    everywhere(|| {
        let (_tx, rx) = chan::bounded::<u8>(0);
        let start = Instant::now();
        select! {
            recv(&rx) -> _ => unreachable!(),
            after(SHORT) => {}
            at(start + LONG) => unreachable!(),
        }
        assert!(start.elapsed() >= SHORT);
    });
}

#[test]
fn the_end_of_a_fiber_fires() {
    everywhere(|| {
        let (_tx, rx) = chan::bounded::<u8>(0);
        let fiber = indent::spawn(|| {
            time::sleep(SHORT);
            11
        });
        let result = select! {
            join(fiber) -> result => result.unwrap(),
            recv(&rx) -> _ => 0,
        };
        assert_eq!(result, 11);
        // A field works too, and keeps its value if another arm fires.
        let holder = (0, (indent::spawn(indent::park::park), 0));
        select! {
            join(holder.1.0) -> result => result.unwrap(),
            after(Duration::ZERO) => holder.1.0.unparker().unpark(),
        }
        // A fiber whose arm did not fire can be waited for again.
        let (tx, rx) = chan::bounded(1);
        let slow = indent::spawn(move || rx.recv());
        for _ in 0..3 {
            select! {
                finished(&slow) => unreachable!("it waits"),
                after(Duration::from_millis(1)) => {}
            }
        }
        tx.send(12).unwrap();
        select! { finished(&slow) => {} }
        assert_eq!(slow.join().unwrap(), Ok(12));
    });
}

#[test]
fn the_end_of_a_fiber_fires_for_all_waiters_and_not_before() {
    everywhere(|| {
        let over = Arc::new(AtomicBool::new(false));
        let (tx, rx) = chan::bounded::<()>(0);
        let flag = over.clone();
        let fiber = Arc::new(indent::spawn(move || {
            let _until_closed = rx.recv();
            flag.store(true, SeqCst);
        }));
        let wait = |fiber: Arc<task::JoinHandle<()>>, over: Arc<AtomicBool>| {
            move || {
                select! {
                    finished(&*fiber) => {}
                    finished(&*fiber) => {} // another arm of the same select
                }
                assert!(over.load(SeqCst), "it was not over");
            }
        };
        let fibers: Vec<_> = (0..3)
            .map(|_| indent::spawn(wait(fiber.clone(), over.clone())))
            .collect();
        let thread = thread::spawn(wait(fiber.clone(), over.clone()));
        select! {
            finished(&*fiber) => unreachable!("it waits"),
            after(SHORT) => drop(tx),
        }
        wait(fiber, over)();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        thread.join().unwrap();
    });
}

#[test]
fn a_descriptor_that_becomes_ready_fires() {
    everywhere(|| {
        let (reader, mut writer) = indent::io::pipe().unwrap();
        let source = Source::new(reader).unwrap();
        let (_tx, rx) = chan::bounded::<u8>(0);
        let fired = select! {
            readable(&source) => true,
            recv(&rx) -> _ => true,
            after(SHORT) => false,
        };
        assert!(!fired, "there is nothing to read");
        let other = thread::spawn(move || {
            thread::sleep(SHORT);
            writer.write_all(b"!").unwrap();
            writer
        });
        select! {
            readable(&source) -> ready => ready.unwrap(),
            recv(&rx) -> _ => unreachable!(),
            after(LONG) => panic!("nothing came"),
        }
        let mut byte = [0];
        assert_eq!(source.into_inner().read(&mut byte).unwrap(), 1);
        let writer = Source::new(other.join().unwrap()).unwrap();
        select! { writable(&writer) -> ready => ready.unwrap() }
    });
}

/// A descriptor whose owner panics at the last of a number of calls of `as_fd`.
struct Moody {
    reader: indent::io::PipeReader,
    patience: AtomicUsize,
}

impl AsFd for Moody {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let left = self.patience.fetch_sub(1, SeqCst);
        if left == 1 {
            resume_unwind(Box::new("not again")); // prints no message
        }
        self.reader.as_fd()
    }
}

#[test]
fn an_owner_of_a_descriptor_that_panics_leaves_no_waiter_in_a_queue() {
    everywhere(|| {
        for patience in 1..8 {
            let (reader, _writer) = indent::io::pipe().unwrap();
            let moody = |patience| Moody {
                reader,
                patience: AtomicUsize::new(patience),
            };
            let source = Source::new(moody(usize::MAX)).unwrap();
            source.get_ref().patience.store(patience, SeqCst);
            let (tx, rx) = chan::bounded(0);
            let _ended = catch_unwind(AssertUnwindSafe(|| {
                let value = [0; 64];
                select! {
                    recv(&rx) -> _ => unreachable!("there is no sender"),
                    readable(&source) -> ready => ready.unwrap(),
                    after(SHORT) => {}
                }
                value
            }));
            source.get_ref().patience.store(usize::MAX, SeqCst); // so that no later call panics
            assert_eq!(tx.try_send([1; 64]), Err(TrySendError::Full([1; 64])));
        }
    });
}

#[test]
fn of_arms_that_could_fire_each_has_the_same_chance() {
    const PICKS: usize = 10_000;
    runtime(1).block_on(|| {
        for arms in [2, 3, 5] {
            let channels: Vec<_> = (0..arms).map(|_| chan::bounded::<()>(1)).collect();
            let (_tx, never) = chan::bounded::<()>(0);
            let mut picks = vec![0; arms];
            for _ in 0..PICKS {
                for (tx, _) in &channels {
                    let _or_it_is_there = tx.try_send(());
                }
                let mut select = Select::new();
                for (_, rx) in &channels {
                    select.recv(rx);
                    select.recv(&never); // never ready: it must not make the other source ready
                }
                picks[select.select().index() / 2] += 1;
            }
            let fair = PICKS / arms;
            let near = |n: &usize| n.abs_diff(fair) * 10 <= fair;
            assert!(picks.iter().all(near), "{picks:?}");
        }
    });
}

#[test]
fn a_select_may_have_many_arms() {
    runtime(2).block_on(|| {
        let channels: Vec<_> = (0..300).map(|_| chan::bounded(0)).collect();
        let senders: Vec<_> = channels.iter().map(|(tx, _)| tx.clone()).collect();
        let fiber = indent::spawn(move || {
            for (n, tx) in senders.iter().enumerate() {
                tx.send(n).unwrap();
            }
        });
        let mut select = Select::new();
        let tokens: Vec<_> = channels.iter().map(|(_, rx)| select.recv(rx)).collect();
        for n in 0..300 {
            let fired = select.select();
            let token = tokens[fired.index()];
            assert_eq!((fired.index(), fired.complete(token)), (n, Ok(n)));
        }
        fiber.join().unwrap();
        let (tx, rx) = chan::bounded(1);
        let fired = select! {
            recv(&rx) -> _ => 0, recv(&rx) -> _ => 1, recv(&rx) -> _ => 2, recv(&rx) -> _ => 3,
            recv(&rx) -> _ => 4, recv(&rx) -> _ => 5, recv(&rx) -> _ => 6, recv(&rx) -> _ => 7,
            recv(&rx) -> _ => 8, recv(&rx) -> _ => 9, recv(&rx) -> _ => 10, recv(&rx) -> _ => 11,
            recv(&rx) -> _ => 12, recv(&rx) -> _ => 13, recv(&rx) -> _ => 14, recv(&rx) -> _ => 15,
            recv(&rx) -> _ => 16, recv(&rx) -> _ => 17, send(&tx, 1) => 18,
        };
        assert_eq!(fired, 18);
    });
}

#[test]
fn two_selects_match_each_other() {
    // Each side can send to the other or receive from it, and the channels have no buffer.
    const ROUNDS: usize = 3_000;
    let runtime = runtime(2);
    let (a, from_a) = chan::bounded(0);
    let (b, from_b) = chan::bounded(0);
    let play = |own: Sender<usize>, theirs: Receiver<usize>| {
        move || {
            let (mut sent, mut received) = (0, 0);
            while sent + received < ROUNDS {
                select! {
                    send(&own, sent) -> result => {
                        result.unwrap();
                        sent += 1;
                    }
                    recv(&theirs) -> value => {
                        assert_eq!(value, Ok(received));
                        received += 1;
                    }
                }
            }
            (sent, received)
        }
    };
    let one = runtime.spawn(play(a, from_b));
    let other = thread::spawn(play(b, from_a));
    let (one, other) = (one.join().unwrap(), other.join().unwrap());
    assert_eq!(one.0, other.1);
    assert_eq!(one.1, other.0);
}

#[test]
fn a_select_does_not_match_itself() {
    runtime(1).block_on(|| {
        let (tx, rx) = chan::bounded(0);
        let fired = select! {
            send(&tx, 1) => "sent",
            recv(&rx) -> _ => "received",
            after(SHORT) => "neither",
        };
        assert_eq!(fired, "neither");
    });
}

#[test]
fn arms_that_do_not_fire_leave_nothing_behind() {
    runtime(1).block_on(|| {
        let (tx, rx) = chan::bounded(0);
        let (_other, never) = chan::bounded::<u8>(0);
        for _ in 0..100 {
            select! {
                recv(&rx) -> _ => unreachable!(),
                recv(&never) -> _ => unreachable!(),
                after(Duration::from_micros(10)) => {}
            }
        }
        assert!(tx.try_send(1).is_err(), "no waiter is left");
        let receiver = indent::spawn(move || rx.recv());
        tx.send(2).unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(2));
    });
}

#[test]
fn a_time_limit_and_a_cancellation_unwind_a_select() {
    everywhere(|| {
        let (_tx, rx) = chan::bounded::<u8>(0);
        let wait = || select! { recv(&rx) -> value => value };
        assert!(time::timeout(SHORT, wait).is_err());
    });
    let runtime = runtime(1);
    let (_tx, rx) = chan::bounded::<u8>(0);
    let fiber = runtime.spawn(move || select! { recv(&rx) -> value => value });
    runtime.block_on(|| time::sleep(SHORT));
    drop(runtime);
    assert!(fiber.join().unwrap_err().is_cancelled());
}

#[test]
fn a_select_that_does_not_wait_neither_yields_nor_unwinds() {
    let budget = 4;
    let builder = Builder::new().workers(1).coop_budget(budget).preempt(false);
    let runtime = builder.build().expect("a runtime");
    let (_tx, rx) = chan::bounded::<u8>(0);
    let sibling_ran = Arc::new(AtomicBool::new(false));
    let (flag, past) = (sibling_ran.clone(), Arc::new(AtomicUsize::new(0)));
    let count = past.clone();
    let fiber = runtime.spawn(move || {
        let set = flag.clone();
        drop(indent::spawn(move || set.store(true, SeqCst)));
        for _ in 0..100 * budget {
            select! { recv(&rx) -> _ => unreachable!(), default => {} }
        }
        assert!(!flag.load(SeqCst), "it yielded");
        let limit = time::timeout(Duration::ZERO, || {
            thread::sleep(Duration::from_millis(1));
            let mut select = Select::new();
            select.recv(&rx);
            for n in 0..100 * budget as usize {
                assert!(select.try_select().is_none());
                count.store(n, SeqCst);
            }
        });
        assert!(limit.is_ok(), "it unwound");
    });
    fiber.join().unwrap();
    assert_eq!(past.load(SeqCst), 100 * budget as usize - 1);
}

#[test]
fn bodies_may_leave_loops_and_functions() {
    fn first(rx: &Receiver<u8>) -> Option<u8> {
        loop {
            select! {
                recv(rx) -> value => match value {
                    Ok(0) => continue,
                    Ok(9) => break,
                    Ok(n) => return Some(n),
                    Err(RecvError) => return None,
                },
            }
        }
        None
    }
    let (tx, rx) = chan::bounded(4);
    [0, 0, 5, 9].into_iter().for_each(|n| tx.send(n).unwrap());
    assert_eq!(first(&rx), Some(5));
    assert_eq!(first(&rx), None);
}

#[test]
fn the_output_of_an_arm_that_is_not_taken_is_dropped() {
    let value = Arc::new(());
    let (tx, rx) = chan::bounded(1);
    tx.send(value.clone()).unwrap();
    let mut select = Select::new();
    select.recv(&rx);
    drop(select.select());
    assert_eq!(Arc::strong_count(&value), 1);
    select.send(&tx, value.clone());
    drop(select);
    assert_eq!(
        Arc::strong_count(&value),
        1,
        "the value of a send that was not done"
    );
}

#[test]
fn a_clone_that_panics_takes_its_value_and_no_other() {
    struct Shy(u8);

    impl Clone for Shy {
        fn clone(&self) -> Self {
            if self.0 == 1 {
                resume_unwind(Box::new("not now")); // prints no message
            }
            Shy(self.0)
        }
    }

    let (tx, mut rx) = chan::broadcast(8);
    (0..4).for_each(|n| drop(tx.send(Shy(n))));
    let mut select = Select::new();
    let token = select.recv(&mut rx);
    let mut next = || {
        let complete = || select.select().complete(token).map(|value| value.0);
        catch_unwind(AssertUnwindSafe(complete)).map_err(|_| "it panicked")
    };
    assert_eq!(next(), Ok(Ok(0)));
    assert_eq!(next(), Err("it panicked"));
    assert_eq!(next(), Ok(Ok(2)));
    drop(select.select()); // clones no value, and takes the last one
    assert!(select.try_select().is_none());
}

#[test]
fn a_select_at_the_end_of_a_thread_is_woken() {
    struct Late(task::JoinHandle<()>, std::sync::mpsc::Sender<&'static str>);

    impl Drop for Late {
        fn drop(&mut self) {
            let woken = select! {
                finished(&self.0) => "by the end of the fiber",
                after(Duration::from_secs(10)) => "too late",
            };
            self.1.send(woken).unwrap();
        }
    }

    thread_local! {
        static LATE: std::cell::OnceCell<Late> = const { std::cell::OnceCell::new() };
    }

    let (sender, fired) = std::sync::mpsc::channel();
    let (tx, rx) = chan::bounded::<()>(0);
    let fiber = indent::spawn(move || assert!(rx.recv().is_err()));
    let thread = thread::spawn(move || {
        // Dropped after the runtime's own thread-local for waiting threads, which is created later.
        LATE.with(|late| assert!(late.set(Late(fiber, sender)).is_ok()));
        let (_tx, never) = chan::bounded::<()>(0);
        assert!(never.recv_timeout(SHORT).is_err());
    });
    thread::sleep(10 * SHORT);
    drop(tx);
    assert_eq!(fired.recv(), Ok("by the end of the fiber"));
    thread.join().unwrap();
}

#[test]
fn stress_selects_at_random_moments_lose_and_double_nothing() {
    const EACH: usize = 1_000;
    const SIDES: usize = 6;
    let quantum = Duration::from_micros(200);
    let builder = Builder::new().workers(2).preempt_quantum(quantum);
    let runtime = builder.build().expect("a runtime");
    let channels: Arc<Vec<_>> = Arc::new((0..3).map(chan::bounded::<usize>).collect());
    let (sent, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    let (mut sending_threads, mut receiving_threads) = (Vec::new(), Vec::new());
    for side in 0..SIDES {
        let (all, count) = (channels.clone(), sent.clone());
        let send = move || {
            let mut random = Random::new(side as u64 + 1);
            for n in side * EACH..(side + 1) * EACH {
                let pause = Duration::from_micros(random.below(300));
                let mut values = [Some(n), Some(n), Some(n)];
                let [a, b, c] = &mut values;
                let was_sent = time::timeout(pause * 2, || {
                    select! {
                        send_from(&all[0].0, a) -> result => result.is_ok(),
                        send_from(&all[1].0, b) -> result => result.is_ok(),
                        send_from(&all[2].0, c) -> result => result.is_ok(),
                        after(pause) => false,
                    }
                });
                let was_sent = was_sent.unwrap_or(false);
                let left = values.iter().flatten().count();
                assert_eq!(left, if was_sent { 2 } else { 3 }, "one is sent, or none");
                count.fetch_add(usize::from(was_sent), SeqCst);
            }
        };
        let (all, count, over) = (channels.clone(), received.clone(), over.clone());
        let receive = move || {
            let mut random = Random::new(side as u64 + 100);
            let mut seen = Vec::new();
            while !over.load(SeqCst) || all.iter().any(|(_, rx)| !rx.is_empty()) {
                let pause = Duration::from_micros(random.below(300));
                let value = time::timeout(pause * 2, || {
                    select! {
                        recv(&all[0].1) -> value => value.ok(),
                        recv(&all[1].1) -> value => value.ok(),
                        recv(&all[2].1) -> value => value.ok(),
                        after(pause) => None,
                    }
                });
                seen.extend(value.ok().flatten());
            }
            count.fetch_add(seen.len(), SeqCst);
            seen
        };
        if side < 2 {
            sending_threads.push(thread::spawn(send));
            receiving_threads.push(thread::spawn(receive));
        } else {
            senders.push(runtime.spawn(send));
            receivers.push(runtime.spawn(receive));
        }
    }
    senders.into_iter().for_each(|fiber| fiber.join().unwrap());
    sending_threads.into_iter().for_each(|t| t.join().unwrap());
    over.store(true, SeqCst);
    let mut seen = HashMap::new();
    let fibers = receivers.into_iter().map(|fiber| fiber.join().unwrap());
    let threads = receiving_threads.into_iter().map(|t| t.join().unwrap());
    fibers
        .chain(threads)
        .flatten()
        .for_each(|n| *seen.entry(n).or_insert(0) += 1);
    assert!(seen.values().all(|n| *n == 1), "received twice");
    assert_eq!(sent.load(SeqCst), received.load(SeqCst));
    assert!(received.load(SeqCst) > 0);
}

#[test]
fn stress_cancelled_selects_lose_and_double_nothing() {
    const EACH: usize = 100_000;
    for round in 0..10 {
        let quantum = Duration::from_micros(200);
        let builder = Builder::new().workers(2).preempt_quantum(quantum);
        let runtime = builder.build().expect("a runtime");
        let channels: Arc<Vec<_>> = Arc::new((0..3).map(chan::bounded::<usize>).collect());
        // Counts for each value how often it was sent, and how often it was received.
        let zeros = || (0..4 * EACH).map(|_| AtomicUsize::new(0)).collect();
        let counts: Arc<[Vec<AtomicUsize>; 2]> = Arc::new([zeros(), zeros()]);
        for side in 0..4 {
            let (all, count) = (channels.clone(), counts.clone());
            drop(runtime.spawn(move || {
                for n in side * EACH..(side + 1) * EACH {
                    let sent = select! {
                        send(&all[0].0, n) -> sent => sent,
                        send(&all[1].0, n) -> sent => sent,
                        send(&all[2].0, n) -> sent => sent,
                    };
                    sent.unwrap();
                    count[0][n].fetch_add(1, SeqCst);
                }
            }));
            let (all, count) = (channels.clone(), counts.clone());
            drop(runtime.spawn(move || {
                loop {
                    let value = select! {
                        recv(&all[0].1) -> value => value,
                        recv(&all[1].1) -> value => value,
                        recv(&all[2].1) -> value => value,
                    };
                    count[1][value.unwrap()].fetch_add(1, SeqCst);
                }
            }));
        }
        let first = &counts[1][0]; // received by one of the fibers, like all that follow
        common::wait_for("the first value", || first.load(SeqCst) > 0);
        thread::sleep(Duration::from_millis(5 + round));
        drop(runtime); // cancels all fibers
        for n in channels.iter().flat_map(|(_, rx)| rx.try_iter()) {
            counts[1][n].fetch_add(1, SeqCst);
        }
        for (number, (s, r)) in counts[0].iter().zip(&counts[1]).enumerate() {
            let (s, r) = (s.load(SeqCst), r.load(SeqCst));
            assert!(s == r && s <= 1, "value {number}: sent {s}, received {r}");
        }
    }
}

#[test]
fn a_select_that_fires_at_once_is_charged() {
    const BUDGET: u32 = 8;
    let builder = Builder::new().workers(1).preempt(false);
    let runtime = builder.coop_budget(BUDGET).build().expect("a runtime");
    let exhausted = || runtime.metrics().workers[0].budget_exhausted_total;
    let times = |operation: &(dyn Fn() + Sync)| {
        let before = exhausted();
        runtime.block_on(|| (0..100 * BUDGET).for_each(|_| operation()));
        exhausted() - before
    };
    let (tx, rx) = chan::bounded(1);
    tx.send(1).unwrap();
    // Two selects for each value: one receives it, the other sends it back.
    let both = times(&|| {
        select! { recv(&rx) -> value => assert_eq!(value, Ok(1)) }
        select! { send(&tx, 1) -> sent => sent.unwrap() }
    });
    assert!((180..=220).contains(&both), "{both}");
    let clock = times(&|| select! { at(Instant::now()) => {} });
    assert!((90..=110).contains(&clock), "{clock}");
    let tries = times(&|| {
        select! { recv(&rx) -> value => assert!(value.is_ok()), default => unreachable!("it is there") }
        tx.try_send(1).unwrap();
    });
    assert_eq!(tries, 0, "it never yields");
}

#[test]
fn ping_pong_by_select_makes_progress_beside_fibers_that_compute() {
    if common::all_fibers_are_bound() {
        return;
    }
    let runtime = runtime(2);
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..8 {
        let stop = stop.clone();
        drop(runtime.spawn(move || while !stop.load(SeqCst) {}));
    }
    let (there, from_here) = chan::bounded(0);
    let (back, from_there) = chan::bounded(0);
    let echo = runtime.spawn(move || from_here.iter().try_for_each(|n: u32| back.send(n)));
    let talk = runtime.spawn(move || {
        for n in 0..100 {
            select! { send(&there, n) -> sent => sent.unwrap(), after(LONG) => panic!("lost") }
            select! { recv(&from_there) -> value => assert_eq!(value, Ok(n)), after(LONG) => panic!("lost") }
            task::checkpoint();
        }
    });
    talk.join().unwrap();
    echo.join().unwrap().unwrap();
    stop.store(true, SeqCst);
}
