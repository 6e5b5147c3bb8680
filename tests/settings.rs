#![expect(unsafe_code, reason = "changes the environment of a child process")]
//! Settings: the builder overrides the environment, which overrides the default; messages on bad
//! values.
//!
//! The environment belongs to the process, so each test runs probes (module `child`) in processes
//! of their own, which print what they found. Parsing and limits are tested next to the table
//! itself, in `src/runtime/config.rs`.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::Duration;

use indent::StartError;
use indent::runtime::Builder;

/// Runs a probe with these of the runtime's variables and no others.
fn run(probe: &str, variables: &[(&str, &str)]) -> Output {
    let variables = variables.iter();
    run_raw(
        probe,
        variables.map(|(name, value)| (*name, OsStr::new(value))),
    )
}

fn run_raw<'a>(probe: &str, variables: impl Iterator<Item = (&'a str, &'a OsStr)>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"INDENT_") {
            command.env_remove(name);
        }
    }
    command.arg(format!("child::{probe}")).args(common::CHILD);
    command.envs(variables);
    common::within(120, || command.output().unwrap())
}

/// Returns the text after `found ` that a probe printed; the probe must not fail.
fn found(probe: &str, variables: &[(&str, &str)]) -> String {
    line(&run(probe, variables))
}

fn line(output: &Output) -> String {
    let text = common::text(output);
    assert!(output.status.success(), "{text}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    // The test harness may have written the beginning of the line.
    let found = stdout.lines().find_map(|line| line.split_once("found "));
    found.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

/// Starts a runtime with these variables; returns the number of workers, or the error.
fn start(variables: &[(&str, &str)]) -> String {
    found("start", variables)
}

const WORKERS: &str = "INDENT_WORKER_THREADS";

#[test]
fn the_builder_wins_over_the_environment_and_that_over_the_default() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let default = start(&[]);
    // The standard library rounds down if a control group grants a part of a CPU.
    let expected = [cpus, cpus + 1].map(|n| format!("{n} workers"));
    assert!(expected.contains(&default), "{default}, {cpus} CPUs");
    assert_eq!(start(&[(WORKERS, "3")]), "3 workers");
    assert_eq!(start(&[(WORKERS, "3"), ("CASE_WORKERS", "5")]), "5 workers");
    assert_eq!(start(&[(WORKERS, "")]), default);
    assert_eq!(start(&[(WORKERS, " 3\n")]), "3 workers");
}

#[test]
fn every_variable_takes_a_value_that_is_allowed() {
    let allowed = [
        (WORKERS, "1"),
        ("INDENT_CPU_ROUNDING", "down"),
        ("INDENT_MAX_CARRIERS", "65536"),
        ("INDENT_BLOCKING_THREADS", "1"),
        ("INDENT_BLOCKING_KEEP_ALIVE_MS", "0"),
        ("INDENT_COMPUTE_THREADS", "1024"),
        ("INDENT_STACK_SIZE", "64KiB"),
        ("INDENT_COOP_BUDGET", "1"),
        ("INDENT_PREEMPT", "off"),
        ("INDENT_PREEMPT_QUANTUM_MS", "0.2"),
        ("INDENT_PREEMPT_SIGNAL", "RTMIN+3"),
        ("INDENT_IDLE_SPIN_US", "50"),
        ("INDENT_SHUTDOWN_TIMEOUT_MS", "31536000000"),
    ];
    for one in allowed {
        let started = start(&[one]);
        assert!(started.ends_with(" workers"), "{one:?}: {started}");
    }
    assert_eq!(start(&allowed), "1 workers");
}

/// Inserts the number of real-time signals that this C library leaves to programs.
fn here(allowed: &str) -> String {
    let last = libc::SIGRTMAX() - libc::SIGRTMIN();
    allowed.replace("RTMIN+30", &format!("RTMIN+{last}"))
}

#[test]
fn a_bad_variable_is_refused_with_its_name_its_value_and_what_is_allowed() {
    for (name, value, allowed) in [
        (WORKERS, "0", "1 to 1024, a whole number"),
        (WORKERS, "four", "1 to 1024, a whole number"),
        ("INDENT_CPU_ROUNDING", "nearest", "up or down"),
        ("INDENT_MAX_CARRIERS", "65537", "1 to 65536, a whole number"),
        ("INDENT_BLOCKING_THREADS", "0", "1 to 65536, a whole number"),
        (
            "INDENT_BLOCKING_KEEP_ALIVE_MS",
            "60s",
            "0 to 31536000000 milliseconds, a whole number",
        ),
        ("INDENT_COMPUTE_THREADS", "-1", "1 to 1024, a whole number"),
        (
            "INDENT_STACK_SIZE",
            "256K",
            "1 to 1GiB, a whole number of bytes or one with KiB, MiB or GiB right after it",
        ),
        (
            "INDENT_COOP_BUDGET",
            "4294967296",
            "1 to 4294967295, a whole number",
        ),
        ("INDENT_PREEMPT", "yes", "off or on"),
        (
            "INDENT_PREEMPT_QUANTUM_MS",
            "0.05",
            "0.1 to 10000 milliseconds, a number with at most six decimals",
        ),
        (
            "INDENT_PREEMPT_SIGNAL",
            "KILL",
            "URG, USR1, USR2, IO, WINCH or RTMIN+1 to RTMIN+30, a name",
        ),
        (
            "INDENT_IDLE_SPIN_US",
            "1.5",
            "0 to 1000000 microseconds, a whole number",
        ),
        (
            "INDENT_SHUTDOWN_TIMEOUT_MS",
            "never",
            "0 to 31536000000 milliseconds, a whole number",
        ),
    ] {
        let error = format!("{name} = {value}: allowed is {}", here(allowed));
        assert_eq!(start(&[(name, value)]), error);
    }
    let not_unicode = OsStr::from_bytes(b"2\xff");
    let refused = line(&run_raw("start", [(WORKERS, not_unicode)].into_iter()));
    let error = format!("{WORKERS} = 2\u{fffd}: allowed is 1 to 1024, a whole number");
    assert_eq!(refused, error);
}

#[test]
fn a_bad_value_in_code_is_refused_by_the_name_of_its_method() {
    const LONG: Duration = Duration::MAX;
    let new = Builder::new;
    let year = "0 to 31536000000 milliseconds";
    let refusals = [
        (new().workers(0), "workers", "0", "1 to 1024"),
        (new().workers(1025), "workers", "1025", "1 to 1024"),
        (
            new().max_carriers(65_537),
            "max_carriers",
            "65537",
            "1 to 65536",
        ),
        (
            new().blocking_threads(0),
            "blocking_threads",
            "0",
            "1 to 65536",
        ),
        (
            new().blocking_keep_alive(LONG),
            "blocking_keep_alive",
            "18446744073709551615.999999999s",
            year,
        ),
        (
            new().compute_threads(1025),
            "compute_threads",
            "1025",
            "1 to 1024",
        ),
        (new().stack_size(0), "stack_size", "0", "1 to 1GiB"),
        (
            new().stack_size((1 << 30) + 1),
            "stack_size",
            "1073741825",
            "1 to 1GiB",
        ),
        (new().coop_budget(0), "coop_budget", "0", "1 to 4294967295"),
        (
            new().preempt_quantum(Duration::from_micros(99)),
            "preempt_quantum",
            "99µs",
            "0.1 to 10000 milliseconds",
        ),
        (
            new().preempt_signal(libc::SIGSEGV),
            "preempt_signal",
            "11",
            "URG, USR1, USR2, IO, WINCH or RTMIN+1 to RTMIN+30",
        ),
        (
            new().preempt_signal(-1),
            "preempt_signal",
            "-1",
            "URG, USR1, USR2, IO, WINCH or RTMIN+1 to RTMIN+30",
        ),
        (
            new().idle_spin(Duration::from_secs(2)),
            "idle_spin",
            "2s",
            "0 to 1000000 microseconds",
        ),
        (
            new().shutdown_timeout(LONG),
            "shutdown_timeout",
            "18446744073709551615.999999999s",
            year,
        ),
        (
            new().timer_resolution(Duration::ZERO),
            "timer_resolution",
            "0ns",
            "100 to 1000000 microseconds",
        ),
        (
            new().local_queue(3),
            "local_queue",
            "3",
            "a power of two, 4 to 65536",
        ),
        (
            new().local_queue(131_072),
            "local_queue",
            "131072",
            "a power of two, 4 to 65536",
        ),
        (
            new().global_interval(0),
            "global_interval",
            "0",
            "1 to 4294967295",
        ),
        (
            new().thread_name("a\0b"),
            "thread_name",
            "a\0b",
            "text without NUL",
        ),
    ];
    for (builder, name, given, what) in refusals {
        let error = builder.build().unwrap_err();
        let text = error.to_string();
        let shown = given.replace('\0', "\\0");
        let what = here(what);
        assert_eq!(text, format!("{name} = {shown}: allowed is {what}"));
        let StartError::BadSetting {
            setting,
            value,
            allowed,
        } = error
        else {
            panic!("{text}");
        };
        assert_eq!((setting, &*value, &*allowed), (name, given, &*what));
    }
}

#[test]
fn a_bad_variable_is_no_matter_where_the_builder_decides() {
    assert_eq!(
        start(&[(WORKERS, "four"), ("CASE_WORKERS", "2")]),
        "2 workers"
    );
}

#[test]
fn too_few_threads_for_the_workers_are_refused_with_both_numbers() {
    let refused = Builder::new().workers(3).max_carriers(2).build();
    assert_eq!(
        refused.unwrap_err().to_string(),
        "max_carriers = 2: allowed is at least one thread for every worker, and workers = 3"
    );
    let threads = ("INDENT_MAX_CARRIERS", "2");
    assert_eq!(
        start(&[threads, (WORKERS, "3")]),
        "INDENT_MAX_CARRIERS = 2: allowed is at least one thread for every worker, and \
         INDENT_WORKER_THREADS = 3"
    );
    assert_eq!(
        start(&[threads, ("CASE_WORKERS", "3")]),
        "INDENT_MAX_CARRIERS = 2: allowed is at least one thread for every worker, and \
         workers = 3"
    );
    assert_eq!(start(&[threads, (WORKERS, "2")]), "2 workers");
}

#[test]
fn the_default_runtime_says_why_it_cannot_start() {
    assert_eq!(
        found("default_runtime", &[(WORKERS, "zero")]),
        "the default runtime cannot be started: INDENT_WORKER_THREADS = zero: \
         allowed is 1 to 1024, a whole number"
    );
    assert_eq!(found("default_runtime", &[(WORKERS, "3")]), "3 workers");
}

#[test]
fn the_environment_is_read_anew_for_every_runtime() {
    assert_eq!(found("twice", &[(WORKERS, "3")]), "3 workers, then 2");
}

#[test]
fn the_stack_size_comes_from_the_environment() {
    if common::sanitizer_forbids("frames are larger") {
        return;
    }
    let large = [("INDENT_STACK_SIZE", "1MiB")];
    assert_eq!(found("deep", &large), "room for 600 KiB");
    let output = run("deep", &[]); // deeper than the default
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let output = run("deep", &[large[0], ("CASE_STACK_SIZE", "131072")]);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}

#[test]
fn the_budget_comes_from_the_environment() {
    // A checkpoint also yields to waiting fibers; only the budget counts here.
    let (budget, off) = (("INDENT_COOP_BUDGET", "10"), ("INDENT_PREEMPT", "off"));
    assert_eq!(found("budget", &[off]), "128 operations in a turn");
    assert_eq!(found("budget", &[budget, off]), "10 operations in a turn");
    let both = [budget, off, ("CASE_BUDGET", "20")];
    assert_eq!(found("budget", &both), "20 operations in a turn");
}

#[test]
fn the_most_threads_come_from_the_environment() {
    let most = ("INDENT_MAX_CARRIERS", "4");
    assert_eq!(found("starts", &[]), "all started");
    assert_eq!(found("starts", &[most]), "some wait for a thread");
    assert_eq!(
        found("starts", &[most, ("CASE_CARRIERS", "64")]),
        "all started"
    );
}

#[test]
fn the_time_a_drop_waits_comes_from_the_environment() {
    // A drop that waits does so for a fiber that soon ends. A drop that does not wait may still be
    // slow: only the default of five seconds would reach the end of the late fiber.
    let soon = ("CASE_BLOCKED_MS", "300");
    let late = ("CASE_BLOCKED_MS", "4000");
    let at_once = ("INDENT_SHUTDOWN_TIMEOUT_MS", "0");
    assert_eq!(found("dropping", &[soon]), "waited");
    assert_eq!(found("dropping", &[late, at_once]), "left it behind");
    let both = [soon, at_once, ("CASE_TIMEOUT_MS", "60000")];
    assert_eq!(found("dropping", &both), "waited");
}

#[test]
fn a_misspelt_variable_gets_one_line_and_a_stranger_none() {
    let output = run(
        "twice",
        &[
            (WORKERS, "1"),
            ("INDENT_WORKERS", "4"),
            ("INDENT_GLOBAL_INTERVAL", "4"),
            ("INDENT_SEED", "4"),
            ("INDENT_SIZE", "4"),
        ],
    );
    assert_eq!(line(&output), "1 workers, then 2");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<_> = stderr
        .lines()
        .filter(|line| line.starts_with("indent: "))
        .collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "indent: INDENT_GLOBAL_INTERVAL is not a setting; there is only \
             Builder::global_interval",
            "indent: INDENT_SEED is not supported yet by this version",
            "indent: INDENT_WORKERS is not a setting; did you mean INDENT_WORKER_THREADS?",
        ]
    );
}

