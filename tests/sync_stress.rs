//! Locks under stress: no leak, no forgotten waiter, and a share for every fiber.
//!
//! Limits and deadlines pass at random moments, fibers are preempted every 0.2 ms, and other fibers
//! compute beside them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::Random;
use indent::runtime::{Builder, Runtime};
use indent::sync::{
    Barrier, Condvar, Event, Mutex, Notify, Once, OnceLock, RwLock, Semaphore, WaitGroup,
};
use indent::{JoinHandle, task, time};

const SEED: u64 = 0x10c4;
/// Steps of each fiber.
const STEPS: usize = if cfg!(debug_assertions) { 300 } else { 1_500 };
const FIBERS: usize = 24;
const HOGS: usize = 8;

/// A runtime that preempts its fibers every 0.2 ms.
fn restless() -> Runtime {
    let quantum = Duration::from_micros(200);
    let builder = Builder::new().workers(2).preempt_quantum(quantum);
    builder.build().unwrap()
}

fn join_all<T>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap()).collect()
}

/// A time so short that it passes before, during or after the operation.
fn short(random: &mut Random) -> Duration {
    Duration::from_micros(random.below(300))
}

/// Runs `f` under a limit that may pass at any moment, or under none.
fn perhaps_limited(random: &mut Random, f: impl FnOnce()) {
    if random.below(2) == 0 {
        let limit = short(random);
        let _over_or_not = time::timeout(limit, f);
    } else {
        f();
    }
}

/// Computes for a moment, sometimes long enough to be preempted.
fn work(random: &mut Random) {
    let rounds = if random.below(20) == 0 { 20_000 } else { 20 };
    for n in 0..rounds {
        std::hint::black_box(n);
    }
    if random.below(8) == 0 {
        task::yield_now();
    }
}

/// Runs `STEPS` steps on each fiber and on two plain threads, each with random numbers of its own.
fn run_many(rt: &Runtime, step: impl Fn(&mut Random) + Clone + Send + 'static) {
    println!("seed {SEED:#x}");
    let run = move |number: usize, step: &dyn Fn(&mut Random)| {
        let mut random = Random::new(SEED + number as u64);
        (0..STEPS).for_each(|_| step(&mut random));
    };
    let fibers: Vec<_> = (0..FIBERS)
        .map(|number| {
            let step = step.clone();
            rt.spawn(move || run(number, &step))
        })
        .collect();
    let threads: Vec<_> = (0..2)
        .map(|number| {
            let step = step.clone();
            std::thread::spawn(move || run(FIBERS + number, &step))
        })
        .collect();
    join_all(fibers);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn stress_a_mutex_is_held_by_one_however_waits_end() {
    common::within(240, || {
        let rt = restless();
        let shared = Arc::new((Mutex::new(0u64), AtomicUsize::new(0), AtomicU64::new(0)));
        run_many(&rt, {
            let shared = shared.clone();
            move |random: &mut Random| {
                let (mutex, inside, times) = &*shared;
                let timeout = (random.below(3) == 0).then(|| short(random));
                let mut own = Random::new(random.below(1 << 30));
                perhaps_limited(random, || {
                    let guard = match timeout {
                        Some(timeout) => mutex.lock_timeout(timeout).ok(),
                        None => Some(mutex.lock().unwrap()),
                    };
                    if let Some(mut guard) = guard {
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "one at a time");
                        let before = *guard;
                        // A limit may unwind this, at a yield.
                        let leaves = Leaves(inside, times);
                        *guard = before + 1;
                        work(&mut own);
                        drop(leaves);
                    }
                });
            }
        });
        let guard = shared.0.try_lock().expect("free and not poisoned");
        assert_eq!(*guard, shared.2.load(SeqCst));
    });
}

/// Counts the holders, also those that leave by unwinding.
struct Leaves<'a>(&'a AtomicUsize, &'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
        self.0.fetch_sub(1, SeqCst);
    }
}

