//! Parking: no wake is lost, none counts twice, a deadline and a wake never both end a park.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Random;
use indent::park::{self, ParkReason, Unparker, Woken};
use indent::runtime::{Builder, Runtime};
use indent::task::{self, Phase};

const SEED: u64 = 0x1dea;
/// Number of rounds of each game of ping-pong.
const ROUNDS: usize = 10_000;
/// Number of rounds of the race between a wake and a deadline.
const RACES: usize = if cfg!(debug_assertions) { 2_000 } else { 5_000 };
/// Numbers of fibers and wakes of the stress test.
const FIBERS: usize = 1_000;
const WAKES: usize = if cfg!(debug_assertions) {
    50_000
} else {
    200_000
};

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(5))
}

/// Returns a deadline that no test reaches.
fn never() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(3600))
}

#[test]
fn a_wake_before_a_park_is_kept() {
    common::within(60, || {
        let rt = runtime(1);
        rt.block_on(|| {
            park::unparker().unpark();
            task::yield_now();
            assert_eq!(park::park_until(None, ParkReason::Park), Woken::ByWake);
        });
        park::unparker().unpark();
        park::park(); // the same on a plain thread
    });
}

#[test]
fn a_wake_before_the_first_run_is_kept() {
    common::within(60, || {
        let rt = runtime(1);
        rt.block_on(|| {
            let fiber = indent::spawn(|| park::park_until(None, ParkReason::Park));
            assert_eq!(fiber.fiber().phase(), Phase::Unstarted);
            fiber.unparker().unpark();
            assert_eq!(fiber.join().unwrap(), Woken::ByWake);
        });
    });
}

#[test]
fn two_wakes_before_a_park_are_one() {
    common::within(60, || {
        let twice = || {
            let me = park::unparker();
            me.unpark();
            me.clone().unpark();
            let first = park::park_until(soon(), ParkReason::Park);
            (first, park::park_until(soon(), ParkReason::Park))
        };
        let expected = (Woken::ByWake, Woken::ByDeadline);
        assert_eq!(runtime(1).block_on(twice), expected);
        assert_eq!(twice(), expected); // the same on a plain thread
    });
}

#[test]
fn a_park_ends_by_its_deadline_if_nobody_wakes() {
    common::within(60, || {
        let park = || {
            let before = Instant::now();
            let deadline = before + Duration::from_millis(5);
            let woken = park::park_until(Some(deadline), ParkReason::Park);
            (woken, Instant::now() >= deadline)
        };
        assert_eq!(park(), (Woken::ByDeadline, true));
        for workers in [1, 2] {
            assert_eq!(runtime(workers).block_on(park), (Woken::ByDeadline, true));
        }
    });
}

#[test]
fn a_deadline_in_the_past_ends_a_park_but_not_before_a_kept_wake() {
    common::within(60, || {
        let park = || {
            let past = Instant::now().checked_sub(Duration::from_secs(1));
            assert!(past.is_some());
            let without = park::park_until(past, ParkReason::Park);
            park::unparker().unpark();
            (without, park::park_until(past, ParkReason::Park))
        };
        let expected = (Woken::ByDeadline, Woken::ByWake);
        assert_eq!(park(), expected);
        assert_eq!(runtime(1).block_on(park), expected);
    });
}

#[test]
fn deadlines_end_parks_in_their_order() {
    common::within(60, || {
        let rt = runtime(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = Instant::now() + Duration::from_millis(200);
        let fibers: Vec<_> = [5, 2, 9, 1, 7, 3]
            .into_iter()
            .map(|i| {
                let order = order.clone();
                rt.spawn(move || {
                    let deadline = start + Duration::from_millis(20 * i);
                    let woken = park::park_until(Some(deadline), ParkReason::Park);
                    order.lock().unwrap().push(i);
                    woken
                })
            })
            .collect();
        for fiber in fibers {
            assert_eq!(fiber.join().unwrap(), Woken::ByDeadline);
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 5, 7, 9]);
    });
}

