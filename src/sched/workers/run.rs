#![expect(unsafe_code, reason = "runs fibers; see I1 and I5")]
//! The scheduler loop: switches to a fiber, and acts on why the fiber came back.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use indent_sysmon::Phase;

use crate::error::JoinError;
use crate::fiber::job::{self, Completed, Job, Leftover};
use crate::fiber::locals::{self, Stay};
use crate::fiber::state::Commit;
use crate::fiber::switch::{self, Back};
use crate::fiber::{FiberRef, Record};
use crate::sched::Shared;
use crate::sched::block::time_limit;
use crate::sched::block::wake;
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::mobility::verdict;
use crate::sched::preempt::class;
use crate::sched::preempt::in_place;
use crate::sched::threads::admission::Start;
use crate::sched::threads::carrier::Carrier;
use crate::sched::threads::retire;
use crate::sched::workers::context::{self, Entered};
use crate::sched::workers::find::{self, Next};
use crate::sched::workers::latency;
use crate::sched::workers::resize;
use crate::sched::workers::sleep::Search;
use crate::sys::{self, fork, redirect, stderr};
use crate::util::loom::{atomic, light_barrier};

/// Pause of a worker after the system refused it a thread.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// From this value of `Local::bound_lately` on, a worker sleeps on the thread of a bound fiber.
const MOSTLY_BOUND: u32 = 4;

/// Why a carrier left the loop. It then holds no worker, or the runtime ends.
pub(crate) enum Left {
    GaveWorkerAway,
    Stopping,
}

/// Runs fibers while the calling carrier holds a worker.
///
/// Preemption is disabled on entry and on return.
pub(crate) fn run_fibers() -> Left {
    let mut token = Entered::resumed();
    token.carrier().shared().awake(token.worker());
    token.local().looked = false;
    let mut search = Search::new();
    let left = loop {
        if token.carrier().is_spent() && !token.carrier().shared().is_stopping() {
            leave_spent(&mut token);
            break Left::GaveWorkerAway;
        }
        let next = match token.local().next.take() {
            Some(brought) => Next::Run(brought), // the worker came here for this fiber
            None => find::next(&mut token),
        };
        match next {
            Next::Run(fiber) | Next::Start(fiber) => {
                search.found(&mut token);
                let deferred = matches!(next, Next::Start(_));
                match go_where_it_runs(&mut token, fiber, deferred) {
                    Where::Here => {}
                    Where::WorkerLeft => break Left::GaveWorkerAway,
                    Where::Elsewhere => continue,
                }
                let handed;
                (token, handed) = run(token, fiber);
                if handed && hand_over(&mut token) {
                    break Left::GaveWorkerAway;
                }
            }
            Next::Thaw(index) => {
                search.found(&mut token);
                if thaw(&mut token, index) {
                    break Left::GaveWorkerAway;
                }
            }
            Next::Retire => {
                search.found(&mut token);
                if resize::retire(&mut token) {
                    break Left::GaveWorkerAway;
                }
            }
            Next::Nothing if token.carrier().shared().is_stopping() => break Left::Stopping,
            Next::Nothing => {
                if !search.searching && leaves_before_sleep(&mut token) && hand_over(&mut token) {
                    break Left::GaveWorkerAway;
                }
                search.rest(&mut token);
            }
        }
    };
    std::mem::forget(token); // preemption stays disabled: we are still in the scheduler
    left
}

/// Takes the worker to a claimed carrier that waits in the middle of a fiber.
///
/// False if that carrier has got a worker another way.
fn thaw(token: &mut Entered, index: usize) -> bool {
    token.worker().counters.moves.add(1);
    let carrier = token.carrier();
    let shared = carrier.shared();
    let worker = carrier.leave_with_delivery();
    match shared.carrier(index).receive_here(worker) {
        Ok(()) => true,
        Err(worker) => !carrier.keep(worker),
    }
}

/// Takes the worker to a carrier without a fiber; false if there is no thread.
fn hand_over(token: &mut Entered) -> bool {
    token.worker().counters.moves.add(1);
    token.carrier().hand_over()
}