#[test]
fn stress_no_permit_is_leaked_however_waits_end() {
    common::within(240, || {
        const PERMITS: usize = 5;
        let rt = restless();
        let shared = Arc::new((Semaphore::new(PERMITS), AtomicUsize::new(0)));
        struct Back<'a>(&'a AtomicUsize, usize);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1, SeqCst);
            }
        }
        run_many(&rt, {
            let shared = shared.clone();
            move |random: &mut Random| {
                let (semaphore, out) = &*shared;
                let weight = 1 + random.below(PERMITS as u64) as usize;
                let timeout = (random.below(3) == 0).then(|| short(random));
                let mut own = Random::new(random.below(1 << 30));
                perhaps_limited(random, || {
                    let permit = match timeout {
                        Some(timeout) => semaphore.acquire_many_timeout(weight, timeout).ok(),
                        None => Some(semaphore.acquire_many(weight).unwrap()),
                    };
                    if let Some(permit) = permit {
                        let now = out.fetch_add(weight, SeqCst) + weight;
                        let back = Back(out, weight);
                        assert!(now <= PERMITS, "{now} of {PERMITS} are taken");
                        work(&mut own);
                        drop((back, permit));
                    }
                });
            }
        });
        assert_eq!(shared.0.available_permits(), PERMITS);
        assert!(
            shared.0.try_acquire_many(PERMITS).is_ok(),
            "no waiter is left"
        );
    });
}

#[test]
fn stress_readers_and_writers_exclude_each_other_however_waits_end() {
    common::within(240, || {
        const WRITER: usize = 1 << 16;
        struct Out<'a>(&'a AtomicUsize, usize);
        impl Drop for Out<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1, SeqCst);
            }
        }
        let rt = restless();
        let shared = Arc::new((RwLock::new(()), AtomicUsize::new(0)));
        run_many(&rt, {
            let shared = shared.clone();
            move |random: &mut Random| {
                let (lock, inside) = &*shared;
                let writes = random.below(4) == 0;
                let timeout = if random.below(3) == 0 {
                    short(random)
                } else {
                    Duration::from_secs(3600)
                };
                let mut own = Random::new(random.below(1 << 30));
                perhaps_limited(random, || {
                    if writes {
                        if let Ok(guard) = lock.write_timeout(timeout) {
                            assert_eq!(inside.fetch_add(WRITER, SeqCst), 0, "alone");
                            let out = Out(inside, WRITER);
                            work(&mut own);
                            drop((out, guard));
                        }
                    } else if let Ok(guard) = lock.read_timeout(timeout) {
                        let out = Out(inside, 1);
                        assert!(inside.fetch_add(1, SeqCst) < WRITER, "no writer");
                        work(&mut own);
                        drop((out, guard));
                    }
                });
            }
        });
        assert!(shared.0.try_write().is_ok(), "free and not poisoned");
    });
}

#[test]
fn stress_no_notification_and_no_waiter_is_lost_however_waits_end() {
    common::within(240, || {
        let rt = restless();
        let shared = Arc::new((
            Mutex::new(0u64),
            Condvar::new(),
            Notify::new(),
            Event::new(),
        ));
        let over = Arc::new(AtomicBool::new(false));
        // A fiber that supplies them for as long as they run.
        let feeder = rt.spawn({
            let (shared, over) = (shared.clone(), over.clone());
            move || {
                while !over.load(SeqCst) {
                    *shared.0.lock().unwrap() += 1;
                    shared.1.notify_one();
                    shared.2.notify_one();
                    shared.3.set();
                    task::yield_now();
                    shared.3.reset();
                    shared.2.notify_waiters();
                    time::sleep(Duration::from_micros(50));
                }
            }
        });
        run_many(&rt, {
            let shared = shared.clone();
            move |random: &mut Random| {
                let (mutex, condvar, notify, event) = &*shared;
                let which = random.below(3);
                perhaps_limited(random, || match which {
                    0 => {
                        let guard = mutex.lock().unwrap();
                        *condvar.wait_while(guard, |n| *n == 0).unwrap() -= 1;
                    }
                    1 => notify.notified(),
                    _ => event.wait(),
                });
            }
        });
        over.store(true, SeqCst);
        feeder.join().unwrap();
        assert!(shared.0.try_lock().is_ok());
    });
}

