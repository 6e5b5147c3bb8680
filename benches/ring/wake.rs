//! A thread that sleeps is woken, by one on another CPU or on its own.
//!
//! The sleeper says when it is about to sleep; the waker gives it a while to get there, looks at the clock, and
//! wakes it. `asleep to awake`: from there until the sleeper knows why it was woken. `at the waker`: how long the call that
//! wakes takes; on its own CPU the sleeper runs first, so there it is all that both do. `CPU at the sleeper`: what the
//! sleeper's thread uses for waking, and for falling asleep again. An idle CPU takes longer to wake than a thread; what
//! the ways differ by is seen on one CPU.
//!
//! By the bell: an eventfd that the sleeper's ring polls, once and for all, as in the driver; the poll is
//! completed by the sleeper itself when it is awake. By MSG_RING: an entry in a ring of the waker's has the kernel put a
//! completion into the sleeper's, or a call does, without a ring (Linux 6.13). A futex has no ring at either end.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};

use super::{compare, cpu_time, pin, push, quantile, ring, sleep, take};

/// Wake-ups of one run.
const WAKES: usize = 1_500;
/// What the sleeper is given to fall asleep.
const A_WHILE: Duration = Duration::from_micros(40);
/// `IORING_REGISTER_SEND_MSG_RING`
const SEND_MSG_RING: u32 = 31;

/// What wakes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Bell,
    Message,
    Call,
    Futex,
}

/// What both know.
struct Pair {
    way: Way,
    ring: RawFd,
    bell: OwnedFd,
    futex: AtomicU32,
    /// How often the sleeper was about to sleep.
    sleeps: AtomicUsize,
    start: Instant,
    /// Nanoseconds from the start to the last wake-up.
    woken: AtomicU64,
}

impl Pair {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn message(&self) -> Entry {
        opcode::MsgRingData::new(Fd(self.ring), 0, 0, None).build()
    }

    fn wake(&self, own: &mut IoUring) {
        match self.way {
            Way::Bell => {
                let one = 1_u64;
                let (fd, bytes) = (self.bell.as_raw_fd(), (&raw const one).cast());
                // SAFETY: reads eight bytes of `one`.
                let count = unsafe { libc::write(fd, bytes, size_of::<u64>()) };
                assert_eq!(count, 8, "rung");
            }
            Way::Message => {
                let entry = self.message().flags(Flags::SKIP_SUCCESS);
                // SAFETY: names a ring only.
                unsafe { push(own, &entry) };
                own.submit().expect("submitted");
            }
            Way::Call => {
                let (call, entry) = (libc::SYS_io_uring_register, self.message());
                // SAFETY: reads one entry, which names a ring only.
                let answer = unsafe { libc::syscall(call, -1, SEND_MSG_RING, &raw const entry, 1) };
                assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
            }
            Way::Futex => {
                self.futex.store(1, SeqCst);
                let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
                // SAFETY: takes the address of the word, and reads nothing there.
                unsafe { libc::syscall(libc::SYS_futex, self.futex.as_ptr(), how, 1) };
            }
        }
    }

    /// Sleeps until woken.
    fn sleep(&self, own: &mut IoUring) {
        if self.way == Way::Futex {
            while self.futex.swap(0, SeqCst) == 0 {
                let (how, none) = (
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    std::ptr::null::<libc::timespec>(),
                );
                // SAFETY: reads the word, and there is no limit to read.
                unsafe { libc::syscall(libc::SYS_futex, self.futex.as_ptr(), how, 0, none) };
            }
            return;
        }
        loop {
            sleep(own);
            let mut is_woken = false;
            for entry in take(own) {
                assert!(entry.result() >= 0, "woken");
                is_woken = true;
                if self.way == Way::Bell && !cqueue::more(entry.flags()) {
                    self.poll_bell(own);
                }
            }
            if is_woken {
                return;
            }
        }
    }

    fn poll_bell(&self, own: &mut IoUring) {
        let bell = Fd(self.bell.as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).multi(true);
        // SAFETY: names an eventfd only.
        unsafe { push(own, &entry.build()) };
    }

    /// Median nanoseconds until awake; CPU nanoseconds for one.
    fn sleep_often(&self, own: &mut IoUring, cpu: usize) -> [f64; 2] {
        pin(cpu);
        if self.way == Way::Bell {
            self.poll_bell(own);
        }
        let (cpu, mut late) = (cpu_time(), Vec::with_capacity(WAKES));
        for number in 1..=WAKES {
            self.sleeps.store(number, Release);
            self.sleep(own);
            late.push((self.now() - self.woken.load(Relaxed)) as f64);
        }
        let cpu = cpu_time() - cpu;
        [
            quantile(&mut late, 0.5),
            cpu.as_secs_f64() * 1e9 / WAKES as f64,
        ]
    }
}

fn run(way: Way, cpu: usize) -> [f64; 3] {
    // SAFETY: takes numbers only.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    assert!(bell >= 0, "an eventfd");
    let (mut own, mut its) = (ring(), ring());
    let pair = Arc::new(Pair {
        way,
        ring: its.as_raw_fd(),
        // SAFETY: just made, and nobody else's.
        bell: unsafe { OwnedFd::from_raw_fd(bell) },
        futex: AtomicU32::new(0),
        sleeps: AtomicUsize::new(0),
        start: Instant::now(),
        woken: AtomicU64::new(0),
    });
    let shared = pair.clone();
    let sleeper = thread::spawn(move || shared.sleep_often(&mut its, cpu));
    let mut calls = Vec::with_capacity(WAKES);
    for number in 1..=WAKES {
        while pair.sleeps.load(Acquire) < number {
            std::hint::spin_loop();
        }
        let asleep = Instant::now();
        while asleep.elapsed() < A_WHILE {
            std::hint::spin_loop();
        }
        let start = pair.now();
        pair.woken.store(start, Relaxed); // ordered by the wake-up
        pair.wake(&mut own);
        calls.push((pair.now() - start) as f64);
    }
    let [late, cpu] = sleeper.join().expect("no panic");
    [late, quantile(&mut calls, 0.5), cpu]
}

pub(crate) fn tables() {
    for (title, cpu) in [("wake/other CPU", 1), ("wake/own CPU", 0)] {
        compare(
            title,
            [
                "ns asleep to awake",
                "ns at the waker",
                "CPU ns at the sleeper",
            ],
            &[
                ("the bell: eventfd, polled by the ring", &|| {
                    run(Way::Bell, cpu)
                }),
                ("again", &|| run(Way::Bell, cpu)),
                ("MSG_RING, by a ring of the waker's", &|| {
                    run(Way::Message, cpu)
                }),
                ("MSG_RING, by a call without a ring", &|| {
                    run(Way::Call, cpu)
                }),
                ("a futex, no ring", &|| run(Way::Futex, cpu)),
            ],
        );
    }
}
