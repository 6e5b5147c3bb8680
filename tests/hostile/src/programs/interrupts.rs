#![expect(unsafe_code, reason = "system calls without std's second try")]
//! Calls that a signal may cut short with EINTR, in code that expects few of them (S10).
//!
//! A fiber that computed before may see one EINTR in a call, retries included. A fiber that
//! computed less than 200 µs since it was woken sees none: there was no reason to interrupt it.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Program;
use crate::noise::compute_for;
use crate::say::say;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[Program::new(
    "eintr",
    "raw nanosleep, poll, recv and futex with a limit, after much and little work",
    eintr,
)
.apart()];

/// CPU time below what makes a fiber worth interrupting, with a margin for time not visible here.
const LITTLE: Duration = Duration::from_micros(150);

/// One call in so many may be cut short after little work, or twice.
const SELDOM: u64 = 1000;

/// Waits this long for nothing; returns an error if it was cut short.
type Wait = fn(Duration, &UdpSocket) -> io::Result<()>;

const WAITS: [(&str, Wait); 4] = [
    ("nanosleep", nanosleep),
    ("poll", poll),
    ("recv", recv),
    ("futex", futex),
];

fn eintr(stage: &'static Stage) {
    let [calls, cut, unlucky, twice]: [&AtomicU64; 4] =
        std::array::from_fn(|_| &*Box::leak(Box::default()));
    stage.crew(4 * WAITS.len(), move |i| {
        let (name, wait) = WAITS[i % WAITS.len()];
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let busy = (i / WAITS.len()).is_multiple_of(2);
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            indent::time::sleep(Duration::from_millis(1)); // a dispatch of its own follows
            let stays = indent::task::pin(); // the clock is the thread's
            let before = cpu();
            if busy {
                compute_for(Duration::from_millis(3));
            }
            let cuts = whole(Duration::from_millis(if busy { 20 } else { 5 }), |rest| {
                wait(rest, &socket)
            });
            let little = cpu() - before < LITTLE;
            drop(stays);
            calls.fetch_add(1, Relaxed);
            cut.fetch_add(cuts, Relaxed);
            if cuts > 2 {
                stage.complain(format!("{name} cut short {cuts} times"));
            }
            twice.fetch_add(u64::from(cuts > 1), Relaxed);
            unlucky.fetch_add(u64::from(little && cuts > 0), Relaxed);
            stage.round();
        }
    });
    let [calls, cut, unlucky, twice] =
        [calls, cut, unlucky, twice].map(|count| count.load(Relaxed));
    say(&format!(
        "{}: {cut} of {calls} calls cut short, {unlucky} after little work, {twice} twice",
        stage.name
    ));
    // A call that begins between the check of its thread and the signal: rare, not impossible
    // (S10).
    for (number, how) in [(unlucky, "after little work"), (twice, "twice")] {
        if number * SELDOM > calls + SELDOM {
            stage.complain(format!("{number} of {calls} calls cut short {how}"));
        }
    }
}

/// Waits until all the time has passed; returns how often the wait was cut short.
fn whole(time: Duration, wait: impl Fn(Duration) -> io::Result<()>) -> u64 {
    let end = Instant::now() + time;
    let mut cuts = 0;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        match wait(rest.max(Duration::from_micros(1))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => cuts += 1,
            _ => return cuts,
        }
    }
}

/// Returns the CPU time of this thread.
fn cpu() -> Duration {
    let mut time = spec(Duration::ZERO);
    // SAFETY: `time` has room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn spec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

fn result(status: i64) -> io::Result<()> {
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn nanosleep(time: Duration, _: &UdpSocket) -> io::Result<()> {
    // SAFETY: the call reads a time, and has nothing to write.
    let status = unsafe { libc::nanosleep(&spec(time), std::ptr::null_mut()) };
    result(i64::from(status))
}

fn poll(time: Duration, socket: &UdpSocket) -> io::Result<()> {
    let mut one = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the array has one entry.
    let status = unsafe { libc::poll(&mut one, 1, time.as_millis() as i32) };
    result(i64::from(status))
}

fn recv(time: Duration, socket: &UdpSocket) -> io::Result<()> {
    socket.set_read_timeout(Some(time)).expect("a limit");
    let mut byte = 0_u8;
    // SAFETY: there is room for one byte.
    let status = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, 0) };
    result(status as i64)
}

fn futex(time: Duration, _: &UdpSocket) -> io::Result<()> {
    let (word, limit) = (AtomicU32::new(0), spec(time));
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: both values live until the call returns.
    let status = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, &limit) };
    result(status)
}
