#![expect(
    unsafe_code,
    reason = "installs and raises signals, reads CPU clocks and attributes of threads"
)]
//! Preemption and the process: limits, children, signals, the end of a runtime, standard output.
//!
//! Each test runs its part of module `child` in a process of its own, because carriers are counted
//! per process, a signal has one handler, and abandoned threads remain. Tests that need no process
//! of their own are in `preempt.rs`.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use indent::StartError;
use indent::runtime::{Builder, Runtime};
use indent::task::{self, JoinHandle};

mod burn;
mod common;
mod filter;

use burn::burn;

/// Seconds of patience: far more than any test here needs beside other programs.
const PATIENCE: u64 = 60;
const QUANTUM: Duration = Duration::from_millis(1);

/// Runs a test of `child` with variables set; fails if it fails.
fn alone_with(test: &str, variables: &[(&str, &str)]) -> String {
    let output = common::in_child(&format!("child::{test}"), variables);
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no such test: {text}");
    text
}

#[test]
fn a_start_without_its_handlers_says_which_one_and_what_to_do() {
    alone_with("forbidden_handlers", &[]);
    alone_with("forbidden_overflow_handler", &[]);
}

#[test]
fn a_variable_switches_preemption_off() {
    let text = alone_with("who_ends_first", &[("INDENT_PREEMPT", "off")]);
    assert!(text.contains("first: the loop"), "{text}");
    let text = alone_with("who_ends_first", &[("INDENT_PREEMPT", "on")]);
    assert!(text.contains("first: the others"), "{text}");
}

#[test]
fn at_the_limit_of_threads_hits_are_counted_and_everybody_ends() {
    alone_with("limit_of_threads", &[("INDENT_MAX_CARRIERS", "4")]);
}

#[test]
fn a_crowd_of_computing_fibers_needs_few_threads() {
    common::alone("crowd");
}

#[test]
fn what_fibers_start_after_a_hand_over_sees_all_cpus_and_default_signals() {
    common::alone("children");
}

#[test]
fn a_shutdown_names_frozen_and_detached_fibers_and_the_process_ends() {
    common::alone("shutdown_with_endless_loops");
}

#[test]
fn a_shutdown_with_time_enough_cancels_frozen_fibers() {
    common::alone("shutdown_with_time");
}

#[test]
fn a_handler_that_was_there_before_gets_signals_that_are_not_ours() {
    common::alone("handler_before");
}

#[test]
fn a_handler_that_replaces_ours_is_told_of_once() {
    let text = common::alone("handler_after");
    let said = text.matches("indent: something has replaced our handler");
    assert_eq!(said.count(), 1, "{text}");
}

#[test]
fn who_prints_beside_a_frozen_fiber_that_holds_standard_output_goes_on() {
    let text = common::alone("printing");
    assert_eq!(text.matches("held by ").count(), 5 * 8, "{text}");
    assert_eq!(text.matches("printed by ").count(), 5 * 20, "{text}");
}

mod child {
    use super::*;

    fn runtime(workers: usize) -> Runtime {
        let builder = Builder::new().workers(workers).preempt_quantum(QUANTUM);
        builder.build().expect("a runtime")
    }

    fn spin_until(mut done: impl FnMut() -> bool) {
        while !done() {
            std::hint::spin_loop();
        }
    }

    /// Starts fibers that compute until the flag is set; returns when all of them have begun.
    fn hogs(rt: &Runtime, n: usize, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
        let begun = Arc::new(AtomicUsize::new(0));
        let hog = |_| {
            let (stop, begun) = (stop.clone(), begun.clone());
            rt.spawn(move || {
                begun.fetch_add(1, SeqCst);
                spin_until(|| stop.load(Relaxed));
            })
        };
        let hogs = (0..n).map(hog).collect();
        common::wait_for("all hogs run", || begun.load(SeqCst) == n);
        hogs
    }

    fn join_all(fibers: Vec<JoinHandle<()>>) {
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }

    #[test]
    #[ignore = "its settings come from variables"]
    fn who_ends_first() {
        common::within(PATIENCE, || {
            let on = std::env::var("INDENT_PREEMPT").is_ok_and(|value| value == "on");
            let patience = Duration::from_millis(if on { 30_000 } else { 200 });
            let rt = Builder::new().workers(1).build().unwrap();
            let (begun, others) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            let looped = rt.spawn({
                let (begun, others) = (begun.clone(), others.clone());
                move || {
                    begun.store(true, SeqCst);
                    let start = Instant::now();
                    spin_until(|| others.load(SeqCst) == 3 || start.elapsed() > patience);
                    others.load(SeqCst)
                }
            });
            common::wait_for("it loops", || begun.load(SeqCst));
            for _ in 0..3 {
                let others = others.clone();
                drop(rt.spawn(move || others.fetch_add(1, SeqCst)));
            }
            let before = looped.join().unwrap();
            let first = ["the loop", "the others"][usize::from(before == 3)];
            println!("first: {first}");
            assert_eq!(rt.metrics().freezes_total > 0, on);
        });
    }

