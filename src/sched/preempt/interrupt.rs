#![expect(unsafe_code, reason = "a signal handler")]
//! The signal that interrupts a fiber: which threads send it, and what its handler does.
//!
//! A thread that wants a carrier to freeze (the monitor, or a waker of a fiber that should not have
//! to wait) writes the *stamp* of the dispatch it means into the carrier's request and signals the
//! carrier's thread. The handler looks at the request and at the interrupted code, in this order:
//!
//! 1. Preemption is disabled: it leaves the request. The code that enables preemption again looks
//!    at it ([S13]).
//! 2. The interrupted code sleeps in the kernel: nothing; another thread can take the worker
//!    instead.
//! 3. The request is for another dispatch: nothing; it came late.
//! 4. The interrupted code belongs to libc, the loader or the kernel: the handler tries again a
//!    little later, a few times, because that is where locks of the allocator are held.
//! 5. The fiber has passed a checkpoint since the last request: it will see this request at the
//!    next one, and yield.
//! 6. The fiber is in a region where it may leave its thread at any instruction: it does
//!    (`in_place.rs`).
//! 7. Otherwise the carrier freezes (`freeze.rs`).
//!
//! The handler may do little ([S7]): it runs between any two instructions, perhaps inside the
//! allocator. It takes no lock, allocates nothing, preserves `errno`, and finds its carrier by the
//! number of its thread, not by a thread-local. It runs on the carrier's own alternate stack. If
//! the interrupted code was on that stack already, that code is another handler, and the request
//! stays for later.
//!
//! A signal that is not the runtime's goes to the handler that was installed before ([S11]). The
//! runtime's signals carry a value that no other sender uses. Which thread of the runtime sent one
//! does not matter, since the kernel merges two signals that are pending together.
//!
//! [S7]: docs/invariants.md
//! [S11]: docs/invariants.md
//! [S13]: docs/invariants.md

use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicI32,
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};
use std::time::Duration;

use indent_sysmon::TICK;

use crate::sched::diag::overrun::Kind;
use crate::sched::preempt::freeze::WITHOUT_WORKER;
use crate::sched::threads::by_number;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::sys::arch;
use crate::sys::signal::{self, Previous, c_int, c_void, siginfo_t};
use crate::sys::{errno, program, redirect};

/// How often a freeze is put off outside the program's code; `TRY_AGAIN` is the delay.
///
/// Ordinary code may spend half of its time there, so a few tries are not enough to get out of a
/// lock of the allocator.
const TRIES: u32 = 16;
const TRY_AGAIN: Duration = Duration::from_micros(10);

/// Bit in a request: the carrier is to report where it is (`overrun.rs`), and continue.
///
/// No stamp has this bit.
pub(crate) const LOOK: u64 = 1 << 63;

/// Looks of the monitor after which a signal counts as unanswered.
const UNANSWERED: u32 = 5;

/// The signal in use, or zero.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static BEFORE: OnceLock<Previous> = OnceLock::new();

/// Installs the handler, once per process.
///
/// The signal of the first runtime that calls this is the signal of all runtimes.
pub(crate) fn prepare(signal: c_int) -> std::io::Result<()> {
    static ONCE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = ONCE.lock().unwrap_or_else(|e| e.into_inner());
    if SIGNAL.load(SeqCst) == 0 {
        program::find();
        redirect::prepare();
        let before = signal::current(signal)?;
        let _ = BEFORE.set(before); // before the first signal can arrive
        signal::install_restarting(signal, on_signal)?;
        SIGNAL.store(signal, SeqCst);
    }
    Ok(())
}

/// Returns the signal that interrupts fibers; zero if no runtime has installed one.
pub(crate) fn signal() -> c_int {
    SIGNAL.load(Relaxed)
}

