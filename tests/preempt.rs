#![expect(
    unsafe_code,
    reason = "sets errno and MXCSR, and fills registers by hand"
)]
//! A fiber that computes, blocks its thread or holds a lock delays no other fiber, and is not
//! disturbed.
//!
//! A *hog* computes without a call into the runtime until a flag is set. Most runtimes here have
//! one worker and a quantum of a millisecond. With one worker, a fiber that runs beside a hog runs
//! because the hog was interrupted; a short quantum makes for many interruptions in little time.
//! The tests assert order, counts and wide ratios. Tests that need a process of their own are in
//! `preempt_process.rs`.

use std::arch::asm;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Handle, Metrics, Runtime, no_preempt};
use indent::task::{self, JoinHandle, Phase};

mod burn;
mod common;

use burn::burn;

/// Seconds of patience: far more than any test here needs beside other programs.
const PATIENCE: u64 = 60;
const QUANTUM: Duration = Duration::from_millis(1);

fn runtime(workers: usize) -> Runtime {
    let builder = Builder::new().workers(workers).preempt(true);
    builder.preempt_quantum(QUANTUM).build().expect("a runtime")
}

/// Fibers that compute until a flag is set, and count.
struct Hogs {
    stop: Arc<AtomicBool>,
    rounds: Vec<Arc<AtomicU64>>,
    fibers: Vec<JoinHandle<()>>,
}

impl Hogs {
    /// Starts `n` hogs; returns when all of them have run.
    fn start(rt: &Runtime, n: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds: Vec<Arc<AtomicU64>> = (0..n).map(|_| Arc::default()).collect();
        let spawn = |rounds: &Arc<AtomicU64>| {
            let (stop, rounds) = (stop.clone(), rounds.clone());
            rt.spawn(move || count_until(&stop, &rounds))
        };
        let fibers = rounds.iter().map(spawn).collect();
        let hogs = Hogs {
            stop,
            rounds,
            fibers,
        };
        common::wait_for("all hogs run", || hogs.each().iter().all(|n| *n > 0));
        hogs
    }

    fn each(&self) -> Vec<u64> {
        let counts = self.rounds.iter().map(|rounds| rounds.load(Relaxed));
        counts.collect()
    }

    fn all(&self) -> u64 {
        self.each().iter().sum()
    }

    fn end(mut self) {
        self.stop.store(true, SeqCst);
        for fiber in self.fibers.drain(..) {
            fiber.join().expect("a hog ends as it should");
        }
    }
}

/// Ends the hogs when a test fails, so that none runs forever.
impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

fn count_until(stop: &AtomicBool, rounds: &AtomicU64) {
    while !stop.load(Relaxed) {
        rounds.fetch_add(1, Relaxed);
    }
}

/// Computes until the closure returns true; the closure makes no call into the runtime.
fn spin_until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::hint::spin_loop();
    }
}

/// Computes for this long in real time, frozen or not.
fn spin_for(time: Duration) {
    let begun = Instant::now();
    spin_until(|| begun.elapsed() >= time);
}

fn wait_until_parked<T>(fiber: &JoinHandle<T>) {
    common::wait_for("a fiber parks", || fiber.fiber().phase() == Phase::Parked);
}

fn wait_for_freezes(rt: &Runtime, n: u64) {
    let before = rt.metrics().freezes_total;
    common::wait_for("freezes", || rt.metrics().freezes_total >= before + n);
}

mod turns {
    use super::*;

