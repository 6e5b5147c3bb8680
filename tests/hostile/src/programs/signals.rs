#![expect(unsafe_code, reason = "handles and raises signals")]
//! Other users of signals: an earlier handler of SIGURG, code that replaces the runtime's handler,
//! and a profiler.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Program;
use crate::noise::{Random, checksum, compute_for, mix, stir};
use crate::region::pure;
use crate::say;
use crate::stage::Stage;
use crate::walk;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "user-handler",
        "SIGURG has a handler already, which gets what others raise",
        user_handler,
    )
    .pure()
    .before(count_urgent)
    .apart(),
    Program::new("profiler", "SIGPROF a thousand times a second", profiler)
        .pure()
        .apart(),
    Program::new(
        "region-profiler",
        "a profiler that walks stacks, at any moment",
        walking_profiler,
    )
    .regions()
    .apart(),
    Program::new(
        "replaced-handler",
        "a library takes SIGURG for itself and forwards nothing",
        replaced,
    )
    .needs_preemption()
    .silences()
    .apart(),
];

const FIBERS: usize = 6;

thread_local! {
    /// Number of signals that the user's handler saw on this thread.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Number of signals that were sent to the process.
static SEEN_OF_PROCESS: AtomicU64 = AtomicU64::new(0);
static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// # Safety
///
/// To be installed as a handler with information, so that `info` points to it.
unsafe extern "C" fn on_urgent(_: c_int, info: *const libc::siginfo_t, _: *mut c_void) {
    // SAFETY: by the caller's promise.
    let code = unsafe { (*info).si_code };
    if code == libc::SI_USER {
        SEEN_OF_PROCESS.fetch_add(1, Relaxed);
    } else {
        SEEN.set(SEEN.get() + 1);
    }
}

/// Samples where a profiler has room for that.
extern "C" fn on_sample(_: c_int) {
    if walk::has_room() {
        sample();
    }
}

/// Uses some of the signal stack, as profilers do that walk the other stack.
///
/// It is more than std's signal stack has left.
#[inline(never)]
fn sample() {
    let frames = black_box([7_u64; 400]);
    SAMPLES.fetch_add(u64::from(frames[3] == 7), Relaxed);
}

extern "C" fn ignore(_: c_int) {}

fn install(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: all zeros is a valid action without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handlers here touch only atomics and thread-locals without destructors.
    let status = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(status, 0, "a handler");
}

fn count_urgent() {
    install(
        libc::SIGURG,
        on_urgent as *const () as usize,
        libc::SA_SIGINFO,
    );
}

/// Raises the signal on this thread; returns true if the user's handler got it.
fn raised() -> bool {
    let before = SEEN.get();
    // SAFETY: the signal has a handler.
    let status = unsafe { libc::raise(libc::SIGURG) };
    assert_eq!(status, 0, "a signal");
    SEEN.get() > before
}

/// Counts the signals that arrive.
///
/// On a plain thread every signal arrives. In a fiber a signal may merge with the runtime's own,
/// and so may one that is sent to the whole process. Neither loses most of its signals.
fn user_handler(stage: &'static Stage) {
    let raised_in_fibers: &'static [AtomicU64; 2] = Box::leak(Box::default());
    let plain = thread::spawn(move || {
        while !stage.over() {
            stage.same("a signal on a plain thread", raised(), true);
            thread::sleep(Duration::from_millis(1));
        }
    });
    let outside = thread::spawn(move || {
        let me = std::process::id().cast_signed();
        let (mut sent, mut seen) = (0, 0);
        while sent < 20 || !stage.over() {
            let before = SEEN_OF_PROCESS.load(Relaxed);
            // SAFETY: as in `raised`.
            unsafe { libc::kill(me, libc::SIGURG) };
            thread::sleep(Duration::from_millis(2));
            sent += 1;
            seen += u64::from(SEEN_OF_PROCESS.load(Relaxed) > before);
        }
        most(stage, "to the process", seen, sent);
    });
    stage.crew(FIBERS, move |_| {
        for turn in 0.. {
            if turn > 20 && stage.over() {
                return;
            }
            pure(|| compute_for(Duration::from_micros(100 + 300 * (turn % 8))));
            raised_in_fibers[usize::from(raised())].fetch_add(1, Relaxed);
        }
    });
    plain.join().expect("a thread");
    outside.join().expect("a thread");
    let [lost, seen] = [0, 1].map(|i| raised_in_fibers[i].load(Relaxed));
    most(stage, "in fibers", seen, lost + seen);
}

fn most(stage: &Stage, whose: &str, seen: u64, sent: u64) {
    say::say(&format!(
        "{}: {seen} of {sent} signals {whose} arrived",
        stage.name
    ));
    if seen * 2 < sent {
        stage.complain(format!("{seen} of {sent} signals {whose}"));
    }
}

/// Starts the timer of SIGPROF, or stops it at 0.
fn sample_every(microseconds: libc::suseconds_t) {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: microseconds,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: a valid timer; the old one is not read.
    let status = unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) };
    assert_eq!(status, 0, "a timer");
}