/// Returns whether the installed handler is the runtime's; true if none is needed.
pub(crate) fn is_in_place() -> bool {
    let signal = signal();
    signal == 0 || signal::is_installed(signal, on_signal)
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let errno = errno::get();
    // SAFETY: the argument of a running handler.
    if !unsafe { is_ours(info) } {
        if let Some(before) = BEFORE.get() {
            before.pass_on(signal, info, context);
        }
    } else if let Some(carrier) = by_number::carrier() {
        // SAFETY: as above.
        unsafe { carrier.interrupted(context) };
    }
    errno::set(errno);
}

/// Returns whether the runtime sent this signal.
///
/// # Safety
/// `info` is the argument of a running handler.
unsafe fn is_ours(info: *mut siginfo_t) -> bool {
    // SAFETY: by the caller's promise.
    if unsafe { signal::was_sent_with(info, ours()) } {
        return true;
    }
    // SAFETY: by the caller's promise.
    let lost = unsafe { signal::has_lost_its_value(info) };
    let asked = |carrier: &Carrier| carrier.preempt.request.is_some();
    lost && by_number::carrier().is_some_and(asked)
}

/// The value the runtime's signals carry: an address no other sender has.
pub(crate) fn ours() -> usize {
    (&raw const BEFORE).addr()
}

impl Carrier {
    /// Asks for a freeze in this dispatch of the worker the carrier holds.
    ///
    /// May be called on any thread. Sends no signal if the request is already there.
    pub(crate) fn ask_to_freeze(&self, stamp: u64) {
        if self.preempt.request.replace(stamp) {
            self.send();
        }
    }

    /// Asks for a freeze, and sends the signal again until it is answered.
    ///
    /// Called on the monitor's thread, at each look.
    pub(crate) fn ask_again(&self, stamp: u64) {
        let preempt = &self.preempt;
        if preempt.request.replace(stamp) {
            preempt.asked.store(0, Relaxed);
        } else if preempt.asked.fetch_add(1, Relaxed) + 1 == UNANSWERED {
            self.shared().preempted.unanswered.fetch_add(1, Relaxed);
        }
        if preempt.refused.load(Relaxed) != stamp {
            self.send();
        }
    }

    /// Allows requests to be signalled again: the fiber can be interrupted.
    ///
    /// Called on the own thread.
    pub(crate) fn asks_may_come_again(&self) {
        self.preempt.refused.store(0, Relaxed);
    }

    /// Sends the signal.
    pub(crate) fn send(&self) {
        self.thread.signal_with(signal(), ours());
    }

    /// Handles the signal on the carrier's thread.
    ///
    /// # Safety
    /// `context` is the third argument of the running handler.
    unsafe fn interrupted(&self, context: *mut c_void) {
        let request = self.preempt.request.get();
        // SAFETY: by the caller's promise.
        let at = unsafe { arch::interrupted(context) };
        if self.owner.depth() > 0 || self.on_signal_stack(at.stack) {
            return; // the request stays
        }
        if at.in_kernel {
            // The thread slept in the kernel. It is not interrupted again before the monitor sees
            // it run.
            self.preempt.long.store(0, Relaxed);
            self.preempt.request.withdraw(request);
            return;
        }
        self.owner.disable();
        let registers = [at.code, at.stack, at.frame];
        // SAFETY: by the caller's promise; and preemption was enabled.
        let in_place = || unsafe { self.redirect(context, &at) };
        if self.follow_request(!program::contains(at.code), registers, in_place) {
            return; // preemption stays disabled: `in_place.rs` takes over
        }
        self.owner.leave();
    }

