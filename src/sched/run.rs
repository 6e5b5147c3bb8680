#![expect(unsafe_code, reason = "runs fibers; see I1 and I5")]
//! The scheduler loop: switch in, and act on why the fiber came back.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use indent_sysmon::Phase;

use crate::base::loom::{atomic, light_barrier};
use crate::base::{fork, os};
use crate::error::JoinError;
use crate::fiber::job::{self, Completed, Job, Leftover};
use crate::fiber::record::ANY_WORKER;
use crate::fiber::state::Commit;
use crate::fiber::switch::{self, Back};
use crate::fiber::{FiberRef, Record};
use crate::queue::inject::popped;
use crate::sched::context::{self, Entered};
use crate::sched::find::{self, Next};
use crate::sched::moving::{self, Welcome};
use crate::sched::sleep::Search;
use crate::sched::verdict::{self, Verdict};
use crate::sched::wake::{Kept, Waiter};
use crate::sched::{Shared, carrier::Carrier, class, company, in_place, latency, resize, retire};

/// How long a worker waits that must not run a fiber where it is and finds no other thread.
const TRY_AGAIN: Duration = Duration::from_micros(200);

/// Why a carrier left the loop; it holds no worker then, or the runtime ends.
pub(crate) enum Left {
    GaveWorkerAway,
    Stopping,
}

