//! A runtime has as many workers as its control groups grant CPUs.
//!
//! Each test makes groups and lets a child process of this binary join one before it starts a
//! runtime. Where groups cannot be made, the tests report that and pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indent::Runtime;
use indent::runtime::Builder;
use indent_cgroups::Group;

#[path = "../../common/mod.rs"]
mod common;

/// Variable with the group that a child process joins.
const GROUP: &str = "INDENT_TEST_GROUP";

/// Returns the number of CPUs that this process may use; the tests need two.
fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// Unwraps, or reports that the test was skipped and returns from it.
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => return common::skip(&why),
        }
    };
}

/// Runs a test of the module `child` in a process that joins the group.
fn child(test: &str, group: Option<&Group>) -> String {
    let variable = group.map(|group| (GROUP, group.path()));
    let output = common::in_child(&format!("child::{test}"), variable.as_slice());
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no such test: {text}");
    println!("{text}");
    text
}

/// Returns the number of workers that a runtime starts in this group, without a configured number.
fn workers_in(group: Option<&Group>) -> usize {
    let text = child("count_workers", group);
    let number = text.lines().find_map(|line| line.strip_prefix("workers "));
    number.expect("a number of workers").parse().unwrap()
}

#[test]
fn a_quota_of_one_cpu_starts_one_worker() {
    let group = or_skip!(Group::new("one"));
    or_skip!(group.set_quota(Some(1000)));
    assert_eq!(workers_in(Some(&group)), 1);
}

#[test]
fn a_part_of_a_cpu_counts_as_a_whole_one() {
    let group = or_skip!(Group::new("part"));
    or_skip!(group.set_quota(Some(500)));
    assert_eq!(workers_in(Some(&group)), 1);
    or_skip!(group.set_quota(Some(1500)));
    assert_eq!(workers_in(Some(&group)), cpus().min(2));
}

#[test]
fn a_quota_larger_than_the_machine_changes_nothing() {
    let group = or_skip!(Group::new("large"));
    or_skip!(group.set_quota(Some(1000 * 5000)));
    assert_eq!(workers_in(Some(&group)), workers_in(None));
    or_skip!(group.set_quota(None));
    assert_eq!(workers_in(Some(&group)), workers_in(None));
}

#[test]
fn the_tightest_group_above_counts() {
    let parent = or_skip!(Group::new("parent"));
    let middle = or_skip!(parent.nested("middle"));
    let leaf = or_skip!(middle.nested("leaf"));
    or_skip!(parent.set_quota(Some(1000)));
    // Version 1 refuses to grant more than a parent group has; then the leaf has no quota at all.
    if let Err(why) = leaf.set_quota(Some(2000)) {
        println!("{why}");
    }
    assert_eq!(workers_in(Some(&leaf)), 1);
}

#[test]
fn a_process_outside_has_the_cpus_of_the_machine() {
    let (workers, cpus) = (workers_in(None), cpus());
    // The standard library rounds a quota down, if one was set for this whole process.
    assert!(
        workers == cpus || workers == cpus + 1,
        "{workers} workers, {cpus} CPUs"
    );
}

#[test]
fn a_runtime_started_after_a_change_sees_it() {
    if cpus() < 2 {
        return common::skip("needs two CPUs");
    }
    let group = or_skip!(Group::new("changed"));
    child("start_after_changes", Some(&group));
}

#[test]
fn workers_follow_a_quota_that_changes() {
    if cpus() < 2 {
        return common::skip("needs two CPUs");
    }
    let group = or_skip!(Group::new("live"));
    or_skip!(group.set_quota(Some(2000)));
    or_skip!(group.favour());
    child("follow_changes", Some(&group));
}

mod child {
    use super::*;

    /// Quotas that a group goes through, in CPUs.
    const CHANGES: [usize; 3] = [2, 1, 2];
    /// How soon workers should have followed, and how long a slow machine may take.
    const EXPECTED: Duration = Duration::from_secs(2);
    const PATIENCE: Duration = Duration::from_secs(5);
    /// How long progress is counted under each quota.
    const WATCH: Duration = Duration::from_secs(1);

    fn join_group() -> Option<Group> {
        let group = Group::open(&std::env::var(GROUP).ok()?);
        group.join().unwrap();
        Some(group)
    }

    #[test]
    #[ignore = "joins a group; others of this binary start it"]
    fn count_workers() {
        let _group = join_group();
        let rt = Builder::new().build().unwrap();
        println!("\nworkers {}", rt.metrics().workers.len());
        rt.block_on(|| assert_eq!(indent::spawn(|| 1).join().unwrap(), 1));
    }

    #[test]
    #[ignore = "joins a group; others of this binary start it"]
    fn start_after_changes() {
        let group = join_group().expect("a group to join");
        let check = |cpus| {
            let rt = Builder::new().build().unwrap();
            assert_eq!(rt.metrics().workers.len(), cpus);
        };
        group.change(CHANGES, check).unwrap();
    }

