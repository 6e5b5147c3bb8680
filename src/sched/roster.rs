#![expect(
    unsafe_code,
    reason = "hands out carriers by the number of their thread"
)]
//! Which thread is which carrier, for a signal handler that knows nothing yet.
//!
//! A handler runs on any thread of the process, and in a shared library the first touch of a
//! thread-local may allocate; so it asks the kernel for the number of its thread and looks here ([S7]).
//! The table is small and searched from the front: at most a few hundred numbers, next to each other. A
//! thread enters itself and leaves before it ends, so a number that is found is its own.
//!
//! A child of a fork has none of the threads in the table, and the kernel may give their numbers to
//! threads that the child starts. So the table is emptied there (`base/fork.rs`).
//!
//! There is room for `ROOM` threads; those beyond are never interrupted.
//!
//! [S7]: DESIGN.md

use std::ptr;
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use crate::base::os;
use crate::sched::carrier::Carrier;

const ROOM: usize = 4096;
/// A place nobody has.
const NOBODY: i32 = 0;

static NUMBERS: [AtomicI32; ROOM] = [const { AtomicI32::new(NOBODY) }; ROOM];
static CARRIERS: [AtomicPtr<Carrier>; ROOM] = [const { AtomicPtr::new(ptr::null_mut()) }; ROOM];
/// Places at and above this have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's place; it leaves when this is dropped, on the same thread.
pub(crate) struct Entry(usize);

/// Enters the calling thread, which is that carrier's; `None` if there is no room.
pub(crate) fn enter(carrier: &Carrier) -> Option<Entry> {
    let number = os::thread_number();
    let place = NUMBERS.iter().position(|place| {
        place
            .compare_exchange(NOBODY, number, SeqCst, Relaxed)
            .is_ok()
    })?;
    CARRIERS[place].store(ptr::from_ref(carrier).cast_mut(), Release);
    USED.fetch_max(place + 1, SeqCst);
    Some(Entry(place))
}

impl Drop for Entry {
    fn drop(&mut self) {
        CARRIERS[self.0].store(ptr::null_mut(), Release);
        NUMBERS[self.0].store(NOBODY, SeqCst);
    }
}

/// Empties the table. Called in the child of a fork, where no thread enters: no carrier starts
/// there.
pub(crate) extern "C" fn forget_all() {
    USED.store(0, SeqCst);
}

/// The carrier the calling thread is, if it is one. For handlers.
pub(crate) fn carrier() -> Option<&'static Carrier> {
    // SAFETY: entered by this very thread, and a carrier lives as long as its thread keeps `Shared`.
    unsafe { find(os::thread_number()).as_ref() }
}

/// The carrier whose thread has this number, or null.
fn find(number: i32) -> *const Carrier {
    let used = USED.load(SeqCst);
    let mut places = NUMBERS[..used].iter();
    let place = places.position(|place| place.load(Relaxed) == number);
    place.map_or(ptr::null(), |place| CARRIERS[place].load(Acquire))
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
                        crate::sched::context::carrier(),
                    )
                })
            })
            .collect();
        assert!(found.into_iter().all(|fiber| fiber.join().unwrap()));
    }

    /// Forks, and returns whether a thread of this number would be taken for a carrier in the
    /// child.
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
            let number = os::thread_number();
            (number, is_found_in_child(number), carrier().is_some())
        });
        let (number, found, found_here) = on_fiber.join().unwrap();
        assert!(found_here, "the parent keeps its table");
        assert!(!found, "forked by a fiber");
        assert!(!is_found_in_child(number), "forked by a plain thread");
    }
}
