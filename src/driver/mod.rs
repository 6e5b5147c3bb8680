//! L2: what makes parked fibers runnable besides other fibers: deadlines and I/O.
//!
//! - [`wheel`]: deadlines in order, as plain data
//! - [`epoll`]: readiness; the kernel reports that a descriptor may be readable or writable
//! - [`uring`]: completion; the kernel carries out requests and reports their results
//!
//! A runtime uses one of the two I/O backends, its [`Driver`]. They differ in what a parked fiber
//! waits for, and in how many kernel objects (*instances*) there are:
//!
//! | | epoll | io_uring |
//! |---|---|---|
//! | instances | one for the runtime | one for each worker |
//! | a fiber waits for | readiness of a descriptor | completion of its request |
//! | polled by | any worker; one may sleep in it | its own worker, which may sleep in it |
//!
//! What both have in common is here: to find out whether there is anything to wait for, to sleep
//! in an instance ([`Port::wait`]), to end that sleep ([`Port::waker`]), and to let the I/O poller
//! wait for it instead ([`Instance::is_armed`]).
//!
//! This layer never calls the scheduler. It returns what is due; the caller wakes the fibers
//! (`sched/io.rs`).

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) mod epoll;
pub(crate) mod uring;
pub(crate) mod wheel;

use epoll::{Epoll, Events};
use uring::Uring;

/// The I/O backend of a runtime.
pub(crate) enum Driver {
    /// One epoll instance, made when a fiber first waits for a descriptor.
    Epoll(Instance<Epoll>),
    /// One ring for each worker, by the worker's index.
    Uring(Box<[Instance<Uring>]>),
}

/// An epoll instance or a ring, once it has been made.
///
/// Aligned to a pair of cache lines: its neighbour in the table is written by another thread.
#[repr(align(128))]
pub(crate) struct Instance<T> {
    made: OnceLock<T>,
    /// The I/O poller waits for its events (`sched/io/poller.rs`).
    pub(crate) is_armed: AtomicBool,
}

impl<T> Instance<T> {
    fn new() -> Self {
        Instance {
            made: OnceLock::new(),
            is_armed: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.made.get()
    }

    /// Stores what was made and returns it; drops it if another thread stored one first.
    pub(crate) fn store(&self, made: T) -> &T {
        let _ = self.made.set(made);
        self.made.get().expect("it has just been stored")
    }
}

impl Driver {
    pub(crate) fn epoll() -> Self {
        Driver::Epoll(Instance::new())
    }

    pub(crate) fn uring(workers: usize) -> Self {
        Driver::Uring((0..workers).map(|_| Instance::new()).collect())
    }

    pub(crate) fn is_uring(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// The epoll instance, if this is epoll and a fiber has waited for a descriptor.
    #[inline]
    pub(crate) fn epoll_instance(&self) -> Option<&Epoll> {
        match self {
            Driver::Epoll(instance) => instance.get(),
            Driver::Uring(_) => None,
        }
    }

    /// The ring of a worker, if this is io_uring and that ring has been made.
    #[inline]
    pub(crate) fn ring(&self, worker: usize) -> Option<&Uring> {
        match self {
            Driver::Epoll(_) => None,
            Driver::Uring(rings) => rings[worker].get(),
        }
    }

    /// Whether a fiber may wait for an event that this worker can take.
    #[inline]
    pub(crate) fn has_io(&self, worker: usize) -> bool {
        match self {
            Driver::Epoll(instance) => instance.get().is_some_and(|epoll| !epoll.is_empty()),
            Driver::Uring(rings) => rings[worker].get().is_some_and(Uring::is_busy),
        }
    }

    /// Requests that the kernel has not completed, in all rings.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Driver::Epoll(_) => 0,
            Driver::Uring(rings) => rings
                .iter()
                .filter_map(Instance::get)
                .map(Uring::in_flight)
                .sum(),
        }
    }
}

/// An instance that a thread waits in.
#[derive(Clone, Copy)]
pub(crate) enum Port<'a> {
    Epoll(&'a Epoll),
    Uring(&'a Uring),
}

impl Port<'_> {
    /// The eventfd that ends a [`wait`](Self::wait), through `eventfd::notify`.
    pub(crate) fn waker(self) -> RawFd {
        match self {
            Port::Epoll(epoll) => epoll.waker(),
            Port::Uring(ring) => ring.waker(),
        }
    }

    /// Waits until there may be events, at most for `time`; `None`: without a limit.
    ///
    /// Returns early when the waker is notified, and for no reason. Epoll returns the events it
    /// takes; completions stay in the ring, to be taken by [`Uring::take`]. A ring submits first
    /// what has been pushed; it does no more than that if `time` is zero or the caller is not
    /// `carrier`, the holder of the ring's worker.
    pub(crate) fn wait(self, carrier: Option<usize>, time: Option<Duration>) -> Option<Events> {
        let ring = match self {
            Port::Epoll(epoll) => return Some(epoll.wait(time)),
            Port::Uring(ring) => ring,
        };
        match carrier {
            Some(carrier) if time.is_none_or(|time| !time.is_zero()) => ring.sleep(carrier, time),
            _ => drop(ring.submit()),
        }
        None
    }
}

/// What a worker's sleep has found. The fibers that wait for it have not been woken yet.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, on the stack of a worker that sleeps"
)]
pub(crate) enum Found<'a> {
    Nothing,
    Events(Events),
    /// Requests may be complete in this ring.
    Completions(&'a Uring),
}
