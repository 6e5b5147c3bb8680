#![expect(
    unsafe_code,
    reason = "looks at registers and stacks of interrupted fibers"
)]
//! Takes a fiber off its thread at an arbitrary instruction outside of regions (I35).
//!
//! `in_place.rs` does this where the author of the code has promised that nothing of the thread is
//! in use. Here there is no promise, so everything is proved or looked up. If anything is missing,
//! the fiber freezes together with its thread (S1). Off unless `Builder::preempt_in_place` switches
//! it on.
//!
//! **I35** A fiber is taken off its thread outside of a region only if
//! - A1. it is asked to give way in this dispatch, preemption is enabled, its carrier holds a
//!   worker, and it is in no `no_preempt` section: as for a freeze;
//! - A2. it does not unwind, is not pinned, and stands on its own stack with enough room below: as
//!   in a region;
//! - A3. fibers have their own thread-locals, the verdicts count on that, the program's allocator
//!   cannot hold a lock in Rust code and calls nothing through pointers, and the processor can save
//!   its registers (XSAVE): else the setting does nothing, and one line on standard error reports
//!   that;
//! - A4. every frame from the interrupted one up to the root is one of a movable Rust function of
//!   the executable that belongs neither to the runtime nor to the allocator, and the unwind rows
//!   lead exactly to the root (`frames::TraceCache::judge_anywhere`);
//! - A5. the interrupted function itself does not have the address of a thread-local between two
//!   instructions, and uses no thread-local that stays with the thread;
//! - A6. no eight bytes of its registers, vector registers included, or of its stack from the red
//!   zone up to the root are an address in the memory of the thread (stack, thread-locals, control
//!   block) or of its carrier;
//! - A7. the control words of the floating-point units are those with which the thread began.
//!
//! Then it is movable, and continues on any thread. Why that is sound:
//! - Frames that wait for a call hold nothing of the thread, by the same verdicts as at a park
//!   (S5). One thing is different here. At a park, code of the runtime that was inlined into a
//!   caller has let go of its carrier; at an arbitrary instruction, in the frame itself or below
//!   it, it may still refer to it. With preemption enabled such code has nothing of the thread but
//!   the address of the carrier or of a part of it (a worker can only be had with preemption
//!   disabled, I9), and A6 finds that.
//! - The interrupted frame may hold more than at a call. By A5 it has no reason to; A6 looks.
//! - A thread-local of its own may be half-written: its bytes go with the fiber
//!   (`fiber/locals.rs`), and so does the rest of the computation, in the registers.
//! - `errno`, all registers, MXCSR and the x87 control word are restored when it continues.
//! - It may hold a lock. Fibers that wait for it block their threads in the kernel, which are then
//!   detached, or they spin and are preempted; the holder is runnable, movable, and gets its turn.
//!   A fiber leaves only while there is a spare thread. If the system refuses threads afterwards,
//!   as many waiters as there are threads can keep the holder from its turn (docs/limits.md). The
//!   scheduler itself waits for no lock but the allocator's (S9), which A3 and A4 exclude.
//!
//! What hostile code may try, each with the rule that stops it:
//! - the address of a thread-local in a register, a local variable, a packed structure: A5, A6
//! - the same in the heap, or in another thread-local: the function that put it there binds its
//!   callers: A4
//! - the thread pointer, or an address in the block with an offset still to be added: A6, as long
//!   as it is inside the thread's memory
//! - an address disguised by arithmetic: the function that took it is bound or near: A4, A5
//! - `gettid`, a C library's last error, a locale, a recursive C mutex: bound by name: A4
//! - state that C keeps while it calls back into Rust: a frame outside of the executable or
//!   without a Rust name: A4
//! - a lock of the allocator's: A3, A4
//! - a changed rounding mode: bound by its instructions: A4; A7
//! - a coroutine of its own, a signal handler on the fiber's stack: A2; the rows do not lead to
//!   the root: A4
//! - a destructor of a thread-local, code that changes its thread: pinned: A2

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent_sysmon::frames::{self, Judge, Registers, Stack};

use crate::fiber::{FiberRef, switch};
use crate::sched::mobility::verdict;
use crate::sched::threads::carrier::Carrier;
use crate::sched::{Settings, Shared};
use crate::sys::arch::At;
use crate::sys::redirect::{self, Controls};
use crate::sys::signal::c_void;
use crate::sys::{self, stderr};
use crate::util::loom::atomic;
use crate::util::search;

/// Bytes below the stack pointer that belong to the interrupted code.
const RED_ZONE: usize = 128;
/// Used bytes of a stack above which it takes too long to search.
const DEEPEST: usize = 1 << 20;

/// Addresses and control words of a thread, which a fiber that leaves it must not keep.
pub(crate) struct Identity {
    /// Its stack, its thread-locals and its control block.
    memory: Range<usize>,
    /// Its carrier.
    carrier: Range<usize>,
    /// The control words that fibers begin with.
    controls: Controls,
}

