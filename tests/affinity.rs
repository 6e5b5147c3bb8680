#![expect(unsafe_code, reason = "system calls about the CPUs of a thread")]
//! The CPUs a thread may run on belong to the user: a mask that a hook, a fiber or another process
//! sets stays in force, however often workers change threads.
//!
//! Beside computations that fill all CPUs, fibers that sleep for short times make workers move from
//! thread to thread. Each hand-over prefers the CPU that becomes free (`src/sys/affinity.rs`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime, ThreadLocals};
use indent::task::{self, JoinHandle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

mod common;

const PATIENCE: u64 = 120;
/// Number of hand-overs that a test waits for.
const ENOUGH: u64 = 2_000;
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Returns the affinity mask of a thread.
///
/// Never inlined, because the fiber may change threads between two calls.
#[inline(never)]
fn mask_of(thread: Pid) -> Vec<usize> {
    let mask = sched_getaffinity(thread).expect("a mask");
    (0..CpuSet::count())
        .filter(|cpu| mask.is_set(*cpu).unwrap())
        .collect()
}

#[inline(never)]
fn set_mask(thread: Pid, cpus: &[usize]) {
    let mut mask = CpuSet::new();
    cpus.iter().for_each(|cpu| mask.set(*cpu).unwrap());
    sched_setaffinity(thread, &mask).expect("CPUs of ours");
}

/// Returns the CPUs of this process, or `None` if there are too few to choose from.
fn choice() -> Option<Vec<usize>> {
    let all = mask_of(THIS_THREAD);
    if all.len() < 2 {
        common::skip("it needs two CPUs");
        return None;
    }
    Some(all)
}

thread_local! {
    static PINNED_TO: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns true if the calling thread may run on the CPU its hook chose and on no other.
#[inline(never)]
fn is_where_the_hook_put_it() -> bool {
    mask_of(THIS_THREAD) == [PINNED_TO.get()]
}

/// Computes for `time`, without a call that lets other fibers run.
fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box((0..1_000).sum::<u64>());
    }
}

/// Fibers that compute and fibers that sleep for short times; all call `look` repeatedly.
struct Crowd {
    stop: Arc<AtomicBool>,
    fibers: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(rt: &Runtime, look: impl Fn() + Send + Sync + 'static) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let look = Arc::new(look);
        let fibers = (0..8)
            .map(|i| {
                let (stop, look) = (stop.clone(), look.clone());
                rt.spawn(move || {
                    while !stop.load(SeqCst) {
                        if i < 4 {
                            compute(Duration::from_millis(2));
                        } else {
                            indent::time::sleep(Duration::from_micros(500));
                        }
                        look();
                    }
                })
            })
            .collect();
        Crowd { stop, fibers }
    }

    fn end(self) {
        self.stop.store(true, SeqCst);
        self.fibers
            .into_iter()
            .for_each(|fiber| fiber.join().unwrap());
    }
}

fn wait_for_hand_overs(rt: &Runtime, more: u64) {
    let before = rt.metrics().freezes_total;
    let far = || rt.metrics().freezes_total - before >= more;
    common::wait_for("hand-overs", far);
}

#[test]
fn threads_that_a_hook_pins_stay_pinned() {
    let Some(all) = choice() else { return };
    common::within(PATIENCE, move || {
        let threads = AtomicUsize::new(0);
        let hook = move || {
            let cpu = all[threads.fetch_add(1, SeqCst) % all.len()];
            PINNED_TO.set(cpu);
            set_mask(THIS_THREAD, &[cpu]);
        };
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        static WRONG: AtomicUsize = AtomicUsize::new(0);
        let look = || {
            LOOKS.fetch_add(1, SeqCst);
            WRONG.fetch_add(usize::from(!is_where_the_hook_put_it()), SeqCst);
        };
        let rt = Builder::new()
            .workers(2)
            .thread_locals(ThreadLocals::Thread)
            .on_thread_start(hook)
            .on_thread_stop(look)
            .build()
            .unwrap();
        let crowd = Crowd::start(&rt, look);
        wait_for_hand_overs(&rt, ENOUGH);
        crowd.end();
        drop(rt);
        let (looks, wrong) = (LOOKS.load(SeqCst), WRONG.load(SeqCst));
        println!("{looks} looks, {wrong} wrong");
        assert_eq!(wrong, 0, "of {looks} looks");
    });
}

