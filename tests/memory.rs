//! The cost of a fiber: memory, page tables and mappings, and that it is paid once.
//!
//! Each measurement has a process of its own. By default it counts a hundred thousand fibers, with
//! `INDENT_TEST_FULL=1` a million (about five gigabytes). A parked fiber has touched one page of
//! its stack and has a record; an unstarted fiber has the record alone. The limits are for
//! optimized code; frames of debug code are larger and may need a second page.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::{Builder, Runtime};
use indent::task::{JoinHandle, Phase};

mod common;

/// Bytes a parked fiber may take.
///
/// The sum of a page of its stack, its record, and eight bytes of page table for each page of
/// address space, guard included.
const PARKED: usize = if cfg!(debug_assertions) { 9_600 } else { 5_100 };
/// Bytes an unstarted fiber may take.
const UNSTARTED: usize = 400;
/// Mappings a process with any number of fibers may have.
const MAPPINGS: usize = 300;

/// Lock that lets one measurement run at a time: a million fibers twice would be too many.
static ONE: Mutex<()> = Mutex::new(());

fn measure(test: &str) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let output = common::in_child(&format!("child::{test}"), &[]);
    let text = common::text(&output);
    println!("{text}");
    assert!(output.status.success(), "see above");
    assert!(text.contains("1 passed"), "no such test");
}

#[test]
fn a_parked_fiber_takes_a_page_and_a_record() {
    if common::sanitizer_forbids("its shadow and its own mappings count as ours") {
        return;
    }
    measure("parked");
}

#[test]
fn a_fiber_that_has_not_run_takes_a_record() {
    if common::sanitizer_forbids("its shadow and its own mappings count as ours") {
        return;
    }
    measure("unstarted");
}

#[test]
fn a_finished_fiber_nobody_joined_takes_a_record() {
    if common::sanitizer_forbids("its shadow and its own mappings count as ours") {
        return;
    }
    measure("finished");
}

#[test]
fn deep_stacks_that_nobody_needs_give_their_pages_back() {
    if common::sanitizer_forbids("it has no pool of stacks") {
        return;
    }
    measure("deep");
}

mod child {
    use super::*;

    fn fibers() -> usize {
        match std::env::var("INDENT_TEST_FULL").as_deref() {
            Ok("1") => 1_000_000,
            _ => 100_000,
        }
    }

