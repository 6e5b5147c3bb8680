#![expect(
    unsafe_code,
    reason = "faults on purpose and installs a signal handler"
)]
//! Stacks: sizes, reuse, guards, and the messages on an overflow.
//!
//! Tests that end their process, or use up its resources, run in a child (module `child`). The
//! child prints on its standard output what the parent should find in the message.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::{Builder, Handle, Runtime, StackGuard};
use indent::task::{self, Phase};

mod common;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Descends the stack until it is `bytes` below `from`; returns the number of frames that took.
#[inline(never)]
fn descend(from: usize, bytes: usize) -> usize {
    let room = std::hint::black_box([0u8; 512]);
    let here = std::ptr::from_ref(&room).addr();
    if from - here >= bytes {
        return 1;
    }
    let below = descend(from, bytes);
    std::hint::black_box(&room);
    below + 1
}

fn use_stack(bytes: usize) -> usize {
    let top = 0u8;
    descend(std::ptr::from_ref(std::hint::black_box(&top)).addr(), bytes)
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < patience, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test of module `child`, which must end by this signal.
fn killed_by(signal: i32, test: &str, variables: &[(&str, &str)]) -> Output {
    let output = common::in_child(&format!("child::{test}"), variables);
    let text = common::text(&output);
    assert_eq!(output.status.signal(), Some(signal), "{text}");
    output
}

/// Overflows a stack in a child's fiber, and checks every part of the message.
fn overflow(size: &str, name: &str, guard: &str) {
    let text = overflow_by("dig", size, name, guard);
    if cfg!(target_env = "musl") {
        return common::skip(
            "musl says nothing about the frame below a handler: no frames are named",
        );
    }
    let frames = text.matches("dig_deeper").count();
    assert!(
        frames > 10,
        "{frames} frames of the recursion are named in\n{text}"
    );
}

/// Does the same for any kind of overflow; returns what the child wrote.
fn overflow_by(way: &str, size: &str, name: &str, guard: &str) -> String {
    let variables = [
        ("CASE_WAY", way),
        ("CASE_SIZE", size),
        ("CASE_NAME", name),
        ("CASE_GUARD", guard),
    ];
    let output = killed_by(libc::SIGABRT, "overflow", &variables);
    let text = common::text(&output);
    let out = String::from_utf8_lossy(&output.stdout);
    let announced = out.lines().find_map(|line| line.strip_prefix("fiber "));
    let announced = announced.unwrap_or_else(|| panic!("no announcement: {text}"));
    let (id, line) = announced.split_once(" line ").expect("id and line");
    let quoted = if name.is_empty() {
        String::new()
    } else {
        format!(" '{name}'")
    };
    let message = format!(
        "indent: fiber {id}{quoted}, spawned at tests/stack.rs:{line}, overflowed its stack; \
         give it more with task::Builder::stack_size"
    );
    assert!(text.contains(&message), "{message}\nis missing in\n{text}");
    assert!(
        !text.contains("has overflowed its stack"),
        "std's message too:\n{text}"
    );
    text
}

#[test]
fn an_overflow_names_the_fiber_and_the_recursion() {
    overflow("default", "digger", "");
}

#[test]
fn an_overflow_of_a_fiber_without_a_name_is_reported_too() {
    overflow("default", "", "");
}

#[test]
fn an_overflow_of_a_small_stack_is_reported() {
    overflow("65536", "small digger", "");
}

#[test]
fn an_overflow_of_a_large_stack_is_reported() {
    overflow("1048576", "", "");
}

#[test]
fn an_overflow_into_a_guard_page_is_reported() {
    overflow("default", "digger", "page");
    overflow("65536", "", "page");
}

#[test]
fn a_frame_that_jumps_up_to_64_kib_past_the_end_is_reported_as_an_overflow() {
    for guard in ["", "page"] {
        for jump in [1, 8 * KIB, 16 * KIB, 24 * KIB, 64 * KIB - 1, 64 * KIB] {
            overflow_by(&jump.to_string(), "65536", "jumper", guard);
        }
    }
}

/// Returns the first byte of the page that holds `address`.
fn page_of(address: usize) -> usize {
    address & !(4 * KIB - 1)
}

/// Returns true if a byte can be read; the kernel checks, so a guard raises no signal.
fn is_readable(address: usize) -> bool {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // Not `write`, because a sanitizer checks its arguments.
    // SAFETY: the kernel reads the byte, or fails with EFAULT.
    let written = unsafe { libc::syscall(libc::SYS_write, writer.as_raw_fd(), address, 1_usize) };
    drop(reader);
    written == 1
}

/// Returns the lowest byte that the calling fiber may use of its stack.
fn end_of_stack() -> usize {
    let here = 0u8;
    let mut page = page_of(std::ptr::from_ref(std::hint::black_box(&here)).addr());
    while is_readable(page - 4 * KIB) {
        page -= 4 * KIB;
    }
    page
}

/// Returns the number of untouchable bytes below the calling fiber's stack.
fn guard_of_stack() -> usize {
    let end = end_of_stack();
    let mut page = end - 4 * KIB;
    while !is_readable(page - 4 * KIB) && end - page < MIB {
        page -= 4 * KIB;
    }
    end - page
}

#[test]
fn between_two_stacks_lie_more_than_64_kib_that_cannot_be_touched() {
    for guard in [StackGuard::Marker, StackGuard::Page] {
        let builder = Builder::new().workers(1);
        let builder = match guard {
            StackGuard::Page => builder.stack_guard(guard),
            _ => builder,
        };
        let rt = builder.build().expect("a runtime");
        for size in [16 * KIB, 64 * KIB, 256 * KIB, 4 * MIB] {
            let fibers: Vec<_> = (0..20)
                .map(|_| {
                    rt.block_on(|| {
                        task::Builder::new().stack_size(size).spawn(|| {
                            let guard = guard_of_stack();
                            park::park(); // so that each has a stack of its own
                            guard
                        })
                    })
                })
                .collect();
            fibers.iter().for_each(|fiber| fiber.unparker().unpark());
            for fiber in fibers {
                let bytes = fiber.join().unwrap();
                assert!(bytes > 64 * KIB, "{bytes} bytes below a stack of {size}");
            }
        }
    }
}

#[test]
fn a_null_dereference_on_a_fiber_is_what_it_always_was() {
    if common::sanitizer_forbids("it handles faults itself") {
        return;
    }
    let text = common::text(&killed_by(libc::SIGSEGV, "null_on_a_fiber", &[]));
    assert!(!text.contains("overflowed"), "{text}");
}

#[test]
fn a_null_dereference_on_a_plain_thread_is_what_it_always_was() {
    if common::sanitizer_forbids("it handles faults itself") {
        return;
    }
    let text = common::text(&killed_by(libc::SIGSEGV, "null_on_a_thread", &[]));
    assert!(!text.contains("overflowed"), "{text}");
}

#[test]
fn a_plain_thread_that_overflows_gets_the_message_of_std() {
    if common::sanitizer_forbids("it handles faults itself") {
        return;
    }
    let text = common::text(&killed_by(libc::SIGABRT, "overflow_on_a_thread", &[]));
    assert!(text.contains("has overflowed its stack"), "{text}");
    assert!(text.contains("plain digger"), "{text}");
    assert!(!text.contains("indent: fiber"), "{text}");
}

#[test]
fn a_handler_that_was_there_first_gets_foreign_faults() {
    for with_info in ["0", "1"] {
        for place in ["fiber", "thread"] {
            let variables = [("CASE_INFO", with_info), ("CASE_PLACE", place)];
            let output = common::in_child("child::foreign_handler", &variables);
            let text = common::text(&output);
            assert_eq!(output.status.code(), Some(42), "{text}");
            assert!(text.contains("the user's handler"), "{text}");
        }
    }
}

#[test]
fn a_handler_that_was_there_first_does_not_hide_our_overflows() {
    let variables = [("CASE_INFO", "1"), ("CASE_PLACE", "overflow")];
    let text = common::text(&killed_by(libc::SIGABRT, "foreign_handler", &variables));
    assert!(text.contains("overflowed its stack"), "{text}");
    assert!(!text.contains("the user's handler"), "{text}");
}

#[test]
fn the_smallest_stack_is_enough_for_a_small_body() {
    let rt = runtime(1);
    for asked in [1, 4 * KIB, 16 * KIB] {
        let fiber = rt.block_on(|| {
            task::Builder::new().stack_size(asked).spawn(|| {
                task::yield_now();
                park::park();
                std::hint::black_box(7)
            })
        });
        fiber.unparker().unpark();
        assert_eq!(fiber.join().unwrap(), 7);
    }
}

#[test]
fn a_recursion_fits_into_the_stack_it_was_given() {
    let rt = runtime(2);
    let mut asked = 64 * KIB;
    while asked <= 64 * MIB {
        let frames = rt.block_on(|| {
            let fiber = task::Builder::new().stack_size(asked);
            fiber
                .spawn(move || use_stack(asked / 8 * 6))
                .join()
                .unwrap()
        });
        assert!(
            frames > asked / (16 * KIB),
            "{frames} frames in {asked} bytes"
        );
        asked *= 4;
    }
}

#[test]
fn a_runtime_of_large_stacks_gives_them_to_all() {
    let rt = Builder::new()
        .workers(1)
        .stack_size(8 * MIB)
        .build()
        .unwrap();
    let fibers: Vec<_> = (0..4).map(|_| rt.spawn(|| use_stack(6 * MIB))).collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap() > 100);
    }
}

