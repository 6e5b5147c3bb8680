//! Which worker sleeps in the runtime's epoll instance.
//!
//! All descriptors of a runtime are in one epoll instance. Every worker polls it when it runs out
//! of fibers, and at least once a tick. A worker that sleeps does so in one of two places: in
//! `epoll_wait`, for which it holds the *polling right*, or on the futex of its thread. At most one
//! worker holds the polling right.
//!
//! While workers dispatch many short fibers ([`Shared::is_brisk`]), a worker that runs out of work
//! leaves the polling right to the others that are awake and sleeps on its futex: a worker in
//! `epoll_wait` would be woken for each event that an awake worker reaches sooner, and both would
//! compete for a CPU. Otherwise it takes the polling right. A worker that releases it for an event
//! does not wake another one to take it: if the fiber computes, the monitor hands the events on
//! after a tick or two.
//!
//! A worker *polls soon* if it is awake, not in a long dispatch, and has polled within the last
//! tick.
//!
//! **I31** *Descriptors are watched.* While the instance holds descriptors, a worker holds the
//! polling right, or a worker polls soon, or the I/O poller (`poller.rs`) is armed. Where a worker
//! stops to poll soon there is a step that restores this:
//!
//! - A worker that falls asleep (1) announces its sleep, (2) issues a fence, (3) takes the polling
//!   right if no other worker polls soon. Of two that fall asleep together the later one sees the
//!   other asleep.
//! - A worker that begins a long dispatch (1) publishes it, (2) issues a fence, (3) calls
//!   [`Shared::hand_events_on`], which wakes a sleeping worker, or arms the I/O poller. If it finds
//!   a worker that polls soon and that one falls asleep, the sleeper sees the long dispatch and
//!   takes the polling right.
//! - The monitor finds a worker away for a tick, and calls [`Shared::hand_events_on`] if no other
//!   worker polled.
//!
//! **I32** *The waker wakes the holder of the polling right.* The waker, an eventfd, stays readable
//! until it is drained. The holder drains it before it releases the polling right. Another thread
//! that finds it readable drains it only if the polling right is free, and notifies it again if the
//! polling right has been taken since.
//!
//! Rejected: an epoll instance for each worker. Half of the connections then wait for a worker
//! whose thread waits for a CPU, and descriptors have to follow their fibers from worker to worker.

use std::sync::atomic::Ordering::Relaxed;

use indent_sysmon::Phase;

use crate::driver::epoll::{Epoll, Events};
use crate::sched::Shared;
use crate::sched::workers::worker::{WakeReason, Worker};
use crate::sys::eventfd;
use crate::util::loom::atomic::{AtomicUsize, Ordering::SeqCst, fence};

/// The right to sleep in `epoll_wait`.
pub(crate) struct PollingRight {
    /// The index of the worker that holds it, plus one; or zero.
    holder: AtomicUsize,
}

impl PollingRight {
    pub(crate) fn new() -> Self {
        PollingRight {
            holder: AtomicUsize::new(0),
        }
    }

    /// Takes the right; false if another worker holds it.
    #[must_use]
    fn take(&self, worker: usize) -> bool {
        let taken = self
            .holder
            .compare_exchange(0, worker + 1, SeqCst, SeqCst)
            .is_ok();
        fence(SeqCst); // I32: a thread that drains the waker later sees the right taken
        taken
    }

    /// Releases the right. Called by its holder.
    fn release(&self) {
        self.holder.store(0, SeqCst);
    }

    fn is_held(&self) -> bool {
        self.holder.load(SeqCst) != 0
    }
}

impl Shared {
    /// Takes the polling right for a worker that has announced its sleep, if it should wait there.
    pub(super) fn take_polling_right(&self, worker: &Worker) -> Option<&Epoll> {
        let epoll = (self.driver.epoll_instance()).filter(|epoll| !epoll.is_empty())?;
        let left_to_others =
            self.is_brisk() && self.others_poll_soon(worker.index) && !self.is_stopping();
        if left_to_others || !self.polling_right.take(worker.index) {
            return None;
        }
        self.disarm_epoll();
        Some(epoll)
    }

    /// Releases the polling right after a sleep that found these events.
    pub(super) fn release_polling_right(&self, epoll: &Epoll, found: Option<&Events>) {
        if found.is_some_and(Events::has_wakeup) {
            epoll.drain_waker(); // I32: before another worker can take the right
        }
        self.polling_right.release();
    }

