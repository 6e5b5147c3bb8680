#![expect(unsafe_code, reason = "ends fibers that never ran")]
//! Fibers for which there is no stack.
//!
//! A fiber that gets no stack at its first dispatch waits in the lane `stackless` of the global
//! queue while some fiber holds a stack of the class it wants. Every end of a fiber gives one of
//! the waiting fibers another chance, and a worker that goes to sleep gives up the stacks it keeps.
//!
//! If no fiber holds such a stack, no end can help: the fiber fails. Stacks of other classes do not
//! count, because slabs are never unmapped.
//!
//! The last holder may end between the look and the push, so there is a second look after the push.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::error::JoinError;
use crate::fiber::job::Job;
use crate::fiber::{FiberRef, Record};
use crate::queue::lane::{Lane, popped};
use crate::sched::Shared;
use crate::sched::workers::context;
use crate::sched::workers::run;
use crate::sched::workers::shutdown::UNSURE;
use crate::sched::workers::worker::WakeReason;
use crate::sys::{membarrier, stderr};
use crate::util::list::List;
use crate::util::loom::{atomic, heavy_barrier};

impl Shared {
    /// Queues a fiber that gets no stack, or fails it if no fiber holds such a stack.
    #[cold]
    pub(crate) fn starve(&self, fiber: FiberRef) {
        let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
        if self.with_stack_of(class) == 0 {
            let mut alone = List::new();
            // SAFETY: the caller took it off its queue.
            unsafe { alone.push(fiber.pointer()) };
            return self.fail_unstarted(alone, JoinError::no_stack);
        }
        // Counted first: the count is never below what is queued.
        self.starved_count.fetch_add(1, SeqCst);
        self.global.stackless[usize::from(class)].push(fiber);
        if !self.starved_reported.swap(true, Relaxed) {
            stderr::print(
                "indent: no memory for another stack; fibers wait until others end \
                 (raise vm.max_map_count or ulimit -v, or spawn fewer at a time)\n",
            );
        }
        // A fiber that ends from here on sees the push, or we see its end. Without a barrier that
        // is not certain, so the helper looks again (S18).
        if !heavy_barrier() {
            self.feed_later();
        }
        if self.with_stack_of(class) == 0 {
            self.feed_starved(class, 1);
        }
        // Workers that fall asleep from here on see the count; workers that sleep may keep stacks.
        for worker in self.present() {
            if self.idle.claim(worker.index) {
                self.notify_worker(worker, WakeReason::TO_WORK);
            }
        }
    }

    /// Gives `n` fibers that wait for a stack of this class another chance.
    pub(crate) fn feed_starved(&self, class: u8, n: usize) {
        let mut again = self.global.stackless[usize::from(class)].pop(n);
        self.starved_count.fetch_sub(again.len(), SeqCst);
        while let Some(fiber) = again.pop() {
            self.queue_again(popped(fiber));
        }
    }

    /// Gives each class another chance if fibers wait whose push may not have been seen.
    ///
    /// Runs on the helper's thread, and returns after what time to call it again. When it has just
    /// been asked for it only returns that time: the fibers have just tried.
    pub(crate) fn feed_unsure(&self, just_asked: bool) -> Option<Duration> {
        if membarrier::refused() == 0 || self.starved() == 0 {
            return None;
        }
        if just_asked {
            return Some(UNSURE);
        }
        for class in 0..self.global.stackless.len() {
            self.feed_starved(class as u8, 1);
        }
        Some(UNSURE)
    }

    /// Ends fibers that never ran.
    ///
    /// Their closures are dropped on a separate thread: they are the program's code, which may
    /// block.
    pub(crate) fn fail_unstarted(&self, mut fibers: List<Record>, error: fn(u64) -> JoinError) {
        let shared = self.arc();
        let failed = std::sync::Arc::new(Lane::new());
        while let Some(fiber) = fibers.pop() {
            failed.push(popped(fiber));
        }
        let end = move || {
            while let Some(fiber) = failed.pop(1).pop().map(popped) {
                shared.end_unstarted(fiber, error(fiber.id()));
            }
        };
        let thread = std::thread::Builder::new().name("indent-failed".to_owned());
        if thread.spawn(end.clone()).is_err() {
            end(); // no thread for this either, so drop them here
            let guard = context::disable_preempt();
            if let Some(carrier) = guard.carrier().filter(|c| c.current.get().is_none()) {
                carrier.block.scrub();
            }
        }
    }

    fn end_unstarted(&self, fiber: FiberRef, error: JoinError) {
        let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
        // SAFETY: it never ran and is off its queue for good.
        unsafe { Job::fail(&fiber, error) };
        run::complete(fiber);
        fiber.state.finish();
        if let Some(record) = fiber.end() {
            // SAFETY: free now; slab memory stays valid.
            unsafe { record.as_ref() }.owner().give_back(record);
        }
        self.never_started.fetch_add(1, SeqCst);
        self.feed_starved(class, 1); // so that the next one notices it, too
        self.tell_observers();
    }

    /// Counts a fiber whose stack is not of the default class.
    #[inline]
    pub(crate) fn count_odd_stack(&self, class: u8, change: i64) {
        if class != self.settings.stack_class {
            self.odd_changes.fetch_add(1, SeqCst);
            self.odd_stacks[usize::from(class)].fetch_add(change.cast_unsigned(), SeqCst);
        }
    }

    /// Number of fibers that have a stack.
    pub(crate) fn with_stack(&self) -> u64 {
        let finished: u64 = self.workers.iter().map(|w| w.counters.finished.get()).sum();
        let started: u64 = self.workers.iter().map(|w| w.counters.started.get()).sum();
        started.saturating_sub(finished)
    }

    fn with_stack_of(&self, class: u8) -> u64 {
        if class != self.settings.stack_class {
            return self.odd_stacks[usize::from(class)].load(SeqCst);
        }
        let odd = || {
            self.odd_stacks
                .iter()
                .map(|count| count.load(SeqCst))
                .sum::<u64>()
        };
        // The sums are taken one after the other. If the counts changed meanwhile, too much hope is
        // better than too little.
        let changes = self.odd_changes.load(SeqCst);
        let (odd, all) = (odd(), self.with_stack());
        if self.odd_changes.load(SeqCst) != changes {
            return 1;
        }
        all.saturating_sub(odd)
    }
}
