#![expect(unsafe_code, reason = "sends interrupted fibers somewhere else")]
//! Takes a fiber off its thread at an arbitrary instruction, where its author allows it ([S2]).
//!
//! A *region* is the time of one call of `runtime::preemptible`. A fiber that is to give way inside
//! a region need not take its thread along: the handler makes it appear to have called
//! [`yield_in_place`], which switches like any yield (`sys/redirect.rs` is the machine-dependent
//! part). A fiber that waits in place costs some kilobytes of its own stack, and no thread.
//!
//! **I21** A fiber is redirected only if
//! - it is asked to give way in this dispatch, preemption is enabled, and it holds a worker: as for
//!   a freeze;
//! - it is in a region, does not unwind, and stands on its own stack with enough room below;
//! - every frame from the interrupted one up to the region's lies in the executable, can be unwound
//!   by its unwind row, is movable ([S5]), and is no function of the runtime: so neither the frames
//!   nor the registers hold anything of the thread. That nothing is held *around* the region is the
//!   author's promise. A frame that leads to a function of the runtime, or to one that keeps the
//!   address of a thread-local to itself, may have just been given something: then the fiber keeps
//!   its thread.
//!
//! The handler disables preemption, and it stays disabled until `yield_in_place` has passed that
//! duty to the scheduler. In between no thread takes the worker, and another signal finds
//! preemption disabled. Afterwards the fiber is runnable, with a note of what its whole stack
//! allows, as the handler found it. It is movable only if all its frames are and no function inside
//! the region itself leads to the runtime: code of the runtime that was inlined into such a
//! function may just have asked which thread it is on.
//!
//! A fiber in this state is never dropped or unwound. It is resumed, continues with the interrupted
//! instruction, and ends, is cancelled or parks like any other.
//!
//! Some state belongs to the thread and may be half-used at any instruction. The fiber restores it
//! when it comes back: `errno` itself, and through the trampoline all registers with MXCSR and the
//! x87 control word. Meanwhile other fibers see the control words of the moment when the region was
//! entered.
//!
//! [S2]: docs/invariants.md
//! [S5]: docs/invariants.md

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

use indent_sysmon::frames::{self, Registers, Stack};

use crate::fiber::FiberRef;
use crate::fiber::stack::StackHead;
use crate::fiber::switch;
use crate::sched::diag::overrun::Kind;
use crate::sched::mobility::verdict;
use crate::sched::preempt::class;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::context::{self, Entered};
use crate::sys::arch::At;
use crate::sys::errno;
use crate::sys::redirect::{self, Controls, Saved, redirect};
use crate::sys::signal::c_void;
use crate::util::loom::atomic;

/// An open region, stored in a frame of its fiber.
pub(crate) struct Region {
    /// The stack pointer just before the outermost function inside was called.
    top: usize,
    /// The control words that other fibers of the thread see.
    controls: Controls,
    outer: *const (),
}

/// Guard of an open region; dropping it closes the region.
pub(crate) struct Inside {
    /// Null on a plain thread.
    head: *const StackHead,
    outer: *const (),
    /// The guard belongs to this fiber.
    _not_send: PhantomData<*mut ()>,
}

impl Region {
    /// Creates a region that is not open yet.
    ///
    /// `top` is the stack pointer with which its outermost function will be called.
    #[inline(never)]
    pub(crate) fn new(top: usize) -> Self {
        let outer = match context::current_fiber() {
            // SAFETY: the caller's own fiber, which runs here.
            Some(fiber) => unsafe { StackHead::region(head(fiber)) },
            None => ptr::null(),
        };
        Region {
            top,
            controls: Controls::now(),
            outer,
        }
    }