fn kernel(seed: u64) -> u64 {
    let sum = (0..50_000).fold(seed, |sum, i| stir(black_box(sum) + i % 7));
    let texts = (0..300).map(|i| format!("{:x}", stir(seed + i)));
    texts.fold(sum, |sum, text| mix(sum, checksum(text.as_bytes())))
}

fn profiler(stage: &'static Stage) {
    install(libc::SIGPROF, on_sample as *const () as usize, 0);
    sample_every(1_000);
    stage.repeat_pure(FIBERS, kernel);
    sample_every(0);
    if SAMPLES.load(Relaxed) == 0 {
        stage.complain("no sample".to_owned());
    }
}

/// Walks the stack that it interrupts, with C's unwinder.
///
/// # Safety
///
/// To be installed as a handler with information.
unsafe extern "C" fn on_walk(_: c_int, _: *const libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the argument of the running handler.
    if let Some(frames) = unsafe { walk::walk(context) } {
        SAMPLES.fetch_add(1, Relaxed);
        WALKED.fetch_add(frames, Relaxed);
    }
}

static WALKED: AtomicU64 = AtomicU64::new(0);

/// Returns all threads of the process.
fn threads() -> Vec<libc::pid_t> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let number = |name: std::ffi::OsString| name.to_str()?.parse().ok();
    let names = tasks.flatten().map(|task| task.file_name());
    names.filter_map(number).collect()
}

/// Sends signals at random moments to all threads.
fn sample_at_random(stage: &Stage) {
    let mut random = Random::new(stage.seed + 1);
    let process = std::process::id().cast_signed();
    while !stage.over() {
        for thread in threads() {
            // SAFETY: no memory is touched; a thread that has ended meanwhile gets nothing.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGPROF) };
            compute_for(Duration::from_micros(random.below(50)));
        }
        thread::sleep(Duration::from_micros(100 + random.below(200)));
    }
}

fn walking_profiler(stage: &'static Stage) {
    walk::prepare();
    install(
        libc::SIGPROF,
        on_walk as *const () as usize,
        libc::SA_SIGINFO,
    );
    let sampler = thread::spawn(|| sample_at_random(stage));
    stage.repeat_in_region(FIBERS, kernel);
    sampler.join().expect("a thread");
    let [samples, walked] = [&SAMPLES, &WALKED].map(|count| count.load(Relaxed));
    let each = walked / samples.max(1);
    let (faults, wrong) = walk::abandoned();
    say::say(&format!(
        "{}: {samples} samples of {each} frames, {faults} walks given up",
        stage.name
    ));
    if samples == 0 {
        stage.complain("no sample".to_owned());
    }
    for names in wrong {
        stage.complain(format!("a walk that began in {names} faulted"));
    }
}

/// Checks that the runtime reports a replaced handler; without preemption nothing else goes wrong.
fn replaced(stage: &'static Stage) {
    let (told, tells) = mpsc::channel();
    let mut heard = listen_to_errors();
    install(libc::SIGURG, ignore as *const () as usize, 0);
    thread::spawn(move || {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while let Ok(n @ 1..) = heard.read(&mut buffer) {
            let new = &buffer[..n];
            say::raw(new);
            text += &String::from_utf8_lossy(new);
            if text.contains("SIGURG") || text.contains("signal") {
                told.send(()).ok();
            }
        }
    });
    // The collector checks while something runs; the watchdog limits the time.
    while tells.try_recv().is_err() {
        stage.repeat(FIBERS, kernel);
    }
    stage.round();
}

/// Makes standard error a pipe, and returns the end to read from.
fn listen_to_errors() -> File {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let status = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(status, 0, "a pipe");
    // SAFETY: both are from `pipe2`, and nothing else owns them.
    let [from, to] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: both descriptors are open; the framework has its own copy of what was there.
    let copied = unsafe { libc::dup2(to.as_raw_fd(), 2) };
    assert_eq!(copied, 2, "a copy");
    from
}
