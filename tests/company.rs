//! Fibers that wake each other again and again come together on one thread; others stay where they are.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use indent::park::{self, Unparker};
use indent::runtime::{Builder, Runtime};
use indent::{chan, task, time};

mod common;

use common::within;

const ROUNDS: u64 = 2_000;

fn start() -> Runtime {
    common::wait_for_the_survey();
    Builder::new().workers(2).build().unwrap()
}

fn pulled(rt: &Runtime) -> u64 {
    rt.metrics()
        .workers
        .iter()
        .map(|worker| worker.pulled)
        .sum()
}

/// Waits for the ball and sends it on.
fn play(ball: &AtomicU64, parity: u64, other: &Unparker) {
    for round in 0..ROUNDS {
        while ball.load(SeqCst) != 2 * round + parity {
            park::park();
        }
        ball.fetch_add(1, SeqCst);
        other.unpark();
    }
}

/// Two that wait for each other, started on two workers.
fn pair(rt: &Runtime) {
    let first = || {
        let ball = Arc::new(AtomicU64::new(0));
        let (me, theirs) = (park::unparker(), ball.clone());
        let other = task::Builder::new().worker(1);
        let other = other.spawn(move || play(&theirs, 1, &me));
        play(&ball, 0, &other.unparker());
        other.join().unwrap();
    };
    let spawn = || task::Builder::new().worker(0).spawn(first);
    rt.block_on(spawn).join().unwrap();
}

#[test]
fn a_pair_that_started_on_two_workers_comes_together() {
    if common::all_fibers_are_bound() {
        return;
    }
    within(60, || {
        let rt = start();
        pair(&rt);
        assert!(pulled(&rt) > 0, "{:?}", rt.metrics());
    });
}

#[test]
fn a_pair_that_talks_by_channels_comes_together() {
    if common::all_fibers_are_bound() {
        return;
    }
    within(60, || {
        for capacity in [0, 1] {
            let rt = start();
            let first = move || {
                let (there, from_here) = chan::bounded(capacity);
                let (back, from_there) = chan::bounded(capacity);
                let other = task::Builder::new().worker(1);
                let other = other.spawn(move || {
                    from_here
                        .iter()
                        .try_for_each(|n: u64| back.send(n))
                        .unwrap();
                });
                for round in 0..ROUNDS {
                    there.send(round).unwrap();
                    assert_eq!(from_there.recv(), Ok(round));
                }
                drop(there);
                other.join().unwrap();
            };
            let spawn = || task::Builder::new().worker(0).spawn(first);
            rt.block_on(spawn).join().unwrap();
            assert!(pulled(&rt) > 0, "{capacity}: {:?}", rt.metrics());
        }
    });
}

#[test]
fn a_fiber_whose_waker_does_not_wait_for_it_stays_where_it_is() {
    within(60, || {
        let rt = start();
        let body = || {
            let woken = Arc::new(AtomicU64::new(0));
            let seen = woken.clone();
            let other = task::Builder::new().worker(1).spawn(move || {
                while seen.fetch_add(1, SeqCst) < ROUNDS {
                    park::park();
                }
            });
            let (mut last, unparker) = (0, other.unparker());
            while last < ROUNDS {
                let now = woken.load(SeqCst);
                if now != last {
                    last = now;
                    unparker.unpark();
                }
                std::hint::spin_loop();
            }
            unparker.unpark();
            other.join().unwrap();
        };
        let spawn = || task::Builder::new().worker(0).spawn(body);
        rt.block_on(spawn).join().unwrap();
        assert_eq!(pulled(&rt), 0);
    });
}

#[test]
#[ignore = "run in a child process by the test below: the limit on threads is the process's"]
fn child_whose_sibling_unwinds() {
    struct Waits(mpsc::Sender<Unparker>);

    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.send(park::unparker()).unwrap();
            park::park();
        }
    }

    within(60, || {
        common::wait_for_the_survey();
        let rt = Builder::new().workers(2).max_carriers(2).build().unwrap();
        let (tell, told) = mpsc::channel();
        let (sleeper, unwinding) = rt.block_on(|| {
            let on_first = || task::Builder::new().worker(0);
            let sleeper = on_first().spawn(|| time::sleep(Duration::from_millis(50)));
            while sleeper.fiber().phase() != task::Phase::Parked {
                task::yield_now();
            }
            let unwinding = on_first().spawn(move || {
                let _waits = Waits(tell);
                resume_unwind(Box::new("no message"));
            });
            (sleeper, unwinding)
        });
        let unparker = told.recv().unwrap();
        let sleeper = sleeper.join_timeout(Duration::from_secs(5));
        unparker.unpark();
        assert!(unwinding.join().unwrap_err().is_panic());
        assert!(sleeper.is_ok(), "it waits for the thread of its sibling");
    });
}

#[test]
fn who_is_woken_on_the_thread_of_a_fiber_that_unwinds_runs_elsewhere() {
    if common::all_fibers_are_bound() {
        return;
    }
    let child = common::in_child("child_whose_sibling_unwinds", &[]);
    assert!(child.status.success(), "{}", common::text(&child));
}