    #[test]
    fn a_fiber_that_loops_for_ever_delays_nobody() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let parked = rt.spawn(indent::park::park);
            wait_until_parked(&parked);
            let hogs = Hogs::start(&rt, 1);
            assert_eq!(rt.spawn(|| 7).join().unwrap(), 7);
            parked.unparker().unpark();
            parked.join().unwrap();
            rt.spawn(|| indent::time::sleep(QUANTUM)).join().unwrap();
            let metrics = rt.metrics();
            assert!(metrics.freezes_total > 0, "{metrics:?}");
            hogs.end(); // it ran again, and saw the flag
            let metrics = rt.metrics();
            assert!(metrics.thaws_total > 0, "{metrics:?}");
            common::wait_for("nobody is frozen", || rt.metrics().carriers_frozen == 0);
        });
    }

    #[test]
    fn all_siblings_of_an_endless_loop_go_on_answering() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let parked: Vec<_> = (0..200).map(|_| rt.spawn(indent::park::park)).collect();
            parked.iter().for_each(wait_until_parked);
            let hogs = Hogs::start(&rt, 1);
            parked.iter().for_each(|fiber| fiber.unparker().unpark());
            parked.into_iter().for_each(|fiber| fiber.join().unwrap());
            hogs.end();
        });
    }

    #[test]
    fn hogs_take_turns_and_none_is_forgotten() {
        common::within(PATIENCE, || {
            let rt = runtime(2);
            let hogs = Hogs::start(&rt, 6);
            for _ in 0..3 {
                let before = hogs.each();
                common::wait_for("each of them gets on", || {
                    let now = hogs.each();
                    now.iter().zip(&before).all(|(now, before)| now > before)
                });
            }
            hogs.end();
            let metrics = rt.metrics();
            assert!(
                metrics.overruns_total > 0 && metrics.thaws_total > 0,
                "{metrics:?}"
            );
        });
    }

    #[test]
    fn without_preemption_a_loop_delays_those_behind_it() {
        common::within(PATIENCE, || {
            let rt = Builder::new().workers(1).preempt(false).build().unwrap();
            let parked = rt.spawn(indent::park::park);
            wait_until_parked(&parked);
            let (begun, over) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicBool::new(false)),
            );
            let hog = rt.spawn({
                let (begun, over) = (begun.clone(), over.clone());
                move || {
                    begun.store(true, SeqCst);
                    spin_for(Duration::from_millis(200));
                    over.store(true, SeqCst);
                }
            });
            common::wait_for("the loop begins", || begun.load(SeqCst));
            parked.unparker().unpark();
            let behind = rt.spawn({
                let over = over.clone();
                move || over.load(SeqCst)
            });
            assert!(
                behind.join().unwrap(),
                "nobody could run before it was over"
            );
            parked.join().unwrap();
            hog.join().unwrap();
            assert_eq!(rt.metrics().freezes_total, 0);
        });
    }

    #[test]
    fn without_preemption_a_fiber_that_blocks_its_thread_delays_nobody() {
        common::within(PATIENCE, || {
            let rt = Builder::new().workers(1).preempt(false).build().unwrap();
            let turns = Arc::new(Mutex::new(0));
            let take_turn = || {
                let turns = turns.clone();
                rt.spawn(move || {
                    let mut held = turns.lock().unwrap();
                    indent::time::sleep(Duration::from_millis(5));
                    *held += 1;
                })
            };
            let fibers: Vec<_> = (0..8).map(|_| take_turn()).collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(*turns.lock().unwrap(), 8);
            let metrics = rt.metrics();
            assert!(
                metrics.freezes_total == 0 && metrics.detaches_total > 0,
                "{metrics:?}"
            );
        });
    }

    #[test]
    fn spinning_on_what_a_sibling_sets_comes_to_an_end() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let spun = rt.block_on(|| {
                let pairs: Vec<_> = (0..8).map(|_| spinner_and_setter()).collect();
                let fibers = pairs.into_iter().flatten();
                fibers.map(|fiber| fiber.join().unwrap()).count()
            });
            assert_eq!(spun, 16);
            assert!(rt.metrics().freezes_total > 0);
        });
    }

    fn spinner_and_setter() -> [JoinHandle<()>; 2] {
        let set = Arc::new(AtomicBool::new(false));
        let spinner = indent::spawn({
            let set = set.clone();
            move || spin_until(|| set.load(SeqCst))
        });
        [spinner, indent::spawn(move || set.store(true, SeqCst))]
    }

    #[test]
    fn spinning_on_what_a_woken_sibling_sets_comes_to_an_end() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let set = Arc::new(AtomicUsize::new(0));
            let setters: Vec<_> = (0..8)
                .map(|_| {
                    let set = set.clone();
                    rt.spawn(move || {
                        indent::park::park();
                        set.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            setters.iter().for_each(wait_until_parked);
            let unparkers: Vec<_> = setters.iter().map(JoinHandle::unparker).collect();
            rt.spawn(move || {
                unparkers.iter().for_each(indent::park::Unparker::unpark);
                spin_until(|| set.load(SeqCst) == 8);
            })
            .join()
            .unwrap();
            setters.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
    }

    #[test]
    fn a_loop_with_checkpoints_is_not_frozen_and_yet_gives_way() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let stop = Arc::new(AtomicBool::new(false));
            let rounds = Arc::new(AtomicU64::new(0));
            let polite = rt.spawn({
                let (stop, rounds) = (stop.clone(), rounds.clone());
                move || {
                    while !stop.load(Relaxed) {
                        rounds.fetch_add(1, Relaxed);
                        task::checkpoint();
                    }
                }
            });
            common::wait_for("it runs", || rounds.load(Relaxed) > 0);
            for _ in 0..100 {
                let other = rt.spawn(|| indent::time::sleep(QUANTUM / 2));
                other.join().unwrap();
            }
            let metrics = rt.metrics();
            stop.store(true, SeqCst);
            polite.join().unwrap();
            assert_eq!(metrics.freezes_total, 0, "{metrics:?}");
        });
    }
}

