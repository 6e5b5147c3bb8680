#![expect(unsafe_code, reason = "changes what the kernel keeps for a thread")]
//! Kernel attributes that a fiber changes on its thread are not visible to other fibers (S16).
//!
//! Each test runs in a process of its own, as root: a thread that does not end would spoil what
//! comes after.

use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::{self, Builder, Runtime};
use indent::task::{self, Mobility};
use indent::{JoinHandle, park, time};

mod common;

use common::{wait_for, within};

const MS: Duration = Duration::from_millis(1);

#[test]
fn no_fiber_sees_what_another_did_to_its_thread() {
    if common::sanitizer_forbids("its own prctl stands before the C library's") {
        return;
    }
    common::alone("found_by_the_code");
}

#[test]
fn no_fiber_sees_what_another_declared_to_do_to_its_thread() {
    common::alone("declared");
}

#[test]
fn a_fiber_that_declared_its_thread_changed_never_leaves_it() {
    common::alone("stays");
}

#[test]
fn threads_of_the_runtime_inherit_nothing_from_a_changed_one() {
    common::alone("inherits_nothing");
}

#[test]
fn a_changed_thread_makes_room_for_a_new_one_at_the_limit() {
    common::alone("at_the_limit");
}

#[test]
fn a_worker_without_a_thread_gets_one_beyond_the_limit() {
    common::alone("beyond_the_limit");
}

#[test]
fn declaring_a_plain_thread_changed_does_nothing() {
    runtime::retire_thread();
    let name = Builder::new().thread_name("plain").workers(1);
    let rt = name.build().unwrap();
    rt.block_on(|| time::sleep(MS));
    rt.spawn(task::yield_now).join().unwrap();
}

mod child {
    use super::*;

    /// Returns the kernel's attributes of the calling thread, as far as it shows them.
    ///
    /// Uses only system calls that bind nothing.
    fn attributes() -> String {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let shown = ["Uid:", "Gid:", "CapEff:", "NoNewPrivs:", "Seccomp:"];
        let lines = status
            .lines()
            .filter(|line| shown.iter().any(|begin| line.starts_with(begin)));
        let mut text: String = lines.collect();
        text += &fs::read_link("/proc/thread-self/ns/uts")
            .unwrap()
            .to_string_lossy();
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        text += after_name.split(' ').nth(17).unwrap(); // the nice value
        text
    }

    fn thread() -> String {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.to_string_lossy().into_owned()
    }

    fn set_user() {
        // SAFETY: the call takes a number only.
        unsafe { libc::setfsuid(65534) };
    }

    fn lose_privileges() {
        // SAFETY: the call takes numbers only.
        let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(set, 0);
    }

    fn leave_namespace() {
        // SAFETY: the call takes a number only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUTS) }, 0);
    }

    fn be_nicer() {
        // SAFETY: the call takes numbers only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setpriority, 0, 0, 11) }, 0);
    }

    fn drop_capabilities() {
        let header = [0x2008_0522u32, 0];
        let none = [0u32; 6];
        // SAFETY: the call reads a header of eight bytes, and two sets of twelve.
        let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        assert_eq!(set, 0);
    }

    /// Returns true if the changes are allowed; prints a line if not.
    fn may_change() -> bool {
        let changed = std::thread::spawn(|| {
            set_user();
            // SAFETY: the call takes a number only.
            let left = unsafe { libc::unshare(libc::CLONE_NEWUTS) } == 0;
            left && attributes().contains("65534")
        });
        let may = changed.join().unwrap();
        if !may {
            common::skip("needs the rights of root");
        }
        may
    }

    /// Runs this many fibers that look at their thread, some of them twice, and expects `clean`.
    fn look(rt: &Runtime, fibers: usize, clean: &str) {
        let seen: Vec<JoinHandle<[String; 2]>> = (0..fibers)
            .map(|number| {
                rt.spawn(move || {
                    let first = attributes();
                    match number % 3 {
                        0 => task::yield_now(),
                        1 => time::sleep(MS),
                        _ => {}
                    }
                    [first, attributes()]
                })
            })
            .collect();
        for (number, seen) in seen.into_iter().enumerate() {
            let seen = seen.join().unwrap();
            assert_eq!(seen, [clean; 2], "fiber {number}");
        }
    }