#[test]
fn a_deadline_of_an_earlier_park_does_not_end_a_later_one() {
    common::within(60, || {
        let rt = runtime(1);
        let woken = rt.block_on(|| {
            park::unparker().unpark();
            let early = park::park_until(soon(), ParkReason::Park); // ends immediately
            let me = park::unparker();
            let waker = indent::spawn(move || {
                let later = Some(Instant::now() + Duration::from_millis(40));
                park::park_until(later, ParkReason::Park);
                me.unpark();
            });
            let late = park::park_until(never(), ParkReason::Park);
            waker.join().unwrap();
            (early, late)
        });
        assert_eq!(woken, (Woken::ByWake, Woken::ByWake));
    });
}

#[test]
fn a_parked_fiber_is_woken_by_a_thread_a_fiber_and_another_runtime() {
    common::within(60, || {
        let (rt, other) = (runtime(1), runtime(1));
        let parked = || {
            let fiber = rt.spawn(|| park::park_until(None, ParkReason::Park));
            common::wait_for("the park", || fiber.fiber().phase() == Phase::Parked);
            assert_eq!(fiber.fiber().park_reason(), ParkReason::Park);
            assert!(!fiber.is_finished());
            fiber
        };
        let fiber = parked();
        fiber.unparker().unpark();
        assert_eq!(fiber.join().unwrap(), Woken::ByWake);
        for waker in [&rt, &other] {
            let fiber = parked();
            let unparker = fiber.unparker();
            waker.spawn(move || unparker.unpark()).join().unwrap();
            assert_eq!(fiber.join().unwrap(), Woken::ByWake);
        }
    });
}

#[test]
fn a_parked_thread_is_woken_by_a_thread_and_a_fiber() {
    common::within(60, || {
        let rt = runtime(1);
        for by_fiber in [false, true] {
            let (tell, told) = mpsc::channel::<Unparker>();
            let thread = std::thread::spawn(move || {
                tell.send(park::unparker()).unwrap();
                park::park_until(None, ParkReason::Park)
            });
            let unparker = told.recv().unwrap();
            if by_fiber {
                rt.block_on(|| unparker.unpark());
            } else {
                unparker.unpark();
            }
            assert_eq!(thread.join().unwrap(), Woken::ByWake);
        }
    });
}

#[test]
fn an_unparker_that_outlives_its_fiber_wakes_nobody() {
    common::within(60, || {
        let rt = runtime(1);
        let old: Vec<Unparker> = (0..200)
            .map(|_| rt.spawn(park::unparker).join().unwrap())
            .collect();
        rt.wait_idle();
        let fibers: Vec<_> = (0..200)
            .map(|_| {
                rt.spawn(|| {
                    let later = Instant::now() + Duration::from_millis(50);
                    park::park_until(Some(later), ParkReason::Park)
                })
            })
            .collect();
        for unparker in &old {
            unparker.unpark();
        }
        common::wait_for("the parks", || {
            old.iter().for_each(Unparker::unpark);
            fibers.iter().all(|fiber| fiber.is_finished())
        });
        for fiber in fibers {
            assert_eq!(fiber.join().unwrap(), Woken::ByDeadline);
        }
        drop(rt);
        old.iter().for_each(Unparker::unpark); // nor after the runtime's end
    });
}

#[test]
fn an_unparker_of_a_thread_that_ended_does_nothing() {
    let unparker = std::thread::spawn(park::unparker).join().unwrap();
    unparker.unpark();
    assert_eq!(format!("{unparker:?}"), "Unparker(thread)");
}

/// Plays one side of a game: turns of the parity of `mine` belong to this side.
fn play(turn: &AtomicUsize, mine: usize, other: &Unparker) {
    loop {
        let now = turn.load(SeqCst);
        if now >= 2 * ROUNDS {
            return;
        }
        if now % 2 == mine {
            turn.store(now + 1, SeqCst);
            other.unpark();
        } else {
            park::park();
        }
    }
}

/// Spawns a fiber that waits for its opponent's unparker and then plays.
fn player(
    rt: &Runtime,
    turn: &Arc<AtomicUsize>,
    mine: usize,
) -> (task::JoinHandle<()>, mpsc::Sender<Unparker>) {
    let (tell, told) = mpsc::channel::<Unparker>();
    let turn = turn.clone();
    let fiber = rt.spawn(move || {
        let other = loop {
            match told.try_recv() {
                Ok(other) => break other,
                Err(_) => task::yield_now(),
            }
        };
        play(&turn, mine, &other);
        other.unpark(); // it may have parked for a last turn
    });
    (fiber, tell)
}

