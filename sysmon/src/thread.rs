#![expect(unsafe_code, reason = "asks the kernel about other threads")]
//! What the kernel reports about a thread of this process: its CPU time, and whether it sleeps.
//!
//! A thread *enlists* itself and stores its number; other threads query it. There may be thousands
//! of them, so nothing is kept open for each: a query opens a file below `/proc/self/task`, a
//! folder that is opened once, reads the file and closes it. A query follows the monitor's rules:
//! system calls with buffers on the stack, no allocation, no lock. Where there is no `/proc`, or no
//! descriptor left, the state is unknown, and the CPU clock alone must do.
//!
//! A late query about a thread that has left is harmless: a clock or a file of a thread that is
//! gone is an error, and a thread leaves before its number can belong to another one, so no
//! other thread is signalled by mistake.

use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use crate::system_call::SystemCall;

/// The number of no thread.
const NONE: i32 = -1;
/// Room for a line of the file: nine numbers at most.
const LINE: usize = 192;

/// What a thread is doing, as far as the kernel reports it.
///
/// ```
/// use indent_sysmon::{Thread, ThreadState};
///
/// let thread = Thread::new();
/// assert_eq!(thread.state(), ThreadState::Unknown, "no thread has enlisted");
/// thread.enlist();
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         // Soon the other one waits for this one to end.
///         while thread.state() == ThreadState::Running {
///             std::thread::yield_now();
///         }
///     });
/// });
/// thread.leave();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// On a CPU or waiting for one.
    Running,
    /// Waiting inside the kernel for anything but another thread.
    Sleeping,
    /// Waiting inside the kernel for another thread, for example for a lock.
    Locked,
    /// There is no thread, or its state cannot be found out.
    Unknown,
}

/// A thread of this process that other threads can query and signal.
///
/// ```
/// use indent_sysmon::Thread;
///
/// let thread = Thread::new();
/// thread.enlist();
/// let before = thread.cpu_time().expect("it runs");
/// std::hint::black_box((0..100_000u64).sum::<u64>());
/// assert!(thread.cpu_time().unwrap() >= before);
/// thread.leave();
/// assert_eq!(thread.cpu_time(), None);
/// ```
#[derive(Debug)]
pub struct Thread {
    number: AtomicI32,
}

/// The folder with the kernel's files about the threads of this process, opened once.
static TASKS: OnceLock<Option<File>> = OnceLock::new();

fn tasks() -> Option<&'static File> {
    let open = || File::open("/proc/self/task").ok();
    TASKS.get_or_init(open).as_ref()
}

/// Formats `NUMBER/name` with a terminating zero byte, without allocation.
fn path(number: i32, name: &[u8]) -> [u8; 24] {
    let mut path = [0; 24];
    let (mut digits, mut rest) = (0, number);
    while digits == 0 || rest > 0 {
        digits += 1;
        rest /= 10;
    }
    let mut rest = number;
    for place in path[..digits].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[digits..digits + name.len()].copy_from_slice(name);
    path
}

impl Thread {
    /// Creates a handle of no thread yet.
    ///
    /// See [`Thread`] for an example.
    pub const fn new() -> Self {
        Thread {
            number: AtomicI32::new(NONE),
        }
    }

    /// Makes the calling thread the one that is queried.
    ///
    /// See [`Thread`] for an example.
    pub fn enlist(&self) {
        tasks(); // the one file for all threads
        // SAFETY: takes nothing and cannot fail.
        let number = unsafe { libc::gettid() };
        self.number.store(number, SeqCst);
    }

    /// Ends queries and signals to the calling thread, which enlisted before and is about to end.
    ///
    /// See [`Thread`] for an example.
    pub fn leave(&self) {
        self.number.store(NONE, SeqCst);
    }

    /// Returns its number in the kernel; a signal handler can check by it which thread it runs on.
    ///
    /// ```
    /// use indent_sysmon::Thread;
    ///
    /// let thread = Thread::new();
    /// assert_eq!(thread.number(), None);
    /// thread.enlist();
    /// assert!(thread.number().is_some());
    /// thread.leave();
    /// ```
    pub fn number(&self) -> Option<i32> {
        let number = self.number.load(SeqCst);
        (number != NONE).then_some(number)
    }