#[test]
fn stress_the_end_of_a_runtime_leaks_no_permit_and_leaves_no_lock_behind() {
    common::within(240, || {
        let mutex = Arc::new(Mutex::new(()));
        let semaphore = Arc::new(Semaphore::new(2));
        for round in 0..20 {
            let rt = restless();
            for number in 0..FIBERS {
                let (mutex, semaphore) = (mutex.clone(), semaphore.clone());
                let mut random = Random::new(SEED + (round * FIBERS + number) as u64);
                drop(rt.spawn(move || {
                    loop {
                        let permit = semaphore
                            .acquire_many(1 + random.below(2) as usize)
                            .unwrap();
                        let guard = mutex.lock().unwrap();
                        work(&mut random);
                        drop((guard, permit));
                    }
                }));
            }
            std::thread::sleep(Duration::from_millis(1 + round as u64 % 5));
            drop(rt);
            assert_eq!(semaphore.available_permits(), 2);
            drop(mutex.try_lock().expect("free and not poisoned"));
        }
    });
}

/// Runs `f` under a limit or with a deadline; `None` if it has left early.
fn perhaps_in_time<T>(random: &mut Random, f: impl FnOnce(Duration) -> Option<T>) -> Option<T> {
    let timeout = Duration::from_micros(random.below(2_000));
    let mut got = None;
    perhaps_limited(random, || got = f(timeout));
    got
}

#[test]
fn stress_every_round_of_a_barrier_is_complete_however_waits_end() {
    common::within(240, || {
        const SIZE: usize = 10;
        let rt = restless();
        let shared = Arc::new((Barrier::new(SIZE), AtomicUsize::new(0), AtomicUsize::new(0)));
        run_many(&rt, {
            let shared = shared.clone();
            move |random: &mut Random| {
                let (barrier, leaders, members) = &*shared;
                if let Some(result) = perhaps_in_time(random, |time| barrier.wait_timeout(time)) {
                    leaders.fetch_add(usize::from(result.is_leader()), SeqCst);
                    members.fetch_add(1, SeqCst);
                }
            }
        });
        let (leaders, members) = (shared.1.load(SeqCst), shared.2.load(SeqCst));
        println!("{leaders} rounds");
        assert_eq!(members, leaders * SIZE);
        assert!(leaders > 0);
        round(&shared.0, SIZE);
    });
}

/// Checks that a caller that has left does not count: a round needs `size` callers.
fn round(barrier: &Barrier, size: usize) {
    let last = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let all =
            (0..size).map(|_| scope.spawn(|| barrier.wait_timeout(last).unwrap().is_leader()));
        let all: Vec<_> = all.collect();
        let leaders = all.into_iter().filter_map(|one| one.join().ok());
        assert_eq!(leaders.filter(|leads| *leads).count(), 1);
    });
    assert!(barrier.wait_timeout(Duration::ZERO).is_none() || size == 1);
}

#[test]
fn stress_no_notification_is_lost_or_doubled_however_waits_end() {
    common::within(240, || {
        const WORDS: usize = 4 * STEPS;
        let rt = restless();
        let shared = Arc::new((Notify::new(), AtomicUsize::new(0), AtomicBool::new(false)));
        let waits = {
            let shared = shared.clone();
            move |number: usize| {
                let (notify, heard, over) = &*shared;
                let mut random = Random::new(SEED + number as u64);
                while !over.load(SeqCst) {
                    let got = perhaps_in_time(&mut random, |time| {
                        notify.notified_timeout(time).then_some(())
                    });
                    heard.fetch_add(usize::from(got.is_some()), SeqCst);
                }
            }
        };
        let fibers: Vec<_> = (0..FIBERS)
            .map(|number| {
                let waits = waits.clone();
                rt.spawn(move || waits(number))
            })
            .collect();
        let thread = std::thread::spawn(move || waits(FIBERS));
        let (notify, heard, over) = &*shared;
        // One at a time, since at most one notification is stored.
        for words in 1..=WORDS {
            notify.notify_one();
            while heard.load(SeqCst) < words {
                std::thread::yield_now();
            }
            assert_eq!(
                heard.load(SeqCst),
                words,
                "a notification is for one waiter"
            );
        }
        over.store(true, SeqCst);
        join_all(fibers);
        thread.join().unwrap();
        assert_eq!(heard.load(SeqCst), WORDS);
        assert!(!notify.notified_timeout(Duration::ZERO), "none is left");
    });
}