    #[test]
    #[ignore = "its limit is that of a process"]
    fn limit_of_threads() {
        common::within(PATIENCE, || {
            let rt = runtime(2);
            let mut most = 0;
            // Most waves hit the limit.
            common::wait_for("a thread is missing", || {
                let ended = Arc::new(AtomicUsize::new(0));
                let fibers: Vec<_> = (0..24)
                    .map(|i| {
                        let ended = ended.clone();
                        rt.spawn(move || {
                            if i % 3 == 0 {
                                thread::sleep(10 * QUANTUM);
                            }
                            burn(10 * QUANTUM);
                            indent::time::sleep(QUANTUM);
                            ended.fetch_add(1, SeqCst);
                        })
                    })
                    .collect();
                common::wait_for("all end", || {
                    most = most.max(rt.metrics().process_carriers);
                    ended.load(SeqCst) == 24
                });
                join_all(fibers);
                rt.metrics().preemptions_without_thread_total > 0
            });
            // A worker that must leave a thread gets another and keeps one more ready, and both
            // workers may admit a start at the same moment.
            assert!(most <= 4 + 3 * 2, "{most}");
        });
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn crowd() {
        common::within(PATIENCE, || {
            let rt = runtime(2);
            let stop = Arc::new(AtomicBool::new(false));
            let beats = Arc::new(AtomicU64::new(0));
            let heart = rt.spawn({
                let (stop, beats) = (stop.clone(), beats.clone());
                move || {
                    while !stop.load(SeqCst) {
                        indent::time::sleep(QUANTUM);
                        beats.fetch_add(1, SeqCst);
                    }
                }
            });
            let ended = Arc::new(AtomicUsize::new(0));
            for _ in 0..1_000 {
                let ended = ended.clone();
                drop(rt.spawn(move || {
                    burn(2 * QUANTUM);
                    ended.fetch_add(1, SeqCst);
                }));
            }
            let (mut most, mut frozen) = (0, 0);
            common::wait_for("all end", || {
                let metrics = rt.metrics();
                most = most.max(metrics.carriers);
                frozen = frozen.max(metrics.carriers_frozen);
                ended.load(SeqCst) == 1_000
            });
            stop.store(true, SeqCst);
            heart.join().unwrap();
            let metrics = rt.metrics();
            println!(
                "{most} threads, {frozen} frozen, {} freezes, {} beats",
                metrics.freezes_total,
                beats.load(SeqCst)
            );
            assert!(metrics.freezes_total > 0);
            assert!(most <= 64, "{most}");
            assert!(beats.load(SeqCst) > 10, "somebody got on meanwhile");
        });
    }

    /// Returns what a thread hands on to those it starts: CPUs; blocked, ignored and caught
    /// signals.
    fn inherited(status: &str) -> Vec<String> {
        let names = ["Cpus_allowed_list:", "SigBlk:", "SigIgn:", "SigCgt:"];
        let lines = status.lines();
        lines
            .filter(|line| names.iter().any(|name| line.starts_with(name)))
            .map(str::to_owned)
            .collect()
    }

    fn of_this_thread() -> Vec<String> {
        let mut found = inherited(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
        let mut attributes = [0_u32; 14]; // struct sched_attr, first version and later fields
        // SAFETY: the kernel writes at most the size it is given.
        let status = unsafe {
            let size = size_of_val(&attributes);
            libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0)
        };
        if status == 0 {
            found.push(format!("{attributes:?}")); // policy, nice value, slice
        }
        found
    }

    fn of_a_child() -> Vec<String> {
        let output = Command::new("sh")
            .args(["-c", "cat /proc/self/status"])
            .output()
            .unwrap();
        inherited(&String::from_utf8_lossy(&output.stdout))
    }

    #[test]
    #[ignore = "compares with what its process was given"]
    fn children() {
        common::within(PATIENCE, || {
            let expected_child = of_a_child();
            assert_eq!(expected_child.len(), 4, "{expected_child:?}");
            let rt = runtime(2);
            let stop = Arc::new(AtomicBool::new(false));
            let hogs = hogs(&rt, 4, &stop);
            let expected_thread = thread::spawn(of_this_thread).join().unwrap();
            common::wait_for("hand-overs", || rt.metrics().freezes_total > 10);
            let fibers: Vec<_> = (0..8)
                .map(|i| {
                    let (thread, child) = (expected_thread.clone(), expected_child.clone());
                    rt.spawn(move || {
                        for _ in 0..10 {
                            indent::time::sleep(QUANTUM); // wakes by interrupting a hog
                            assert_eq!(of_this_thread(), thread, "on its own thread");
                            let started = thread::spawn(of_this_thread);
                            assert_eq!(started.join().unwrap(), thread, "on one it started");
                        }
                        for _ in 0..3 {
                            indent::time::sleep(QUANTUM);
                            if i % 2 == 0 {
                                assert_eq!(of_a_child(), child, "in a child");
                            }
                        }
                    })
                })
                .collect();
            join_all(fibers);
            stop.store(true, SeqCst);
            join_all(hogs);
        });
    }

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(100);

    #[test]
    #[ignore = "leaves threads behind"]
    fn shutdown_with_endless_loops() {
        common::within(PATIENCE, || {
            let rt = runtime(1);
            let names = ["hog-0", "hog-1", "hog-2", "sleeper"];
            let inside = Arc::new(AtomicUsize::new(0));
            rt.block_on(|| {
                for name in names {
                    let inside = inside.clone();
                    let body = move || {
                        inside.fetch_add(1, SeqCst);
                        if name == "sleeper" {
                            thread::sleep(Duration::from_secs(3_600));
                        }
                        spin_until(|| false);
                    };
                    drop(task::Builder::new().name(name).spawn(body));
                }
            });
            common::wait_for("frozen and detached", || {
                let metrics = rt.metrics();
                let now = (metrics.carriers_frozen, metrics.carriers_detached);
                inside.load(SeqCst) == 4 && now == (2, 1)
            });
            let begun = Instant::now();
            let report = rt.shutdown_timeout(SHORT);
            assert!(begun.elapsed() >= SHORT);
            assert!(begun.elapsed() < SHORT * 20, "{:?}", begun.elapsed());
            let mut left: Vec<_> = report
                .abandoned
                .iter()
                .filter_map(|fiber| fiber.name.clone())
                .collect();
            left.sort();
            assert_eq!(left, names, "{report}");
            assert!(report.threads_left >= 4, "{report}");
        });
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn shutdown_with_time() {
        /// Counts how often it is dropped.
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        common::within(PATIENCE, || {
            let before = common::threads();
            let rt = runtime(1);
            let drops = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..6)
                .map(|i| {
                    let counted = Counted(drops.clone());
                    rt.spawn(move || {
                        let _counted = counted;
                        if i == 0 {
                            thread::sleep(50 * QUANTUM);
                        }
                        burn(20 * QUANTUM);
                        indent::park::park();
                        unreachable!("nobody unparks it");
                    })
                })
                .collect();
            common::wait_for("frozen", || rt.metrics().carriers_frozen >= 2);
            let begun = Instant::now();
            let report = rt.shutdown_timeout(LONG);
            assert!(report.is_clean(), "{report}");
            assert!(begun.elapsed() < LONG / 4);
            assert_eq!(drops.load(SeqCst), 6);
            for fiber in fibers {
                let error = fiber.join().unwrap_err();
                assert!(error.is_cancelled(), "{error}");
            }
            common::wait_for("threads end", || common::threads() <= before);
        });
    }

    static URGENT: AtomicU64 = AtomicU64::new(0);

    extern "C" fn on_urgent(_: libc::c_int) {
        URGENT.fetch_add(1, SeqCst);
    }

    fn install_own_handler() {
        // SAFETY: an all-zero action is valid: no flags, nothing blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_urgent as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: the handler changes an atomic and nothing else.
        let status = unsafe { libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()) };
        assert_eq!(status, 0);
    }