mod sameness {
    use super::*;

    thread_local! {
        static MINE: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn thread_and_errno_and_thread_locals_are_the_same_after_freezes() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (1..=4)
                .map(|i| {
                    let stop = stop.clone();
                    rt.spawn(move || {
                        let here = thread::current().id();
                        MINE.set(i);
                        set_errno(100 + i as i32);
                        spin_until(|| stop.load(Relaxed)); // no system call
                        let errno = std::io::Error::last_os_error().raw_os_error();
                        (errno, MINE.get(), thread::current().id() == here)
                    })
                })
                .collect();
            wait_for_freezes(&rt, 40);
            stop.store(true, SeqCst);
            for (i, fiber) in (1..=4).zip(fibers) {
                let found = fiber.join().unwrap();
                assert_eq!(found, (Some(100 + i as i32), i, true));
            }
        });
    }

    fn set_errno(value: i32) {
        // SAFETY: the call has no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the calling thread's own variable.
        unsafe { *errno = value };
    }

    /// Fills the sixteen vector registers, loops until the flag is set, and returns their contents.
    #[inline(never)]
    fn through_registers(before: &[[u64; 2]; 16], stop: &AtomicBool) -> [[u64; 2]; 16] {
        let mut after = [[0; 2]; 16];
        // SAFETY: the code reads `before` and `stop` and writes `after`, all of them valid; the
        // registers it uses are declared.
        unsafe {
            asm!(
                "movups xmm0, [{b} + 0]; movups xmm1, [{b} + 16];
                 movups xmm2, [{b} + 32]; movups xmm3, [{b} + 48];
                 movups xmm4, [{b} + 64]; movups xmm5, [{b} + 80];
                 movups xmm6, [{b} + 96]; movups xmm7, [{b} + 112];
                 movups xmm8, [{b} + 128]; movups xmm9, [{b} + 144];
                 movups xmm10, [{b} + 160]; movups xmm11, [{b} + 176];
                 movups xmm12, [{b} + 192]; movups xmm13, [{b} + 208];
                 movups xmm14, [{b} + 224]; movups xmm15, [{b} + 240];
                 2: pause; cmp byte ptr [{s}], 0; je 2b;
                 movups [{a} + 0], xmm0; movups [{a} + 16], xmm1;
                 movups [{a} + 32], xmm2; movups [{a} + 48], xmm3;
                 movups [{a} + 64], xmm4; movups [{a} + 80], xmm5;
                 movups [{a} + 96], xmm6; movups [{a} + 112], xmm7;
                 movups [{a} + 128], xmm8; movups [{a} + 144], xmm9;
                 movups [{a} + 160], xmm10; movups [{a} + 176], xmm11;
                 movups [{a} + 192], xmm12; movups [{a} + 208], xmm13;
                 movups [{a} + 224], xmm14; movups [{a} + 240], xmm15;",
                b = in(reg) before.as_ptr(), s = in(reg) stop.as_ptr(), a = in(reg) after.as_mut_ptr(),
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        }
        after
    }

    fn mxcsr() -> u32 {
        let mut value = 0_u32;
        // SAFETY: the instruction stores four bytes where there is room for them.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack)) };
        value
    }

    fn set_mxcsr(value: u32) {
        // SAFETY: the value is one this register had, with another rounding mode; the caller
        // restores it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
    }

    #[test]
    fn registers_and_rounding_mode_are_the_same_after_freezes() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (0..4_u64)
                .map(|i| {
                    let stop = stop.clone();
                    rt.spawn(move || {
                        let values = std::array::from_fn(|n| [i + n as u64, !i ^ n as u64]);
                        let usual = mxcsr();
                        let mode = usual & !0x6000 | (i as u32) << 13; // one of the four modes
                        set_mxcsr(mode);
                        let found = through_registers(&values, &stop);
                        let found_mode = mxcsr();
                        set_mxcsr(usual);
                        (found == values, (found_mode ^ mode) & 0x6000)
                    })
                })
                .collect();
            wait_for_freezes(&rt, 40);
            stop.store(true, SeqCst);
            for fiber in fibers {
                assert_eq!(fiber.join().unwrap(), (true, 0));
            }
        });
    }

    /// Mixes floats, hashing, sorting, allocation and text.
    fn mixture(seed: u64) -> (u64, usize) {
        let mut random = common::Random::new(seed);
        let numbers: Vec<u64> = (0..2_000).map(|_| random.below(1 << 40)).collect();
        let counted = numbers
            .iter()
            .fold(HashMap::<u64, u64>::new(), |mut map, n| {
                *map.entry(n % 97).or_default() += n;
                map
            });
        let mut sums: Vec<f64> = counted.values().map(|n| (*n as f64).sqrt()).collect();
        sums.sort_by(f64::total_cmp);
        let sum: f64 = sums.iter().map(|x| (x * 1.000_1).sin()).sum();
        let tree: BTreeMap<String, u64> = (numbers.iter().take(200))
            .map(|n| (format!("{n:x}"), *n))
            .collect();
        let text: String = tree.keys().map(String::as_str).collect();
        (sum.to_bits(), text.len())
    }

    #[test]
    fn results_are_those_of_an_undisturbed_run() {
        common::within(PATIENCE, || {
            let expected: Vec<_> = (0..4).map(mixture).collect();
            let rt = runtime(1);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (0..4)
                .map(|seed| {
                    let stop = stop.clone();
                    rt.spawn(move || {
                        let first = mixture(seed);
                        while !stop.load(Relaxed) {
                            assert_eq!(mixture(seed), first);
                        }
                        first
                    })
                })
                .collect();
            wait_for_freezes(&rt, 40);
            stop.store(true, SeqCst);
            let found: Vec<_> = fibers.into_iter().map(|f| f.join().unwrap()).collect();
            assert_eq!(found, expected);
        });
    }
}