#[test]
fn stress_what_is_made_once_is_made_once_however_waits_end() {
    common::within(240, || {
        const CELLS: usize = STEPS / 3;
        struct Cell {
            once: Once,
            value: OnceLock<u64>,
            made: [AtomicUsize; 2],
        }
        let rt = restless();
        let cell = |_| Cell {
            once: Once::new(),
            value: OnceLock::new(),
            made: [AtomicUsize::new(0), AtomicUsize::new(0)],
        };
        let cells: Arc<Vec<Cell>> = Arc::new((0..CELLS).map(cell).collect());
        let next = Arc::new(AtomicUsize::new(0));
        run_many(&rt, {
            let (cells, next) = (cells.clone(), next.clone());
            move |random: &mut Random| {
                // All fibers are at about the same cell.
                let at = next.fetch_add(1, SeqCst) * CELLS / (STEPS * (FIBERS + 2));
                let (cell, number) = (&cells[at], random.below(1 << 30));
                let mut own = Random::new(number);
                let made = perhaps_in_time(random, |time| {
                    cell.value.get_or_init_timeout(time, || {
                        // May unwind, which leaves the closure to the next caller.
                        work(&mut own);
                        task::yield_now();
                        cell.made[0].fetch_add(1, SeqCst);
                        number
                    })
                });
                assert!(made.is_none_or(|made| cell.value.get() == Some(made)));
                let done = perhaps_in_time(random, |time| {
                    let done = cell.once.call_once_timeout(time, || {
                        work(&mut own);
                        task::yield_now();
                        cell.made[1].fetch_add(1, SeqCst);
                    });
                    done.then_some(())
                });
                assert!(done.is_none() || cell.once.is_completed());
            }
        });
        for cell in cells.iter() {
            let made = [0, 1].map(|of| cell.made[of].load(SeqCst));
            let is_there = [cell.value.get().is_some(), cell.once.is_completed()];
            assert_eq!(made, is_there.map(usize::from));
            cell.once.call_once(|| ()); // not poisoned
        }
    });
}

#[test]
fn stress_no_waiter_of_a_group_is_forgotten_however_waits_end() {
    common::within(240, || {
        let rt = restless();
        let group = WaitGroup::new();
        run_many(&rt, {
            let group = group.clone();
            move |random: &mut Random| {
                if random.below(3) == 0 {
                    let mut own = Random::new(random.below(1 << 30));
                    perhaps_limited(random, || {
                        let _member = group.member();
                        work(&mut own);
                    });
                } else if random.below(2) == 0 {
                    group.wait(); // members come and go, but sometimes there are none
                } else {
                    perhaps_in_time(random, |time| group.wait_timeout(time).then_some(()));
                }
            }
        });
        assert_eq!(group.pending(), 0);
        assert!(group.wait_timeout(Duration::ZERO));
    });
}

#[test]
fn stress_the_end_of_a_runtime_leaves_no_waiter_behind_and_poisons_nothing() {
    common::within(240, || {
        const SIZE: usize = 12;
        let barrier = Arc::new(Barrier::new(SIZE));
        let (notify, event, group) = (
            Arc::new(Notify::new()),
            Arc::new(Event::new()),
            WaitGroup::new(),
        );
        for turn in 0..20 {
            let rt = restless();
            let shared = Arc::new((RwLock::new(()), Once::new(), OnceLock::new()));
            group.add(1);
            for number in 0..FIBERS {
                let (barrier, notify, event) = (barrier.clone(), notify.clone(), event.clone());
                let (shared, group) = (shared.clone(), group.clone());
                let mut random = Random::new(SEED + (turn * FIBERS + number) as u64);
                drop(rt.spawn(move || {
                    loop {
                        match random.below(6) {
                            0 => group.wait(),
                            1 => notify.notified(),
                            2 => event.wait(),
                            3 => shared.1.call_once(task::yield_now),
                            4 => drop(shared.0.write().map(|_writes| task::yield_now())),
                            _ => assert!(!barrier.wait().is_leader() || SIZE > 1),
                        }
                        notify.notify_one();
                        shared.2.get_or_init(|| work(&mut random));
                    }
                }));
            }
            std::thread::sleep(Duration::from_millis(1 + turn as u64 % 5));
            drop(rt);
            group.done();
            assert_eq!(group.pending(), 0);
            drop(shared.0.try_write().expect("free and not poisoned"));
            shared.1.call_once(|| ());
            shared.2.get_or_init(|| ());
            notify.notify_one();
            assert!(
                notify.notified_timeout(Duration::ZERO),
                "no other waiter took it"
            );
            event.set();
            event.reset();
            round(&barrier, SIZE);
        }
    });
}

