#![expect(
    unsafe_code,
    reason = "hands out the carrier and worker of the calling thread"
)]
//! The caller's place: its carrier, its fiber, and its worker.
//!
//! All thread-locals of the crate are here, except those of `fiber/locals.rs`.
//!
//! A fiber may come back from a switch on another thread, and LLVM assumes that thread-locals do
//! not move: it keeps their address in a register, and merges two calls of a function that returns
//! one. So ([S8]) nothing here returns the address of a thread-local to code that can switch. The
//! accessors load a pointer *stored in* a thread-local, are never inlined, and pass the pointer
//! through `black_box`, so that two calls are two loads. `tests/tls.rs` checks the machine code.
//!
//! For the same reason every function here that touches a thread-local is a function of its own: in
//! the frame of a caller that stays on a suspended stack, a thread-local would bind the fiber to
//! its thread (S5; `tests/frames.rs`).
//!
//! [`Entered`] is the right to use the worker of the calling carrier; preemption is disabled while
//! it exists. **I9** No `Entered` and no reference to a worker survives a switch: [`switch`]
//! consumes the token and makes a new one from the thread on which it continues.
//!
//! [S8]: docs/invariants.md

use std::cell::{Cell, OnceCell};
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::state::{Cancel, Signal, Woken};
use crate::fiber::switch::{self, Back};
use crate::sched::Shared;
use crate::sched::block::time_limit::OfThread;
use crate::sched::threads::carrier::Carrier;
use crate::sched::threads::plain::ThreadParker;
use crate::sched::workers::worker::{Local, Worker};
use crate::sys::fork;

thread_local! {
    static CARRIER: Cell<*const Carrier> = const { Cell::new(ptr::null()) };
    static PARKER: Arc<ThreadParker> = ThreadParker::new();
    /// Time limits of a plain thread; fibers carry their own. Usable until the thread is gone.
    static OF_THREAD: ManuallyDrop<OfThread> = const { ManuallyDrop::new(OfThread::new()) };
    /// Number of a plain thread; zero until it is first requested.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static IGNORES_LIMITS: Cell<bool> = const { Cell::new(false) };
    static SERVED: OnceCell<Weak<Shared>> = const { OnceCell::new() };
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// The carrier whose thread calls this, or null. Never inlined: see the header.
#[inline(never)]
pub(crate) fn carrier() -> *const Carrier {
    black_box(CARRIER.get())
}

/// Sets the calling thread's carrier.
///
/// Called once by a carrier's thread, with its own carrier, and with null before the thread ends.
#[inline(never)]
pub(crate) fn set_carrier(carrier: *const Carrier) {
    CARRIER.set(carrier);
}

/// Makes the only thread in the child of a fork (`sys/fork.rs`) a plain thread.
#[inline(never)]
pub(crate) extern "C" fn be_plain() {
    CARRIER.set(ptr::null());
}

/// The parker of the calling plain thread.
///
/// Only for threads that are not carriers: nothing on them ever switches.
#[inline(never)]
pub(crate) fn thread_parker() -> Arc<ThreadParker> {
    debug_assert!(current_fiber().is_none());
    // At the thread's end its thread-locals are gone, so this makes a parker for one use.
    PARKER
        .try_with(Arc::clone)
        .unwrap_or_else(|_| ThreadParker::new())
}

/// Calls `f`, which does not switch, with the time limits of the calling plain thread.
#[inline(never)]
pub(crate) fn of_thread<R>(f: impl FnOnce(&OfThread) -> R) -> R {
    OF_THREAD.with(|own| f(own))
}

/// The number of the calling plain thread, unique among all threads of the process so far.
#[inline(never)]
pub(crate) fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Relaxed) + 1);
    }
    NUMBER.get()
}

/// Makes the calling plain thread ignore time limits.
///
/// Called once by a plain thread that may run parts of several closures in turns.
#[inline(never)]
pub(crate) fn ignore_limits() {
    IGNORES_LIMITS.set(true);
}

#[inline(never)]
pub(crate) fn ignores_limits() -> bool {
    IGNORES_LIMITS.get()
}

/// Records that the calling thread, not a carrier, runs closures for fibers of this runtime.
///
/// Called once per thread.
#[inline(never)]
pub(crate) fn set_served(runtime: Weak<Shared>) {
    SERVED.with(|served| served.set(runtime).expect("a thread serves one runtime"));
    SERVES.set(true);
}