/// Runs fibers while the calling carrier holds a worker. The mark is up on entry and on return.
pub(crate) fn run_fibers() -> Left {
    let mut token = Entered::resumed();
    token.carrier().shared().awake(token.worker());
    // Where a worker arrives it runs something before it looks at who else wants one. But not each time: it
    // may be called away after every single one.
    let waits = token.carrier().has_runnable();
    let local = token.local();
    if local.until_shared < 2 && !local.put_off {
        (local.until_shared, local.put_off) = (2, true);
    }
    local.looked = false;
    if waits {
        local.lifo_turns = find::LIFO_TURNS; // whom it came for is first, in turn with unstarted ones
    }
    let mut search = Search::new();
    let left = loop {
        if token.carrier().is_spent() && !token.carrier().shared().is_stopping() {
            leave_spent(&mut token);
            break Left::GaveWorkerAway;
        }
        match find::next(&mut token) {
            next @ (Next::Run(fiber) | Next::Start(fiber)) => {
                search.found(&mut token);
                let its_turn = matches!(next, Next::Start(_));
                let at_home = ptr::eq(moving::home(fiber), token.carrier());
                if !(at_home && stays(&token, fiber)) {
                    match leave_for(&mut token, fiber, its_turn) {
                        Leave::Left => break Left::GaveWorkerAway,
                        Leave::Gone => continue,
                        Leave::Stays => {}
                    }
                }
                let handed;
                (token, handed) = run(token, fiber, at_home);
                if handed && hand_over(&mut token, Carrier::hand_over) {
                    break Left::GaveWorkerAway;
                }
            }
            Next::MoveTo(index) => {
                search.found(&mut token);
                if move_to(&mut token, index) {
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
            Next::Nothing => search.rest(&mut token),
        }
    };
    std::mem::forget(token); // the mark stays up: we are still in the scheduler
    left
}

/// Takes the worker to a carrier that wants one. False if there is no need.
fn move_to(token: &mut Entered, index: usize) -> bool {
    if index == token.carrier().index {
        return false; // its own fibers wait: the loop finds them
    }
    moving::leave_behind(token, false);
    token.worker().counters.moves.add(1);
    let carrier = token.carrier();
    carrier.hand_to(carrier.shared().carrier(index))
}

/// Takes the worker to a frozen carrier.
fn thaw(token: &mut Entered, index: usize) -> bool {
    moving::leave_behind(token, false);
    token.worker().counters.moves.add(1);
    let carrier = token.carrier();
    let shared = carrier.shared();
    match shared
        .carrier(index)
        .receive_here(carrier.owner.surrender())
    {
        Ok(()) => true,
        Err(worker) => !carrier.keep(worker),
    }
}

/// Takes the worker to another carrier, and along with it what may move.
fn hand_over(token: &mut Entered, by: fn(&Carrier) -> bool) -> bool {
    moving::take_along(token);
    token.worker().counters.moves.add(1);
    by(token.carrier())
}

/// Whether a fiber that is at home here runs here: not one that may leave, if another wants to be
/// alone.
#[inline]
fn stays(token: &Entered, fiber: FiberRef) -> bool {
    let carrier = token.carrier();
    !carrier.keeps_fibers() && !carrier.retires() || !verdict::is_free(fiber)
}

/// A fiber that is not at home here, or need not be: if it is not welcome (S12), takes it and the
/// worker to another carrier, where it is the first to run.
fn leave_for(token: &mut Entered, fiber: FiberRef, its_turn: bool) -> Leave {
    // SAFETY: I1: `next` took it off a queue.
    let welcome = unsafe { moving::welcome(token, fiber) };
    match welcome {
        Welcome::Here => return Leave::Stays,
        Welcome::Later if its_turn && !token.carrier().keeps_fibers() => return Leave::Stays,
        Welcome::Later if its_turn => {}
        Welcome::Later => {
            token.carrier().shared().batch.push(fiber);
            return Leave::Gone;
        }
        Welcome::Elsewhere | Welcome::With(_) => {}
    }
    let unstarted = fiber.stack.load(atomic::Ordering::Relaxed).is_null();
    let assigned = unstarted && fiber.worker.load(atomic::Ordering::Relaxed) != ANY_WORKER;
    if assigned {
        // SAFETY: `next` took it off a queue, so it is in no list; it is not over, so alive (I3).
        unsafe { token.local().own.push_front(fiber.pointer()) };
    } else if let Some(before) = token.worker().lifo.replace(fiber) {
        // There it can be stolen, should the worker not get on.
        token.carrier().shared().push_local(token.worker(), before);
    }
    let gone = match welcome {
        Welcome::With(keeper) => move_to(token, keeper),
        _ => hand_over(token, Carrier::hand_over_to_free),
    };
    if gone {
        return Leave::Left;
    }
    let carrier = token.carrier();
    if carrier.retires() && !carrier.shared().is_stopping() {
        std::thread::sleep(TRY_AGAIN); // the helper was asked for a thread; not here in any case (S16)
        return Leave::Gone;
    }
    let back = if assigned {
        token.local().own.pop().map(popped)
    } else {
        token.worker().lifo.take()
    };
    if back == Some(fiber) {
        Leave::Stays
    } else {
        Leave::Gone
    }
}

/// The thread has had its last fiber (S16): the worker goes to another one, or is an orphan until
/// there is one. This thread starts none, and its own place may be what a new one needs. The token
/// is void.
#[cold]
fn leave_spent(token: &mut Entered) {
    moving::take_along(token);
    token.worker().counters.moves.add(1);
    let carrier = token.carrier();
    let shared = carrier.shared();
    let receiver = shared.claim_receiver(!shared.has_queued_for(token.worker()));
    let worker = carrier.owner.surrender();
    match receiver {
        Some(receiver) => shared.hand(worker, receiver),
        None => shared.make_orphan(worker),
    }
}

/// What became of a fiber that is not welcome.
enum Leave {
    /// It left with the worker; the token is void.
    Left,
    /// There is no need to leave, or no thread to be had: it runs here.
    Stays,
    /// It waits for its turn; or there was no thread to be had, and another worker has taken it.
    Gone,
}

/// Runs one fiber until it comes back; true if it handed its worker over.
fn run(mut token: Entered, fiber: FiberRef, at_home: bool) -> (Entered, bool) {
    if !at_home && !take_in(&mut token, fiber) {
        return (token, false);
    }
    let carrier = token.carrier();
    if verdict::is_alone(fiber) {
        carrier.keep_no_longer();
    }
    moving::uncount_bound(fiber);
    carrier.current.set(Some(fiber));
    carrier.budget.set(carrier.shared().settings.budget);
    carrier.stretch.begin();
    latency::runs(&token, fiber);
    let long = (!at_home || class::is_batch(&fiber)) && is_likely_long(carrier, fiber);
    carrier.note_siblings(long);
    note_own(&mut token);
    token.worker().published.dispatch();
    if long {
        token.carrier().begin_slice(token.worker()); // whoever presses can tell for how long it has run
    }
    // SAFETY: I1: `next` took it off a queue, so it is switched out and ours; it has a stack.
    let (mut token, back) = unsafe { context::resume(token, fiber, fiber_main) };
    token.carrier().current.set(None);
    token.worker().published.set_phase(Phase::Scheduling);
    account(&token, fiber);
    match back {
        Back::Finished => {}
        Back::Interrupted => in_place::came_back(&token, fiber),
        _ => assess(&mut token, fiber), // before anybody else can get hold of it
    }
    let carrier = token.carrier();
    match back {
        Back::Yielded | Back::Interrupted => push_home(carrier, fiber),
        Back::HandedOver => push_home(carrier, fiber),
        Back::Parking => {
            class::cool_down(&fiber);
            if fiber.state.commit_park() == Commit::Resume {
                push_home(carrier, fiber);
            }
        }
        Back::Finished => retire(&mut token, fiber),
    }
    (token, back == Back::HandedOver)
}

/// A fiber that computes much goes on, or one starts from a place of which too little good is known.
#[inline]
fn is_likely_long(carrier: &Carrier, fiber: FiberRef) -> bool {
    let computes = || class::is_batch(&fiber) || !class::Sites::get(fiber.location()).is_good();
    carrier.shared().settings.preempt && computes()
}

/// Whether fibers wait that only this worker may start.
#[inline]
fn note_own(token: &mut Entered) {
    let wait = !token.local().own.is_empty();
    let worker = token.worker();
    if worker.has_own.load(Relaxed) != wait {
        worker.has_own.store(wait, Relaxed);
    }
}

fn push_home(carrier: &Carrier, fiber: FiberRef) {
    // SAFETY: it just ran, so it is in no list; a fiber that is not over is alive (I3).
    unsafe { carrier.home().push(fiber) };
}

/// The fiber has switched out: what the monitor has seen of it counts.
#[inline]
fn account(token: &Entered, fiber: FiberRef) {
    let worker = token.worker();
    let preempts = token.carrier().shared().settings.preempt;
    if preempts && worker.overran.load(Relaxed) == worker.published.dispatches() {
        class::heat_up(&fiber, token.carrier().ticks_in(worker));
    }
}

/// The fiber has switched out: what its frames allow.
#[inline]
fn assess(token: &mut Entered, fiber: FiberRef) {
    // SAFETY: it has just come back to us, and is in no queue yet.
    let verdict = unsafe { verdict::judge(fiber, &mut token.local().traces) };
    match verdict {
        Verdict::Free => {}
        Verdict::Home => moving::count_bound(token.carrier(), fiber),
        Verdict::Alone => {
            token.carrier().keep_alone();
            token.worker().counters.alone_parks.add(1);
        }
    }
}

/// A fiber that is not at home here: it starts, or is adopted. False if there is no stack for it.
fn take_in(token: &mut Entered, fiber: FiberRef) -> bool {
    if !fiber.stack.load(atomic::Ordering::Relaxed).is_null() {
        moving::settle(token.carrier(), fiber);
        company::forget(fiber);
        token.worker().counters.adopted.add(1);
        return true;
    }
    attach(token, fiber)
}

/// The first dispatch: a stack and a home.
fn attach(token: &mut Entered, fiber: FiberRef) -> bool {
    let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
    let Ok(stack) = token.local().stacks.take(class) else {
        token.carrier().shared().starve(fiber);
        return false;
    };
    token.show_stacks();
    let carrier = token.carrier();
    fiber.stack.store(stack.as_ptr(), atomic::Ordering::Relaxed);
    in_place::begin(stack);
    company::forget(fiber);
    // Whoever wakes the fiber reads both; the park it ends has released them.
    moving::settle(carrier, fiber);
    token.worker().counters.started.add(1);
    token.carrier().shared().count_odd_stack(class, 1); // after: rather too much hope than too little
    true
}

/// What runs on the fiber's stack.
fn fiber_main(fiber: FiberRef) {
    let token = Entered::resumed();
    let dropped = token.carrier().shared().is_closing() || fiber.state.cancel_requested();
    drop(token); // the mark is down: user code
    // SAFETY: it has not run, and we are its one dispatch.
    let entry = unsafe { fiber.job.entry() };
    let judged = retire::judge(entry);
    context::assert_unmarked();
    if dropped {
        // SAFETY: it has not run, and we are its one dispatch.
        unsafe { Job::fail(&fiber, JoinError::cancelled(fiber.id())) };
    } else {
        // SAFETY: on its own stack; `Job::run` says what with.
        let call = |f| unsafe { switch::call_outermost(fiber, f) };
        // SAFETY: called once, on its own stack.
        unsafe { Job::run(&fiber, call) };
    }
    if judged.is_none() {
        retire::judge(entry); // the code may have been read meanwhile
    }
    if fork::in_child() {
        end_child(&fiber); // it forked
    }
    complete(fiber);
    let here = context::here().expect("a fiber runs here");
    let token = here.enter_with_worker();
    fiber.state.finish();
    std::mem::forget(token); // the mark passes to the scheduler with the switch
}

/// A fiber's closure has ended in the child of a fork.
#[cold]
fn end_child(fiber: &Record) -> ! {
    let mut what = String::new();
    let _ = fiber.describe(&mut what);
    what.push_str(", forked; its closure");
    fork::end_child(&what)
}

/// The result is there: gives it to whoever the join word says (I4).
pub(crate) fn complete(fiber: FiberRef) {
    let mark = context::marked(); // S6: who finds the word swapped waits for the call
    let completed = job::complete(&fiber.join);
    let kept = match completed {
        // SAFETY: the address was in the join word, and ours is its call.
        Completed::Call(waiter) => unsafe { Waiter::call(&mark, waiter) },
        Completed::Nothing | Completed::DropResult => Kept::default(),
    };
    drop(mark);
    drop(kept);
    if completed == Completed::DropResult {
        context::assert_unmarked();
        // SAFETY: the join word gave it to us.
        report_leftover(&fiber, unsafe { Job::drop_result(&fiber) });
    }
}

/// A panic that nobody joined gets one line after std's message.
pub(crate) fn report_leftover(fiber: &Record, leftover: Leftover) {
    if leftover == Leftover::Panic {
        let mut line = String::new();
        let _ = fiber.describe(&mut line);
        line.push_str(", panicked; nobody joined it\n");
        os::complain(&line);
    }
}

/// A fiber is over and off its stack.
fn retire(token: &mut Entered, fiber: FiberRef) {
    let stack = fiber.stack.swap(ptr::null_mut(), atomic::Ordering::Relaxed);
    let stack = ptr::NonNull::new(stack).expect("a fiber that ran has a stack");
    token.local().stacks.put(stack);
    if token.carrier().shared().starved() > 0 {
        token.local().stacks.keep(0); // whoever is fed by this end may run elsewhere
    }
    token.show_stacks();
    let carrier = token.carrier();
    carrier.count_started(-1);
    if carrier.shared().settings.preempt && !class::is_batch(&fiber) {
        class::Sites::get(fiber.location()).ended();
    }
    let shared = carrier.shared();
    let class = fiber.stack_class.load(atomic::Ordering::Relaxed);
    shared.count_odd_stack(class, -1);
    shared.gate.leave(&fiber.gate_pass);
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
    /// After every end: a stack is free, and somebody may wait for the last fiber.
    #[inline]
    fn fiber_ended(&self, class: u8) {
        // Our count before both looks; the heavy halves are in `starve` and in `wait_until`.
        light_barrier();
        if self.starved() > 0 {
            self.feed_starved(class, 1);
        }
        if self.observers.load(Relaxed) > 0 {
            self.tell_observers();
        }
    }
}
