//! Changes the number of workers while they run. The protocol is in `count.rs`.

use std::ptr::NonNull;

use crate::sched::Shared;
use crate::sched::workers::context::{self, Entered};
use crate::sched::workers::worker::{WakeReason, Worker};

impl Shared {
    /// Makes `workers` the number of workers, as far as there are room and threads.
    ///
    /// False if some could not be placed, and the caller should try again. On one thread at a time.
    pub(crate) fn resize(&self, workers: usize) -> bool {
        let _guard = context::disable_preempt();
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(|e| e.into_inner());
        let workers = workers.clamp(1, self.workers.len());
        self.count.allow(workers);
        for worker in &self.present()[workers..] {
            if self.idle.claim(worker.index) {
                self.notify_worker(worker, WakeReason::TO_WORK); // it sees that it is in excess
            }
        }
        let mut placed = true;
        while placed && let Some(index) = self.count.revive() {
            placed = self.place(NonNull::from(&self.workers[index])).is_ok();
            if !placed {
                // It stays retired until the resize is tried again. If it is wanted, we have to
                // look after it.
                self.count.stay_retired(index);
                self.after_retirement(&self.workers[index]);
            }
        }
        self.count
            .trim(|index| self.workers[index].timers.active() > 0);
        placed
    }

    /// Looks after what other threads may have left with a worker that has just been retired.
    fn after_retirement(&self, worker: &Worker) {
        // Threads that send a fiber from here on see that the worker is retired.
        self.release_assigned(worker);
        self.arm_io(worker); // the I/O poller wakes the fibers that wait there
        if worker.timers.active() > 0 && self.idle.claim(0) {
            // It looks after them now, and has to decide again until when to sleep.
            self.notify_worker(&self.workers[0], WakeReason::TO_WORK);
        }
        // A thread may have relied on this worker to look for what was pushed (I8), and it has not
        // looked.
        self.notify_searcher(0);
    }

    /// Workers that are not retired.
    pub(crate) fn workers_now(&self) -> usize {
        self.workers.len() - self.count.retired()
    }

    /// Moves the worker's queue to the global queue. Called by the worker's holder.
    fn empty_ring(&self, worker: &Worker) {
        while let Some(fiber) = worker.queue.pop() {
            self.push_global(fiber);
        }
    }

    /// Lets any worker start the fibers that were assigned to a retired worker.
    pub(crate) fn release_assigned(&self, worker: &Worker) {
        let fibers = worker.assigned.take();
        if !fibers.is_empty() {
            self.global.unstarted.push_all(fibers);
            self.notify_searcher(0);
        }
    }
}

/// Takes the worker of the calling carrier out of service.
///
/// True if the worker is gone; the token is then void.
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

/// Gives away everything that needs a worker: fibers to the global queue, stacks to the pool.
///
/// The caller notifies a worker.
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