/// Records that no fiber waits for the calling thread from here on.
///
/// Called by the same thread after its last closure.
#[inline(never)]
pub(crate) fn serves_no_more() {
    SERVES.set(false);
}

/// Whether a fiber may wait for the calling thread, which is not a carrier.
#[inline(never)]
pub(crate) fn serves() -> bool {
    black_box(SERVES.get())
}

/// The runtime for whose fibers the calling thread, which is not a carrier, runs closures.
#[inline(never)]
pub(crate) fn served() -> Option<Arc<Shared>> {
    if fork::in_child() {
        return None; // it belongs to the parent
    }
    SERVED
        .try_with(|served| served.get().and_then(Weak::upgrade))
        .ok()?
}

/// The calling fiber and its carrier. Like an [`Entered`], it does not survive a switch.
pub(crate) struct Here {
    carrier: NonNull<Carrier>,
    pub(crate) fiber: FiberRef,
    /// Belongs to this thread.
    _not_send: PhantomData<*mut ()>,
}

/// Parks the calling plain thread.
///
/// At the thread's end its thread-locals are gone and no other thread can unpark it. The call then
/// waits for the deadline or, without one, yields: a park may end for no reason.
#[inline(never)]
pub(crate) fn park_thread(deadline: Option<Instant>, cancel: Cancel, signal: Signal) -> Woken {
    match PARKER.try_with(Arc::clone) {
        Ok(parker) => parker.park(deadline, cancel, signal),
        Err(_) if deadline.is_some() => ThreadParker::new().park(deadline, cancel, signal),
        Err(_) => {
            std::thread::yield_now();
            Woken::ByWake
        }
    }
}

/// The calling fiber and its carrier; `None` on plain threads.
#[inline]
pub(crate) fn here() -> Option<Here> {
    let carrier = NonNull::new(carrier().cast_mut())?;
    // SAFETY: a carrier outlives its thread (`Shared` keeps it).
    let fiber = unsafe { carrier.as_ref() }.current.get()?;
    Some(Here {
        carrier,
        fiber,
        _not_send: PhantomData,
    })
}

/// The fiber that calls this; `None` on plain threads.
pub(crate) fn current_fiber() -> Option<FiberRef> {
    here().map(|here| here.fiber)
}

impl Here {
    fn carrier(&self) -> &Carrier {
        // SAFETY: a carrier outlives its thread.
        unsafe { self.carrier.as_ref() }
    }

    fn entered(&self, worker: NonNull<Worker>) -> Entered {
        Entered {
            carrier: self.carrier,
            worker,
            _not_send: PhantomData,
        }
    }

    /// Enters the runtime if the carrier holds a worker.
    ///
    /// If the worker was taken, the caller does without one, like a plain thread.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Entered> {
        match self.carrier().owner.enter() {
            Some(worker) => Some(self.entered(worker)),
            None => {
                self.carrier().leave();
                None
            }
        }
    }

    /// Counts a checkpoint of the fiber; true if the fiber has to give way now.
    ///
    /// A fiber that calls this again and again need not be stopped in between.
    #[inline]
    pub(crate) fn passes_checkpoint(&self) -> bool {
        let preempt = &self.carrier().preempt;
        preempt
            .checkpoints
            .set(preempt.checkpoints.get().wrapping_add(1));
        self.carrier().is_asked() && self.carrier().takes_request()
    }

    /// Enters the runtime and, if the carrier's worker was taken, waits for another worker.
    #[inline]
    pub(crate) fn enter_with_worker(&self) -> Entered {
        match self.carrier().owner.enter() {
            Some(worker) => self.entered(worker),
            None => self.entered(self.carrier().ask_for_worker()), // preemption stays disabled
        }
    }
}

/// Keeps preemption of the calling thread disabled while it lives.
///
/// It works whether the thread has a worker or not, and has no effect on plain threads.
///
/// A thread has one of these or an [`Entered`] for as long as it holds an internal lock, or
/// something that other threads wait for: a fiber that is runnable and in no queue, a claimed
/// sleeper, half of a notification (S6). With preemption enabled a fiber can be stopped at any
/// instruction, for ever.
///
/// A request to stop that comes meanwhile is served when preemption is enabled again. So dropping
/// the guard must be the last step: locks are released first. It must not be held across a switch,
/// nor across the user's code, including destructors: [`assert_preemptible`].
#[must_use = "preemption is disabled only while this lives"]
pub(crate) struct PreemptGuard {
    carrier: *const Carrier,
    /// Belongs to this thread.
    _not_send: PhantomData<*mut ()>,
}

