#![expect(
    unsafe_code,
    reason = "asks the kernel which thread this is, and to sleep"
)]
//! Steps: the actions of bodies between their own.
//!
//! [`step`] is on the stack of every parked fiber, so its own frame must be movable: it uses
//! atomics, the runtime, and one request to the kernel.

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason};
use indent::{task, time};

/// How long [`again`] repeats its closure: twice the quantum.
const LONG: Duration = Duration::from_micros(400);

static STEPS: AtomicU64 = AtomicU64::new(0);
static REPEATS: AtomicU64 = AtomicU64::new(0);
/// Number of steps of fibers.
pub static SWITCHES: AtomicU64 = AtomicU64::new(0);
/// Number of steps that parked; the others yielded.
pub static PARKS: AtomicU64 = AtomicU64::new(0);
/// Number of steps after which the fiber was on another thread.
pub static MOVES: AtomicU64 = AtomicU64::new(0);

/// Returns a pseudo-random number and advances the counter.
fn next(counter: &AtomicU64) -> u64 {
    let n = counter.fetch_add(1, Relaxed);
    let n = (n ^ (n >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n >> 32
}

/// Lets others run.
///
/// On a fiber it yields, parks or sleeps; on a thread it uses the system's means.
#[inline(never)]
pub fn step() {
    let n = next(&STEPS);
    let short = Duration::from_micros(50 + n / 16 % 500);
    if task::id().is_none() {
        match n % 16 {
            0 => sleep(short),
            _ => std::thread::yield_now(),
        }
        return;
    }
    let before = thread();
    match n % 8 {
        0 => time::sleep(short),
        1 => drop(park::park_until(
            Some(Instant::now() + short),
            ParkReason::Park,
        )),
        _ => task::yield_now(),
    }
    SWITCHES.fetch_add(1, Relaxed);
    PARKS.fetch_add(u64::from(n % 8 < 2), Relaxed);
    MOVES.fetch_add(u64::from(thread() != before), Relaxed);
}

/// Blocks a plain thread for less than a second.
///
/// Std's function calls through a pointer, which would bind [`step`] wherever one may lead to
/// something of a thread.
#[inline(never)]
fn sleep(time: Duration) {
    // SAFETY: the call has no conditions.
    unsafe { libc::usleep(time.subsec_micros()) };
}

/// Runs the closure, sometimes for longer than a quantum, so that it is interrupted inside.
pub fn again<T>(mut f: impl FnMut() -> T) -> T {
    let mut value = f();
    if next(&REPEATS).is_multiple_of(8) {
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            value = f();
        }
    }
    value
}

/// Returns the number of the calling thread, by a request that does not bind.
///
/// It is the target of the kernel's link to the calling thread.
#[inline(never)]
pub fn thread() -> u64 {
    let mut target = [0_u8; 32];
    let path = c"/proc/thread-self".as_ptr();
    let length: isize;
    // SAFETY: the kernel reads a text that ends with a zero, and writes at most as many bytes as
    // the array has.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_readlink as isize => length,
            in("rdi") path,
            in("rsi") target.as_mut_ptr(),
            in("rdx") target.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    let length = usize::try_from(length).unwrap_or(0);
    let text = target.get(..length).unwrap_or(&[]);
    let digits = text.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
    let digit = |number: u64, byte: &u8| number * 10 + u64::from(byte - b'0');
    digits.iter().fold(0, digit)
}
