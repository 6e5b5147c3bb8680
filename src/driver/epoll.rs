#![expect(unsafe_code, reason = "system calls")]
//! Readiness: which descriptors may have become readable or writable (epoll, edge-triggered).
//!
//! A descriptor is added once and stays until it is closed. The kernel reports each time that it
//! may have become readable or writable, whether or not a fiber waits. So a wait costs no system
//! call of its own beside the sleep. Any number of threads may wait; each event goes to one of
//! them.
//!
//! A thread that sleeps in [`Epoll::wait`] is woken through the *waker*, an eventfd in the
//! instance. The waker is level-triggered: every wait returns it until [`Epoll::drain_waker`] is
//! called, so a second thread that polls the instance does not take the wake-up away from the
//! sleeper. Wakers are never closed but used again: a late notification, when the sleeper and its
//! runtime are gone, wakes another thread for no reason and writes to no foreign file.
//!
//! Rejected: the `polling` crate. It takes a lock and needs a vector for each wait, which the
//! thread that polls for busy workers must not; and its waker is closed with it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use crate::sys::{descriptor, errno, eventfd};

/// Events that one wait returns at most.
const EVENTS: usize = 64;
/// The key of the waker.
const WAKER: u64 = u64::MAX;

/// The kernel has `epoll_pwait2`, as far as is known.
static IS_EXACT: AtomicBool = AtomicBool::new(true);

/// A descriptor that may be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) key: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// There is something that data alone does not explain: an end, an error, an urgent byte.
    pub(crate) exceptional: bool,
}

/// An epoll instance with a waker.
pub(crate) struct Epoll {
    instance: OwnedFd,
    waker: RawFd,
    /// Descriptors in it, without the waker.
    len: AtomicUsize,
}

/// Wakers that are not in use. Without a lock: an instance may be dropped where waiting is
/// forbidden.
static WAKERS: [AtomicI32; 256] = [const { AtomicI32::new(NO_WAKER) }; 256];
const NO_WAKER: RawFd = -1;

