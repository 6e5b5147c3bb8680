//! Changing the number of workers while they run; the protocol is in `count.rs`.

use std::ptr::NonNull;

use crate::sched::Shared;
use crate::sched::workers::context::{self, Entered};
use crate::sched::workers::worker::{WakeReason, Worker};

impl Shared {
    /// Makes this the number of workers, as far as there is room and threads can be had; false if
    /// some could not be placed and it should be tried again. On one thread at a time.
    pub(crate) fn resize(&self, workers: usize) -> bool {
        let _guard = context::disable_preempt();
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(|e| e.into_inner());
        let workers = workers.clamp(1, self.workers.len());
        self.count.allow(workers);
        for worker in &self.present()[workers..] {
            if self.idle.claim(worker.index) {
                self.notify_worker(worker, WakeReason::TO_WORK); // it sees that it is one too many
            }
        }
        let mut placed = true;
        while placed && let Some(index) = self.count.revive() {
            placed = self.place(NonNull::from(&self.workers[index])).is_ok();
            if !placed {
                // It stays retired until somebody tries again; if it is wanted, that is us.
                self.count.stay_retired(index);
                self.after_retirement(&self.workers[index]);
            }
        }
        self.count
            .trim(|index| self.workers[index].timers.active() > 0);
        placed
    }

    /// A worker has just been retired: what others may have left with it is seen to.
    fn after_retirement(&self, worker: &Worker) {
        // Whoever sends from here on sees that it is retired.
        self.release_assigned(worker);
        self.arm_io(worker); // who waits there is told by the watch
        if worker.timers.active() > 0 && self.idle.claim(0) {
            self.notify_worker(&self.workers[0], WakeReason::TO_WORK); // it minds them now: until when to sleep
        }
        // Somebody may have trusted this worker to look for what was pushed (I8), and it has not.
        self.notify_searcher(0);
    }

    /// Workers that are not retired.
    pub(crate) fn workers_now(&self) -> usize {
        self.workers.len() - self.count.retired()
    }

    /// By the holder of a worker: its queue goes to all.
    fn empty_ring(&self, worker: &Worker) {
        while let Some(fiber) = worker.queue.pop() {
            self.push_global(fiber);
        }
    }

    /// Lets any worker start what was sent to a worker that is retired.
    pub(crate) fn release_assigned(&self, worker: &Worker) {
        let fibers = worker.assigned.take();
        if !fibers.is_empty() {
            self.global.unstarted.push_all(fibers);
            self.notify_searcher(0);
        }
    }
}

/// Takes the worker of the calling carrier out of service. True: it is gone, and the token is void.
pub(crate) fn retire(token: &mut Entered) -> bool {
    empty(token);
    let carrier = token.carrier();
    let shared = carrier.shared();
    let (index, worker) = (token.worker().index, carrier.leave_with_delivery());
    shared.empty_ring(&shared.workers[index]); // with what was delivered meanwhile
    if shared.count.retire(index) {
        let kept = carrier.keep(worker); // wanted again meanwhile
        if kept {
            shared.awake(&shared.workers[index]);
        }
        return !kept;
    }
    shared.after_retirement(&shared.workers[index]);
    true
}

/// Gives away everything that needs a worker: fibers to all, stacks to the pool. The caller rouses.
fn empty(token: &mut Entered) {
    let shared = token.carrier().shared();
    let worker = token.worker();
    if let Some(fiber) = worker.lifo.take() {
        shared.push_global(fiber);
    }
    shared.empty_ring(worker);
    worker.published.set_phase(indent_sysmon::Phase::Idle);
    let local = token.local();
    let own = std::mem::replace(&mut local.own, crate::util::list::List::new());
    let freed = local.stacks.keep(0);
    token.show_stacks();
    let shared = token.carrier().shared();
    shared.global.unstarted.push_all(own);
    if shared.starved() > 0 {
        shared.feed_starved(shared.settings.stack_class, freed);
    }
}
