#![expect(unsafe_code, reason = "system calls")]
//! On which CPUs a thread may run.
//!
//! A thread that is about to take over the work of another is told to run on the CPU the other leaves:
//! else it queues behind whoever computes elsewhere (DESIGN §9). That is done while it sleeps, and it
//! goes back to all CPUs itself before anything of the users' runs, so that nobody inherits the
//! narrow mask: neither threads nor processes they start.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// CPUs a mask has room for.
const CPUS: usize = 1024;
const WORDS: usize = CPUS / 64;

type Words = [u64; WORDS];

/// The CPUs the threads of a runtime may use, as last asked; written by one thread at a time.
pub(crate) struct Mask([AtomicU64; WORDS]);

impl Mask {
    /// Of nobody has asked yet: threads stay where they are.
    pub(crate) const fn new() -> Self {
        Mask([const { AtomicU64::new(0) }; WORDS])
    }

    /// Remembers the CPUs the calling thread may use.
    pub(crate) fn remember(&self) {
        let mut words: Words = [0; WORDS];
        // SAFETY: the kernel writes at most that many bytes.
        let known =
            unsafe { libc::sched_getaffinity(0, size_of::<Words>(), words.as_mut_ptr().cast()) };
        if known == 0 {
            for (word, now) in self.0.iter().zip(words) {
                word.store(now, Relaxed);
            }
        }
    }

    /// Whether there is a choice, and this CPU is in it.
    fn has_choice_with(&self, cpu: usize) -> bool {
        let words = || self.0.iter().map(|word| word.load(Relaxed));
        let there = words()
            .nth(cpu / 64)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0);
        there && words().map(|word| word.count_ones()).sum::<u32>() > 1
    }

    /// Makes a thread that sleeps run on the CPU the caller runs on. False if it stays as it was. May be
    /// called in a signal handler.
    pub(crate) fn bring_here(&self, thread: i32) -> bool {
        // SAFETY: takes nothing.
        let Ok(cpu) = usize::try_from(unsafe { libc::sched_getcpu() }) else {
            return false;
        };
        if !self.has_choice_with(cpu) {
            return false;
        }
        let mut words: Words = [0; WORDS];
        words[cpu / 64] = 1 << (cpu % 64);
        set(thread, &words).is_ok()
    }

    /// Lets a thread, zero for the calling one, run on all of them. May be called in a signal handler.
    pub(crate) fn spread_out(&self, thread: i32) {
        let words: Words = std::array::from_fn(|i| self.0[i].load(Relaxed));
        let _as_it_was = set(thread, &words);
    }
}

/// Never inlined: the frame of its caller may be one that moves.
#[inline(never)]
fn set(thread: i32, words: &Words) -> io::Result<()> {
    // SAFETY: the kernel reads that many bytes.
    let done =
        unsafe { libc::sched_setaffinity(thread, size_of::<Words>(), words.as_ptr().cast()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn allowed() -> usize {
        let mask = Mask::new();
        mask.remember();
        mask.0
            .iter()
            .map(|word| word.load(Relaxed).count_ones() as usize)
            .sum()
    }

    #[test]
    fn a_thread_that_was_brought_to_a_cpu_spreads_out_again() {
        let mask = Mask::new();
        assert!(!mask.bring_here(0), "nothing is known yet");
        mask.remember();
        let before = allowed();
        if before > 1 {
            assert!(mask.bring_here(0));
            assert_eq!(allowed(), 1);
        }
        mask.spread_out(0);
        assert_eq!(allowed(), before);
    }
}
