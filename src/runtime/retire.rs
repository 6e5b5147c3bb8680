//! Ending a thread together with the fiber that has changed it.

use crate::sched::threads::retire;

/// Keeps the calling fiber on its thread, alone, and ends the thread when the fiber ends.
///
/// For a fiber that changes what the kernel keeps for its *thread*: `unshare`, `setns`, `setfsuid`,
/// capabilities, seccomp and landlock, `prctl`, scheduling policy, nice value, CPU affinity. Such a
/// change stays with the thread, and the next fiber on it would run with it. Call this before the
/// change. No other fiber runs on the thread from then on, and the runtime starts none of its own
/// threads from it.
///
/// Most such fibers are found without it: by the functions that the program's machine code calls.
/// Call it where that cannot be seen: if a foreign library makes the change, if the call goes
/// through a pointer, or in the first milliseconds of a program, before its code has been read.
///
/// Never blocks. Does nothing on a plain thread, nor inside
/// [`blocking`](crate::runtime::blocking) and [`compute`](crate::runtime::compute), whose threads
/// are used again.
///
/// It corresponds to Go's `runtime.LockOSThread` without an unlock.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let uid = indent::spawn(|| {
///     indent::runtime::retire_thread();
///     // SAFETY: takes a number only.
///     unsafe { libc::setfsuid(65534) }; // files are opened as `nobody` from here on
///     std::fs::metadata("/etc/passwd").map(|file| file.len())
/// });
/// assert!(uid.join()?? > 0); // the thread is gone by now, or soon
/// # Ok(())
/// # }
/// ```
pub fn retire_thread() {
    retire::caller();
}