    /// Follows a request that came while preemption was disabled.
    ///
    /// Called after preemption has been enabled.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_request(&self) {
        for _ in 0..2 {
            self.owner.disable();
            if self.current.get().is_some() {
                // S13: never switches the fiber.
                self.follow_request(false, arch::registers(), || false);
            }
            self.owner.leave();
            compiler_fence(SeqCst); // a request from here on finds preemption enabled
            if !self.preempt.request.is_some() {
                return;
            }
        }
    }

    /// Freezes the carrier if the request asks for that now.
    ///
    /// Called with preemption disabled, which was enabled a moment before, in code with these
    /// registers. Returns true if the fiber will leave its thread instead, because `in_place`
    /// returned true.
    fn follow_request(
        &self,
        foreign_code: bool,
        registers: [usize; 3],
        in_place: impl FnOnce() -> bool,
    ) -> bool {
        let request = self.preempt.request.get();
        if self.shared().is_stopping() {
            self.preempt.request.withdraw(request); // the frozen carrier would get no worker
            return false;
        }
        let worker = self.owner.peek();
        // SAFETY: workers live as long as `Shared`.
        let stamp = worker.map_or(WITHOUT_WORKER, |worker| unsafe { worker.as_ref() }.stamp());
        if request == stamp | LOOK && request != WITHOUT_WORKER {
            if self.preempt.request.withdraw(request) {
                self.note_overrun(Kind::Noticed, registers);
            }
            return false;
        }
        if request != stamp || self.current.get().is_none_or(|fiber| fiber.in_no_preempt()) {
            if request != stamp {
                self.preempt.request.withdraw(request); // late
            } else {
                self.preempt.refused.store(stamp, Relaxed); // the end of the section looks at it
            }
            return false;
        }
        self.asks_may_come_again(); // whatever becomes of this request
        if foreign_code && self.puts_off(stamp) || self.comes_by_itself() {
            return false;
        }
        if worker.is_some() && in_place() {
            self.preempt.request.withdraw(request);
            return true;
        }
        let frozen = match worker {
            // SAFETY: workers live as long as `Shared`.
            Some(worker) => self.freeze(unsafe { worker.as_ref() }, foreign_code, registers),
            None => {
                self.freeze_without_worker(foreign_code, registers);
                true
            }
        };
        if !frozen {
            self.preempt.request.withdraw(request); // the requesting thread asks again
        }
        false
    }

    /// Returns whether the fiber has passed a checkpoint since the last request to freeze.
    ///
    /// If so it finds this request at the next checkpoint.
    fn comes_by_itself(&self) -> bool {
        let (passed, preempt) = (self.preempt.checkpoints.get(), &self.preempt);
        let now = self.shared().clock.nanos();
        if preempt.known_checkpoints.replace(passed) != passed {
            preempt.known_at.set(now);
            return true;
        }
        now.saturating_sub(preempt.known_at.get()) < TICK.as_nanos() as u64
    }

    /// Returns whether there is a request, for this dispatch or an earlier one; own thread.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.preempt.request.is_some()
    }

    /// Takes a request for this dispatch, so that the fiber yields. Other requests stay.
    ///
    /// Called on the own thread, in a fiber that may yield.
    #[cold]
    pub(crate) fn takes_request(&self) -> bool {
        let worker = self.owner.peek();
        // SAFETY: workers live as long as `Shared`.
        let stamp = worker.map_or(WITHOUT_WORKER, |worker| unsafe { worker.as_ref() }.stamp());
        self.preempt.request.withdraw(stamp)
    }

    /// Puts the freeze off once more, if tries are left.
    ///
    /// A lock of the allocator may be held.
    fn puts_off(&self, stamp: u64) -> bool {
        let (of, tries) = self.preempt.tries.get();
        let tries = if of == stamp { tries } else { 0 };
        if tries >= TRIES {
            return false;
        }
        if !self.set_alarm(TRY_AGAIN) {
            return false; // no alarm would repeat the request
        }
        self.preempt.tries.set((stamp, tries + 1));
        self.shared().preempted.retries.fetch_add(1, Relaxed);
        true
    }
}

impl Worker {
    /// Returns the stamp of the worker's current dispatch; never zero.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp_of(self.published.dispatches())
    }

    /// Returns the stamp for a dispatch count that was read earlier.
    #[inline]
    pub(crate) fn stamp_of(&self, dispatch: u64) -> u64 {
        const DISPATCHES: u32 = 48;
        ((self.index as u64 + 1) << DISPATCHES) | dispatch & ((1 << DISPATCHES) - 1)
    }
}