    /// Returns the number of workers that run fibers, and of CPUs the process may use.
    fn now(rt: &Runtime) -> (usize, usize) {
        let metrics = rt.metrics();
        (metrics.workers_in_service, metrics.cpus_allowed)
    }

    /// Four fibers that compute and yield until the flag is set; each counts its steps.
    struct Load {
        stop: Arc<AtomicBool>,
        steps: Arc<AtomicU64>,
        fibers: Vec<indent::JoinHandle<u64>>,
    }

    impl Load {
        fn start(rt: &Runtime) -> Self {
            let (stop, steps) = (Arc::new(AtomicBool::new(false)), Arc::default());
            let fiber = |_| {
                let (stop, steps) = (Arc::clone(&stop), Arc::<AtomicU64>::clone(&steps));
                rt.spawn(move || {
                    let mut own = 0u64;
                    while !stop.load(Relaxed) {
                        let sum: u64 = (0..20_000).map(std::hint::black_box).sum();
                        assert_eq!(sum, 19_999 * 20_000 / 2);
                        steps.fetch_add(1, Relaxed);
                        own += 1;
                        indent::task::yield_now();
                    }
                    own
                })
            };
            let fibers = (0..4).map(fiber).collect();
            Load {
                stop,
                steps,
                fibers,
            }
        }

        /// Measures steps per second and CPUs kept busy, for a while.
        fn watch(&self) -> Speed {
            let (start, steps, busy) = (Instant::now(), self.steps.load(Relaxed), cpu_time());
            std::thread::sleep(WATCH);
            let seconds = start.elapsed().as_secs_f64();
            Speed {
                steps: (self.steps.load(Relaxed) - steps) as f64 / seconds,
                busy: (cpu_time() - busy).as_secs_f64() / seconds,
            }
        }

        /// Returns the steps that each fiber has counted, after all have ended, and all steps
        /// counted.
        fn end(self) -> (Vec<u64>, u64) {
            self.stop.store(true, Relaxed);
            let own = self.fibers.into_iter().map(|fiber| fiber.join().unwrap());
            (own.collect(), self.steps.load(Relaxed))
        }
    }

    #[derive(Clone, Copy, Debug)]
    struct Speed {
        steps: f64,
        busy: f64,
    }

    /// Returns the CPU time of this process so far.
    fn cpu_time() -> Duration {
        const TICKS_PER_SECOND: u64 = 100; // the same on every Linux
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        // Fields after the name, which may contain anything: state, then ten numbers, then these
        // two.
        let (_, behind) = stat.rsplit_once(')').unwrap();
        let fields: Vec<_> = behind.split_whitespace().collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|n| n.parse::<u64>().unwrap())
            .sum();
        Duration::from_millis(1000 / TICKS_PER_SECOND * ticks)
    }

    #[test]
    #[ignore = "joins a group; others of this binary start it"]
    fn follow_changes() {
        let group = join_group().expect("a group to join");
        let rt = Builder::new().build().unwrap();
        let load = Load::start(&rt);
        let mut speeds = Vec::new();
        let changed = |cpus| {
            let start = Instant::now();
            while now(&rt) != (cpus, cpus) {
                let seen = now(&rt);
                assert!(
                    start.elapsed() < PATIENCE,
                    "{cpus} CPUs granted, {seen:?} workers and CPUs after {PATIENCE:?}"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            let took = start.elapsed();
            let late = if took > EXPECTED { ", late" } else { "" };
            let speed = load.watch();
            println!("{cpus} CPUs: followed after {took:?}{late}; {speed:.2?}");
            assert_eq!(now(&rt), (cpus, cpus), "and stayed there");
            speeds.push(speed);
        };
        group.change(CHANGES, changed).unwrap();

        // Nothing was lost on the way: every fiber exists, made progress, and counted right.
        let (own, steps) = load.end();
        println!("steps of each fiber {own:?}");
        assert_eq!(own.iter().sum::<u64>(), steps);
        assert!(own.iter().all(|own| *own > 0), "{own:?}");
        rt.wait_idle();
        assert_eq!(rt.metrics().fibers_alive, 0);

        // Progress follows the quota, where no other process keeps the machine busy.
        let [two, one, again] = speeds[..] else {
            unreachable!("one for each of {CHANGES:?}")
        };
        assert!(
            one.steps > 0.0 && one.busy < 1.4,
            "the kernel's part: {one:.2?}"
        );
        if two.busy.min(again.busy) < 1.6 {
            return println!("others use this machine: speeds mean nothing");
        }
        let ratios = [one.steps / two.steps, one.steps / again.steps];
        let fine = |ratio: &f64| (0.25..0.8).contains(ratio);
        assert!(ratios.iter().all(fine), "one CPU to two: {ratios:.2?}");
    }
}