    /// Runs a fiber that changes its thread, and others beside it and after it.
    ///
    /// Waits for the thread to end.
    fn check(workers: usize, declared: bool, change: fn()) {
        let rt = Builder::new().workers(workers).build().unwrap();
        let clean = rt.block_on(attributes);
        look(&rt, 50, &clean);
        let go_on = Arc::new(AtomicBool::new(false));
        let (goes_on, before) = (go_on.clone(), clean.clone());
        let changes = move || {
            if declared {
                runtime::retire_thread();
            }
            let here = thread();
            change();
            let changed = attributes();
            assert_ne!(changed, before);
            while !goes_on.load(SeqCst) {
                time::sleep(MS);
                assert_eq!((thread(), attributes()), (here.clone(), changed.clone()));
            }
            here
        };
        let changed = rt.spawn(changes);
        look(&rt, 300, &clean);
        go_on.store(true, SeqCst);
        let its_thread = changed.join().unwrap();
        look(&rt, 1000, &clean);
        let path = format!("/proc/{its_thread}");
        wait_for("the end of a changed thread", || {
            fs::metadata(&path).is_err()
        });
        look(&rt, 50, &clean);
    }

    #[test]
    #[ignore = "run by `no_fiber_sees_what_another_did_to_its_thread`"]
    fn found_by_the_code() {
        if !may_change() {
            return;
        }
        common::wait_for_the_survey();
        // A closure of its own for each call, so that the survey finds the call in its code.
        within(120, || {
            for workers in [1, 2] {
                check_seen(workers, set_user);
                check_seen(workers, lose_privileges);
                check_seen(workers, leave_namespace);
                check_seen(workers, be_nicer);
                check_seen(workers, drop_capabilities);
            }
        });
    }