    /// Returns how long the thread has run on a CPU.
    ///
    /// See [`Thread`] for an example.
    pub fn cpu_time(&self) -> Option<Duration> {
        // The clock id of "CPU time of thread N": the number's complement, and three bits that mean
        // "a thread" and "exact".
        let clock = (!self.number()? << 3) | 0b110;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes to `time`.
        let known = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
        known.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Returns whether the thread runs or sleeps now.
    ///
    /// To be called by other threads: the calling thread always finds itself inside a system call.
    ///
    /// See [`ThreadState`] for an example.
    pub fn state(&self) -> ThreadState {
        self.line(&mut [0; LINE])
            .map_or(ThreadState::Unknown, parse_state)
    }

    /// Returns the system call the thread sleeps in, if any. Follows the monitor's rules.
    ///
    /// ```
    /// use indent_sysmon::Thread;
    /// use std::time::Duration;
    ///
    /// static SLEEPER: Thread = Thread::new();
    /// let sleeper = std::thread::spawn(|| {
    ///     SLEEPER.enlist();
    ///     std::thread::sleep(Duration::from_millis(100));
    ///     SLEEPER.leave();
    /// });
    /// while !sleeper.is_finished() {
    ///     if let Some(call) = SLEEPER.system_call() {
    ///         println!("it sleeps in {call}, called at {:#x}", call.pc);
    ///     }
    /// #   std::thread::yield_now();
    /// }
    /// ```
    pub fn system_call(&self) -> Option<SystemCall> {
        SystemCall::parse(self.line(&mut [0; LINE])?)
    }

    /// Returns how long the thread has run so far, and how long it has waited for a CPU.
    ///
    /// `None` if the kernel does not count that. Follows the monitor's rules.
    ///
    /// ```
    /// let thread = indent_sysmon::Thread::new();
    /// thread.enlist();
    /// if let Some((ran, waited)) = thread.ran_and_waited() {
    ///     println!("ran for {ran:?}, waited for a CPU for {waited:?}");
    /// }
    /// thread.leave();
    /// ```
    pub fn ran_and_waited(&self) -> Option<(Duration, Duration)> {
        let mut text = [0; LINE];
        parse_schedstat(self.file(b"/schedstat\0", &mut text)?)
    }

    /// Queries the kernel: `/proc/self/task/N/syscall`, or `stat` where there is none.
    fn line<'a>(&self, text: &'a mut [u8; LINE]) -> Option<&'a [u8]> {
        let names = [&b"/syscall\0"[..], b"/stat\0"];
        let read = names.iter().find_map(|name| {
            let read = self.file(name, text)?;
            Some(read.len())
        })?;
        text.get(..read)
    }

    /// Reads the beginning of one of the kernel's files about the thread.
    fn file<'a>(&self, name: &[u8], text: &'a mut [u8; LINE]) -> Option<&'a [u8]> {
        let (number, tasks) = (self.number()?, TASKS.get()?.as_ref()?);
        let path = path(number, name);
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a zero and lives for the call.
        let file = unsafe { libc::openat(tasks.as_raw_fd(), path.as_ptr().cast(), flags) };
        if file < 0 {
            return None;
        }
        // SAFETY: writes at most that many bytes to `text`.
        let read = unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
        // SAFETY: opened above, and no other code has the descriptor.
        unsafe { libc::close(file) };
        text.get(..usize::try_from(read).ok()?)
    }

    /// Sends the thread a signal; returns false if it is gone. Follows the monitor's rules.
    ///
    /// ```
    /// use indent_sysmon::Thread;
    ///
    /// let thread = Thread::new();
    /// thread.enlist();
    /// const NONE: i32 = 0; // only asks whether one could be sent
    /// assert!(thread.signal(NONE));
    /// thread.leave();
    /// assert!(!thread.signal(NONE));
    /// ```
    pub fn signal(&self, signal: i32) -> bool {
        let Some(number) = self.number() else {
            return false;
        };
        // SAFETY: takes nothing and cannot fail.
        let process = unsafe { libc::getpid() };
        // SAFETY: takes numbers only; the process is our own.
        unsafe { libc::syscall(libc::SYS_tgkill, process, number, signal) == 0 }
    }
}

impl Thread {
    /// Sends a signal with a value, which its handler finds in the `siginfo`.
    ///
    /// By the value the handler can recognize signals that other code sent.
    ///
    /// ```
    /// let thread = indent_sysmon::Thread::new();
    /// thread.enlist();
    /// assert!(thread.signal_with(libc::SIGURG, 42)); // ignored, unless there is a handler
    /// thread.leave();
    /// ```
    pub fn signal_with(&self, signal: i32, value: usize) -> bool {
        let Some(number) = self.number() else {
            return false;
        };
        /// The front of a `siginfo_t` as `sigqueue` fills it in.
        #[repr(C)]
        struct Queued {
            signal: i32,
            error: i32,
            code: i32,
            padding: i32,
            process: i32,
            user: u32,
            value: usize,
            rest: [u64; 12],
        }
        // SAFETY: takes nothing and cannot fail.
        let process = unsafe { libc::getpid() };
        let info = Queued {
            signal,
            error: 0,
            code: libc::SI_QUEUE,
            padding: 0,
            process,
            user: 0,
            value,
            rest: [0; 12],
        };
        const { assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>()) };
        let call = libc::SYS_rt_tgsigqueueinfo;
        // SAFETY: the kernel reads `info`, which has the size and layout it expects.
        unsafe { libc::syscall(call, process, number, signal, &raw const info) == 0 }
    }
}

/// Parses the first two numbers of `schedstat`: nanoseconds on a CPU, and on a run queue.
fn parse_schedstat(text: &[u8]) -> Option<(Duration, Duration)> {
    let mut words = text.split(|byte| byte.is_ascii_whitespace());
    let mut next = || {
        let word = std::str::from_utf8(words.next()?).ok()?;
        word.parse().ok().map(Duration::from_nanos)
    };
    Some((next()?, next()?))
}

