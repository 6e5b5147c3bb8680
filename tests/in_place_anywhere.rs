#![expect(
    unsafe_code,
    reason = "calls C, and keeps what no fiber may keep that leaves its thread"
)]
//! Fibers that leave their thread at an instruction of ordinary code, if the setting allows it
//! (I35).
//!
//! The promises for regions are checked in `in_place.rs`; this file uses no region.

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Metrics, Runtime, no_preempt};

mod common;

const PATIENCE: u64 = 120;
const QUANTUM: Duration = Duration::from_millis(1);

/// Starts a runtime after the survey: before it, every interrupted fiber keeps its thread.
fn runtime(workers: usize, in_place: bool) -> Runtime {
    // SAFETY: no fiber keeps something of its thread from a function that it called through a
    // pointer, except in tests that check that it is found.
    unsafe { indent_sysmon::frames::trust_pointers() };
    let builder = Builder::new().workers(workers).preempt(true);
    let builder = builder.preempt_quantum(QUANTUM).preempt_in_place(in_place);
    let rt = builder.build().expect("a runtime");
    rt.wait_until_surveyed(None);
    rt
}

/// Returns from a test where fibers have no thread-locals of their own.
///
/// The setting has no effect there.
macro_rules! needs_own_locals {
    () => {
        if common::all_fibers_are_bound() || cfg!(indent_sanitize) {
            return common::skip("thread-locals belong to threads here");
        }
    };
}

/// One step of a computation that the compiler cannot shorten.
#[inline(always)]
fn step(number: u64) -> u64 {
    black_box(
        number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    )
}

/// Computes, and nothing else, until another fiber has run.
#[inline(never)]
fn spin_until(ran: &AtomicBool) {
    let mut number = 1;
    while !ran.load(SeqCst) {
        number = step(number);
    }
}

/// Calls `around` with a flag that an unstarted fiber of this worker will set.
#[inline(never)]
fn spin_for_another(around: impl FnOnce(&AtomicBool)) {
    let ran = Arc::new(AtomicBool::new(false));
    let other = indent::spawn({
        let ran = ran.clone();
        move || ran.store(true, SeqCst)
    });
    around(&ran);
    other.join().unwrap();
}

/// Returns how often fibers left their thread, and were frozen, while `f` ran 10 times.
fn counted(rt: &Runtime, f: impl Fn() + Send + Sync) -> (u64, u64) {
    let before = rt.metrics();
    rt.block_on(|| (0..10).for_each(|_| f()));
    let after = rt.metrics();
    let counted = |what: fn(&Metrics) -> u64| what(&after) - what(&before);
    let in_place = counted(|m| m.in_place_outside_regions_total);
    assert_eq!(
        in_place,
        counted(|m| m.in_place_preemptions_total),
        "there is no region"
    );
    let frozen = counted(|m| m.freezes_total);
    println!("{in_place} in place, {frozen} frozen");
    (in_place, frozen)
}

fn frozen_only(f: impl Fn() + Send + Sync) {
    common::within(PATIENCE, || {
        let (in_place, frozen) = counted(&runtime(1, true), f);
        assert_eq!(in_place, 0, "{frozen} frozen");
        assert!(frozen > 0);
    });
}

fn mostly_in_place(f: impl Fn() + Send + Sync) {
    common::within(PATIENCE, || {
        let (in_place, frozen) = counted(&runtime(1, true), f);
        // Without optimization old addresses lie on the stack more often.
        let enough = in_place > frozen || cfg!(debug_assertions) && in_place > 0;
        assert!(enough, "{in_place} in place, {frozen} frozen");
    });
}

#[test]
fn ordinary_code_gives_way_and_keeps_no_thread() {
    needs_own_locals!();
    mostly_in_place(|| spin_for_another(spin_until));
}

#[test]
fn it_is_off_unless_it_is_asked_for() {
    common::within(PATIENCE, || {
        let rt = runtime(1, false);
        let (in_place, frozen) = counted(&rt, || spin_for_another(spin_until));
        assert_eq!(in_place, 0);
        assert!(frozen > 0);
    });
}

/// Computes a known result, so that a register that is lost shows.
#[inline(never)]
fn checksum(seed: u64, steps: u64) -> [u64; 6] {
    let mut lanes = [seed, seed ^ 1, seed ^ 2, seed ^ 3, seed ^ 4, seed ^ 5];
    let mut floats = [1.0_f64; 4];
    for n in 0..steps {
        for (index, lane) in (0..).zip(&mut lanes) {
            *lane = lane
                .rotate_left(7)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15 + index)
                ^ n;
        }
        for (float, lane) in floats.iter_mut().zip(lanes) {
            *float = (*float + (lane & 0xff) as f64) * 0.999;
        }
    }
    for (lane, float) in lanes.iter_mut().zip(floats) {
        *lane ^= float.to_bits();
    }
    lanes
}