#[test]
fn a_stack_of_a_gibibyte_can_be_had_and_used() {
    common::alone("gibibyte");
}

#[test]
fn ten_thousand_fibers_of_all_sizes_live_together() {
    let rt = runtime(2);
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = seed | 1;
    let fibers: Vec<_> = rt.block_on(|| {
        (0..10_000u64)
            .map(|i| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let size = (16 * KIB) << (random >> 40).wrapping_rem(9);
                let bytes = if size > 64 * KIB { size / 16 } else { 1 };
                let fiber = task::Builder::new().stack_size(size);
                fiber.spawn(move || {
                    use_stack(bytes);
                    park::park();
                    i
                })
            })
            .collect()
    });
    fibers.iter().for_each(|fiber| fiber.unparker().unpark());
    for (i, fiber) in fibers.into_iter().enumerate() {
        assert_eq!(fiber.join().unwrap(), i as u64);
    }
}

#[test]
fn stacks_that_cannot_be_are_refused() {
    let rt = runtime(1);
    rt.block_on(|| {
        for asked in [0, (1 << 30) + 1, usize::MAX] {
            let tried = task::Builder::new().stack_size(asked).try_spawn(|| ());
            let error = tried.map(drop).unwrap_err();
            assert!(matches!(error, indent::SpawnError::BadStackSize { .. }));
            let text = error.to_string();
            assert!(
                text.contains(&format!("a stack of {asked} bytes")),
                "{text}"
            );
        }
    });
}

