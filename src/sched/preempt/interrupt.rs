#![expect(unsafe_code, reason = "a signal handler")]
//! The signal that interrupts a fiber: who sends it, and what its handler does.
//!
//! Somebody who wants a carrier to freeze (the monitor, or whoever wakes a fiber that should not have to
//! wait) writes the *stamp* of the dispatch he means into its request and signals its thread. The handler
//! looks: preemption is disabled → it leaves the request, and who puts the mark down looks at it ([S13]); the
//! request is for another dispatch → nothing, it came late; the interrupted code sleeps in the kernel →
//! nothing, its worker can be taken instead; the interrupted code is libc's, the loader's or the kernel's
//! → again a little later, a few times, because that is where locks of the allocator are held; the fiber
//! has passed a checkpoint since the last request → it will at the next one see this request, and yield;
//! it is in a region where it may leave its thread as it stands → it does (`in_place.rs`); else it freezes
//! (`freeze.rs`).
//!
//! What the handler may do is little ([S7]): it runs between any two instructions, perhaps inside the
//! allocator. It takes no lock, allocates nothing, keeps `errno`, and knows its carrier by the number of
//! its thread, not by a thread-local. It runs on the carrier's own alternate stack; if the interrupted
//! code was on that stack already, it is another handler, and this is not the time.
//!
//! A signal that is none of ours goes to the handler that was there before ([S11]). Ours carry a value that
//! nobody else has; beyond that it does not matter which of us sent one, since two that come together are
//! one for the kernel.
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

/// How often a freeze is put off because the code is not the program's, and for how long. Half of
/// the time of ordinary code may be spent there, so a few tries are not enough to get out of a lock
/// of the allocator's.
const TRIES: u32 = 16;
const TRY_AGAIN: Duration = Duration::from_micros(10);

/// In a request: whoever runs is to look at itself (`overrun.rs`), and go on. No stamp has this bit.
pub(crate) const LOOK: u64 = 1 << 63;

/// Looks after which a signal was not answered.
const UNANSWERED: u32 = 5;

/// The signal in use, or zero.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static BEFORE: OnceLock<Previous> = OnceLock::new();

/// Installs the handler, once per process: the signal of the first runtime that asks is everybody's.
pub(crate) fn prepare(signal: c_int) -> std::io::Result<()> {
    static ONCE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = ONCE.lock().unwrap_or_else(|e| e.into_inner());
    if SIGNAL.load(SeqCst) == 0 {
        program::find();
        redirect::prepare();
        let before = signal::current(signal)?;
        let _ = BEFORE.set(before); // before the first one can come
        signal::install_restarting(signal, on_signal)?;
        SIGNAL.store(signal, SeqCst);
    }
    Ok(())
}

/// The signal that interrupts fibers; zero if nobody asked for one.
pub(crate) fn signal() -> c_int {
    SIGNAL.load(Relaxed)
}

/// Whether the handler in place is ours.
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

/// What our signals carry: nobody else has this address.
pub(crate) fn ours() -> usize {
    (&raw const BEFORE).addr()
}

impl Carrier {
    /// Any thread: asks for a freeze in this dispatch of the worker it holds. A request that is there
    /// already is not sent again.
    pub(crate) fn ask_to_freeze(&self, stamp: u64) {
        if self.preempt.request.replace(stamp) {
            self.send();
        }
    }

    /// On the monitor's thread, at each look: the same, and sent again as long as there is no answer.
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

    /// Own thread: its fiber may be interrupted again, and whoever asks is to send the signal.
    pub(crate) fn asks_may_come_again(&self) {
        self.preempt.refused.store(0, Relaxed);
    }

    /// Sends the signal.
    pub(crate) fn send(&self) {
        self.thread.signal_with(signal(), ours());
    }

    /// The handler's part.
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
            // It slept. It is not interrupted again before it is seen to run.
            self.preempt.long.store(0, Relaxed);
            self.preempt.request.withdraw(request);
            return;
        }
        self.owner.disable();
        let registers = [at.code, at.stack, at.frame];
        // SAFETY: by the caller's promise; and the mark was down.
        let in_place = || unsafe { self.redirect(context, &at) };
        if self.follow_request(!program::contains(at.code), registers, in_place) {
            return; // preemption stays disabled: `in_place.rs` takes it over
        }
        self.owner.leave();
    }

    /// The mark has gone down, and there is a request that came while it was up.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_request(&self) {
        for _ in 0..2 {
            self.owner.disable();
            if self.current.get().is_some() {
                // S13: it never switches.
                self.follow_request(false, arch::registers(), || false);
            }
            self.owner.leave();
            compiler_fence(SeqCst); // what comes from here on finds preemption enabled
            if !self.preempt.request.is_some() {
                return;
            }
        }
    }

    /// preemption disabled, where the mark was down a moment ago, in code that stands at these registers: freezes if
    /// somebody wants that now. True if it will leave its thread instead, because `in_place` said so.
    fn follow_request(
        &self,
        foreign_code: bool,
        registers: [usize; 3],
        in_place: impl FnOnce() -> bool,
    ) -> bool {
        let request = self.preempt.request.get();
        if self.shared().is_stopping() {
            self.preempt.request.withdraw(request); // no worker would come
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
                self.preempt.refused.store(stamp, Relaxed); // the section's end looks at it
            }
            return false;
        }
        self.asks_may_come_again(); // whatever becomes of this one
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
            self.preempt.request.withdraw(request); // who wants it asks again
        }
        false
    }

    /// Whether the fiber has passed a checkpoint since somebody last wanted it to freeze: then it finds the
    /// request at the next one.
    fn comes_by_itself(&self) -> bool {
        let (passed, preempt) = (self.preempt.checkpoints.get(), &self.preempt);
        let now = self.shared().clock.nanos();
        if preempt.known_checkpoints.replace(passed) != passed {
            preempt.known_at.set(now);
            return true;
        }
        now.saturating_sub(preempt.known_at.get()) < TICK.as_nanos() as u64
    }

    /// Own thread: somebody wants something of this carrier, or wanted it of an earlier dispatch.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.preempt.request.is_some()
    }

    /// Own thread, in a fiber that may yield: takes a request that it does so in this dispatch. Others stay.
    #[cold]
    pub(crate) fn takes_request(&self) -> bool {
        let worker = self.owner.peek();
        // SAFETY: workers live as long as `Shared`.
        let stamp = worker.map_or(WITHOUT_WORKER, |worker| unsafe { worker.as_ref() }.stamp());
        self.preempt.request.withdraw(stamp)
    }

    /// Whether the freeze is put off once more: a lock of the allocator may be held.
    fn puts_off(&self, stamp: u64) -> bool {
        let (of, tries) = self.preempt.tries.get();
        let tries = if of == stamp { tries } else { 0 };
        if tries >= TRIES {
            return false;
        }
        if !self.set_alarm(TRY_AGAIN) {
            return false; // nothing would remind us
        }
        self.preempt.tries.set((stamp, tries + 1));
        self.shared().preempted.retries.fetch_add(1, Relaxed);
        true
    }
}

impl Worker {
    /// Names one dispatch of one worker; never zero.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp_of(self.published.dispatches())
    }

    /// The same for a dispatch that was seen.
    #[inline]
    pub(crate) fn stamp_of(&self, dispatch: u64) -> u64 {
        const DISPATCHES: u32 = 48;
        ((self.index as u64 + 1) << DISPATCHES) | dispatch & ((1 << DISPATCHES) - 1)
    }
}
