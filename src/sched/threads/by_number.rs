#![expect(
    unsafe_code,
    reason = "hands out carriers by the number of their thread"
)]
//! Finds the carrier of the calling thread, for a signal handler that has no other information.
//!
//! A handler runs on any thread of the process, and in a shared library the first access to a
//! thread-local may allocate. So the handler asks the kernel for the number of its thread and looks
//! into this table ([S7]). The table has a place for every number that the kernel gives to threads,
//! in chunks. A chunk is made when a thread with such a number enters, and stays. A thread enters
//! itself and leaves before it ends, so a number that is found is its own.
//!
//! A child of a fork has none of the threads in the table, and the kernel may give their numbers to
//! threads that the child starts. So the table is emptied there (`sys/fork.rs`).
//!
//! [S7]: docs/invariants.md

use std::ptr;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release, SeqCst},
};

use crate::sched::threads::carrier::Carrier;
use crate::sys;

/// Exclusive upper bound of thread numbers on every 64-bit machine (`PID_MAX_LIMIT`).
const NUMBERS: usize = 1 << 22;
const CHUNK: usize = 1 << 10;

type Chunk = [AtomicPtr<Carrier>; CHUNK];

static CHUNKS: [AtomicPtr<Chunk>; NUMBERS / CHUNK] =
    [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS / CHUNK];

/// The calling thread's place. The thread leaves when this is dropped, on the same thread.
pub(crate) struct Entry(i32);

/// Enters the calling thread, which is the thread of `carrier`.
pub(crate) fn enter(carrier: &Carrier) -> Entry {
    let number = sys::thread::number();
    let chunk = &CHUNKS[number as usize / CHUNK];
    if chunk.load(Acquire).is_null() {
        let new = Box::into_raw(Box::new([const { AtomicPtr::new(ptr::null_mut()) }; CHUNK]));
        let made = chunk.compare_exchange(ptr::null_mut(), new, SeqCst, SeqCst);
        if made.is_err() {
            // SAFETY: just made, and no other thread knows it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    let carrier = ptr::from_ref(carrier).cast_mut();
    (place(number).expect("its chunk is there")).store(carrier, Release);
    Entry(number)
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(place) = place(self.0) {
            place.store(ptr::null_mut(), Release);
        }
    }
}

/// Empties the table in the child of a fork.
///
/// No thread enters the table there, because no carrier starts there.
pub(crate) extern "C" fn forget_all() {
    for chunk in &CHUNKS {
        chunk.store(ptr::null_mut(), SeqCst); // its memory is the parent's copy, and stays
    }
}

fn place(number: i32) -> Option<&'static AtomicPtr<Carrier>> {
    let number = number as usize;
    let chunk = CHUNKS.get(number / CHUNK)?.load(Acquire);
    // SAFETY: null, or made by `enter`, which never frees a chunk that other threads know.
    let chunk = unsafe { chunk.as_ref() }?;
    Some(&chunk[number % CHUNK])
}

/// The carrier whose thread calls this, if there is one. For signal handlers.
pub(crate) fn carrier() -> Option<&'static Carrier> {
    // SAFETY: entered by this thread itself, and a carrier lives as long as its thread keeps
    // `Shared`.
    unsafe { find(sys::thread::number()).as_ref() }
}

/// The carrier whose thread has this number, or null.
fn find(number: i32) -> *const Carrier {
    place(number).map_or(ptr::null(), |place| place.load(Acquire).cast_const())
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_plain_thread_is_no_carrier() {
        assert!(carrier().is_none());
    }

    #[test]
    fn a_fiber_finds_its_own_carrier_and_others_theirs() {
        let rt = crate::runtime::Builder::new().workers(2).build().unwrap();
        let found: Vec<_> = (0..64)
            .map(|_| {
                rt.spawn(|| {
                    ptr::eq(
                        carrier().map_or(ptr::null(), ptr::from_ref),
                        crate::sched::workers::context::carrier(),
                    )
                })
            })
            .collect();
        assert!(found.into_iter().all(|fiber| fiber.join().unwrap()));
    }

    /// Forks, and returns whether the child would take a thread of this number for a carrier.
    fn is_found_in_child(number: i32) -> bool {
        // SAFETY: the child reads atomics and ends.
        let child = match unsafe { libc::fork() } {
            // SAFETY: ends the process.
            0 => unsafe { libc::_exit(i32::from(!find(number).is_null())) },
            child => child,
        };
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: a child of ours; writes the status.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child, "{}", std::io::Error::last_os_error());
        assert!(libc::WIFEXITED(status), "ended by a signal: {status:#x}");
        libc::WEXITSTATUS(status) != 0
    }

    #[test]
    fn a_child_of_a_fork_takes_no_thread_for_a_carrier() {
        let rt = crate::runtime::Builder::new().workers(2).build().unwrap();
        let on_fiber = rt.spawn(|| {
            let number = sys::thread::number();
            (number, is_found_in_child(number), carrier().is_some())
        });
        let (number, found, found_here) = on_fiber.join().unwrap();
        assert!(found_here, "the parent keeps its table");
        assert!(!found, "forked by a fiber");
        assert!(!is_found_in_child(number), "forked by a plain thread");
    }
}
