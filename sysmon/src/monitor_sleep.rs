//! Decides whether the monitor may sleep, and which worker wakes it.
//!
//! Monitor: 1 publish that it sleeps, 2 fence, 3 look at every worker; if one is awake, stay awake.
//! Worker: 1 publish that it is awake, 2 fence, 3 if the monitor sleeps, notify it.
//!
//! One of the two sees the other: the fences are in some order, and the thread whose fence is
//! second sees what the other did in its step 1. So no worker runs for long without a monitor. Of
//! several workers that see the monitor asleep exactly one notifies it.

#[cfg(indent_loom)]
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
#[cfg(not(indent_loom))]
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};

pub(crate) struct MonitorSleep {
    asleep: AtomicBool,
}

impl MonitorSleep {
    pub(crate) fn new() -> Self {
        MonitorSleep {
            asleep: AtomicBool::new(false),
        }
    }

    /// Monitor, before it sleeps: publishes that it sleeps; returns false if it must stay awake.
    pub(crate) fn may_sleep(&self, all_idle: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, SeqCst);
        fence(SeqCst);
        let may = all_idle();
        if !may {
            self.asleep.store(false, SeqCst);
        }
        may
    }

    /// Monitor, when its sleep ended for any reason: returns true if it must sleep on.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(SeqCst)
    }

    /// Worker, after it published that it is awake: returns true if it must notify the monitor.
    #[inline]
    pub(crate) fn notice(&self) -> bool {
        fence(SeqCst);
        self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst)
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering::Relaxed;
    use loom::thread;

    #[test]
    fn loom_a_worker_that_wakes_is_seen_or_notifies() {
        loom::model(|| {
            let sleep = Arc::new(MonitorSleep::new());
            let awake = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let workers: Vec<_> = (0..2)
                .map(|i| {
                    let (sleep, awake) = (sleep.clone(), awake.clone());
                    thread::spawn(move || {
                        awake[i].store(true, Relaxed);
                        sleep.notice()
                    })
                })
                .collect();
            let slept = sleep.may_sleep(|| awake.iter().all(|worker| !worker.load(Relaxed)));
            let notifies = workers.into_iter().map(|w| w.join().unwrap());
            let notified = notifies.filter(|it| *it).count();
            if slept {
                assert_eq!(
                    notified, 1,
                    "asleep beside a worker that is awake, or notified twice"
                );
            }
        });
    }
}
