#![expect(unsafe_code, reason = "system calls")]
//! A timer that signals one thread, and can be set from that thread's signal handler.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::sys;

/// Signals the thread that created it, once for each time it is set. All methods may be called in a
/// signal handler: they are system calls, since the C library may allocate for a timer.
pub(crate) struct Alarm(libc::c_int);

impl Alarm {
    /// Creates a timer for the calling thread, whose handler finds `value` in the `siginfo`; `None`
    /// if the kernel has no more timers.
    #[inline(never)] // a frame that asks the kernel directly would bind its fiber
    pub(crate) fn new(signal: i32, value: usize) -> Option<Self> {
        // SAFETY: all-zero is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr = ptr::without_provenance_mut(value);
        event.sigev_notify_thread_id = sys::thread::number();
        let (clock, mut timer) = (libc::CLOCK_MONOTONIC, 0);
        // SAFETY: both live for the call; the kernel writes an int.
        let made = unsafe {
            libc::syscall(
                libc::SYS_timer_create,
                clock,
                &raw mut event,
                &raw mut timer,
            )
        };
        (made == 0).then_some(Alarm(timer))
    }

    /// Sets it to expire after this time, in place of any earlier setting.
    #[inline(never)]
    pub(crate) fn set(&self, after: Duration) {
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let after = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: after.as_secs() as i64,
                tv_nsec: libc::c_long::from(after.subsec_nanos()),
            },
        };
        let (flags, old) = (0, ptr::null_mut::<libc::itimerspec>());
        // SAFETY: the timer is there until `drop`, and `after` for the call.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                self.0,
                flags,
                &raw const after,
                old,
            )
        };
    }
}

impl Drop for Alarm {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: made by `new`, and this is its end.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}