/// Takes an eventfd that is not in use, or makes one.
pub(super) fn take_waker() -> io::Result<RawFd> {
    let used = WAKERS.iter().map(|place| place.swap(NO_WAKER, SeqCst));
    if let Some(waker) = used.into_iter().find(|waker| *waker != NO_WAKER) {
        return Ok(waker);
    }
    // SAFETY: takes numbers only.
    checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Gives back an eventfd that no thread waits for any more. It stays open and unused if there is no
/// place left.
pub(super) fn give_waker_back(waker: RawFd) {
    let put = |place: &AtomicI32| {
        place
            .compare_exchange(NO_WAKER, waker, SeqCst, SeqCst)
            .is_ok()
    };
    let _found = WAKERS.iter().any(put);
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes a number only.
        let instance = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let epoll = Epoll {
            // SAFETY: it has just been made, and has no other owner.
            instance: unsafe { OwnedFd::from_raw_fd(instance) },
            waker: take_waker()?,
            len: AtomicUsize::new(0),
        };
        epoll.control(libc::EPOLL_CTL_ADD, epoll.waker, libc::EPOLLIN, WAKER)?;
        Ok(epoll)
    }

    /// The eventfd that ends a wait, through `eventfd::notify`.
    pub(crate) fn waker(&self) -> RawFd {
        self.waker
    }

    /// Makes waits return the waker no more, until it is notified again.
    pub(crate) fn drain_waker(&self) {
        eventfd::drain(self.waker);
    }

    /// The instance's own descriptor, which is readable when there are events.
    pub(crate) fn raw(&self) -> RawFd {
        self.instance.as_raw_fd()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// Adds a descriptor. Its events bear this key; the first is what it is ready for now.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let all =
            libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), all, key)?;
        self.len.fetch_add(1, Relaxed);
        Ok(())
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        if self
            .control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
            .is_ok()
        {
            self.len.fetch_sub(1, Relaxed);
        }
    }

    /// Adds a descriptor that is reported once, when it is readable, each time it was
    /// [armed](Self::arm).
    pub(crate) fn add_once(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLONESHOT, key)
    }

    /// Arms or disarms a descriptor that was added by [`add_once`](Self::add_once).
    ///
    /// May be called in a signal handler.
    pub(crate) fn arm(&self, fd: RawFd, key: u64, on: bool) {
        let readable = if on { libc::EPOLLIN } else { 0 };
        let _ = self.control(libc::EPOLL_CTL_MOD, fd, readable | libc::EPOLLONESHOT, key);
    }

    fn control(&self, what: i32, fd: RawFd, events: i32, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: key,
        };
        // SAFETY: the kernel reads `event`.
        checked(unsafe { libc::epoll_ctl(self.raw(), what, fd, &mut event) }).map(drop)
    }

    /// Waits for events, at most for `time`; `None`: without a limit.
    ///
    /// Also returns when the waker was notified, and for no reason.
    pub(crate) fn wait(&self, time: Option<Duration>) -> Events {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let exact = time.filter(|time| !time.is_zero() && IS_EXACT.load(Relaxed));
        let found = exact.and_then(|time| self.wait_exactly(&mut events, time));
        let found = found.unwrap_or_else(|| self.wait_roughly(&mut events, time));
        let number = usize::try_from(found).unwrap_or(0);
        Events { events, number }
    }

    /// Waits to the nanosecond; `None` if the kernel cannot (it came with Linux 5.11).
    fn wait_exactly(
        &self,
        events: &mut [libc::epoll_event; EVENTS],
        time: Duration,
    ) -> Option<i32> {
        let time = libc::timespec {
            tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let (instance, first, most) = (self.raw(), events.as_mut_ptr(), EVENTS);
        let (time, no_mask) = (ptr::from_ref(&time), ptr::null::<libc::sigset_t>());
        let call = libc::SYS_epoll_pwait2;
        // SAFETY: the kernel writes at most `EVENTS` events, and reads the time; there is no mask,
        // so its size means nothing.
        let found = unsafe { libc::syscall(call, instance, first, most, time, no_mask, 0_usize) };
        // Some sandboxes return EPERM for calls they do not know.
        if found < 0 && matches!(errno::get(), libc::ENOSYS | libc::EPERM) {
            IS_EXACT.store(false, Relaxed);
            return None;
        }
        Some(found as i32)
    }

    /// Waits to the millisecond, rounded up.
    fn wait_roughly(
        &self,
        events: &mut [libc::epoll_event; EVENTS],
        time: Option<Duration>,
    ) -> i32 {
        let limit = time.map_or(-1, |time| {
            i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        let (instance, first, most) = (self.raw(), events.as_mut_ptr(), EVENTS as i32);
        // SAFETY: the kernel writes at most `EVENTS` events.
        unsafe { libc::epoll_wait(instance, first, most, limit) }
    }
}

/// The events that a wait returned.
pub(crate) struct Events {
    events: [libc::epoll_event; EVENTS],
    number: usize,
}

impl Events {
    /// Whether the waker was notified.
    pub(crate) fn has_wakeup(&self) -> bool {
        self.events[..self.number].iter().any(|event| {
            let key = event.u64;
            key == WAKER
        })
    }

    /// Calls `f` for each event, without the waker.
    pub(crate) fn for_each(&self, mut f: impl FnMut(Ready)) {
        for event in &self.events[..self.number] {
            let (key, flags) = (event.u64, event.events as i32);
            if key == WAKER {
                continue;
            }
            let over = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            let exceptional = over || flags & (libc::EPOLLRDHUP | libc::EPOLLPRI) != 0;
            f(Ready {
                key,
                read: exceptional || flags & libc::EPOLLIN != 0,
                write: over || flags & libc::EPOLLOUT != 0,
                exceptional,
            });
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let _ = self.control(libc::EPOLL_CTL_DEL, self.waker, 0, 0);
        give_waker_back(self.waker);
    }
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(descriptor::failed())
    } else {
        Ok(result)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    fn all(epoll: &Epoll) -> Vec<Ready> {
        let mut all = Vec::new();
        epoll
            .wait(Some(Duration::ZERO))
            .for_each(|ready| all.push(ready));
        all
    }

    #[test]
    fn each_change_is_reported_once() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let epoll = Epoll::new().unwrap();
        assert!(epoll.is_empty());
        epoll.add(one.as_fd(), 7).unwrap();
        let writable = Ready {
            key: 7,
            read: false,
            write: true,
            exceptional: false,
        };
        assert_eq!(all(&epoll), [writable], "what it is ready for at first");
        assert_eq!(all(&epoll), []);
        for _ in 0..2 {
            other.write_all(b"a").unwrap();
            assert!(all(&epoll)[0].read, "new data, though there was some left");
            assert_eq!(all(&epoll), []);
        }
        assert_eq!(one.read(&mut [0; 9]).unwrap(), 2);
        drop(other);
        assert!(all(&epoll)[0].read, "the end is readable");
        epoll.remove(one.as_fd());
        assert!(epoll.is_empty());
    }

    #[test]
    fn a_notification_ends_a_wait_and_the_next_one_if_it_comes_early() {
        let epoll = Epoll::new().unwrap();
        for _ in 0..3 {
            eventfd::notify(epoll.waker());
            epoll.wait(None).for_each(|ready| panic!("{ready:?}"));
            assert!(epoll.wait(None).has_wakeup(), "until it is drained");
            epoll.drain_waker();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| epoll.wait(None).for_each(|_| ()));
            std::thread::sleep(Duration::from_millis(5));
            eventfd::notify(epoll.waker());
        });
        epoll.drain_waker();
        let before = Instant::now();
        epoll.wait(Some(Duration::from_millis(2))).for_each(|_| ());
        assert!(
            before.elapsed() >= Duration::from_millis(2),
            "the waker was not notified"
        );
    }

    #[test]
    fn a_wait_lasts_as_long_as_asked_to_a_part_of_a_millisecond() {
        let epoll = Epoll::new().unwrap();
        let time = Duration::from_micros(150);
        let waits = |exact: bool| {
            let waited = |_| {
                let before = Instant::now();
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
                match exact {
                    true => epoll.wait_exactly(&mut events, time),
                    false => Some(epoll.wait_roughly(&mut events, Some(time))),
                };
                before.elapsed()
            };
            (0..20).map(waited).min().unwrap()
        };
        let rough = waits(false);
        assert!(rough >= Duration::from_millis(1), "{rough:?}");
        if IS_EXACT.load(Relaxed)
            && epoll
                .wait_exactly(&mut [libc::epoll_event { events: 0, u64: 0 }; EVENTS], time)
                .is_some()
        {
            let exact = waits(true);
            assert!(
                exact >= time && exact < Duration::from_millis(1),
                "{exact:?}"
            );
        }
    }

    #[test]
    fn an_instance_in_an_instance_is_reported_once_after_it_was_armed() {
        let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let (one, mut other) = UnixStream::pair().unwrap();
        inner.add(one.as_fd(), 1).unwrap();
        assert_eq!(all(&inner).len(), 1);
        outer.add_once(inner.raw(), 5).unwrap();
        other.write_all(b"a").unwrap();
        assert_eq!(all(&outer), [], "not armed");
        outer.arm(inner.raw(), 5, true);
        assert_eq!(all(&outer)[0].key, 5);
        other.write_all(b"a").unwrap();
        assert_eq!(all(&outer), [], "once");
    }
}