    /// Returns the memory and page tables of this process, in bytes.
    fn memory() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| -> usize {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (field("VmRSS:") + field("VmPTE:")) * 1024
    }

    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    }

    fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
        let patience = Instant::now() + Duration::from_secs(300);
        while !there() {
            assert!(Instant::now() < patience, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns a vector whose memory is already touched, so that it does not count.
    fn room_for<T>(n: usize) -> Vec<Option<T>> {
        let mut room = Vec::with_capacity(n);
        room.resize_with(n, || None);
        room
    }

    fn start(workers: usize) -> Runtime {
        // A preempted fiber makes room for others, which would disturb the measurement.
        let rt = Builder::new()
            .workers(workers)
            .preempt(false)
            .build()
            .unwrap();
        // Before the program's code has been read, fibers keep threads, and threads keep mappings.
        rt.wait_until_surveyed(None);
        let warm: Vec<_> = (0..100)
            .map(|_| rt.spawn(indent::task::yield_now))
            .collect();
        warm.into_iter().for_each(|fiber| fiber.join().unwrap());
        rt
    }

    /// Prints a measurement and returns the bytes for each of `n`.
    fn each(what: &str, before: usize, n: usize) -> usize {
        let grown = memory().saturating_sub(before);
        let maps = mappings();
        println!(
            "{n} fibers {what}: {} bytes each, {maps} mappings",
            grown / n
        );
        assert!(maps < MAPPINGS, "{maps} mappings");
        grown / n
    }

    /// Runs two rounds: the growth of the second shows memory that was not reused.
    fn twice(n: usize, what: &str, limit: usize, mut round: impl FnMut(&dyn Fn() -> usize)) {
        let before = memory();
        let mut peaks = Vec::new();
        for number in ["first", "second"] {
            round(&|| each(&format!("{what}, {number} round"), before, n));
            peaks.push(memory());
        }
        let first = peaks[0].saturating_sub(before);
        let second = peaks[1].saturating_sub(peaks[0]);
        println!("after each round {first} bytes more, then {second} more (limit {limit})");
        assert!(
            second < first / 10 + 1024 * 1024,
            "{first} bytes, then {second} more"
        );
    }

    #[test]
    #[ignore = "measures the memory of its process"]
    fn parked() {
        let n = fibers();
        let rt = start(2);
        let mut handles = room_for::<JoinHandle<()>>(n);
        let mut peaks = Vec::new();
        twice(n, "parked", PARKED, |measure| {
            for place in &mut handles {
                *place = Some(rt.spawn(park::park));
            }
            let parked = |handle: &Option<JoinHandle<()>>| {
                handle
                    .as_ref()
                    .is_some_and(|h| h.fiber().phase() == Phase::Parked)
            };
            wait_for("stacks", || rt.metrics().stacks_in_use == n as u64);
            wait_for("parks", || handles.iter().all(parked));
            peaks.push(measure());
            for handle in handles.iter().flatten() {
                handle.unparker().unpark();
            }
            for handle in handles.iter_mut().filter_map(Option::take) {
                handle.join().unwrap();
            }
        });
        assert!(
            peaks[0] <= PARKED,
            "{} bytes each, more than {PARKED}",
            peaks[0]
        );
        assert!(
            peaks[1] <= peaks[0] + peaks[0] / 10,
            "the second round took more: {peaks:?}"
        );
        rt.wait_idle();
        assert_eq!(rt.metrics().fibers_alive, 0);
    }

    #[test]
    #[ignore = "measures the memory of its process"]
    fn unstarted() {
        let n = fibers();
        let rt = start(1);
        let mut handles = room_for::<JoinHandle<()>>(n);
        let mut peaks = Vec::new();
        twice(n, "not run", UNSTARTED, |measure| {
            let (busy, release) = hold_the_worker(&rt);
            for place in &mut handles {
                *place = Some(rt.spawn(|| ()));
            }
            assert_eq!(rt.metrics().stacks_in_use, 1, "nobody else has run");
            peaks.push(measure());
            release.store(true, SeqCst);
            busy.join().unwrap();
            for handle in handles.iter_mut().filter_map(Option::take) {
                handle.join().unwrap();
            }
        });
        assert!(
            peaks[0] <= UNSTARTED,
            "{} bytes each, more than {UNSTARTED}",
            peaks[0]
        );
        assert!(
            peaks[1] <= peaks[0] + peaks[0] / 10,
            "the second round took more: {peaks:?}"
        );
    }

    #[test]
    #[ignore = "measures the memory of its process"]
    fn finished() {
        let n = fibers();
        let rt = start(2);
        let mut handles = room_for::<JoinHandle<u64>>(n);
        let mut peaks = Vec::new();
        twice(n, "finished", UNSTARTED, |measure| {
            for (i, place) in handles.iter_mut().enumerate() {
                *place = Some(rt.spawn(move || i as u64));
            }
            rt.wait_idle();
            peaks.push(measure());
            for (i, handle) in handles.iter_mut().enumerate() {
                assert_eq!(handle.take().unwrap().join().unwrap(), i as u64);
            }
        });
        assert!(
            peaks[0] <= UNSTARTED,
            "{} bytes each, more than {UNSTARTED}",
            peaks[0]
        );
        assert!(
            peaks[1] <= peaks[0] + peaks[0] / 10,
            "the second round took more: {peaks:?}"
        );
    }

    #[test]
    #[ignore = "measures the memory of its process"]
    fn deep() {
        const FIBERS: usize = 4000;
        const DEPTH: usize = 96 * 1024;
        fn touch() {
            let mut frame = [1u8; DEPTH];
            std::hint::black_box(&mut frame);
        }
        let rt = start(2);
        let before = memory();
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                rt.spawn(|| {
                    touch();
                    park::park();
                })
            })
            .collect();
        wait_for("parked fibers", || {
            let all = rt.handle().fibers();
            all.iter().filter(|f| f.phase() == Phase::Parked).count() == FIBERS
        });
        let deep = memory() - before;
        assert!(
            deep > FIBERS * DEPTH / 2,
            "{deep} bytes of {}",
            FIBERS * DEPTH
        );
        fibers.iter().for_each(|fiber| fiber.unparker().unpark());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        // The pages are given back although nothing runs any more.
        wait_for("the pages to go back", || {
            memory().saturating_sub(before) < deep / 2
        });
    }

    /// Keeps the only worker busy until the flag is set.
    fn hold_the_worker(rt: &Runtime) -> (JoinHandle<()>, &'static AtomicBool) {
        let release: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let busy = rt.spawn(move || {
            while !release.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        wait_for("the busy fiber", || busy.fiber().phase() == Phase::Runnable);
        (busy, release)
    }
}
