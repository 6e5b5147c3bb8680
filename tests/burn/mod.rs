//! Computing for a time that is counted, for the tests of preemption.

use std::hint::black_box;
use std::time::Duration;

/// Computes for so much time of its own thread, which a frozen fiber does not use.
pub(crate) fn burn(time: Duration) {
    let until = own_cpu_time() + time;
    while own_cpu_time() < until {
        black_box((0..2_000_u64).fold(1, |x: u64, i| x.wrapping_mul(i | 1) ^ black_box(i)));
    }
}

#[expect(unsafe_code, reason = "a clock std does not read")]
fn own_cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills in `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