    /// Does the same as `check`, but without a call through a pointer.
    fn check_seen<F: Fn() + Send + Sync + Copy + 'static>(workers: usize, change: F) {
        let rt = Builder::new().workers(workers).build().unwrap();
        let clean = rt.block_on(attributes);
        look(&rt, 50, &clean);
        let threads = common::threads();
        for parks in [true, false, true] {
            let before = clean.clone();
            let changed = rt.spawn(move || {
                let here = thread();
                change();
                let changed = attributes();
                assert_ne!(changed, before);
                if parks {
                    time::sleep(5 * MS);
                    assert_eq!((thread(), attributes()), (here.clone(), changed));
                }
                here
            });
            look(&rt, 300, &clean);
            let its_thread = changed.join().unwrap();
            look(&rt, 500, &clean);
            let path = format!("/proc/{its_thread}");
            wait_for("the end of a changed thread", || {
                fs::metadata(&path).is_err()
            });
        }
        look(&rt, 50, &clean);
        assert_eq!(
            rt.metrics().carriers_retired_total,
            3,
            "those that change nothing end no thread"
        );
        wait_for("as many threads as before", || {
            common::threads() <= threads + 2
        });
    }

    #[test]
    #[ignore = "run by `no_fiber_sees_what_another_declared_to_do_to_its_thread`"]
    fn declared() {
        if !may_change() {
            return;
        }
        within(120, || {
            for workers in [1, 2] {
                for change in [
                    set_user,
                    lose_privileges,
                    leave_namespace,
                    drop_capabilities,
                ] {
                    check(workers, true, black_box(change as fn()));
                }
            }
            common::wait_for_the_survey();
            check(1, true, black_box(set_user as fn()));
        });
    }

    #[test]
    #[ignore = "run by `a_fiber_that_declared_its_thread_changed_never_leaves_it`"]
    fn stays() {
        // SAFETY: no fiber of this process calls, through a pointer, a function that changes or
        // names its thread; such functions' addresses are taken for other tests.
        unsafe { indent_sysmon::frames::trust_pointers() };
        common::wait_for_the_survey();
        let rt = Builder::new().workers(2).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let fibers: Vec<_> = (0..20)
            .map(|_| {
                let stop = stop.clone();
                rt.spawn(move || {
                    let free = task::current().unwrap().binding().mobility() == Mobility::Movable;
                    runtime::retire_thread();
                    let here = thread();
                    while !stop.load(SeqCst) {
                        task::yield_now();
                        time::sleep(MS);
                        assert_eq!(thread(), here);
                        drop(task::pin());
                    }
                    free
                })
            })
            .collect();
        // Other fibers that cause carriers to be made, frozen and left.
        let busy: Vec<_> = (0..8)
            .map(|_| {
                let stop = stop.clone();
                rt.spawn(move || while !stop.load(SeqCst) {})
            })
            .collect();
        std::thread::sleep(300 * MS);
        stop.store(true, SeqCst);
        within(60, || {
            let free: Vec<_> = fibers
                .into_iter()
                .map(|fiber| fiber.join().unwrap())
                .collect();
            assert!(free.contains(&true), "frames that bind prove nothing");
            busy.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
    }

    #[test]
    #[ignore = "run by `threads_of_the_runtime_inherit_nothing_from_a_changed_one`"]
    fn inherits_nothing() {
        if !may_change() {
            return;
        }
        within(120, || {
            for _ in 0..10 {
                let rt = Builder::new().workers(1).build().unwrap();
                let clean = attributes();
                let change = black_box(set_user as fn());
                let changed = rt.spawn(move || {
                    runtime::retire_thread();
                    change();
                    assert_ne!(attributes(), clean);
                    // Each is the first of its kind, so a thread has to be made for it.
                    let other = indent::spawn(attributes).join().unwrap();
                    let seen = [
                        other,
                        runtime::blocking(attributes),
                        runtime::compute(attributes),
                    ];
                    let (mut reader, mut writer) = indent::io::pipe().unwrap();
                    let reads = indent::spawn(move || {
                        let mut byte = [0];
                        std::io::Read::read_exact(&mut reader, &mut byte).unwrap();
                    });
                    time::sleep(MS);
                    std::io::Write::write_all(&mut writer, b"!").unwrap();
                    reads.join().unwrap();
                    (seen, all_but_this_thread_are(&clean))
                });
                let (seen, all) = changed.join().unwrap();
                assert!(!seen.iter().any(|seen| seen.contains("65534")), "{seen:?}");
                assert_eq!(all, Vec::<String>::new());
            }
        });
    }

    /// Returns the threads of the process, except the caller, whose file user differs from `clean`.
    fn all_but_this_thread_are(clean: &str) -> Vec<String> {
        let here = thread();
        let here = here.rsplit('/').next().unwrap();
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let mut changed = Vec::new();
        for task in tasks.filter_map(Result::ok) {
            let number = task.file_name().to_string_lossy().into_owned();
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let user = status
                .lines()
                .find(|line| line.starts_with("Uid:"))
                .unwrap();
            if number != here && !clean.starts_with(user) {
                let name = status.lines().next().unwrap_or_default();
                changed.push(format!("{name} {user}"));
            }
        }
        changed
    }

    #[test]
    #[ignore = "run by `a_worker_without_a_thread_gets_one_beyond_the_limit`"]
    fn beyond_the_limit() {
        within(120, || {
            let rt = Builder::new().workers(1).max_carriers(2).build().unwrap();
            // SAFETY: the fibers below hold nothing of their threads.
            unsafe { rt.handle().trust_everything(true) };
            let turns: [_; 3] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
            let fibers: Vec<_> = turns
                .iter()
                .enumerate()
                .map(|(number, turns)| {
                    let turns = turns.clone();
                    rt.spawn(move || {
                        while turns.fetch_add(1, SeqCst) < 10 {
                            if number == 2 && turns.load(SeqCst) == 2 {
                                runtime::retire_thread();
                            }
                            park::park();
                        }
                    })
                })
                .collect();
            let take_turn = |number: usize| {
                let before = turns[number].load(SeqCst);
                fibers[number].unparker().unpark();
                wait_for("it runs", || turns[number].load(SeqCst) > before);
            };
            let started = || turns.iter().all(|turns| turns.load(SeqCst) == 1);
            wait_for("all have started", started);
            // SAFETY: as above.
            unsafe { rt.handle().trust_everything(false) };
            rt.handle().bind_everything(true);
            // Each keeps a thread now, and the worker stays with the fiber that runs again and
            // again until its thread ends with it.
            (0..3).for_each(take_turn);
            (0..9).for_each(|_| take_turn(2));
            wait_for("it has ended", || fibers[2].is_finished());
            for number in [0, 1, 0, 1] {
                take_turn(number);
            }
        });
    }

    #[test]
    #[ignore = "run by `a_changed_thread_makes_room_for_a_new_one_at_the_limit`"]
    fn at_the_limit() {
        if !may_change() {
            return;
        }
        within(120, || {
            let rt = Builder::new().workers(1).max_carriers(2).build().unwrap();
            let clean = rt.block_on(attributes);
            // A runtime that such a fiber makes starts with its thread's attributes.
            let inner = rt.spawn(|| {
                runtime::retire_thread();
                let inner = Builder::new().workers(1).build().unwrap();
                inner.spawn(attributes).join().unwrap()
            });
            assert_eq!(inner.join().unwrap(), clean);
            for _ in 0..50 {
                let change = black_box(set_user as fn());
                rt.spawn(move || {
                    runtime::retire_thread();
                    change();
                })
                .join()
                .unwrap();
                look(&rt, 20, &clean);
            }
        });
    }
}
