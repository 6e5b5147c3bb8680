//! Fairness: under any flood of a worker, every runnable fiber runs within a bounded number of
//! dispatches.
//!
//! Time is measured in dispatches of the only worker, as its metrics count them: the dispatches
//! between the moment a fiber is known to be runnable and its own dispatch.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use indent::park::{self, Unparker};
use indent::runtime::{Builder, Handle, Runtime};
use indent::task::{self, JoinHandle, Phase};

/// Most dispatches of others that a runnable fiber waits for.
///
/// The sum of the interval of the global queue and, for each of the fibers in front of it, one turn
/// of its kind, one of the other kind, and the turns of the LIFO slot.
const BOUND: u64 = 61 + 60 * 5;
/// Number of waits measured in each test.
const PROBES: usize = 200;

/// Starts one worker without preemption: a preempted fiber would move part of the flood to another
/// thread.
fn runtime() -> Runtime {
    Builder::new().workers(1).preempt(false).build().unwrap()
}

fn dispatches() -> u64 {
    Handle::current().metrics().workers[0].dispatches_total
}

/// Fibers that flood the worker until the test is over, with a count of their turns.
#[derive(Clone, Default)]
struct Flood {
    over: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    threads: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>,
}

impl Flood {
    /// Counts a turn; returns false when the flood is to end.
    fn turn(&self) -> bool {
        self.turns.fetch_add(1, SeqCst);
        !self.over.load(SeqCst)
    }

    /// Floods with two fibers that wake each other: started fibers, in the LIFO slot.
    fn by_conversation(self, rt: &Runtime) -> Self {
        let unparkers = Arc::new([OnceLock::<Unparker>::new(), OnceLock::new()]);
        rt.block_on(|| {
            for me in [0, 1] {
                let (flood, names) = (self.clone(), unparkers.clone());
                let fiber = indent::spawn(move || {
                    let other = names[1 - me].wait();
                    while flood.turn() {
                        other.unpark();
                        park::park();
                    }
                    other.unpark();
                });
                assert!(unparkers[me].set(fiber.unparker()).is_ok());
            }
        });
        self
    }

    /// Floods with fibers that yield: started fibers, in the local queue.
    fn by_yields(self, rt: &Runtime) -> Self {
        for _ in 0..5 {
            let flood = self.clone();
            drop(rt.spawn(move || {
                while flood.turn() {
                    task::yield_now();
                }
            }));
        }
        self
    }

