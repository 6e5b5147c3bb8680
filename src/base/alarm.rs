#![expect(unsafe_code, reason = "system calls")]
//! A timer that signals one thread, and can be set from its signal handler.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::base::os;

/// Signals the thread that made it. Rings once for each time it is set.
pub(crate) struct Alarm(libc::timer_t);

// SAFETY: an id the kernel knows; every call with it is a system call.
unsafe impl Sync for Alarm {}
// SAFETY: as above.
unsafe impl Send for Alarm {}

impl Alarm {
    /// For the calling thread, whose handler finds `value` in the `siginfo`; `None` if the kernel has no more of them.
    pub(crate) fn new(signal: i32, value: usize) -> Option<Self> {
        // SAFETY: all-zero is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr = ptr::without_provenance_mut(value);
        event.sigev_notify_thread_id = os::thread_number();
        let mut timer = ptr::null_mut();
        // SAFETY: both live for the call.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        (made == 0).then_some(Alarm(timer))
    }

    /// Rings after this time, instead of when it was to ring before.
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
        // SAFETY: the timer is there until `drop`.
        unsafe { libc::timer_settime(self.0, 0, &after, ptr::null_mut()) };
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and this is its end.
        unsafe { libc::timer_delete(self.0) };
    }
}