#[test]
fn stacks_are_used_again() {
    if common::sanitizer_forbids("stacks are not pooled then") {
        return;
    }
    common::alone("reuse");
}

#[test]
fn guard_pages_limit_fibers_and_the_limit_is_told() {
    if common::sanitizer_forbids("it needs mappings itself when there are none left") {
        return;
    }
    common::alone("page_limit");
}

#[test]
fn bound_fibers_find_threads_where_stacks_have_reached_their_limit() {
    if common::sanitizer_forbids("it needs mappings itself when there are none left") {
        return;
    }
    common::alone("page_limit_with_threads");
}

/// Runs a test of module `child` with this much address space.
fn with_address_space(kib: u64, test: &str) -> Output {
    let me = std::env::current_exe().expect("the path of this test binary");
    Command::new("sh")
        .args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")])
        .arg(me)
        .arg(test)
        .args(common::CHILD)
        .output()
        .expect("a shell")
}

#[test]
fn a_fiber_that_can_never_get_a_stack_says_so() {
    if common::sanitizer_forbids("it needs terabytes of address space") {
        return;
    }
    let output = with_address_space(900 * 1024, "child::no_stack");
    let text = common::text(&output);
    if !text.contains("running 1 test") {
        println!("{text}");
        return common::skip("the shell cannot set ulimit -v");
    }
    assert!(output.status.success(), "{text}");
}