/// Probes: each prints what it found.
mod child {
    use std::panic::catch_unwind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use indent::runtime::{Handle, Runtime};
    use indent::task;

    use super::*;

    /// Returns the number in a variable of the test.
    fn case(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().expect("a number"))
    }

    /// Returns a builder with those of the test's settings that are given in code.
    fn builder() -> Builder {
        let mut builder = Builder::new();
        if let Some(n) = case("CASE_WORKERS") {
            builder = builder.workers(n as usize);
        }
        if let Some(n) = case("CASE_CARRIERS") {
            builder = builder.max_carriers(n as usize);
        }
        if let Some(bytes) = case("CASE_STACK_SIZE") {
            builder = builder.stack_size(bytes as usize);
        }
        if let Some(operations) = case("CASE_BUDGET") {
            builder = builder.coop_budget(operations as u32);
        }
        if let Some(ms) = case("CASE_TIMEOUT_MS") {
            builder = builder.shutdown_timeout(Duration::from_millis(ms));
        }
        builder
    }

    fn one_worker() -> Runtime {
        builder().workers(1).build().unwrap()
    }

    fn workers(handle: &Handle) -> usize {
        handle.metrics().workers.len()
    }

    #[test]
    #[ignore = "run in a child process"]
    fn start() {
        match builder().build() {
            Ok(rt) => println!("found {} workers", workers(rt.handle())),
            Err(error) => println!("found {error}"),
        }
    }

    #[test]
    #[ignore = "run in a child process"]
    fn default_runtime() {
        match catch_unwind(Handle::current) {
            Ok(handle) => println!("found {} workers", workers(&handle)),
            Err(panic) => println!("found {}", panic.downcast::<String>().unwrap()),
        }
    }

    #[test]
    #[ignore = "run in a child process"]
    fn twice() {
        let first = workers(builder().build().unwrap().handle());
        // SAFETY: the threads of the first runtime have ended, and the test's own threads do not
        // use the environment.
        unsafe { std::env::set_var(WORKERS, "2") };
        let second = workers(builder().build().unwrap().handle());
        println!("found {first} workers, then {second}");
    }

    /// Descends the stack until it is this many bytes below `from`.
    #[inline(never)]
    fn descend(from: usize, bytes: usize) -> usize {
        let room = std::hint::black_box([0u8; 512]);
        let depth = from - std::ptr::from_ref(&room).addr();
        let deepest = match depth < bytes {
            true => descend(from, bytes),
            false => depth,
        };
        std::hint::black_box(&room);
        deepest
    }

    #[test]
    #[ignore = "run in a child process"]
    fn deep() {
        let depth = one_worker().block_on(|| {
            let top = std::hint::black_box(0u8);
            descend(std::ptr::from_ref(&top).addr(), 600 << 10)
        });
        assert!(depth >= 600 << 10);
        println!("found room for 600 KiB");
    }

    #[test]
    #[ignore = "run in a child process"]
    fn budget() {
        let most = one_worker().block_on(|| {
            let ran = Arc::new(AtomicBool::new(false));
            let sibling = ran.clone();
            drop(indent::spawn(move || {
                loop {
                    sibling.store(true, SeqCst);
                    task::yield_now();
                }
            }));
            let turn = || {
                ran.store(false, SeqCst);
                let operations = (1..).find(|_| {
                    task::checkpoint();
                    ran.load(SeqCst)
                });
                operations.unwrap()
            };
            turn(); // it began in the middle of a budget
            turn()
        });
        println!("found {most} operations in a turn");
    }

    #[test]
    #[ignore = "run in a child process"]
    fn starts() {
        crate::common::wait_for_the_survey();
        let rt = one_worker();
        rt.handle().bind_everything(true); // each parked fiber keeps its thread
        let parked: Vec<_> = (0..8).map(|_| rt.spawn(indent::park::park)).collect();
        let waits = || rt.metrics().fibers_waiting_for_thread > 0;
        let is_parked = |fiber: &indent::task::JoinHandle<()>| {
            fiber.fiber().phase() == indent::task::Phase::Parked
        };
        crate::common::wait_for("either", || waits() || parked.iter().all(is_parked));
        println!(
            "found {}",
            if waits() {
                "some wait for a thread"
            } else {
                "all started"
            }
        );
    }

    #[test]
    #[ignore = "run in a child process"]
    fn dropping() {
        let blocked = Duration::from_millis(case("CASE_BLOCKED_MS").unwrap());
        let rt = one_worker();
        let over = Arc::new(AtomicBool::new(false));
        let (tell, started) = std::sync::mpsc::channel();
        let done = over.clone();
        let _fiber = rt.spawn(move || {
            tell.send(()).unwrap();
            std::thread::sleep(blocked);
            done.store(true, SeqCst);
        });
        started.recv().unwrap();
        drop(rt);
        match over.load(SeqCst) {
            true => println!("found waited"),
            false => println!("found left it behind"),
        }
    }
}