mod blocked {
    use super::*;

    fn nobody_is_detached(rt: &Runtime) {
        common::wait_for("nobody is detached", || rt.metrics().carriers_detached == 0);
    }

    #[test]
    fn a_fiber_asleep_in_the_kernel_leaves_its_worker_to_others() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let asleep = Arc::new(AtomicBool::new(false));
            let sleeper = rt.spawn({
                let asleep = asleep.clone();
                move || {
                    let here = thread::current().id();
                    asleep.store(true, SeqCst);
                    thread::sleep(Duration::from_millis(300));
                    asleep.store(false, SeqCst);
                    let same = thread::current().id() == here;
                    task::yield_now(); // back on a worker
                    same
                }
            });
            common::wait_for("it sleeps", || asleep.load(SeqCst));
            let others: Vec<_> = (0..50)
                .map(|_| {
                    let asleep = asleep.clone();
                    rt.spawn(move || {
                        task::yield_now();
                        asleep.load(SeqCst)
                    })
                })
                .collect();
            let during = others.into_iter().filter_map(|f| f.join().ok());
            assert_eq!(during.filter(|during| *during).count(), 50);
            assert!(sleeper.join().unwrap());
            let metrics = rt.metrics();
            assert!(metrics.detaches_total > 0, "{metrics:?}");
            nobody_is_detached(&rt);
        });
    }

    #[test]
    fn a_fiber_may_wait_in_a_read_for_what_a_sibling_writes() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            read_what_a_sibling_writes(&rt, true);
        });
    }

    #[test]
    fn a_fiber_may_wait_in_a_read_for_what_a_sibling_writes_from_the_first_moment() {
        common::within(PATIENCE, || read_what_a_sibling_writes(&runtime(1), false));
    }

    fn read_what_a_sibling_writes(rt: &Runtime, known: bool) {
        let text = rt.block_on(|| {
            if known {
                let _ = task::current().unwrap().binding(); // waits until the verdict is known
            }
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            let waits = indent::spawn(move || {
                let mut text = String::new();
                reader.read_to_string(&mut text).map(|_| text)
            });
            task::yield_now(); // it runs and reads
            let writes = indent::spawn(move || {
                for word in ["one ", "two ", "three"] {
                    writer.write_all(word.as_bytes()).unwrap();
                    indent::time::sleep(QUANTUM);
                }
            });
            writes.join().unwrap();
            waits.join().unwrap().unwrap()
        });
        assert_eq!(text, "one two three");
        assert!(rt.metrics().detaches_total > 0);
        nobody_is_detached(rt);
    }

    #[test]
    fn who_computes_after_a_sleep_in_the_kernel_is_interrupted_again() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (0..3)
                .map(|_| {
                    let stop = stop.clone();
                    rt.spawn(move || {
                        thread::sleep(5 * QUANTUM);
                        spin_until(|| stop.load(Relaxed));
                    })
                })
                .collect();
            common::wait_for("detached", || rt.metrics().detaches_total > 0);
            wait_for_freezes(&rt, 10);
            for _ in 0..20 {
                rt.spawn(|| ()).join().unwrap();
            }
            stop.store(true, SeqCst);
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            nobody_is_detached(&rt);
        });
    }
}