mod child {
    use super::*;

    fn case(name: &str) -> String {
        std::env::var(name).unwrap_or_default()
    }

    /// Recurses until the stack overflows; neither a tail call nor a loop.
    #[inline(never)]
    fn dig_deeper(depth: usize) -> usize {
        let room = std::hint::black_box([depth; 16]);
        if depth == usize::MAX {
            return 0; // unreachable in practice
        }
        let below = dig_deeper(depth + 1);
        below + std::hint::black_box(room)[3]
    }

    /// Writes this many bytes below the calling fiber's stack, as a large frame without probes
    /// does.
    fn jump(bytes: usize) -> usize {
        let at = end_of_stack() - bytes;
        let stranger: *mut u8 = std::hint::black_box(std::ptr::with_exposed_provenance_mut(at));
        // SAFETY: none: the fault is intended; the process is a child made for it.
        unsafe { stranger.write_volatile(1) };
        println!("wrote {bytes} bytes past the end, into another stack");
        bytes
    }

    #[test]
    #[ignore = "aborts"]
    fn overflow() {
        let mut runtime = Builder::new().workers(1);
        if case("CASE_GUARD") == "page" {
            runtime = runtime.stack_guard(StackGuard::Page);
        }
        let rt = runtime.build().unwrap();
        let mut fiber = task::Builder::new();
        if let Ok(size) = case("CASE_SIZE").parse() {
            fiber = fiber.stack_size(size);
        }
        if !case("CASE_NAME").is_empty() {
            fiber = fiber.name(case("CASE_NAME"));
        }
        // Neighbours, so that there are stacks on both sides.
        let beside = || {
            let fiber = task::Builder::new().stack_size(64 * KIB);
            rt.block_on(|| fiber.spawn(park::park))
        };
        let _below: Vec<_> = (0..8).map(|_| beside()).collect();
        rt.block_on(|| {
            let line = line!() + 1;
            let fiber = fiber.spawn(|| {
                park::park();
                match case("CASE_WAY").parse() {
                    Ok(bytes) => jump(bytes),
                    Err(_) => dig_deeper(0),
                }
            });
            println!("\nfiber {} line {line}", fiber.id());
            fiber.unparker().unpark();
            fiber.join().unwrap();
        });
    }

    fn dereference_null() {
        let nowhere: *const u32 = std::hint::black_box(std::ptr::null());
        // SAFETY: none: the fault is intended; the process is a child made for it.
        println!("{}", unsafe { nowhere.read_volatile() });
    }

    #[test]
    #[ignore = "faults"]
    fn null_on_a_fiber() {
        let rt = runtime(1);
        rt.block_on(dereference_null);
    }

    #[test]
    #[ignore = "faults"]
    fn null_on_a_thread() {
        let rt = runtime(1);
        rt.block_on(|| ());
        dereference_null();
    }

    #[test]
    #[ignore = "aborts"]
    fn overflow_on_a_thread() {
        let rt = runtime(1);
        rt.block_on(|| ());
        let thread = std::thread::Builder::new().name("plain digger".into());
        let _ = thread.spawn(|| dig_deeper(0)).unwrap().join();
    }

    extern "C" fn plain_handler(_signal: i32) {
        let text = b"the user's handler\n";
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
        // SAFETY: the call ends the process without running any of its code.
        unsafe { libc::_exit(42) };
    }

    extern "C" fn handler_with_info(
        signal: i32,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        assert!(!info.is_null() && !context.is_null());
        plain_handler(signal);
    }