impl Identity {
    /// Returns the identity of the calling thread, which is that of the carrier.
    pub(crate) fn of(carrier: &Carrier) -> Option<Identity> {
        let start = ptr::from_ref(carrier).addr();
        Some(Identity {
            memory: sys::thread::memory()?,
            carrier: start..start + size_of::<Carrier>(),
            controls: Controls::now(),
        })
    }

    /// Returns whether the memory holds an address of the thread or its carrier (A6).
    ///
    /// # Safety
    /// The memory is mapped, and only the calling thread writes to it.
    unsafe fn is_in(&self, memory: &Range<usize>) -> bool {
        let mut ranges = [&self.memory, &self.carrier].into_iter();
        // SAFETY: by the caller's promise.
        ranges.any(|range| unsafe { search::find(memory, range) }.is_some())
    }
}

impl Settings {
    /// Returns whether the settings let fibers leave their thread outside of regions.
    pub(crate) fn leaves_anywhere(&self) -> bool {
        self.preempt && self.preempt_in_place && self.own_locals
    }
}

impl Carrier {
    /// Returns the control words that other fibers get, if the fiber may leave its thread.
    ///
    /// Called in the handler, which has disabled preemption. The carrier holds a worker, and its
    /// fiber is in no region, on its own stack, with room below.
    ///
    /// # Safety
    /// `context` is the third argument of the running handler, and `at` describes its contents;
    /// `fiber` was interrupted there.
    pub(crate) unsafe fn leaves_anywhere(
        &self,
        fiber: FiberRef,
        context: *mut c_void,
        at: &At,
    ) -> Option<Controls> {
        if !self.shared().settings.leaves_anywhere() {
            return None;
        }
        let identity = self.own().identity.as_ref()?;
        let pinned = fiber.pins.load(atomic::Ordering::Relaxed) > 0;
        if pinned || verdict::is_everything_bound() {
            return None;
        }
        // SAFETY: by the caller's promise.
        let held = unsafe { redirect::held(context) }?;
        if !held.controls.are_like(identity.controls) {
            return None;
        }
        // SAFETY: it does not run on meanwhile.
        let stands = unsafe { switch::running(fiber, [at.code, at.stack, at.frame]) };
        let used = at.stack - RED_ZONE..stands.root;
        if stands.root <= at.stack || used.len() > DEEPEST {
            return None;
        }
        // SAFETY: the part of its stack that it uses; this thread's.
        let stack = unsafe { Stack::new(stands.stack) };
        let worker = self.owner.peek()?;
        // SAFETY: workers live as long as `Shared`.
        let local = unsafe { worker.as_ref() }.local.get();
        // SAFETY: I7: preemption is disabled, and was enabled: no code on this thread has a token.
        let traces = unsafe { &mut (*local).traces };
        let start = Registers::interrupted(at.code, at.stack, at.frame);
        if !traces.judge_anywhere(&start, &stack, stands.root) {
            return None;
        }
        let mut parts = held.parts.iter();
        // SAFETY: the kernel's copy of the registers, for the time of the handler.
        if parts.any(|part| unsafe { identity.is_in(part) }) {
            return None;
        }
        // SAFETY: the fiber's stack, with room below; the fiber does not run on meanwhile.
        if unsafe { identity.is_in(&used) } {
            return None;
        }
        Some(held.controls)
    }
}

impl Shared {
    /// Finds out where fibers may leave their thread, if the setting asks for that.
    ///
    /// Called on the collector's thread, when all code has been read. Prints one line if the
    /// setting has no effect (A3).
    pub(crate) fn explain_in_place(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let settings = &self.settings;
        if !settings.preempt || !settings.preempt_in_place {
            return;
        }
        let refusal = frames::judge().and_then(Judge::refuses_in_place);
        let why = has_no_effect(settings.own_locals, redirect::room_needed(), refusal);
        if let Some(why) = why
            && !SAID.swap(true, Relaxed)
        {
            stderr::print(&format!(
                "indent: preempt_in_place has no effect in this program: {why}\n"
            ));
        }
    }
}

/// Returns why fibers keep their threads although the setting is on, if they do.
///
/// `room` is what a redirected fiber needs on its stack, `refusal` the objection in the program's
/// code.
fn has_no_effect(
    own_locals: bool,
    room: Option<usize>,
    refusal: Option<&'static str>,
) -> Option<&'static str> {
    match room {
        _ if !own_locals => Some("thread-locals belong to threads"),
        None => Some("the processor or the kernel has no XSAVE"),
        Some(_) => refusal,
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn where_the_setting_has_no_effect_the_reason_is_found() {
        assert_eq!(has_no_effect(true, Some(4096), None), None);
        let refusal = Some("its allocator may hold a lock");
        assert_eq!(has_no_effect(true, Some(4096), refusal), refusal);
        let without_xsave = has_no_effect(true, None, None).expect("a reason");
        assert!(without_xsave.contains("XSAVE"));
        let without_locals = has_no_effect(false, Some(4096), None).expect("a reason");
        assert!(without_locals.contains("thread-locals"));
    }
}