/// Whether the worker goes to a carrier without a fiber before it sleeps.
///
/// A worker that would sleep on the thread of a bound fiber does, so that the next movable fiber
/// does not wait for the move. It does not if bound fibers are what it runs most of the time.
fn leaves_before_sleep(token: &mut Entered) -> bool {
    token.carrier().has_tenant() && token.local().bound_lately < MOSTLY_BOUND
}

/// Where a fiber runs that the worker has taken off a queue.
enum Where {
    Here,
    /// On another thread, and the worker is on its way there: the token is void.
    WorkerLeft,
    /// Later, or on a thread that has a worker.
    Elsewhere,
}

/// Finds the thread for a fiber: its own if it is bound to one, else any without a tenant.
#[inline]
fn go_where_it_runs(token: &mut Entered, fiber: FiberRef, deferred: bool) -> Where {
    let thread = wake::thread_of(fiber);
    if thread.is_some_and(|thread| ptr::eq(thread, token.carrier())) {
        return Where::Here;
    }
    if thread.is_none() && !token.carrier().has_tenant() && !fiber.is_unstarted() {
        return Where::Here;
    }
    go_elsewhere(token, fiber, thread, deferred)
}

#[inline(never)]
fn go_elsewhere(
    token: &mut Entered,
    fiber: FiberRef,
    thread: Option<&Carrier>,
    deferred: bool,
) -> Where {
    if let Some(thread) = thread {
        // SAFETY: I1: `next` took it off a queue.
        if !unsafe { verdict::may_move_after_all(token.carrier().shared(), fiber) } {
            return go_to_thread(token, fiber, thread);
        }
        thread.let_out(fiber);
        thread.parker.notify(); // it is a spare now
        token.worker().counters.released.add(1);
    } else if fiber.is_unstarted() && !std::mem::take(&mut token.local().admitted) {
        let occupied = token.carrier().has_tenant();
        match (token.carrier().shared()).admit_start(fiber, deferred, occupied) {
            Start::Now => {}
            Start::Reserved => token.local().reserved = true,
            Start::Deferred => {
                token.carrier().shared().global.deferred.push(fiber);
                return Where::Elsewhere;
            }
            Start::WithoutThread => {
                token.carrier().shared().wait_for_thread(fiber);
                return Where::Elsewhere;
            }
        }
    }
    if !token.carrier().has_tenant() {
        return Where::Here;
    }
    token.local().next = Some(fiber);
    token.local().admitted = fiber.is_unstarted();
    if hand_over(token) {
        return Where::WorkerLeft;
    }
    // The system refused a thread.
    token.local().admitted = false;
    let refused = token.local().next.take();
    end_reservation(token);
    let shared = token.carrier().shared();
    if let Some(fiber) = refused.filter(|fiber| fiber.is_unstarted()) {
        // SAFETY: I1: `next` took it off a queue.
        let movable = unsafe { verdict::starts_movable(fiber) } && shared.trusts_verdicts();
        if shared.has_free_thread() && movable {
            shared.global.unstarted.push(fiber); // for the worker on that thread
            if !shared.notify_searcher(0) {
                sys::thread::sleep(REFUSED_PAUSE);
            }
        } else {
            shared.wait_for_thread(fiber);
        }
    } else if let Some(fiber) = refused {
        shared.push_global(fiber);
        shared.notify_searcher(0); // another worker may be on a thread without a fiber
        let interval = token.carrier().shared().settings.global_interval;
        token.local().until_shared = interval; // fibers bound to threads come first
        sys::thread::sleep(REFUSED_PAUSE);
    }
    Where::Elsewhere
}

impl Shared {
    /// Whether some worker is on a thread without a parked fiber.
    fn has_free_thread(&self) -> bool {
        self.present().iter().any(|worker| {
            let carrier = worker.carrier().filter(|carrier| !carrier.has_tenant());
            let there = carrier.and_then(|carrier| carrier.owner.peek());
            there == Some(worker.into())
        })
    }
}

/// Brings a fiber that is bound to another thread to that thread.
///
/// True if the worker has left for the thread; the token is then void.
pub(crate) fn brings_to_thread(token: &mut Entered, fiber: FiberRef, thread: &Carrier) -> bool {
    matches!(go_to_thread(token, fiber, thread), Where::WorkerLeft)
}