    /// Floods with wakes by a thread, ten thousand a second: started fibers, in the global queue.
    fn by_wakes_from_outside(self, rt: &Runtime) -> Self {
        let woken: Vec<_> = (0..5)
            .map(|_| {
                let flood = self.clone();
                let fiber = rt.spawn(move || {
                    while flood.turn() {
                        park::park();
                    }
                });
                fiber.unparker()
            })
            .collect();
        let flood = self.clone();
        let thread = std::thread::spawn(move || {
            let (start, mut wakes) = (Instant::now(), 0);
            while !flood.over.load(SeqCst) {
                while wakes < start.elapsed().as_micros() / 100 {
                    woken[wakes as usize % woken.len()].unpark();
                    wakes += 1;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            woken.iter().for_each(Unparker::unpark);
        });
        self.threads.lock().unwrap().push(thread);
        self
    }

    /// Floods with chains of fibers, each of which spawns the next and ends.
    ///
    /// Unstarted fibers take the slot for the newest spawned fiber and, with several chains, the
    /// queue.
    fn by_chains(self, rt: &Runtime, lines: usize) -> Self {
        fn link(flood: Flood) {
            if flood.turn() {
                drop(indent::spawn(move || link(flood)));
            }
        }
        for _ in 0..lines {
            let flood = self.clone();
            drop(rt.spawn(move || link(flood)));
        }
        self
    }

    /// Measures beside the flood once it runs, and ends it.
    fn measure<T>(self, rt: &Runtime, measure: impl FnOnce() -> T) -> T {
        // After so many turns all of the flood has started, so none of it is ahead in a queue.
        let now = self.turns.load(SeqCst);
        common::wait_for("the flood", || self.turns.load(SeqCst) > now + 2_000);
        let before = self.turns.load(SeqCst);
        let result = measure();
        let turns = self.turns.load(SeqCst) - before;
        self.over.store(true, SeqCst);
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
        rt.wait_idle();
        assert!(turns > PROBES as u64, "no flood: {turns} turns");
        result
    }
}

fn assert_bounded(what: &str, waits: &[u64]) {
    let longest = waits.iter().max().unwrap();
    println!(
        "{what}: {} waits, the longest {longest} dispatches",
        waits.len()
    );
    assert_eq!(waits.len(), PROBES);
    assert!(*longest <= BOUND, "{what}: waited for {longest} dispatches");
}

/// Returns the dispatches of others between two readings, the second by the fiber that waited.
fn between(runnable: u64, runs: u64) -> u64 {
    runs.saturating_sub(runnable + 1)
}

/// Measures fibers that a fiber of the flooded worker spawns one after the other.
fn spawned_by_a_fiber(rt: &Runtime) -> Vec<u64> {
    rt.block_on(|| {
        let probe = |_| {
            let fiber = indent::spawn(dispatches);
            let spawned = dispatches();
            between(spawned, fiber.join().unwrap())
        };
        (0..PROBES).map(probe).collect()
    })
}

/// Measures the same, but another spawn pushes each fiber out of the slot for the newest spawned
/// one.
fn spawned_and_queued_by_a_fiber(rt: &Runtime) -> Vec<u64> {
    rt.block_on(|| {
        let probe = |_| {
            let fiber = indent::spawn(dispatches);
            let other = indent::spawn(|| ());
            let spawned = dispatches();
            let wait = between(spawned, fiber.join().unwrap());
            other.join().unwrap();
            wait
        };
        (0..PROBES).map(probe).collect()
    })
}

/// Measures fibers that a plain thread spawns, through the global queue.
fn spawned_by_a_thread(rt: &Runtime) -> Vec<u64> {
    let probe = |_| {
        let fiber = rt.spawn(dispatches);
        let spawned = rt.metrics().workers[0].dispatches_total;
        between(spawned, fiber.join().unwrap())
    };
    (0..PROBES).map(probe).collect()
}

/// A started fiber that parks, with the dispatch count of each of its wakes.
struct Sleeper {
    fiber: JoinHandle<()>,
    woken_at: Arc<AtomicU64>,
}

impl Sleeper {
    fn start(rt: &Runtime) -> Self {
        let woken_at = Arc::new(AtomicU64::new(0));
        let note = woken_at.clone();
        let fiber = rt.spawn(move || {
            for _ in 0..PROBES {
                park::park();
                note.store(dispatches(), SeqCst);
            }
        });
        Sleeper { fiber, woken_at }
    }

    /// Wakes the fiber and returns how long it waited; the caller waits by calling `pause`.
    fn wake(&self, now: impl Fn() -> u64, pause: impl Fn()) -> u64 {
        while self.fiber.fiber().phase() != Phase::Parked {
            pause();
        }
        self.woken_at.store(0, SeqCst);
        self.fiber.unparker().unpark();
        let runnable = now();
        while self.woken_at.load(SeqCst) == 0 {
            pause();
        }
        between(runnable, self.woken_at.load(SeqCst))
    }
}

/// Measures a started fiber that a plain thread wakes.
fn woken_by_a_thread(rt: &Runtime) -> Vec<u64> {
    let sleeper = Sleeper::start(rt);
    let now = || rt.metrics().workers[0].dispatches_total;
    let waits = (0..PROBES)
        .map(|_| sleeper.wake(now, std::thread::yield_now))
        .collect();
    sleeper.fiber.join().unwrap();
    waits
}

/// Measures a started fiber that another fiber of the same worker wakes.
fn woken_by_a_fiber(rt: &Runtime) -> Vec<u64> {
    let sleeper = Sleeper::start(rt);
    let waits = rt.block_on(|| {
        (0..PROBES)
            .map(|_| sleeper.wake(dispatches, task::yield_now))
            .collect()
    });
    sleeper.fiber.join().unwrap();
    waits
}

/// Measures a started fiber that only yields.
fn yielding(rt: &Runtime) -> Vec<u64> {
    rt.block_on(|| {
        let probe = |_| {
            let before = dispatches();
            task::yield_now();
            between(before, dispatches())
        };
        (0..PROBES).map(probe).collect()
    })
}

#[test]
fn started_fibers_that_wake_each_other_do_not_delay_an_unstarted_one() {
    common::within(120, || {
        type Probe = fn(&Runtime) -> Vec<u64>;
        let probes: [(&str, Probe); 3] = [
            ("spawned", spawned_by_a_fiber),
            ("spawned and queued", spawned_and_queued_by_a_fiber),
            ("spawned by a thread", spawned_by_a_thread),
        ];
        for (what, probe) in probes {
            let rt = runtime();
            let flood = Flood::default().by_conversation(&rt);
            let waits = flood.by_wakes_from_outside(&rt).measure(&rt, || probe(&rt));
            assert_bounded(what, &waits);
        }
    });
}

#[test]
fn every_kind_of_started_fiber_together_does_not_delay_an_unstarted_one() {
    common::within(120, || {
        let rt = runtime();
        let flood = Flood::default()
            .by_conversation(&rt)
            .by_yields(&rt)
            .by_wakes_from_outside(&rt);
        let (queued, outside) = flood.measure(&rt, || {
            (spawned_and_queued_by_a_fiber(&rt), spawned_by_a_thread(&rt))
        });
        assert_bounded("spawned and queued", &queued);
        assert_bounded("spawned by a thread", &outside);
    });
}

#[test]
fn unstarted_fibers_do_not_delay_a_started_one() {
    if common::all_fibers_are_bound() {
        return;
    }
    common::within(120, || {
        for lines in [1, 50] {
            let rt = runtime();
            let flood = Flood::default().by_chains(&rt, lines);
            let (thread, fiber, yields) = flood.measure(&rt, || {
                (woken_by_a_thread(&rt), woken_by_a_fiber(&rt), yielding(&rt))
            });
            assert_bounded("woken by a thread", &thread);
            assert_bounded("woken by a fiber", &fiber);
            assert_bounded("yielding", &yields);
        }
    });
}

#[test]
fn a_chain_of_spawns_does_not_starve_a_queued_fiber() {
    common::within(120, || {
        let rt = runtime();
        let waits = Flood::default()
            .by_chains(&rt, 1)
            .measure(&rt, || spawned_and_queued_by_a_fiber(&rt));
        assert_bounded("spawned and queued", &waits);
    });
}

#[test]
fn a_flooded_worker_takes_what_a_thread_spawns() {
    common::within(120, || {
        for lines in [1, 50] {
            let rt = runtime();
            let flood = Flood::default()
                .by_chains(&rt, lines)
                .by_yields(&rt)
                .by_conversation(&rt);
            let waits = flood.measure(&rt, || spawned_by_a_thread(&rt));
            assert_bounded("spawned by a thread", &waits);
        }
    });
}

#[test]
fn two_floods_go_on_beside_each_other() {
    common::within(120, || {
        let rt = runtime();
        let (chains, yields) = (
            Flood::default().by_chains(&rt, 10),
            Flood::default().by_yields(&rt),
        );
        let (unstarted, started) = (chains.turns.clone(), yields.turns.clone());
        let grown = chains.measure(&rt, || {
            let before = (unstarted.load(SeqCst), started.load(SeqCst));
            common::wait_for("both", || {
                unstarted.load(SeqCst) > before.0 + 10_000
                    && started.load(SeqCst) > before.1 + 10_000
            });
            yields.over.store(true, SeqCst);
            (
                unstarted.load(SeqCst) - before.0,
                started.load(SeqCst) - before.1,
            )
        });
        println!("{} starts beside {} yields", grown.0, grown.1);
    });
}

#[test]
fn a_child_of_a_fiber_that_computes_runs_on_the_other_worker() {
    common::within(120, || {
        let rt = Builder::new().workers(2).build().unwrap();
        for round in 0..50 {
            let done = Arc::new(AtomicU64::new(0));
            let parent = {
                let done = done.clone();
                rt.spawn(move || {
                    // One alone in the slot for the newest spawned fiber, or with others in the
                    // queue.
                    let children = 1 + round % 3;
                    for _ in 0..children {
                        let done = done.clone();
                        drop(indent::spawn(move || done.fetch_add(1, SeqCst)));
                    }
                    let start = Instant::now();
                    while done.load(SeqCst) < children {
                        std::hint::spin_loop();
                        if start.elapsed() > Duration::from_secs(30) {
                            return false; // time is up, and its children have not run
                        }
                    }
                    true
                })
            };
            assert!(parent.join().unwrap(), "round {round}");
        }
    });
}