#[test]
fn many_that_compute_take_turns_on_few_threads_and_come_out_right() {
    needs_own_locals!();
    const HOGS: u64 = 64;
    const ROUNDS: u64 = 4;
    let steps = if cfg!(debug_assertions) {
        20_000
    } else {
        400_000
    };
    common::within(PATIENCE, || {
        let rt = runtime(2, true);
        let right: Vec<_> = (0..HOGS).map(|hog| checksum(hog, steps)).collect();
        let most = Arc::new(AtomicUsize::new(0));
        let done = Arc::new(AtomicBool::new(false));
        let watch = std::thread::spawn({
            let (most, done, handle) = (most.clone(), done.clone(), rt.handle().clone());
            move || {
                while !done.load(SeqCst) {
                    most.fetch_max(handle.metrics().carriers, SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let found: Vec<_> = rt.block_on(move || {
            let hog = |hog| {
                indent::spawn(move || {
                    let results = (0..ROUNDS).map(|_| checksum(black_box(hog), steps));
                    results.collect::<Vec<_>>()
                })
            };
            let hogs: Vec<_> = (0..HOGS).map(hog).collect();
            hogs.into_iter().map(|hog| hog.join().unwrap()).collect()
        });
        done.store(true, SeqCst);
        watch.join().unwrap();
        for (found, right) in found.iter().zip(&right) {
            assert!(found.iter().all(|found| found == right));
        }
        let metrics = rt.metrics();
        let (in_place, frozen) = (
            metrics.in_place_outside_regions_total,
            metrics.freezes_total,
        );
        let most = most.load(SeqCst);
        println!("{in_place} in place, {frozen} frozen, {most} threads");
        // Without optimization old addresses lie on the stack more often.
        let enough = in_place > frozen || cfg!(debug_assertions) && in_place > 0;
        assert!(enough, "{in_place} in place, {frozen} frozen");
        assert!(most <= 2 + 16, "{most} threads");
    });
}

#[test]
fn errno_is_the_fibers_own() {
    needs_own_locals!();
    mostly_in_place(|| {
        let ran = Arc::new(AtomicBool::new(false));
        let other = indent::spawn({
            let ran = ran.clone();
            move || {
                // SAFETY: the call fails with another error.
                unsafe { libc::chdir(c"/nowhere at all".as_ptr()) };
                ran.store(true, SeqCst);
            }
        });
        // SAFETY: the call fails.
        unsafe { libc::close(-1) };
        spin_until(&ran);
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(error, Some(libc::EBADF));
        other.join().unwrap();
    });
}

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static OTHER: Cell<u64> = const { Cell::new(0) };
}

/// Keeps the address of a thread-local while another function computes.
#[inline(never)]
fn spin_with_an_address(ran: &AtomicBool) {
    NUMBER.with(|number| {
        number.set(number.get() + 1);
        black_box(number);
        spin_until(ran);
        number.set(number.get() + 1);
    });
}

#[test]
fn with_the_address_of_a_thread_local_it_keeps_its_thread() {
    frozen_only(|| {
        spin_for_another(|ran| {
            let before = NUMBER.get();
            spin_with_an_address(ran);
            assert_eq!(NUMBER.get(), before + 2);
        });
    });
}

/// A function that reads the thread pointer.
///
/// It is called through memory that any code could have written, so the analysis does not judge
/// callers by it: only the look at the stack can find the address it returns.
static HIDDEN: OnceLock<fn() -> usize> = OnceLock::new();

/// Sets the pointer before there is a fiber.
fn hide() {
    fn read() -> usize {
        let here: usize;
        // SAFETY: the first word of a thread's control block is its own address.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) here, options(nostack, readonly)) };
        here
    }
    HIDDEN.get_or_init(|| black_box(read));
}

#[inline(never)]
fn thread_pointer() -> usize {
    HIDDEN.get().expect("it was hidden")()
}

#[repr(C, packed)]
struct Packed {
    before: u8,
    address: usize,
}

/// Spins with an address of the thread at an odd offset of its stack.
#[inline(never)]
fn spin_with_packed(ran: &AtomicBool, address: usize) {
    let mut packed = Packed { before: 1, address };
    black_box(&mut packed);
    spin_until(ran);
    black_box(&mut packed);
    assert_eq!(packed.before, 1);
    assert_eq!({ packed.address }, address);
}

#[test]
fn an_address_at_an_odd_place_of_the_stack_is_found() {
    needs_own_locals!();
    hide();
    mostly_in_place(|| spin_for_another(|ran| spin_with_packed(ran, 100)));
    frozen_only(|| {
        spin_for_another(|ran| spin_with_packed(ran, thread_pointer() - 100));
    });
}

/// Spins with a number in a vector register.
#[inline(never)]
fn spin_with_vector(ran: &AtomicBool, number: usize) -> usize {
    let kept: usize;
    let flag = ran.as_ptr();
    // SAFETY: reads a flag that another fiber sets, and keeps a number in a register of its own.
    unsafe {
        std::arch::asm!(
            "movq xmm7, {number}",
            "pslldq xmm7, 3",
            "xor {number:e}, {number:e}",
            "2:",
            "pause",
            "cmp byte ptr [{flag}], 0",
            "je 2b",
            "psrldq xmm7, 3",
            "movq {kept}, xmm7",
            number = inout(reg) number => _,
            flag = in(reg) flag,
            kept = out(reg) kept,
            out("xmm7") _,
            options(nostack, readonly),
        );
    }
    kept
}

#[test]
fn an_address_in_a_vector_register_is_found_and_a_number_is_kept() {
    needs_own_locals!();
    hide();
    mostly_in_place(|| {
        spin_for_another(|ran| {
            assert_eq!(spin_with_vector(ran, 0x1234_5678_9abc), 0x1234_5678_9abc)
        });
    });
    frozen_only(|| {
        spin_for_another(|ran| {
            let address = spin_with_vector(ran, thread_pointer() + 64);
            assert_eq!(address, thread_pointer() + 64);
        });
    });
}

#[test]
fn below_c_it_keeps_its_thread() {
    static RAN: AtomicBool = AtomicBool::new(false);
    extern "C" fn compare(_: *const libc::c_void, _: *const libc::c_void) -> libc::c_int {
        spin_until(&RAN);
        0
    }
    frozen_only(|| {
        RAN.store(false, SeqCst);
        let other = indent::spawn(|| RAN.store(true, SeqCst));
        let mut two = [2_u64, 1];
        // SAFETY: the array has two numbers, and `compare` does not read them.
        unsafe { libc::qsort(two.as_mut_ptr().cast(), 2, 8, Some(compare)) };
        other.join().unwrap();
    });
}

#[test]
fn without_preemption_it_is_not_interrupted() {
    common::within(PATIENCE, || {
        let rt = runtime(1, true);
        let before = rt.metrics();
        rt.block_on(|| {
            let other = indent::spawn(|| ());
            no_preempt(|| {
                let until = Instant::now() + 20 * QUANTUM;
                while Instant::now() < until {
                    (0..10_000).fold(1, |number, _| step(number));
                }
            });
            other.join().unwrap();
        });
        assert_eq!(
            rt.metrics().in_place_outside_regions_total,
            before.in_place_outside_regions_total
        );
    });
}

#[test]
fn while_it_unwinds_it_keeps_its_thread() {
    struct Spins<'a>(&'a AtomicBool);
    impl Drop for Spins<'_> {
        fn drop(&mut self) {
            spin_until(self.0);
        }
    }
    frozen_only(|| {
        spin_for_another(|ran| {
            let unwinds = || {
                let _spins = Spins(ran);
                std::panic::resume_unwind(Box::new(7));
            };
            assert!(catch_unwind(AssertUnwindSafe(unwinds)).is_err());
        });
    });
}

/// Sets both thread-locals to the same number repeatedly: different values show that fibers share
/// them.
#[inline(never)]
fn count_in_thread_locals(number: u64, steps: u64) -> u64 {
    let mut wrong = 0;
    for n in 0..steps {
        NUMBER.set(number + n);
        (0..20).fold(n, |number, _| step(number));
        OTHER.set(number + n);
        wrong += u64::from(NUMBER.get() != OTHER.get());
    }
    wrong
}

#[test]
fn thread_locals_stay_the_fibers_own() {
    common::within(PATIENCE, || {
        let rt = runtime(2, true);
        let steps = if cfg!(debug_assertions) {
            20_000
        } else {
            300_000
        };
        let wrong: u64 = rt.block_on(move || {
            let count =
                |fiber: u64| indent::spawn(move || count_in_thread_locals(fiber << 32, steps));
            let fibers: Vec<_> = (0..8).map(count).collect();
            fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
        });
        assert_eq!(wrong, 0);
        println!("{} in place", rt.metrics().in_place_outside_regions_total);
    });
}

#[test]
fn a_lock_that_is_held_is_let_go_in_the_end() {
    needs_own_locals!();
    static LOCKED: Mutex<u64> = Mutex::new(0);
    common::within(PATIENCE, || {
        let rt = runtime(2, true);
        rt.block_on(|| {
            let fiber = |_| {
                indent::spawn(|| {
                    for _ in 0..20 {
                        let mut locked = LOCKED.lock().unwrap();
                        let before = *locked;
                        (0..300_000).fold(before, |number, _| step(number));
                        *locked = before + 1;
                    }
                })
            };
            let fibers: Vec<_> = (0..8).map(fiber).collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        assert_eq!(*LOCKED.lock().unwrap(), 160);
        println!("{} in place", rt.metrics().in_place_outside_regions_total);
    });
}

#[test]
fn at_the_end_they_are_resumed_and_end_like_others() {
    needs_own_locals!();
    common::within(PATIENCE, || {
        let rt = runtime(2, true);
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..8 {
            let begun = begun.clone();
            drop(rt.spawn(move || {
                loop {
                    begun.fetch_add(1, SeqCst);
                    black_box((0..3_000_000).fold(1, |number, _| step(number)));
                    indent::task::yield_now(); // the shutdown cancels it here
                }
            }));
        }
        common::wait_for("switches", || {
            rt.metrics().in_place_outside_regions_total > 20 && begun.load(SeqCst) >= 8
        });
        let report = rt.shutdown_timeout(Duration::from_secs(PATIENCE));
        assert!(report.is_clean(), "{report}");
    });
}