#[test]
fn two_fibers_wake_each_other_in_turn() {
    common::within(120, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let turn = Arc::new(AtomicUsize::new(0));
            let (ping, to_ping) = player(&rt, &turn, 0);
            let (pong, to_pong) = player(&rt, &turn, 1);
            to_ping.send(pong.unparker()).unwrap();
            to_pong.send(ping.unparker()).unwrap();
            ping.join().unwrap();
            pong.join().unwrap();
            assert_eq!(turn.load(SeqCst), 2 * ROUNDS);
        }
    });
}

#[test]
fn fibers_of_two_runtimes_wake_each_other_in_turn() {
    common::within(120, || {
        let (one, two) = (runtime(1), runtime(1));
        let turn = Arc::new(AtomicUsize::new(0));
        let (ping, to_ping) = player(&one, &turn, 0);
        let (pong, to_pong) = player(&two, &turn, 1);
        to_ping.send(pong.unparker()).unwrap();
        to_pong.send(ping.unparker()).unwrap();
        ping.join().unwrap();
        pong.join().unwrap();
        assert_eq!(turn.load(SeqCst), 2 * ROUNDS);
    });
}

#[test]
fn a_fiber_and_a_thread_wake_each_other_in_turn() {
    common::within(120, || {
        let rt = runtime(1);
        let turn = Arc::new(AtomicUsize::new(0));
        let (ping, to_ping) = player(&rt, &turn, 0);
        to_ping.send(park::unparker()).unwrap();
        play(&turn, 1, &ping.unparker());
        ping.unparker().unpark();
        ping.join().unwrap();
        assert_eq!(turn.load(SeqCst), 2 * ROUNDS);
    });
}

#[test]
fn two_threads_wake_each_other_in_turn() {
    common::within(120, || {
        let turn = Arc::new(AtomicUsize::new(0));
        let (me, theirs) = (park::unparker(), turn.clone());
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(park::unparker()).unwrap();
            play(&theirs, 1, &me);
            me.unpark();
        });
        let other = told.recv().unwrap();
        play(&turn, 0, &other);
        other.unpark();
        thread.join().unwrap();
        assert_eq!(turn.load(SeqCst), 2 * ROUNDS);
    });
}

/// Parks once in each round, against a deadline, while `waker` wakes it once in each.
///
/// A second park finds a wake that comes after the deadline. Returns how often each ended the park.
fn race(round: &AtomicUsize) -> (usize, usize) {
    let mut random = Random::new(SEED);
    let (mut by_wake, mut by_deadline) = (0, 0);
    for i in 1..=RACES {
        let deadline = Instant::now() + Duration::from_micros(random.below(200));
        round.store(i, SeqCst);
        match park::park_until(Some(deadline), ParkReason::Park) {
            Woken::ByWake => by_wake += 1,
            Woken::ByDeadline => {
                by_deadline += 1;
                let late = park::park_until(None, ParkReason::Park);
                assert_eq!(late, Woken::ByWake);
            }
            Woken::ByCancel => unreachable!("nobody asked it to end"),
        }
    }
    (by_wake, by_deadline)
}

/// Wakes the fiber once in each round, a random moment after the round began.
fn wake_in_each_round(round: &AtomicUsize, whom: &Unparker) {
    let mut random = Random::new(SEED + 1);
    for i in 1..=RACES {
        while round.load(SeqCst) < i {
            std::thread::yield_now();
        }
        let at = Instant::now() + Duration::from_micros(random.below(300));
        while Instant::now() < at {
            std::hint::spin_loop();
        }
        whom.unpark();
    }
}

#[test]
fn stress_a_wake_and_a_deadline_race_and_each_round_ends_once() {
    println!("seed {SEED}");
    common::within(240, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let round = Arc::new(AtomicUsize::new(0));
            let theirs = round.clone();
            let fiber = rt.spawn(move || race(&theirs));
            wake_in_each_round(&round, &fiber.unparker());
            let (by_wake, by_deadline) = fiber.join().unwrap();
            println!("fiber, {workers} workers: {by_wake} by wake, {by_deadline} by deadline");
            assert_eq!(by_wake + by_deadline, RACES);
        }
        let round = Arc::new(AtomicUsize::new(0));
        let (me, theirs) = (park::unparker(), round.clone());
        let waker = std::thread::spawn(move || wake_in_each_round(&theirs, &me));
        let (by_wake, by_deadline) = race(&round);
        println!("thread: {by_wake} by wake, {by_deadline} by deadline");
        assert_eq!(by_wake + by_deadline, RACES);
        waker.join().unwrap();
    });
}