    /// Opens the region for the calling fiber.
    ///
    /// The region must not move while it is open.
    #[inline(never)]
    pub(crate) fn open(&self) -> Inside {
        let head = context::current_fiber().map_or(ptr::null(), head);
        if !head.is_null() {
            // If it lies on another stack, one of the program's own, the handler ignores it.
            // SAFETY: the caller's own fiber, which runs here.
            unsafe { StackHead::set_region(head, ptr::from_ref(self).cast()) };
        }
        Inside {
            head,
            outer: self.outer,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Inside {
    #[inline(never)]
    fn drop(&mut self) {
        if !self.head.is_null() {
            compiler_fence(SeqCst);
            // SAFETY: made and dropped by the fiber whose stack it is.
            unsafe { StackHead::set_region(self.head, self.outer) };
        }
    }
}

fn head(fiber: FiberRef) -> *const StackHead {
    fiber.stack.load(atomic::Ordering::Relaxed)
}

/// Marks the stack of a fiber that begins as being in no region.
#[inline]
pub(crate) fn begin(stack: NonNull<StackHead>) {
    // SAFETY: just taken off its list, for a fiber that does not run yet.
    unsafe { StackHead::set_region(stack.as_ptr(), ptr::null()) };
}

impl Carrier {
    /// Redirects the interrupted fiber if that is allowed.
    ///
    /// Called in the handler, which has disabled preemption; the carrier holds a worker. Returns
    /// true if its fiber will leave the thread when the handler returns: then preemption stays
    /// disabled until it has.
    ///
    /// # Safety
    /// `context` is the third argument of the running handler, and `at` describes its contents.
    pub(crate) unsafe fn redirect(&self, context: *mut c_void, at: &At) -> bool {
        let Some(fiber) = self.current.get() else {
            return false;
        };
        let head = head(fiber);
        // SAFETY: a fiber that runs has a stack, and it is interrupted on this thread.
        let lowest = unsafe { StackHead::lowest_of(head) };
        if !has_room(at.stack, lowest, head.addr()) {
            return false;
        }
        // SAFETY: as above.
        let region = unsafe { StackHead::region(head) }.cast::<Region>();
        // The region must be around the interrupted frame. A region on another stack, or one that a
        // fiber on another stack has left behind, does not count.
        if region.addr() <= at.stack || region.addr() >= head.addr() {
            // SAFETY: by the caller's promise; there is room.
            return unsafe { self.redirect_anywhere(fiber, context, at) };
        }
        // SAFETY: in a frame of the fiber above the interrupted one, so it is still there.
        let region = unsafe { &*region };
        if std::thread::panicking() {
            return false;
        }
        // SAFETY: as above.
        let Some(found) = (unsafe { self.judge_interrupted(fiber, at, region) }) else {
            return false;
        };
        verdict::note_interrupted(fiber, found);
        // SAFETY: by the caller's promise; there is room, and I21.
        unsafe { redirect(context, yield_in_place, region.controls) };
        true
    }

    /// Redirects a fiber that is in no region.
    ///
    /// # Safety
    /// As for `redirect`; the fiber was interrupted on its own stack, with room below.
    unsafe fn redirect_anywhere(&self, fiber: FiberRef, context: *mut c_void, at: &At) -> bool {
        // The fiber may hold a lock. A worker whose fiber waits for that lock in the kernel needs
        // another thread to run the holder. Without a spare thread the fiber freezes with its own.
        if std::thread::panicking() || self.shared().spares.is_empty() {
            return false;
        }
        // SAFETY: by the caller's promise.
        let Some(controls) = (unsafe { self.leaves_anywhere(fiber, context, at) }) else {
            return false;
        };
        verdict::note_left(fiber);
        // SAFETY: by the caller's promise, and I35.
        unsafe { redirect(context, yield_anywhere, controls) };
        true
    }

    /// Returns what the frames of the interrupted fiber allow, if it may be redirected.
    ///
    /// # Safety
    /// It was interrupted on this thread at `at`, which lies on its stack. The caller is the
    /// handler, and preemption is disabled.
    unsafe fn judge_interrupted(
        &self,
        fiber: FiberRef,
        at: &At,
        region: &Region,
    ) -> Option<frames::Mobility> {
        let worker = self.owner.peek()?;
        let registers = [at.code, at.stack, at.frame];
        // SAFETY: it does not run on meanwhile.
        let stands = unsafe { switch::running(fiber, registers) };
        // SAFETY: the part of its stack that it uses; this thread's.
        let stack = unsafe { Stack::new(stands.stack) };
        // SAFETY: workers live as long as `Shared`.
        let local = unsafe { worker.as_ref() }.local.get();
        // SAFETY: I7: preemption is disabled, and was enabled: no code on this thread has a token.
        let traces = unsafe { &mut (*local).traces };
        let start = Registers::interrupted(at.code, at.stack, at.frame);
        traces.judge_region(&start, &stack, region.top, stands.root)
    }
}

/// Returns whether the stack pointer is on the stack, with room for a redirected fiber.
fn has_room(stack: usize, lowest: usize, head: usize) -> bool {
    let Some(needed) = redirect::room_needed() else {
        return false;
    };
    stack < head && stack.is_multiple_of(8) && stack.checked_sub(lowest) >= Some(needed)
}

/// Lets other fibers run; the interrupted code appears to have called it.
///
/// The handler has disabled preemption.
extern "C" fn yield_in_place(saved: &Saved) {
    yield_as(saved, false);
}

/// Lets other fibers run, for a fiber outside of regions.
extern "C" fn yield_anywhere(saved: &Saved) {
    yield_as(saved, true);
}

fn yield_as(saved: &Saved, anywhere: bool) {
    let errno = errno::get();
    let token = Entered::resumed();
    let carrier = token.carrier();
    let fiber = carrier.current.get().expect("a fiber was interrupted here");
    let counters = &carrier.shared().preempted;
    counters.in_place.fetch_add(1, Relaxed);
    if anywhere {
        counters.anywhere.fetch_add(1, Relaxed);
    }
    carrier.outside_region.set(anywhere); // read by the scheduler
    let registers = saved.registers();
    carrier.note_overrun(Kind::InPlace, registers);
    let run_time = carrier.run_time.put_aside(); // the fiber has not yielded by itself
    let token = context::switch_at(token, fiber, &registers);
    token.carrier().run_time.resume(run_time);
    drop(token);
    errno::set(errno);
}

/// Classifies a fiber that left its thread in place, on the scheduler's side.
///
/// The fiber is judged already. `counted`: its CPU time is already part of its CPU score.
#[cold]
pub(crate) fn came_back(token: &Entered, fiber: FiberRef, counted: bool) {
    if !token.carrier().outside_region.get() {
        class::be_batch(&fiber); // its author knows that it computes
    } else if !counted {
        // as after a freeze: other fibers come first if it continues to compute
        class::raise_score(&fiber, 1);
    }
    token
        .carrier()
        .shared()
        .monitor_notified
        .store(false, Relaxed); // the next urgent request reaches the monitor at once
}