    /// Sends the signal to the calling thread.
    fn raise() {
        // SAFETY: the call takes a number only.
        unsafe { libc::raise(libc::SIGURG) };
    }

    #[test]
    #[ignore = "has a handler of its own"]
    fn handler_before() {
        const RAISED: u64 = 50;
        common::within(PATIENCE, || {
            install_own_handler();
            let rt = runtime(2);
            let stop = Arc::new(AtomicBool::new(false));
            let hogs = hogs(&rt, 4, &stop);
            common::wait_for("freezes", || rt.metrics().freezes_total > 50);
            let ours = (rt.metrics().freezes_total, URGENT.load(SeqCst));
            let before = URGENT.load(SeqCst);
            (0..RAISED).for_each(|_| raise());
            let on_thread = URGENT.load(SeqCst) - before;
            assert!(on_thread >= RAISED, "on a plain thread: {on_thread}");
            // On a carrier, a signal of the runtime and one of the program may merge into one.
            let before = URGENT.load(SeqCst);
            rt.spawn(|| {
                for _ in 0..RAISED {
                    raise();
                    burn(QUANTUM / 20);
                }
            })
            .join()
            .unwrap();
            let on_fiber = URGENT.load(SeqCst) - before;
            println!("{on_fiber} of {RAISED}; {ours:?} freezes and signals seen before");
            assert!(on_fiber >= RAISED / 2, "on a fiber: {on_fiber}");
            assert!(ours.1 * 4 <= ours.0, "ours went to the other: {ours:?}");
            let before = rt.metrics().freezes_total;
            common::wait_for("freezes go on", || rt.metrics().freezes_total > before + 10);
            stop.store(true, SeqCst);
            join_all(hogs);
        });
    }