/// Fibers that each take the work given to them, and park when there is none.
struct Takers {
    given: Arc<Vec<AtomicUsize>>,
    over: Arc<AtomicBool>,
    fibers: Vec<task::JoinHandle<usize>>,
    unparkers: Arc<Vec<Unparker>>,
}

impl Takers {
    fn start(rt: &Runtime) -> Self {
        let given: Arc<Vec<_>> = Arc::new((0..FIBERS).map(|_| AtomicUsize::new(0)).collect());
        let over = Arc::new(AtomicBool::new(false));
        let fiber = |i: usize| {
            let (given, over) = (given.clone(), over.clone());
            rt.spawn(move || {
                let mut got = 0;
                loop {
                    let last = over.load(SeqCst);
                    got += given[i].swap(0, SeqCst);
                    if last {
                        return got;
                    }
                    park::park();
                }
            })
        };
        let fibers: Vec<_> = (0..FIBERS).map(fiber).collect();
        let unparkers = Arc::new(fibers.iter().map(|f| f.unparker()).collect());
        Takers {
            given,
            over,
            fibers,
            unparkers,
        }
    }

    /// Returns a closure that gives work to fibers one after the other, each time with a wake.
    fn giver(&self, seed: u64, wakes: usize) -> impl FnOnce() + Send + 'static {
        let (given, unparkers) = (self.given.clone(), self.unparkers.clone());
        move || {
            let mut random = Random::new(seed);
            for _ in 0..wakes {
                let i = random.below(FIBERS as u64) as usize;
                given[i].fetch_add(1, SeqCst);
                unparkers[i].unpark();
                task::checkpoint();
            }
        }
    }

    /// Checks after the givers' end that those wakes alone had everything taken.
    fn end(self) -> usize {
        common::wait_for("every fiber to take what it was given", || {
            self.given.iter().all(|left| left.load(SeqCst) == 0)
        });
        self.over.store(true, SeqCst);
        self.unparkers.iter().for_each(Unparker::unpark);
        self.fibers
            .into_iter()
            .map(|fiber| fiber.join().unwrap())
            .sum()
    }
}

#[test]
fn stress_a_thousand_fibers_are_woken_by_four_threads_at_random() {
    println!("seed {SEED}");
    common::within(240, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let takers = Takers::start(&rt);
            let threads: Vec<_> = (0..4)
                .map(|n| std::thread::spawn(takers.giver(SEED + n, WAKES / 4)))
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_eq!(takers.end(), WAKES);
        }
    });
}

#[test]
fn stress_a_thousand_fibers_are_woken_by_fibers_at_random() {
    println!("seed {SEED}");
    common::within(240, || {
        for workers in [1, 2] {
            let (rt, other) = (runtime(workers), runtime(1));
            let takers = Takers::start(&rt);
            let wakers: Vec<_> = (0..8)
                .map(|n| {
                    let home = if n % 4 == 0 { &other } else { &rt };
                    home.spawn(takers.giver(SEED + n, WAKES / 8))
                })
                .collect();
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
            assert_eq!(takers.end(), WAKES);
        }
    });
}

#[test]
fn an_unpark_during_a_join_is_not_lost() {
    let body = || {
        let me = park::unparker();
        me.unpark();
        let child = indent::spawn(move || {
            task::yield_now();
            me.unpark();
        });
        child.join().unwrap();
        let soon = Instant::now() + Duration::from_secs(30);
        park::park_until(Some(soon), ParkReason::Park)
    };
    let rt = Builder::new().workers(1).build().unwrap();
    assert_eq!(rt.spawn(body).join().unwrap(), Woken::ByWake);
    let thread = std::thread::spawn(body);
    assert_eq!(thread.join().unwrap(), Woken::ByWake, "on a plain thread");
}