    #[test]
    #[ignore = "faults"]
    fn foreign_handler() {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        if case("CASE_INFO") == "1" {
            action.sa_sigaction = handler_with_info as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        } else {
            action.sa_sigaction = plain_handler as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
        }
        // SAFETY: the action is valid, and its handlers have the types its flags say.
        let done = unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) };
        assert_eq!(done, 0);
        let rt = runtime(1);
        rt.block_on(|| ());
        match case("CASE_PLACE").as_str() {
            "fiber" => rt.block_on(dereference_null),
            "thread" => dereference_null(),
            _ => drop(rt.block_on(|| dig_deeper(0))),
        }
        unreachable!("the fault ends the process");
    }

    #[test]
    #[ignore = "uses a lot of memory"]
    fn gibibyte() {
        let rt = runtime(1);
        let bytes = if cfg!(debug_assertions) {
            50 * MIB
        } else {
            300 * MIB
        };
        let frames = rt.block_on(|| {
            let fiber = task::Builder::new().stack_size(1 << 30);
            fiber.spawn(move || use_stack(bytes)).join().unwrap()
        });
        println!("{frames} frames in {} MiB", bytes / MIB);
        assert!(frames > 10_000);
        // Twice more, on the same stack or on another one.
        for _ in 0..2 {
            let fiber = rt.block_on(|| task::Builder::new().stack_size(1 << 30).spawn(|| 7));
            assert_eq!(fiber.join().unwrap(), 7);
        }
    }

    #[test]
    #[ignore = "counts what the whole process has mapped"]
    fn reuse() {
        let rt = runtime(2);
        let rounds = 100_000;
        let one_after_the_other = |n: usize| {
            rt.block_on(|| {
                for i in 0..n {
                    let fiber = match i % 10 {
                        0 => task::Builder::new()
                            .stack_size(64 * KIB)
                            .spawn(|| use_stack(1000)),
                        _ => indent::spawn(|| use_stack(1000)),
                    };
                    fiber.join().unwrap();
                }
            });
        };
        one_after_the_other(1000);
        let before = rt.metrics().stack_slabs;
        one_after_the_other(rounds);
        assert_eq!(rt.metrics().stack_slabs, before);
        // Many at once take more slabs, but only the first time.
        let many_at_once = || {
            let fibers: Vec<_> = (0..2000).map(|_| rt.spawn(park::park)).collect();
            wait_for("stacks", || rt.metrics().stacks_in_use == 2000);
            fibers.iter().for_each(|fiber| fiber.unparker().unpark());
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            rt.metrics().stack_slabs
        };
        let first = many_at_once();
        assert!(first > before);
        for _ in 0..10 {
            assert_eq!(many_at_once(), first);
        }
    }

    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    }

    #[test]
    #[ignore = "uses up the mappings of its process"]
    fn page_limit() {
        let rt = Builder::new()
            .workers(2)
            .stack_guard(StackGuard::Page)
            .preempt(false) // without mappings no thread starts, and std would then abort
            .stack_size(64 * KIB)
            .build()
            .unwrap();
        // Before the program's code has been read, fibers keep threads, which take mappings, too.
        rt.wait_until_surveyed(None);
        let limit = rt.metrics().fiber_limit.expect("guard pages are limited");
        assert_eq!(rt.metrics().stack_guard, StackGuard::Page);
        println!("limit {limit}, mappings {}", mappings());
        let done = Arc::new(AtomicUsize::new(0));
        let body = |done: &Arc<AtomicUsize>| {
            let done = done.clone();
            move || {
                park::park();
                done.fetch_add(1, SeqCst);
            }
        };
        let mut fibers = Vec::with_capacity(limit + 20_000);
        let refused = rt.block_on(|| {
            loop {
                match task::Builder::new().try_spawn(body(&done)) {
                    Ok(fiber) => fibers.push(fiber),
                    Err(error) => break error,
                }
                assert!(fibers.len() <= limit, "never refused");
            }
        });
        assert_eq!(refused, indent::SpawnError::TooManyFibers { limit });
        let text = refused.to_string();
        assert!(
            text.contains(&format!("{limit} fibers are alive")),
            "{text}"
        );
        assert!(text.contains("vm.max_map_count"), "{text}");
        assert!(fibers.len() + 1 >= limit, "{} of {limit}", fibers.len());
        let parked = |handle: &Handle| {
            let all = handle.fibers();
            all.iter().filter(|f| f.phase() == Phase::Parked).count()
        };
        wait_for("all to park", || parked(rt.handle()) == fibers.len());
        println!("{} parked, mappings {}", fibers.len(), mappings());

        // Beyond the limit a plain spawn waits for a stack until other fibers end.
        let extra = 16_000; // more than the share of threads has room for
        fibers.extend((0..extra).map(|_| rt.spawn(body(&done))));
        wait_for("starvation", || rt.metrics().fibers_waiting_for_stack > 0);
        println!(
            "{:?} starve, mappings {}",
            rt.metrics().fibers_waiting_for_stack,
            mappings()
        );
        assert_eq!(done.load(SeqCst), 0);
        assert_eq!(rt.metrics().fibers_alive, fibers.len() as u64);
        let all = fibers.len();
        fibers.iter().for_each(|fiber| fiber.unparker().unpark());
        for fiber in fibers {
            fiber.join().unwrap();
        }
        assert_eq!(done.load(SeqCst), all);
        rt.wait_idle();
        let metrics = rt.metrics();
        assert_eq!(
            (metrics.fibers_alive, metrics.fibers_waiting_for_stack),
            (0, 0)
        );
        assert_eq!((metrics.stacks_in_use, metrics.global_queue_depth), (0, 0));
        let again = rt.block_on(|| task::Builder::new().try_spawn(|| 7));
        assert_eq!(again.unwrap().join().unwrap(), 7);
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report}");
    }

    thread_local! {
        static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    }

    /// Parks with the address of a thread-local, which binds the fiber to its thread.
    #[inline(never)]
    fn park_bound() {
        OF_THREAD.with(|cell| {
            let before = std::hint::black_box(cell).replace(1);
            park::park();
            assert_eq!(cell.replace(before), 1, "another fiber was here");
        });
    }

    /// Parks fibers from a cold start, where every parked fiber takes a thread, and some need it
    /// for good.
    #[test]
    #[ignore = "uses up the mappings of its process"]
    fn page_limit_with_threads() {
        const BOUND: usize = 1000;
        let rt = Builder::new()
            .workers(2)
            .stack_guard(StackGuard::Page)
            .stack_size(64 * KIB)
            .build()
            .unwrap();
        let limit = rt.metrics().fiber_limit.expect("guard pages are limited");
        // Two closures, because one that could call either would be bound in any case.
        let plain = (0..limit - BOUND).map(|_| rt.spawn(park::park));
        let mut fibers: Vec<_> = plain.collect();
        fibers.extend((0..BOUND).map(|_| rt.spawn(park_bound)));
        let parked = || {
            let all = rt.handle().fibers();
            all.iter().filter(|f| f.phase() == Phase::Parked).count()
        };
        wait_for("all to park", || parked() == limit);
        let metrics = rt.metrics();
        println!(
            "limit {limit}, {} threads, mappings {}",
            metrics.carriers,
            mappings()
        );
        if metrics.carriers_refused_total > 0 && metrics.carriers < BOUND {
            return common::skip("the system refuses so many threads");
        }
        assert!(metrics.carriers >= BOUND, "{} threads", metrics.carriers);
        assert_eq!(metrics.fibers_waiting_for_stack, 0);
        fibers.iter().for_each(|fiber| fiber.unparker().unpark());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report}");
    }

    #[test]
    #[ignore = "needs a process with little address space"]
    fn no_stack() {
        let rt = runtime(2);
        let huge = || task::Builder::new().stack_size(1 << 30);
        let ran = Arc::new(Mutex::new(0));
        // No fiber holds a stack, so the spawn fails immediately.
        for _ in 0..3 {
            let ran = ran.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            drop(rt.spawn(move || sender.send(huge().spawn(move || *ran.lock().unwrap() += 1))));
            let error = receiver.recv().unwrap().join().unwrap_err();
            assert!(error.is_no_stack(), "{error}");
            assert!(!error.is_cancelled() && !error.is_panic());
            assert!(error.to_string().contains("ulimit -v"), "{error}");
        }
        // A fiber that holds a small stack could not help by ending; neither could the one that
        // waits.
        let joined = rt.block_on(|| huge().spawn(|| ()).join());
        assert!(joined.unwrap_err().is_no_stack());
        // Small stacks are available all the time.
        assert_eq!(rt.block_on(|| 7), 7);
        rt.wait_idle();
        assert_eq!(rt.metrics().fibers_alive, 0);
        assert_eq!(*ran.lock().unwrap(), 0);
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report}");
    }
}