/// Takes the worker to the thread that the fiber is bound to, or the fiber to the worker there.
fn go_to_thread(token: &mut Entered, fiber: FiberRef, thread: &Carrier) -> Where {
    loop {
        if thread.deliver(fiber) {
            return Where::Elsewhere;
        }
        token.local().next = Some(fiber);
        token.worker().counters.moves.add(1);
        if token.carrier().hand_to(thread) {
            return Where::WorkerLeft;
        }
        // A worker has come to that thread meanwhile.
        if token.local().next.take().is_none() {
            return Where::Elsewhere;
        }
    }
}

/// Gives the worker away when its thread has run its last fiber (S16).
///
/// The worker goes to another carrier, or is an orphan until there is one. This thread starts no
/// thread, and its own place may be what a new one needs. The token is void afterwards.
#[cold]
fn leave_spent(token: &mut Entered) {
    token.worker().counters.moves.add(1);
    let carrier = token.carrier();
    let shared = carrier.shared();
    let receiver = shared.claim_receiver(!shared.has_queued_for(token.worker()));
    let worker = carrier.leave_with_delivery();
    match receiver {
        Some(receiver) => shared.hand(worker, receiver),
        None => shared.make_orphan(worker),
    }
}

/// Ends the reservation: the fiber that was to start is on its thread, or starts later.
pub(crate) fn end_reservation(token: &mut Entered) {
    if std::mem::take(&mut token.local().reserved) {
        token.carrier().shared().end_reservation();
    }
}

/// Runs one fiber until it comes back; true if the fiber handed its worker over.
fn run(mut token: Entered, fiber: FiberRef) -> (Entered, bool) {
    let starts = fiber.is_unstarted();
    if starts {
        end_reservation(&mut token);
        if !attach(&mut token, fiber) {
            return (token, false);
        }
    }
    let carrier = token.carrier();
    let was_bound = carrier.has_tenant();
    if was_bound {
        carrier.let_out(fiber);
    }
    carrier.current.set(Some(fiber));
    carrier.budget.set(carrier.shared().settings.budget);
    carrier.run_time.begin();
    latency::runs(&token, fiber);
    note_bound_lately(&mut token, was_bound);
    note_own(&mut token);
    token.worker().published.dispatch();
    // A fiber that was interrupted and left its thread computes: its time counts from the
    // beginning.
    let goes_on = verdict::takes_left(fiber) || starts && is_likely_batch(&token, fiber);
    if (goes_on || class::is_batch(&fiber)) && token.carrier().shared().settings.preempt {
        token.carrier().begin_slice(token.worker()); // so a waker sees for how long it has run
    }
    // SAFETY: I1: `next` took it off a queue, so it is switched out and ours; it has a stack.
    unsafe { token.carrier().block.enter(fiber, was_bound) };
    if token.carrier().shared().settings.leaves_anywhere() {
        redirect::clear_vectors(); // remains of a copy there would look like values of the fiber
    }
    // SAFETY: as above.
    let (mut token, back) = unsafe { context::resume(token, fiber, fiber_main) };
    token.carrier().current.set(None);
    token.worker().published.set_phase(Phase::Scheduling);
    let counted = account(&token, fiber);
    let binding = match back {
        Back::Finished => {
            retire(&mut token, fiber);
            return (token, false);
        }
        Back::Interrupted => {
            in_place::came_back(&token, fiber, counted);
            None
        }
        Back::Yielded | Back::HandedOver | Back::Parking => {
            // SAFETY: it has just come back to us, and is in no queue yet.
            unsafe { verdict::judge(fiber, &mut token.local().traces) }
        }
    };
    // SAFETY: it has just come back to us, and is in no queue yet.
    let found = unsafe { verdict::look(fiber, token.carrier()) };
    if !token.carrier().shared().trusts_verdicts() {
        verdict::note_bound(fiber);
    }
    let stays = back == Back::HandedOver || !verdict::is_movable(fiber);
    let stay = match stays {
        false => Stay::Leaves,
        true if verdict::noted(&fiber) == verdict::Mobility::Bound => Stay::Bound,
        true => Stay::Perhaps,
    };
    // SAFETY: it has just come back to us, and is in no queue yet.
    unsafe { token.carrier().block.leave(fiber, stay) };
    // Before any other thread can get the fiber.
    if stays {
        token.carrier().let_in(fiber);
        if back == Back::Parking {
            match found {
                Some(cause) => token.carrier().shared().count_bound_cause(fiber, cause),
                None => token.carrier().shared().count_bound_park(fiber, binding),
            }
        }
    }
    if back == Back::Parking {
        class::lower_score(&fiber);
        if fiber.state.commit_park() == Commit::Parked {
            return (token, false);
        }
    }
    queue_again(&token, fiber, back);
    (token, back == Back::HandedOver)
}

