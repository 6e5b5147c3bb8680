//! Locks under stress: limits and deadlines that pass at random moments, fibers that are stopped every 0.2 ms, hogs
//! beside. Nothing is leaked, nobody is forgotten, and everybody gets his share.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::Random;
use indent::runtime::{Builder, Runtime};
use indent::sync::{Barrier, Condvar, Event, Mutex, Notify, Once, RwLock, Semaphore, WaitGroup};
use indent::{JoinHandle, task, time};

const SEED: u64 = 0x10c4;
/// Steps of each fiber.
const STEPS: usize = if cfg!(debug_assertions) { 300 } else { 1_500 };
const FIBERS: usize = 24;
const HOGS: usize = 8;

/// Fibers are stopped every 0.2 ms.
fn restless() -> Runtime {
    let quantum = Duration::from_micros(200);
    let builder = Builder::new().workers(2).preempt_quantum(quantum);
    builder.build().unwrap()
}

fn join_all<T>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap()).collect()
}

/// So short that it passes before, during and after what it is for.
fn short(random: &mut Random) -> Duration {
    Duration::from_micros(random.below(300))
}

/// Runs it under a limit that may pass at any moment, or under none.
fn perhaps_limited(random: &mut Random, f: impl FnOnce()) {
    if random.below(2) == 0 {
        let limit = short(random);
        let _over_or_not = time::timeout(limit, f);
    } else {
        f();
    }
}

/// Computes for a moment, sometimes long enough to be stopped.
fn work(random: &mut Random) {
    let rounds = if random.below(20) == 0 { 20_000 } else { 20 };
    for n in 0..rounds {
        std::hint::black_box(n);
    }
    if random.below(8) == 0 {
        task::yield_now();
    }
}

/// `STEPS` of each fiber and of two plain threads; each gets numbers of its own.
fn crowd(rt: &Runtime, step: impl Fn(&mut Random) + Clone + Send + 'static) {
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
        crowd(&rt, {
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
                        // A limit may end it in here, at a yield.
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

/// Counts who has been inside, also if it leaves by unwinding.
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
        crowd(&rt, {
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
                        assert!(now <= PERMITS, "{now} of {PERMITS} are out");
                        work(&mut own);
                        drop((back, permit));
                    }
                });
            }
        });
        assert_eq!(shared.0.available_permits(), PERMITS);
        assert!(shared.0.try_acquire_many(PERMITS).is_ok(), "nobody waits");
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
        crowd(&rt, {
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
fn stress_no_word_and_no_waiter_is_lost_however_waits_end() {
    common::within(240, || {
        let rt = restless();
        let shared = Arc::new((
            Mutex::new(0u64),
            Condvar::new(),
            Notify::new(),
            Event::new(),
        ));
        let over = Arc::new(AtomicBool::new(false));
        // Somebody who feeds them for as long as they want.
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
        crowd(&rt, {
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

/// How often each of so many fibers got the lock, in this time.
fn shares(rt: &Runtime, fibers: usize, time: Duration) -> Vec<u64> {
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..fibers).map(|_| AtomicU64::new(0)).collect());
    let mutex = Arc::new(Mutex::new(0u64));
    let over = Arc::new(AtomicBool::new(false));
    let spawn = |at: usize| {
        let (counts, mutex, over) = (counts.clone(), mutex.clone(), over.clone());
        rt.spawn(move || {
            while !over.load(Relaxed) {
                *mutex.lock().unwrap() += 1;
                counts[at].fetch_add(1, Relaxed);
            }
        })
    };
    let crowd: Vec<_> = (0..fibers).map(spawn).collect();
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::thread::sleep(time / 10);
    }
    over.store(true, Relaxed);
    join_all(crowd);
    counts.iter().map(|count| count.load(Relaxed)).collect()
}

#[test]
fn no_fiber_gets_less_than_half_of_its_share_of_a_mutex() {
    common::within(240, || {
        const FIBERS: usize = 8;
        let rt = Builder::new().workers(2).build().unwrap();
        // In a busy minute a thread of ours may not run for long: then once more.
        let fair = (0..5).any(|_| {
            let shares = shares(&rt, FIBERS, Duration::from_secs(1));
            let (sum, least) = (shares.iter().sum::<u64>(), shares.iter().min().unwrap());
            println!("{shares:?}");
            least * 2 * FIBERS as u64 >= sum
        });
        assert!(fair);
    });
}

#[test]
fn locks_get_on_beside_hogs() {
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