mod sections {
    use super::*;

    /// Computes while another fiber waits, which sets `ran`; checks that no fiber is frozen.
    ///
    /// If the other fiber runs, the reason is that the thread slept briefly, and its worker was
    /// taken elsewhere.
    fn is_not_frozen(compute: impl FnOnce()) -> Arc<AtomicBool> {
        let before = Handle::current().metrics();
        task::yield_now(); // it has a worker when this returns
        let ran = Arc::new(AtomicBool::new(false));
        let ran_too = ran.clone();
        drop(indent::spawn(move || ran_too.store(true, SeqCst)));
        compute();
        let inside = ran.load(SeqCst);
        let after = Handle::current().metrics();
        assert_eq!(after.freezes_total, before.freezes_total);
        assert!(
            !inside || after.detaches_total > before.detaches_total,
            "{after:?}"
        );
        ran
    }

    #[test]
    fn no_preempt_is_not_interrupted_and_gives_way_right_after() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let at_once = rt.block_on(|| (0..8).filter(|_| gives_way_after_a_section()).count());
            println!("at once {at_once} times of 8");
            assert!(at_once > 0, "a request was there when the section ended");
            assert!(rt.metrics().freezes_total > 0);
        });
    }

    /// Returns true if another fiber ran exactly at the end of the section.
    fn gives_way_after_a_section() -> bool {
        let ran = no_preempt(|| {
            is_not_frozen(|| {
                burn(10 * QUANTUM);
                no_preempt(|| burn(5 * QUANTUM));
                spin_for(10 * QUANTUM); // a nested section has ended, not this one
            })
        });
        let at_once = ran.load(SeqCst);
        spin_until(|| ran.load(SeqCst)); // from here on preempted like any other
        at_once
    }

    #[test]
    fn after_a_checkpoint_and_a_section_it_is_interrupted_as_any_other() {
        common::within(PATIENCE, || {
            runtime(1).block_on(|| {
                task::checkpoint(); // so it seems to yield by itself when the section ends
                let ran = no_preempt(|| is_not_frozen(|| burn(10 * QUANTUM)));
                spin_until(|| ran.load(SeqCst));
            });
        });
    }

    #[test]
    fn no_preempt_may_block() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let others = Arc::new(AtomicUsize::new(0));
            let inside = rt.spawn({
                let others = others.clone();
                move || {
                    no_preempt(|| {
                        let other = indent::spawn(move || others.fetch_add(1, SeqCst));
                        other.join().unwrap();
                        indent::time::sleep(QUANTUM);
                        thread::sleep(20 * QUANTUM);
                        task::yield_now();
                        // Still not interrupted after all of that.
                        drop(is_not_frozen(|| burn(20 * QUANTUM)));
                    })
                }
            });
            inside.join().unwrap();
            assert_eq!(others.load(SeqCst), 1);
        });
    }

    #[test]
    fn a_panic_ends_a_no_preempt_section() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            rt.spawn(|| {
                let panic = std::panic::catch_unwind(|| {
                    no_preempt(|| std::panic::resume_unwind(Box::new(1)))
                });
                assert!(panic.is_err());
                let ran = Arc::new(AtomicBool::new(false));
                let other = indent::spawn({
                    let ran = ran.clone();
                    move || ran.store(true, SeqCst)
                });
                spin_until(|| ran.load(SeqCst));
                other.join().unwrap();
            })
            .join()
            .unwrap();
        });
    }
}