/// Whether a fiber that starts now is expected to compute much.
///
/// Where such fibers keep their threads, few are started at a time. Where they leave them, many
/// dispatches in a row may be first ones.
fn is_likely_batch(token: &Entered, fiber: FiberRef) -> bool {
    let settings = &token.carrier().shared().settings;
    settings.leaves_anywhere() && class::Sites::get(fiber.location()).is_bad()
}

/// Queues a fiber that has switched out and is runnable behind the others.
fn queue_again(token: &Entered, fiber: FiberRef, back: Back) {
    let (shared, worker) = (token.carrier().shared(), token.worker());
    match class::is_batch(&fiber) {
        true => shared.global.batch.push(fiber),
        false if back == Back::Interrupted => shared.global.interrupted.push(fiber),
        false => return shared.push_local(worker, fiber),
    }
    // If nothing else waits, this worker takes the fiber itself: it looks everywhere before it
    // sleeps.
    if shared.queued_for_all() > 1 || shared.has_queued_here(worker) {
        shared.notify_searcher(0);
    }
}

/// Records whether this dispatch is of a bound fiber.
#[inline]
fn note_bound_lately(token: &mut Entered, bound: bool) {
    let lately = &mut token.local().bound_lately;
    *lately = if bound {
        (*lately + 1).min(2 * MOSTLY_BOUND)
    } else {
        lately.saturating_sub(1)
    };
}

/// Publishes whether fibers wait that only this worker may start.
#[inline]
fn note_own(token: &mut Entered) {
    let wait = !token.local().own.is_empty();
    let worker = token.worker();
    if worker.has_own.load(Relaxed) != wait {
        worker.has_own.store(wait, Relaxed);
    }
}

/// Adds the long dispatches that the monitor has seen to the fiber's CPU score; false if there were
/// none.
#[inline]
fn account(token: &Entered, fiber: FiberRef) -> bool {
    let worker = token.worker();
    let preempts = token.carrier().shared().settings.preempt;
    let counts = preempts && worker.overran.load(Relaxed) == worker.published.dispatches();
    if counts {
        class::raise_score(&fiber, token.carrier().ticks_in(worker));
    }
    counts
}

/// Attaches a stack for the first dispatch; false if there is none and the fiber waits for one.
fn attach(token: &mut Entered, fiber: FiberRef) -> bool {
    let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
    let Ok(stack) = token.local().stacks.take(class) else {
        token.carrier().shared().starve(fiber);
        return false;
    };
    token.show_stacks();
    // The waker of the fiber reads it; the release store of the park that it ends publishes it.
    fiber.stack.store(stack.as_ptr(), atomic::Ordering::Relaxed);
    in_place::begin(stack);
    token.worker().counters.started.add(1);
    // Last: in `with_stack_of` too much hope is better than too little.
    token.carrier().shared().count_odd_stack(class, 1);
    true
}

/// The body of every fiber, on the fiber's stack.
fn fiber_main(fiber: FiberRef) {
    let token = Entered::resumed();
    let dropped = token.carrier().shared().is_closing() || fiber.state.cancel_requested();
    drop(token); // preemption is enabled: user code
    // SAFETY: it has not run, and we are its one dispatch.
    let entry = unsafe { fiber.job.entry() };
    let judged = retire::judge(entry);
    context::assert_preemptible();
    if dropped {
        // SAFETY: it has not run, and we are its one dispatch.
        unsafe { Job::fail(&fiber, JoinError::cancelled(fiber.id())) };
    } else {
        // SAFETY: on its own stack, with what `Job::run` says.
        let call = |f| unsafe { switch::call_outermost(fiber, f) };
        // SAFETY: called once, on its own stack.
        unsafe { Job::run(&fiber, call) };
    }
    if !job::is_detached(&fiber.join) {
        end_locals(fiber); // before its join returns, as with a thread
    }
    if judged.is_none() {
        retire::judge(entry); // the code may have been read meanwhile
    }
    if fork::in_child() {
        end_child(&fiber); // it forked
    }
    complete(fiber);
    end_locals(fiber); // an unjoined result has been dropped, and may have used some
    let here = context::here().expect("a fiber runs here");
    let token = here.enter_with_worker();
    fiber.state.finish();
    std::mem::forget(token); // the scheduler enables preemption after the switch
}