impl Default for Thread {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes the calling thread wake on time, and get a CPU soon when it does.
///
/// Its timers are not merged with others, and it requests short time slices (Linux 6.12; nothing
/// changes where that is refused). Threads it starts do not inherit this.
///
/// ```
/// std::thread::spawn(|| {
///     indent_sysmon::be_prompt();
///     // wait for something, and react
/// });
/// ```
pub fn be_prompt() {
    const SLICE_NANOS: u64 = 100_000;
    const RESET_ON_FORK: u64 = 1;
    /// `struct sched_attr`, its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    let (at, size) = (&raw mut attributes, size_of::<Attributes>());
    // SAFETY: the kernel fills in at most `size` bytes.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, at, size, 0) } == 0;
    if known && attributes.policy == 0 {
        // With its own nice value: the kernel would refuse another one, or worse, grant it.
        attributes.flags |= RESET_ON_FORK;
        attributes.runtime = SLICE_NANOS;
        // SAFETY: the kernel reads as many bytes as `size` says.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Parses a line of one of two forms. `syscall` has `running`, or the number of a system call and
/// its arguments, or -1 if the thread waits in none. `stat` has `123 (a name) S 1 …`, where the
/// name may hold anything.
fn parse_state(line: &[u8]) -> ThreadState {
    const FUTEX: &[u8] = b"202";
    let first = line.split(|byte| byte.is_ascii_whitespace()).next();
    match first {
        Some(b"running") => return ThreadState::Running,
        Some(FUTEX) if !line.contains(&b'(') => return ThreadState::Locked,
        Some(word) if !word.is_empty() && !line.contains(&b'(') => return ThreadState::Sleeping,
        _ => {}
    }
    let after_name = line.iter().rposition(|byte| *byte == b')');
    match after_name.and_then(|at| line.get(at + 2)) {
        Some(b'R') => ThreadState::Running,
        Some(b'S' | b'D') => ThreadState::Sleeping,
        _ => ThreadState::Unknown,
    }
}

/// Returns the addresses of the calling thread's stack; empty if they are not known.
///
/// A coroutine, or a signal handler, may run on another stack.
///
/// ```
/// let here = 0;
/// assert!(indent_sysmon::own_stack().contains(&(&raw const here).addr()));
/// ```
pub fn own_stack() -> Range<usize> {
    let (mut low, mut size) = (ptr::null_mut(), 0);
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: a thread that runs, and memory for the answer.
    if unsafe { libc::pthread_getattr_np(own, attributes.as_mut_ptr()) } != 0 {
        return 0..0;
    }
    // SAFETY: filled in above.
    let mut attributes = unsafe { attributes.assume_init() };
    // SAFETY: filled in above.
    unsafe { libc::pthread_attr_getstack(&attributes, &mut low, &mut size) };
    // SAFETY: filled in above, and not used any more.
    unsafe { libc::pthread_attr_destroy(&mut attributes) };
    low.addr()..low.addr() + size
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_state_is_found_in_both_kinds_of_lines() {
        use ThreadState::*;
        let table: [(&[u8], _); 11] = [
            (b"running\n", Running),
            (b"202 0x55 0x80 0x2 0x0\n", Locked),
            (b"230 0x0 0x0\n", Sleeping),
            (b"-1 0x7ff 0x55\n", Sleeping),
            (b"12 (worker) R 1 2 3", Running),
            (b"12 (a b) (R) S 1 2", Sleeping),
            (b"12 (x) D 1", Sleeping),
            (b"12 (x) t 1", Unknown),
            (b"12 (x)", Unknown),
            (b"", Unknown),
            (b"12 (x) Z", Unknown),
        ];
        for (line, expected) in table {
            assert_eq!(parse_state(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_thread_that_waits_is_asleep_and_its_clock_stands_still() {
        let thread = Thread::new();
        std::thread::scope(|scope| {
            let (enlisted, wait) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            let watched = &thread;
            scope.spawn(move || {
                watched.enlist();
                enlisted.send(()).unwrap();
                let _ended = ends.recv();
                watched.leave();
            });
            wait.recv().unwrap();
            if thread.state() == ThreadState::Unknown {
                return; // no /proc
            }
            while thread.state() == ThreadState::Running {
                std::thread::yield_now();
            }
            let before = thread.cpu_time();
            std::thread::yield_now();
            assert_eq!(thread.cpu_time(), before);
            drop(end);
        });
        assert_eq!(thread.state(), ThreadState::Unknown);
        assert!(!thread.signal(0), "the thread is gone");
    }
    #[test]
    fn questions_about_many_threads_leave_no_file_open() {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let thread = Thread::new();
        thread.enlist();
        let before = open();
        assert!((0..100).all(|_| thread.state() != ThreadState::Unknown));
        let more = [const { Thread::new() }; 100];
        more.iter().for_each(Thread::enlist);
        assert!(open() <= before + 8, "other tests may have opened some");
    }
}