    /// Keeps a wake-up for the holder of the polling right, found by a thread without it.
    pub(super) fn pass_wakeup_on(&self, epoll: &Epoll) {
        if self.polling_right.is_held() {
            return; // the waker stays readable until the holder wakes
        }
        epoll.drain_waker();
        fence(SeqCst);
        if self.polling_right.is_held() {
            eventfd::notify(epoll.waker()); // I32
        }
    }

    /// Whether this worker polls the epoll instance within a tick.
    fn polls_soon(&self, worker: &Worker) -> bool {
        !self.idle.is_asleep(worker.index)
            && worker.published.phase() != Phase::Idle
            && !worker.is_in_long_dispatch()
            && !worker.io_poll_due.load(Relaxed)
            && !self.count.is_retired(worker.index)
    }

    fn others_poll_soon(&self, me: usize) -> bool {
        let mut others = self.present().iter().filter(|worker| worker.index != me);
        others.any(|worker| self.polls_soon(worker))
    }

    /// Makes a thread wait for events if no worker does or will poll soon (I31).
    ///
    /// Called where a worker may have stopped to poll soon. May be called in a signal handler.
    pub(crate) fn hand_events_on(&self) {
        if self.driver.epoll_instance().is_none_or(Epoll::is_empty) {
            return;
        }
        fence(SeqCst);
        if self.no_worker_polls() {
            match self.idle.claim_any() {
                Some(index) => self.notify_worker(&self.workers[index], WakeReason::TO_WORK),
                None => self.arm_epoll(),
            }
        }
    }

    /// Whether no worker waits for events or will poll soon.
    pub(super) fn no_worker_polls(&self) -> bool {
        !self.polling_right.is_held()
            && !self.present().iter().any(|worker| self.polls_soon(worker))
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use crate::sched::workers::idle::Idle;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    struct Model {
        idle: Idle,
        polling_right: PollingRight,
        long: AtomicBool,
        armed: AtomicBool,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Model {
                idle: Idle::new(2),
                polling_right: PollingRight::new(),
                long: AtomicBool::new(false),
                armed: AtomicBool::new(false),
            })
        }

        fn polls_soon(&self, worker: usize) -> bool {
            let is_long = worker == 0 && self.long.load(SeqCst);
            !self.idle.is_asleep(worker) && !is_long
        }

        /// Worker `me` falls asleep, in brisk times.
        fn sleep(&self, me: usize) {
            self.idle.announce_sleep(me, false);
            if !self.polls_soon(1 - me) {
                let _held = self.polling_right.take(me);
            }
        }

        /// Worker 0 begins a long dispatch.
        fn compute(&self) {
            self.long.store(true, SeqCst);
            fence(SeqCst);
            if self.polling_right.is_held() || self.polls_soon(1) {
                return;
            }
            match self.idle.claim_any() {
                Some(_) => {
                    // Awake for no reason, it falls asleep again.
                    self.sleep(1);
                }
                None => self.armed.store(true, SeqCst),
            }
        }

        fn is_watched(&self) -> bool {
            self.polling_right.is_held() || self.armed.load(SeqCst)
        }
    }

    #[test]
    fn loom_of_two_workers_that_fall_asleep_one_waits_for_events() {
        loom::model(|| {
            let model = Model::new();
            let other = model.clone();
            let one = thread::spawn(move || other.sleep(0));
            model.sleep(1);
            one.join().unwrap();
            assert!(model.is_watched(), "I31");
        });
    }

    #[test]
    fn loom_events_are_waited_for_beside_a_long_dispatch_and_a_sleeper() {
        loom::model(|| {
            let model = Model::new();
            let other = model.clone();
            let one = thread::spawn(move || other.compute());
            model.sleep(1);
            one.join().unwrap();
            assert!(model.is_watched(), "I31");
        });
    }

    /// The waker is a flag here; `take_polling_right`, a notification and `pass_wakeup_on` are as
    /// above.
    #[test]
    fn loom_a_notification_for_the_holder_of_the_polling_right_is_not_lost() {
        loom::model(|| {
            let (model, waker) = (Model::new(), Arc::new(AtomicBool::new(true)));
            let (other, notified) = (model.clone(), waker.clone());
            let notifier = thread::spawn(move || {
                assert!(other.polling_right.take(1));
                notified.store(true, SeqCst); // meant for the holder
            });
            if !model.polling_right.is_held() {
                waker.store(false, SeqCst);
                fence(SeqCst);
                if model.polling_right.is_held() {
                    waker.store(true, SeqCst);
                }
            }
            notifier.join().unwrap();
            assert!(waker.load(SeqCst), "I32");
        });
    }
}
