#![expect(
    unsafe_code,
    reason = "forbids system calls by a filter, blocks in the kernel"
)]
//! A seccomp filter that is installed after the runtime started and refuses `membarrier` (S18).

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::{Builder, Runtime};
use indent::{task, time};

mod common;
mod filter;

use common::{wait_for, within};
use filter::Whose;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_blocked_fiber_delays_no_other_where_membarrier_is_refused() {
    let said = common::alone("refused_on_all_threads");
    let lines = said.matches("refuses membarrier").count();
    assert_eq!(lines, 1, "reported once: {said}");
}

#[test]
fn no_running_thread_loses_its_worker_where_membarrier_is_refused() {
    common::alone("refused_beside_a_computation");
}

#[test]
fn nothing_is_lost_where_some_threads_are_refused_membarrier() {
    common::alone("refused_on_some_threads");
}

mod child {
    use super::*;

    /// Installs a filter with which `membarrier` fails.
    ///
    /// It applies to the calling thread and the threads it starts, or to all threads.
    fn forbid_membarrier(everywhere: bool) {
        let whose = match everywhere {
            true => Whose::AllThreads,
            false => Whose::CallersOnly,
        };
        filter::refuse(libc::SYS_membarrier, None, libc::EPERM, whose).unwrap();
        let query = libc::MEMBARRIER_CMD_QUERY;
        // SAFETY: the call takes numbers only.
        let refused = unsafe { libc::syscall(libc::SYS_membarrier, query, 0, 0) } < 0;
        assert!(refused);
    }

    /// Reads a byte by a system call, which blocks the fiber's thread.
    fn read_byte(pipe: &impl AsRawFd) {
        let mut byte = 0u8;
        // SAFETY: the call writes one byte to `byte`.
        let read = unsafe { libc::read(pipe.as_raw_fd(), (&raw mut byte).cast(), 1) };
        assert_eq!(read, 1);
    }

    /// Runs fibers that block their threads briefly, yield, spawn and wait.
    fn work(rt: &Runtime, fibers: usize) -> usize {
        let done = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..fibers)
            .map(|number| {
                let done = done.clone();
                rt.spawn(move || {
                    match number % 4 {
                        0 => std::thread::sleep(3 * MS),
                        1 => (0..100).for_each(|_| task::yield_now()),
                        2 => indent::spawn(|| time::sleep(MS)).join().unwrap(),
                        _ => time::sleep(MS),
                    }
                    done.fetch_add(1, SeqCst);
                })
            })
            .collect();
        all.into_iter().for_each(|fiber| fiber.join().unwrap());
        done.load(SeqCst)
    }

    #[test]
    #[ignore = "run by `a_blocked_fiber_delays_no_other_where_membarrier_is_refused`"]
    fn refused_on_all_threads() {
        let rt = Builder::new().workers(1).build().unwrap();
        assert_eq!(work(&rt, 20), 20);
        let (pipe, mut end) = std::io::pipe().unwrap();
        // One fiber is in a system call before the filter exists, as are idle workers.
        let early = rt.spawn(move || read_byte(&pipe));
        std::thread::sleep(20 * MS);
        forbid_membarrier(true);
        within(60, || {
            assert_eq!(work(&rt, 100), 100);
            let (pipe, mut end) = std::io::pipe().unwrap();
            let before = rt.metrics().detaches_total;
            let blocked = rt.spawn(move || read_byte(&pipe));
            // Only the kernel holds its thread, and the only worker continues.
            wait_for("a detached thread", || rt.metrics().detaches_total > before);
            assert_eq!(work(&rt, 100), 100);
            assert!(!blocked.is_finished());
            end.write_all(b"!").unwrap();
            blocked.join().unwrap();
        });
        assert!(rt.metrics().membarriers_refused_total > 0);
        end.write_all(b"!").unwrap();
        early.join().unwrap();
        rt.block_on(|| time::sleep(300 * MS)); // until the collector has reported it
        rt.wait_idle();
    }

    #[test]
    #[ignore = "run by `no_running_thread_loses_its_worker_where_membarrier_is_refused`"]
    fn refused_beside_a_computation() {
        let rt = Builder::new().workers(1).preempt(false).build().unwrap();
        assert_eq!(work(&rt, 20), 20);
        forbid_membarrier(true);
        let (runs, ends) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (started, over) = (runs.clone(), ends.clone());
        let computes = rt.spawn(move || {
            started.store(true, SeqCst);
            while !over.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        wait_for("a computation", || runs.load(SeqCst));
        let taken = (0..1000).filter(|_| rt.handle().handoff(0)).count();
        assert_eq!(
            taken, 0,
            "taken without a proof that it is outside runtime code"
        );
        ends.store(true, SeqCst);
        within(60, || {
            computes.join().unwrap();
            assert_eq!(work(&rt, 20), 20);
        });
    }

    #[test]
    #[ignore = "run by `nothing_is_lost_where_some_threads_are_refused_membarrier`"]
    fn refused_on_some_threads() {
        let rt = Builder::new().workers(2).build().unwrap();
        forbid_membarrier(false); // the main thread
        rt.spawn(|| forbid_membarrier(false)).join().unwrap(); // the thread of one carrier
        within(120, || {
            for _ in 0..300 {
                drop(rt.spawn(task::yield_now));
                rt.wait_idle(); // whose barrier fails
            }
            for _ in 0..5 {
                assert_eq!(work(&rt, 100), 100);
            }
        });
        let (pipe, mut end) = std::io::pipe().unwrap();
        let blocked: Vec<_> = [pipe.try_clone().unwrap(), pipe]
            .map(|pipe| rt.spawn(move || read_byte(&pipe)))
            .into();
        within(60, || assert_eq!(work(&rt, 100), 100));
        end.write_all(b"!!").unwrap();
        blocked.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(rt.metrics().membarriers_refused_total > 0);
    }
}