#[test]
fn a_fiber_that_pins_its_thread_finds_it_pinned() {
    let Some(all) = choice() else { return };
    common::within(PATIENCE, move || {
        let rt = Builder::new().workers(2).build().unwrap();
        let crowd = Crowd::start(&rt, || ());
        wait_for_hand_overs(&rt, 100);
        // One after the other, because two of these fibers may share a thread.
        for cpu in all.clone() {
            let all = all.clone();
            let fiber = rt.spawn(move || {
                let _same_thread = task::pin();
                let mut wrong = 0;
                for _ in 0..10 {
                    set_mask(THIS_THREAD, &[cpu]);
                    for i in 0..40 {
                        if i % 2 == 0 {
                            indent::time::sleep(Duration::from_micros(500));
                        } else {
                            compute(Duration::from_micros(500)); // preempted here
                        }
                        wrong += usize::from(mask_of(THIS_THREAD) != [cpu]);
                    }
                    set_mask(THIS_THREAD, &all);
                    indent::time::sleep(Duration::from_millis(2));
                    wrong += usize::from(mask_of(THIS_THREAD) != all);
                }
                wrong
            });
            assert_eq!(fiber.join().unwrap(), 0, "wrong looks");
        }
        crowd.end();
    });
}

#[test]
fn a_mask_set_for_the_whole_process_is_obeyed_and_lifted() {
    if choice().is_some() {
        common::alone("whole_process");
    }
}

#[test]
fn a_mask_set_for_one_thread_from_outside_is_obeyed() {
    if choice().is_some() {
        common::alone("one_thread");
    }
}

mod child {
    use super::*;

    /// Sets the mask of every thread of the process, as `taskset -ap` does.
    fn set_mask_of_all_threads(cpus: &[usize]) {
        for entry in std::fs::read_dir("/proc/self/task").unwrap() {
            let name = entry.unwrap().file_name();
            let thread = name.to_str().unwrap().parse().unwrap();
            let mut mask = CpuSet::new();
            cpus.iter().for_each(|cpu| mask.set(*cpu).unwrap());
            let _gone_meanwhile = sched_setaffinity(Pid::from_raw(thread), &mask);
        }
    }

    #[test]
    #[ignore = "changes the CPUs of all threads of its process"]
    fn whole_process() {
        let all = mask_of(THIS_THREAD);
        common::within(PATIENCE, move || {
            let rt = Builder::new().workers(2).build().unwrap();
            // Number of consecutive looks that saw one CPU, and that saw all CPUs.
            let in_turn = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let (seen, cpus) = (in_turn.clone(), all.clone());
            let crowd = Crowd::start(&rt, move || {
                let now = mask_of(THIS_THREAD);
                let kind = usize::from(now.len() > 1);
                assert!(now == cpus || now == cpus[..1]);
                seen[kind].fetch_add(1, SeqCst);
                seen[1 - kind].store(0, SeqCst);
            });
            wait_for_hand_overs(&rt, 100);
            for _ in 0..3 {
                for kind in [0, 1] {
                    set_mask_of_all_threads(if kind == 0 { &all[..1] } else { &all });
                    in_turn[kind].store(0, SeqCst);
                    common::wait_for("the new mask", || in_turn[kind].load(SeqCst) > 2_000);
                }
            }
            crowd.end();
        });
    }

    #[test]
    #[ignore = "in a process without other tests"]
    fn one_thread() {
        let all = mask_of(THIS_THREAD);
        common::within(PATIENCE, move || {
            let rt = Builder::new().workers(2).build().unwrap();
            let crowd = Crowd::start(&rt, || ());
            wait_for_hand_overs(&rt, 100);
            let stop = Arc::new(AtomicBool::new(false));
            let stops = stop.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            let fiber = rt.spawn(move || {
                let _same_thread = task::pin();
                // SAFETY: `gettid` takes no arguments.
                sender.send(unsafe { libc::gettid() }).unwrap();
                while !stops.load(SeqCst) {
                    indent::time::sleep(Duration::from_micros(500));
                }
            });
            let thread = Pid::from_raw(receiver.recv().unwrap());
            for cpu in all {
                // A mask that is set within the microseconds of a hand-over may be lost, so set it
                // again.
                let obeyed = (0..20).any(|_| {
                    set_mask(thread, &[cpu]);
                    let looks = |_| {
                        std::thread::sleep(Duration::from_micros(300));
                        mask_of(thread) == [cpu]
                    };
                    (0..1_000).all(looks)
                });
                assert!(obeyed, "the mask of CPU {cpu}");
            }
            stop.store(true, SeqCst);
            fiber.join().unwrap();
            crowd.end();
        });
    }
}