    #[test]
    #[ignore = "replaces a handler"]
    fn handler_after() {
        common::within(PATIENCE, || {
            let (one, two) = (runtime(1), runtime(1));
            let stop = Arc::new(AtomicBool::new(false));
            let fibers = [hogs(&one, 1, &stop), hogs(&two, 1, &stop)];
            let (reader, writer) = std::io::pipe().unwrap();
            let stderr = redirect_stderr(writer);
            install_own_handler();
            let said = Arc::new(Mutex::new(String::new()));
            let listener = thread::spawn({
                let said = said.clone();
                move || listen(reader, &said)
            });
            common::wait_for("it is told", || said.lock().unwrap().contains("replaced"));
            thread::sleep(Duration::from_millis(1_300)); // the other runtime's monitor looks, too
            stop.store(true, SeqCst);
            fibers.into_iter().for_each(join_all);
            drop(redirect_stderr(stderr));
            listener.join().unwrap();
            eprint!("{}", said.lock().unwrap());
        });
    }

    /// Redirects standard error, and returns a descriptor of its previous target.
    fn redirect_stderr(to: impl std::os::fd::AsRawFd) -> std::os::fd::OwnedFd {
        use std::os::fd::AsFd;
        let before = std::io::stderr().as_fd().try_clone_to_owned().unwrap();
        // SAFETY: both descriptors are open; `before` keeps the previous target of standard error.
        let status = unsafe { libc::dup2(to.as_raw_fd(), 2) };
        assert_eq!(status, 2, "{before:?} {}", to.as_raw_fd());
        before
    }

    fn listen(mut from: impl std::io::Read, said: &Mutex<String>) {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            said.lock().unwrap().push_str(&text);
        }
    }

    /// Makes it impossible to install a handler for this signal; returns false if that fails here.
    fn forbid_handler(signal: i32) -> bool {
        let (call, whose) = (libc::SYS_rt_sigaction, filter::Whose::AllThreads);
        filter::refuse(call, Some(signal as u32), libc::EPERM, whose).is_ok()
    }

    #[test]
    #[ignore = "forbids system calls to its process"]
    fn forbidden_handlers() {
        let refused = |builder: Builder, parts: &[&str]| {
            let error = builder.build().unwrap_err();
            let text = error.to_string();
            for part in parts {
                assert!(text.contains(part), "no '{part}' in: {text}");
            }
            error
        };
        if !forbid_handler(libc::SIGURG) {
            return common::skip("no filter of system calls can be installed");
        }
        let parts = [
            "preemption",
            "SIGURG",
            "not permitted",
            "INDENT_PREEMPT_SIGNAL",
        ];
        let error = refused(Builder::new(), &parts);
        assert!(matches!(
            error,
            StartError::PreemptHandler {
                signal: libc::SIGURG,
                ..
            }
        ));
        assert!(!error.to_string().contains("overflow"), "{error}");
        // Both remedies that the message names.
        drop(Builder::new().preempt(false).build().unwrap());
        drop(
            Builder::new()
                .preempt_signal(libc::SIGUSR1)
                .build()
                .unwrap(),
        );
    }

    #[test]
    #[ignore = "forbids system calls to its process"]
    fn forbidden_overflow_handler() {
        if !forbid_handler(libc::SIGBUS) {
            return common::skip("no filter of system calls can be installed");
        }
        let error = Builder::new().build().unwrap_err();
        assert!(matches!(
            error,
            StartError::OverflowHandler {
                signal: libc::SIGBUS,
                ..
            }
        ));
        let text = error.to_string();
        assert!(
            text.contains("overflows (SIGBUS)") && text.contains("rt_sigaction"),
            "{text}"
        );
    }

    #[test]
    #[ignore = "its output is counted"]
    fn printing() {
        common::within(PATIENCE, || {
            let rt = runtime(2);
            for round in 0..5 {
                let holders = (0..4).map(|i| {
                    rt.spawn(move || {
                        for _ in 0..2 {
                            let mut out = std::io::stdout().lock();
                            burn(3 * QUANTUM);
                            writeln!(out, "held by {i} in {round}").unwrap();
                        }
                    })
                });
                let holders: Vec<_> = holders.collect();
                let printers = (0..10).map(|i| {
                    rt.spawn(move || {
                        (0..2).for_each(|_| println!("printed by {i} in {round}"));
                    })
                });
                let printers: Vec<_> = printers.collect();
                join_all(holders);
                join_all(printers);
            }
            assert!(rt.metrics().freezes_total > 0);
        });
    }
}
