//! A thread that runs before all ordinary ones.
//!
//! Measured by an ordinary thread, the lateness of a fiber beside hogs would be that of the thread
//! that rings.

#![expect(unsafe_code, reason = "there is no safe call for SCHED_FIFO")]

/// Puts the calling thread under SCHED_FIFO; what it starts is ordinary again. Returns whether that
/// was allowed (it needs CAP_SYS_NICE or RLIMIT_RTPRIO), and says so on stderr if not.
pub fn claim() -> bool {
    let param = libc::sched_param { sched_priority: 50 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `param` lives until the call returns.
    let allowed = unsafe { libc::sched_setscheduler(0, policy, &param) } == 0;
    if !allowed {
        eprintln!("SCHED_FIFO is not allowed: the ringer competes with the hogs");
    }
    allowed
}