/// Disables preemption of the calling thread until the guard is dropped.
#[inline]
pub(crate) fn disable_preempt() -> PreemptGuard {
    let guard = PreemptGuard {
        carrier: carrier(),
        _not_send: PhantomData,
    };
    if let Some(carrier) = guard.carrier() {
        carrier.owner.disable();
    }
    guard
}

impl PreemptGuard {
    /// The carrier whose thread calls this; `None` on plain threads.
    #[inline]
    pub(crate) fn carrier(&self) -> Option<&Carrier> {
        // SAFETY: a carrier outlives its thread.
        unsafe { self.carrier.as_ref() }
    }

    /// The fiber that calls this; `None` on plain threads.
    #[inline]
    pub(crate) fn fiber(&self) -> Option<FiberRef> {
        self.carrier().and_then(|carrier| carrier.current.get())
    }

    /// Enters the runtime if the carrier holds a worker.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Entered> {
        let carrier = self.carrier()?;
        match carrier.owner.enter() {
            Some(worker) => Some(Entered {
                carrier: NonNull::from(carrier),
                worker,
                _not_send: PhantomData,
            }),
            None => {
                carrier.leave();
                None
            }
        }
    }

    /// Charges the budget for an operation that could block; false if the budget is used up.
    ///
    /// The caller then enables preemption and is charged in the ordinary way.
    #[inline]
    pub(crate) fn pays(&self) -> bool {
        let Some(carrier) = self.carrier() else {
            return true; // plain threads are not charged
        };
        let left = carrier.budget.get();
        if left > 0 {
            carrier.budget.set(left - 1);
        }
        left > 0
    }

    /// The runtime of the calling carrier.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.carrier().map(Carrier::shared)
    }
}

impl Drop for PreemptGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier() {
            carrier.leave();
        }
    }
}

/// Whether the caller cannot be stopped: preemption is disabled, or this is a plain thread.
pub(crate) fn is_preempt_disabled() -> bool {
    // SAFETY: a carrier outlives its thread.
    unsafe { carrier().as_ref() }.is_none_or(|carrier| carrier.owner.depth() > 0)
}

/// Asserts that preemption is enabled before the user's code is called on a fiber.
#[inline]
pub(crate) fn assert_preemptible() {
    debug_assert!(
        here().is_none_or(|here| here.carrier().owner.depth() == 0),
        "the user's code is called with preemption disabled"
    );
}

/// The right to use the worker of this carrier.
///
/// While it lives preemption is disabled: no thread takes the worker, and the fiber is not
/// interrupted.
pub(crate) struct Entered {
    carrier: NonNull<Carrier>,
    worker: NonNull<Worker>,
    /// Belongs to this thread.
    _not_send: PhantomData<*mut ()>,
}

impl Entered {
    pub(crate) fn carrier(&self) -> &Carrier {
        // SAFETY: a carrier outlives its thread.
        unsafe { self.carrier.as_ref() }
    }

    pub(crate) fn worker(&self) -> &Worker {
        // SAFETY: workers live as long as `Shared`, which the carrier's thread keeps.
        unsafe { self.worker.as_ref() }
    }

    /// The part of the worker that only its holder uses.
    pub(crate) fn local(&mut self) -> &mut Local {
        // SAFETY: I7: while preemption is disabled only this thread has the worker; and the token
        // is borrowed mutably, tokens are not `Clone`, and `enter` nests only over code that holds
        // no such reference (user code).
        unsafe { &mut *self.worker().local.get() }
    }

    /// Publishes how many stacks this worker keeps.
    #[inline]
    pub(crate) fn show_stacks(&mut self) {
        let cached = self.local().stacks.len();
        self.worker().stacks_cached.store(cached, Relaxed);
    }

    /// Gives up the token but leaves preemption disabled, for the other side of a switch.
    fn pass_on(self) {
        std::mem::forget(self);
    }

    /// Makes the token of a thread on which preemption is already disabled.
    ///
    /// The other side of a switch has passed that on, or preemption was never enabled.
    #[inline]
    pub(crate) fn resumed() -> Entered {
        let carrier = NonNull::new(carrier().cast_mut()).expect("a fiber runs on a carrier");
        Entered::resumed_on(carrier)
    }