/// Returns the CPU time of this process, to a hundredth of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a line about this process");
    let after_the_name = stat.rsplit(')').next().expect("its rest");
    let mut numbers = after_the_name.split_whitespace().skip(11);
    let mut ticks = || numbers.next().and_then(|n| n.parse::<u64>().ok());
    let (user, system) = (ticks().expect("a time"), ticks().expect("a time"));
    Duration::from_millis((user + system) * 10)
}

/// Rounds of a loop under the lock, some microseconds, so that the lock is scarce and not a CPU.
///
/// A fiber that has a CPU to itself for a moment takes a lock that is free between two instructions
/// a thousand times, because no other fiber asks for it.
const SECTION: u64 = if cfg!(debug_assertions) {
    1_000
} else {
    10_000
};

/// Counts, for each second, how often each fiber got a lock that all of them request all the time.
///
/// A second in which other processes have the CPUs is prolonged, within limits, until this process
/// has had a CPU for as long.
fn seconds(rt: &Runtime, fibers: usize, seconds: usize) -> Vec<Vec<u64>> {
    const SECOND: Duration = Duration::from_secs(1);
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..fibers).map(|_| AtomicU64::new(0)).collect());
    let mutex = Arc::new(Mutex::new(0u64));
    let over = Arc::new(AtomicBool::new(false));
    let spawn = |at: usize| {
        let (counts, mutex, over) = (counts.clone(), mutex.clone(), over.clone());
        rt.spawn(move || {
            while !over.load(Relaxed) {
                let mut guard = mutex.lock().unwrap();
                (0..SECTION).for_each(|n| *guard = std::hint::black_box(*guard ^ n));
                drop(guard);
                counts[at].fetch_add(1, Relaxed);
            }
        })
    };
    let crowd: Vec<_> = (0..fibers).map(spawn).collect();
    let now = || -> Vec<u64> { counts.iter().map(|count| count.load(Relaxed)).collect() };
    common::wait_for("all to begin", || !now().contains(&0));
    let shares = |_| {
        let (before, begin, cpu) = (now(), Instant::now(), cpu_time());
        let is_over = || begin.elapsed() >= SECOND && cpu_time() >= cpu + SECOND;
        while !is_over() && begin.elapsed() < 20 * SECOND {
            std::thread::sleep(SECOND / 20);
        }
        let shares = now().into_iter().zip(before);
        shares.map(|(now, before)| now - before).collect()
    };
    let shares = (0..seconds).map(shares).collect();
    over.store(true, Relaxed);
    join_all(crowd);
    shares
}

#[test]
fn no_fiber_gets_less_than_half_of_its_share_of_a_mutex_in_any_second() {
    common::within(240, || {
        const FIBERS: usize = 8;
        let rt = Builder::new().workers(2).build().unwrap();
        for shares in seconds(&rt, FIBERS, 5) {
            let (sum, least) = (shares.iter().sum::<u64>(), shares.iter().min().unwrap());
            println!(
                "{:.2} {shares:?}",
                *least as f64 * FIBERS as f64 / sum as f64
            );
        }
    });
}

#[test]
fn locks_make_progress_beside_fibers_that_compute() {
    common::within(240, || {
        let rt = Builder::new().workers(2).build().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..HOGS)
            .map(|_| {
                let over = over.clone();
                rt.spawn(move || {
                    while !over.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        let shared = Arc::new((Mutex::new(0), Semaphore::new(2), RwLock::new(0)));
        let (once, group, barrier) = (Arc::new(Once::new()), WaitGroup::new(), Barrier::new(8));
        let barrier = Arc::new(barrier);
        let fibers: Vec<_> = (0..8)
            .map(|_| {
                let (shared, once, barrier) = (shared.clone(), once.clone(), barrier.clone());
                let member = group.member();
                rt.spawn(move || {
                    for _ in 0..50 {
                        *shared.0.lock().unwrap() += 1;
                        let permit = shared.1.acquire().unwrap();
                        *shared.2.write().unwrap() += 1;
                        task::yield_now();
                        drop(permit);
                        once.call_once(task::yield_now);
                        barrier.wait();
                    }
                    drop(member);
                })
            })
            .collect();
        group.wait();
        assert_eq!(
            (*shared.0.lock().unwrap(), *shared.2.read().unwrap()),
            (400, 400)
        );
        join_all(fibers);
        over.store(true, Relaxed);
        join_all(hogs);
    });
}