mod locks {
    use super::*;

    #[test]
    fn who_locks_a_mutex_that_a_frozen_fiber_holds_goes_on_in_the_end() {
        for workers in [1, 2] {
            common::within(PATIENCE, || {
                let rt = runtime(workers);
                let sum = Arc::new(Mutex::new(0));
                let fibers: Vec<_> = (0..6)
                    .map(|_| {
                        let sum = sum.clone();
                        rt.spawn(move || {
                            for _ in 0..5 {
                                let mut sum = sum.lock().unwrap();
                                let before = *sum;
                                burn(3 * QUANTUM);
                                *sum = before + 1;
                            }
                        })
                    })
                    .collect();
                fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
                assert_eq!(*sum.lock().unwrap(), 30);
                let metrics = rt.metrics();
                assert!(metrics.freezes_total > 0, "{metrics:?}");
                assert!(metrics.thaws_total + metrics.frozen_fibers_released_total > 0);
            });
        }
    }

    #[test]
    fn a_mutex_is_free_again_although_hogs_are_in_the_way_of_its_holder() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let lock = Arc::new(Mutex::new(()));
            let (held, wait) = mpsc::channel();
            let holder = rt.spawn({
                let lock = lock.clone();
                move || {
                    let guard = lock.lock().unwrap();
                    held.send(()).unwrap();
                    burn(10 * QUANTUM);
                    drop(guard);
                }
            });
            wait.recv().unwrap();
            let hogs = Hogs::start(&rt, 4);
            let lockers: Vec<_> = (0..10)
                .map(|_| {
                    let lock = lock.clone();
                    rt.spawn(move || drop(lock.lock().unwrap()))
                })
                .collect();
            lockers.into_iter().for_each(|fiber| fiber.join().unwrap());
            holder.join().unwrap();
            hogs.end();
        });
    }

    #[test]
    fn fibers_that_allocate_all_the_time_hang_nobody() {
        common::within(PATIENCE, || {
            let rt = runtime(2);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (0..8_u64)
                .map(|seed| {
                    let stop = stop.clone();
                    rt.spawn(move || allocate(seed, &stop))
                })
                .collect();
            wait_for_freezes(&rt, 40);
            for i in 0..50 {
                let text = rt.spawn(move || vec![i.to_string(); 100].concat());
                assert!(text.join().unwrap().len() >= 100);
            }
            stop.store(true, SeqCst);
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
    }

    /// Allocates blocks of many sizes, and keeps some for a while.
    fn allocate(seed: u64, stop: &AtomicBool) {
        let mut random = common::Random::new(seed);
        let mut kept: Vec<Vec<u8>> = vec![Vec::new(); 64];
        while !stop.load(Relaxed) {
            let (at, size) = (random.below(64) as usize, 1 << random.below(17));
            let old = std::mem::replace(&mut kept[at], vec![seed as u8; size]);
            assert!(old.first().is_none_or(|byte| *byte == seed as u8));
        }
    }
}

mod classes {
    use super::*;

    #[test]
    fn who_is_woken_does_not_wait_for_the_end_of_a_quantum() {
        const LONG_QUANTUM: Duration = Duration::from_millis(200);
        common::within(PATIENCE, || {
            let builder = Builder::new().workers(1).preempt(true);
            let rt = builder.preempt_quantum(LONG_QUANTUM).build().unwrap();
            let asked: Arc<Mutex<Option<Instant>>> = Arc::default();
            let (answer, answered) = mpsc::channel();
            let stop = Arc::new(AtomicBool::new(false));
            let ping = rt.spawn({
                let (asked, stop) = (asked.clone(), stop.clone());
                move || {
                    while !stop.load(SeqCst) {
                        indent::park::park();
                        if let Some(at) = asked.lock().unwrap().take() {
                            answer.send(at.elapsed()).unwrap();
                        }
                    }
                }
            });
            let hogs = Hogs::start(&rt, 3);
            let mut waits: Vec<Duration> = (0..60)
                .map(|_| {
                    thread::sleep(QUANTUM); // a hog is in the middle of its slice
                    *asked.lock().unwrap() = Some(Instant::now());
                    ping.unparker().unpark();
                    answered.recv().unwrap()
                })
                .collect();
            waits.sort();
            println!("median {:?}, longest {:?}", waits[30], waits[59]);
            assert!(waits[30] < LONG_QUANTUM / 4, "{waits:?}");
            stop.store(true, SeqCst);
            ping.unparker().unpark();
            ping.join().unwrap();
            hogs.end();
        });
    }

    #[test]
    fn hogs_keep_a_share_while_short_fibers_could_use_all_the_time() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let hogs = Hogs::start(&rt, 2);
            let window = Duration::from_millis(200);
            let alone = growth(&hogs, window);
            let stop = Arc::new(AtomicBool::new(false));
            let steps = Arc::new(AtomicU64::new(0));
            let short: Vec<_> = (0..16)
                .map(|_| {
                    let (stop, steps) = (stop.clone(), steps.clone());
                    rt.spawn(move || {
                        while !stop.load(Relaxed) {
                            burn(QUANTUM / 5);
                            steps.fetch_add(1, Relaxed);
                            indent::time::sleep(QUANTUM);
                        }
                    })
                })
                .collect();
            common::wait_for("they are at it", || steps.load(Relaxed) > 100);
            let before = steps.load(Relaxed);
            let beside = growth(&hogs, 2 * window);
            let served = steps.load(Relaxed) - before;
            println!("{alone} rounds alone, {beside} in twice the time beside {served} steps");
            assert!(beside > 2 * alone / 50, "{beside} of {}", 2 * alone);
            assert!(served > 100, "{served}");
            stop.store(true, SeqCst);
            short.into_iter().for_each(|fiber| fiber.join().unwrap());
            hogs.end();
        });
    }

    #[test]
    fn who_computes_by_calls_that_succeed_at_once_gets_as_much_time_as_a_loop() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let (stop, locks) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(0)),
            );
            let locking = rt.spawn({
                let (stop, locks) = (stop.clone(), locks.clone());
                move || {
                    let mutex = indent::sync::Mutex::new(());
                    indent::runtime::no_preempt(|| spin_for(20 * QUANTUM)); // is known to compute
                    while !stop.load(Relaxed) {
                        drop(mutex.lock().unwrap());
                        locks.fetch_add(1, Relaxed);
                    }
                }
            });
            common::wait_for("it locks", || locks.load(Relaxed) > 0);
            let locked = |time: Duration| {
                let before = locks.load(Relaxed);
                thread::sleep(time);
                locks.load(Relaxed) - before
            };
            let window = Duration::from_millis(200);
            let alone = locked(window);
            let hogs = Hogs::start(&rt, 1);
            let beside = locked(2 * window);
            println!("{alone} locks alone, {beside} in twice the time beside a loop");
            assert!(beside > alone / 10, "{beside} of {alone}");
            stop.store(true, SeqCst);
            locking.join().unwrap();
            hogs.end();
        });
    }

    fn growth(hogs: &Hogs, time: Duration) -> u64 {
        let before = hogs.all();
        thread::sleep(time);
        hogs.all() - before
    }
}

#[test]
fn threads_end_or_rest_when_hogs_have_ended() {
    common::within(PATIENCE, || {
        let rt = runtime(2);
        let hogs = Hogs::start(&rt, 14);
        wait_for_freezes(&rt, 20);
        let metrics = rt.metrics();
        assert!(metrics.carriers_frozen > 0, "{metrics:?}");
        hogs.end();
        rt.wait_idle();
        common::wait_for("threads end", || few_carriers(&rt.metrics()));
    });
}

/// Allows five carriers per worker beside the one that holds it, for the next hand-overs.
fn few_carriers(metrics: &Metrics) -> bool {
    metrics.carriers <= 6 * metrics.workers_in_service
        && metrics.carriers_frozen + metrics.carriers_detached == 0
}