    /// Makes the token of a carrier that holds a worker: no thread takes it while preemption is
    /// disabled.
    #[inline]
    fn resumed_on(carrier: NonNull<Carrier>) -> Entered {
        // SAFETY: a carrier outlives its thread.
        let owner = unsafe { &carrier.as_ref().owner };
        let worker = owner.peek().unwrap_or_else(|| owner.await_give_back());
        Entered {
            carrier,
            worker,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        self.carrier().leave();
    }
}

/// Enters the runtime from a fiber whose carrier holds a worker; see [`Here::enter`].
#[inline]
pub(crate) fn enter() -> Option<Entered> {
    here()?.enter()
}

/// Leaves the fiber's stack for the scheduler's; returns when the fiber runs again.
#[inline]
pub(crate) fn switch(token: Entered, fiber: FiberRef, back: Back) -> Entered {
    debug_assert_eq!(
        token.carrier().owner.depth(),
        1,
        "preemption disabled across a switch"
    );
    token.pass_on();
    // SAFETY: callers pass the fiber they run on.
    unsafe { switch::suspend(fiber, back) };
    Entered::resumed()
}

/// Like [`switch`], for a fiber that was interrupted at the instruction in `registers`.
pub(crate) fn switch_at(token: Entered, fiber: FiberRef, registers: &[usize; 3]) -> Entered {
    debug_assert_eq!(
        token.carrier().owner.depth(),
        1,
        "preemption disabled across a switch"
    );
    token.pass_on();
    // SAFETY: callers pass the fiber they run on, and a frame below which they stand.
    unsafe { switch::suspend_at(fiber, Back::Interrupted, registers) };
    Entered::resumed()
}

/// Runs a fiber from the scheduler until it comes back.
///
/// # Safety
/// As for [`switch::resume`].
#[inline]
pub(crate) unsafe fn resume(
    token: Entered,
    fiber: FiberRef,
    body: switch::Body,
) -> (Entered, Back) {
    // This stack is the thread's own, so the carrier stays; which worker it holds may change.
    let carrier = token.carrier;
    token.pass_on();
    // SAFETY: by the caller's promise.
    let back = unsafe { switch::resume(fiber, body) };
    (Entered::resumed_on(carrier), back)
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use crate::park;
    use crate::runtime::{Builder, Runtime};
    #[cfg(debug_assertions)]
    use crate::util::loom::{Mutex, lock};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn runtime() -> Runtime {
        Builder::new().workers(1).build().expect("a runtime")
    }

    /// How many times preemption is disabled on the calling thread.
    fn depth() -> u32 {
        let guard = disable_preempt();
        guard
            .carrier()
            .map_or(0, |carrier| carrier.owner.depth() - 1)
    }

    /// Records, when it is dropped, whether preemption was disabled.
    struct Drops(Arc<[AtomicUsize; 2]>);

    impl Drop for Drops {
        fn drop(&mut self) {
            self.0[usize::from(depth() > 0)].fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_mark_nests_and_is_down_again_after_the_last() {
        runtime().block_on(|| {
            assert_eq!(depth(), 0);
            let outer = disable_preempt();
            let token = enter();
            assert_eq!(depth(), 1 + u32::from(token.is_some()));
            drop((token, outer));
            assert_eq!(depth(), 0);
            park::unparker().unpark();
            park::park();
            assert_eq!(depth(), 0, "after an operation that blocks");
        });
        assert_eq!(depth(), 0, "a plain thread has none");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_that_a_fiber_takes_without_the_mark_is_noticed() {
        runtime().block_on(|| {
            let mutex = Mutex::new(());
            let without = || drop(lock(&mutex));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(without)).is_err());
            let _guard = disable_preempt();
            drop(lock(&mutex));
        });
    }

    #[test]
    fn destructors_of_the_user_run_with_the_mark_down() {
        let seen = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let drops = || Drops(seen.clone());
        let rt = runtime();
        let handle = rt.handle().clone();
        rt.block_on(|| {
            let value = drops();
            drop(crate::spawn(move || value)); // by the fiber, or by us, whichever comes last
            let value = drops();
            let done = crate::spawn(move || value);
            while !done.is_finished() {
                crate::task::yield_now();
            }
            drop(done); // by us
            let value = drops();
            let unwinds =
                crate::spawn(move || -> () { std::panic::resume_unwind(Box::new(value)) });
            drop(unwinds.join());
        });
        let value = drops();
        drop(rt.spawn(move || {
            park::park();
            drop(value);
        }));
        drop(rt); // unwinds, or is dropped before it has started
        let value = drops();
        drop(handle.spawn(move || drop(value))); // refused
        assert_eq!(seen.each_ref().map(|n| n.load(SeqCst)), [5, 0]);
    }
}