/// Runs the destructors of the thread-locals of the calling fiber, whose closure has ended.
///
/// They must not unwind, so cancellation does not reach them.
fn end_locals(fiber: FiberRef) {
    if locals::has_destructors(fiber) {
        let _undisturbed = time_limit::Undisturbed::begin();
        // SAFETY: on its own stack, preemption enabled.
        unsafe { locals::run_destructors(fiber) };
    }
    locals::end_current_thread();
}

/// Ends a child of a fork in which a fiber's closure has ended.
#[cold]
fn end_child(fiber: &Record) -> ! {
    let mut what = String::new();
    let _ = fiber.describe(&mut what);
    what.push_str(", forked; its closure");
    fork::end_child(&what)
}

/// Gives the result to the party that the join word names (I4).
pub(crate) fn complete(fiber: FiberRef) {
    // S6: a thread that finds the word swapped waits for our notification.
    let guard = context::disable_preempt();
    let completed = job::complete(&fiber.join);
    let kept = match completed {
        // SAFETY: the address was in the join word, and its one notification is ours.
        Completed::Notify(waiter) => unsafe { Waiter::notify(&guard, waiter) },
        Completed::Nothing | Completed::DropResult => DeferredDrop::default(),
    };
    drop(guard);
    drop(kept);
    if completed == Completed::DropResult {
        context::assert_preemptible();
        // SAFETY: the join word gave it to us.
        report_leftover(&fiber, unsafe { Job::drop_result(&fiber) });
    }
}

/// Prints one line after std's message for a panic that no caller joined.
pub(crate) fn report_leftover(fiber: &Record, leftover: Leftover) {
    if leftover == Leftover::Panic {
        let mut line = String::new();
        let _ = fiber.describe(&mut line);
        line.push_str(", panicked; nobody joined it\n");
        stderr::print(&line);
    }
}

/// Frees the stack and the record of a fiber that is over and off its stack.
fn retire(token: &mut Entered, fiber: FiberRef) {
    let stack = fiber.stack.swap(ptr::null_mut(), atomic::Ordering::Relaxed);
    let stack = ptr::NonNull::new(stack).expect("a fiber that ran has a stack");
    // SAFETY: its fiber is over, and the stack in no list yet.
    unsafe { token.carrier().block.finish(fiber, stack.as_ptr()) };
    token.local().stacks.put(stack);
    if token.carrier().shared().starved() > 0 {
        token.local().stacks.keep(0); // the fiber that gets it may run elsewhere
    }
    token.show_stacks();
    let carrier = token.carrier();
    if carrier.shared().settings.preempt && !class::is_batch(&fiber) {
        class::Sites::get(fiber.location()).ended();
    }
    let shared = carrier.shared();
    let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
    shared.count_odd_stack(class, -1);
    shared.unwind_limit.leave(&fiber.unwind_permit);
    if let Some(record) = fiber.end() {
        // SAFETY: free now, so ours; slab memory stays valid.
        let owner = unsafe { record.as_ref() }.owner();
        let slab = &mut token.local().slab;
        // SAFETY: as above.
        if slab.is_owner_of(unsafe { record.as_ref() }) {
            slab.put(record);
        } else {
            owner.give_back(record);
        }
    }
    token.worker().counters.finished.add(1);
    token.carrier().shared().fiber_ended(class);
}

impl Shared {
    /// Called after every end: a stack is free, and a thread may wait for the last fiber.
    #[inline]
    fn fiber_ended(&self, class: u8) {
        // Our count comes before both checks; the heavy barriers are in `starve` and in
        // `wait_until`.
        light_barrier();
        if self.starved() > 0 {
            self.feed_starved(class, 1);
        }
        if self.observers.load(Relaxed) > 0 {
            self.tell_observers();
        }
    }
}
