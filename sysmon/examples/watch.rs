#![expect(unsafe_code, reason = "a signal handler, and the bounds of a stack")]
//! Watches a pool of plain threads, and tells which job holds its thread up, where, and how.
//!
//! Nothing of the pool is special: threads take closures from a channel and run them. Being watched
//! costs a worker two stores a job. Who does what:
//!
//! - a *worker* publishes in its seat what it does;
//! - the *monitor* sees that a job goes on for longer than [`LIMIT`], running or asleep, and signals
//!   its thread, once for each job;
//! - the worker's *handler* copies its own stack into the seat and asks the helper;
//! - the *helper* climbs the copy, looks up the names, and tells.
//!
//! Laws: what the monitor calls (`impl Pool`) and the handler neither allocate nor lock nor format;
//! the handler also leaves `errno` as it was. The seats are a static, so that the handler finds the
//! one of its thread without a thread-local.
//!
//! What a pool in earnest would add: signals that are not its own go to the handler that was there
//! before; and it does not signal sleepers whose system calls cannot bear `EINTR`, but says the job's
//! name only. (`thread::sleep`, below, goes on sleeping.)

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use indent_sysmon::frames::{Registers, Snapshot, Stack};
use indent_sysmon::{Chores, Helper, Monitor, Phase, Pool, Slot, Thread, ThreadState};

const WORKERS: usize = 2;
/// A job that takes longer is told about.
const LIMIT: Duration = Duration::from_millis(20);
/// Frames of a report.
const SHOWN: usize = 8;

static SEATS: [Seat; WORKERS] = [const { Seat::new() }; WORKERS];
/// Whom the handler asks.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// All that is known about one worker.
struct Seat {
    slot: Slot,
    thread: Thread,
    /// Where its stack begins and ends.
    stack: [AtomicUsize; 2],
    /// Written by the monitor alone: the job it was last told of, when it first was, and in which job
    /// it last signalled, after how long, and what the thread was doing then.
    told: AtomicU64,
    since: AtomicU64,
    signalled: AtomicU64,
    lasted: AtomicU64,
    state: AtomicU8,
    /// Written by the handler, read by the helper.
    snapshot: Snapshot<4096>,
}

impl Seat {
    const fn new() -> Self {
        Seat {
            slot: Slot::new(),
            thread: Thread::new(),
            stack: [const { AtomicUsize::new(0) }; 2],
            told: AtomicU64::new(0),
            since: AtomicU64::new(0),
            signalled: AtomicU64::new(0),
            lasted: AtomicU64::new(0),
            state: AtomicU8::new(0),
            snapshot: Snapshot::new(),
        }
    }

    /// The monitor: it is in this job still, at this time.
    fn is_late(&self, dispatch: u64, now: u64) {
        if self.told.swap(dispatch, SeqCst) != dispatch {
            self.since.store(now, SeqCst);
            return;
        }
        let lasted = now.saturating_sub(self.since.load(SeqCst));
        if u128::from(lasted) < LIMIT.as_nanos() || self.signalled.load(SeqCst) == dispatch {
            return;
        }
        self.lasted.store(lasted, SeqCst);
        self.state.store(self.thread.state() as u8, SeqCst);
        self.signalled.store(dispatch, SeqCst);
        self.thread.signal(libc::SIGURG);
    }

    /// The handler, on the thread itself: copies the stack from these registers on.
    fn copy(&self, start: &Registers) -> bool {
        let late = self.slot.phase() == Phase::Fiber
            && self.slot.dispatches() == self.signalled.load(SeqCst);
        let [low, high] = [0, 1].map(|end| self.stack[end].load(SeqCst));
        // SAFETY: this thread's own stack, which is there as long as it runs.
        let stack = unsafe { Stack::new(low..high) };
        late && self.snapshot.take(start, &stack)
    }

    /// The helper: what there is to tell.
    fn report(&self, worker: usize) -> Option<Report> {
        let frames = self.snapshot.frames()?;
        let state = self.state.load(SeqCst);
        let known = [
            ThreadState::Running,
            ThreadState::Sleeping,
            ThreadState::Locked,
        ];
        Some(Report {
            worker,
            lasted: Duration::from_nanos(self.lasted.load(SeqCst)),
            state: (known.into_iter().find(|known| *known as u8 == state))
                .unwrap_or(ThreadState::Unknown),
            frames: frames.into_iter().flat_map(names).take(SHOWN).collect(),
        })
    }
}

/// The pool, as the monitor sees it.
struct Workers {
    began: Instant,
    /// Nanoseconds since then.
    now: AtomicU64,
}

impl Pool for Workers {
    fn workers(&self) -> usize {
        WORKERS
    }
    fn slot(&self, worker: usize) -> &Slot {
        &SEATS[worker].slot
    }
    fn thread(&self, worker: usize) -> Option<&Thread> {
        Some(&SEATS[worker].thread)
    }
    fn tick(&self, now: Instant) {
        let passed = (now - self.began).as_nanos() as u64;
        self.now.store(passed, SeqCst);
    }
    fn overran(&self, worker: usize, dispatch: u64) {
        SEATS[worker].is_late(dispatch, self.now.load(SeqCst));
    }
    // `asleep` says the same unless it is told otherwise: a sleeper holds its thread up as well.
}

/// The handler of SIGURG.
extern "C" fn interrupted(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: takes nothing and cannot fail.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    let kept = unsafe { *errno };
    // SAFETY: the kernel's, for the time of the handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let register = |which: i32| context.uc_mcontext.gregs[which as usize] as usize;
    let [ip, sp, bp] = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP].map(register);
    // SAFETY: takes nothing and cannot fail.
    let number = unsafe { libc::gettid() };
    let seat = SEATS.iter().position(|s| s.thread.number() == Some(number));
    if let Some(worker) = seat
        && SEATS[worker].copy(&Registers::interrupted(ip, sp, bp))
        && let Some(helper) = HELPER.get()
    {
        helper.ask(1 << worker);
    }
    // SAFETY: the thread's own.
    unsafe { *errno = kept };
}

/// SIGURG is ignored by default, so a late one hurts nobody.
fn install() {
    let handler = interrupted as extern "C" fn(_, _, _);
    // SAFETY: zeros are a valid action; what matters is set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler keeps the law of handlers, see above.
    unsafe { libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()) };
}

/// Where the stack of the calling thread begins and ends.
fn own_stack() -> [usize; 2] {
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: zeros, to be filled in.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: a thread that runs, and memory for the answer.
    if unsafe { libc::pthread_getattr_np(own, &mut attributes) } != 0 {
        return [0, 0]; // then no stack is ever shown
    }
    // SAFETY: filled in above.
    unsafe { libc::pthread_attr_getstack(&attributes, &mut low, &mut size) };
    // SAFETY: filled in above, and not used any more.
    unsafe { libc::pthread_attr_destroy(&mut attributes) };
    [low.addr(), low.addr() + size]
}

type Job = Box<dyn FnOnce() + Send>;

/// The life of a worker's thread.
fn work(seat: &Seat, monitor: &Monitor, jobs: &Mutex<Receiver<Job>>) {
    for (place, end) in seat.stack.iter().zip(own_stack()) {
        place.store(end, SeqCst);
    }
    seat.thread.enlist();
    loop {
        seat.slot.set_phase(Phase::Idle);
        let job = jobs.lock().unwrap().recv();
        let Ok(job) = job else { break };
        seat.slot.dispatch();
        monitor.notice(); // it may have gone to sleep while all were idle
        job();
    }
    seat.thread.leave();
}

/// A job that went on for too long.
pub(crate) struct Report {
    worker: usize,
    lasted: Duration,
    state: ThreadState,
    /// Names and places, innermost first.
    frames: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            ThreadState::Running => "runs",
            ThreadState::Sleeping => "sleeps",
            ThreadState::Locked => "waits for another thread",
            ThreadState::Unknown => "does who knows what",
        };
        let (worker, lasted) = (self.worker, self.lasted.as_millis());
        writeln!(
            f,
            "worker {worker} is in one job for {lasted} ms; its thread {state}"
        )?;
        let mut frames = self.frames.iter();
        frames.try_for_each(|frame| writeln!(f, "    {frame}"))
    }
}

/// The functions at an address: the one whose code it is, after those inlined into it.
fn names(address: usize) -> Vec<String> {
    let mut names = Vec::new();
    // It takes what it gets for a return address and looks at the one before.
    let address = std::ptr::without_provenance_mut(address + 1);
    backtrace::resolve(address, |symbol| {
        let name = symbol.name().map(|name| format!("{name:#}"));
        let file = symbol.filename().and_then(|path| path.file_name());
        let place = file.zip(symbol.lineno());
        let place = place.map(|(file, line)| format!(" ({}:{line})", file.display()));
        names.push(name.unwrap_or("?".into()) + &place.unwrap_or_default());
    });
    names
}

/// The helper's work.
struct Desk<F>(F);

impl<F: Fn(Report) + Send + Sync + 'static> Chores for Desk<F> {
    fn help(&self, asked: u32) -> Option<Duration> {
        for (worker, seat) in SEATS.iter().enumerate() {
            if asked & 1 << worker != 0 {
                seat.report(worker).map(&self.0);
            }
        }
        None
    }
}

/// Computes for as long as it is told, and never lets go.
#[inline(never)]
fn crunches_numbers(time: Duration) {
    let began = Instant::now();
    let mut x = 1u64;
    while began.elapsed() < time {
        let mut rounds = 100_000;
        while rounds > 0 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(black_box(1));
            rounds -= 1;
        }
    }
    black_box(x);
}

/// Waits inside the kernel.
#[inline(never)]
fn waits_for_the_disk(time: Duration) {
    thread::sleep(time);
    black_box(time); // no tail call: the frame stays
}

/// What jobs should be like.
#[inline(never)]
fn is_quick() {
    black_box((0..1000u64).sum::<u64>());
}

/// Runs some jobs, two of them too long, and hands every report to `tell`. Once in a process.
pub(crate) fn demonstrate(tell: impl Fn(Report) + Send + Sync + 'static) -> std::io::Result<()> {
    let desk = Arc::new(Desk(tell));
    let helper = HELPER.get_or_init(|| Helper::start("helper", desk.clone()).expect("a thread"));
    install();
    let pool = Arc::new(Workers {
        began: Instant::now(),
        now: AtomicU64::new(0),
    });
    let monitor = Monitor::start("monitor", WORKERS, pool)?;
    let (sender, jobs) = mpsc::channel::<Job>();
    let time = Duration::from_millis(200);
    for _ in 0..1000 {
        sender.send(Box::new(is_quick)).unwrap();
    }
    let late: [Job; 2] = [
        Box::new(move || crunches_numbers(time)),
        Box::new(move || waits_for_the_disk(time)),
    ];
    for job in late {
        sender.send(job).unwrap();
    }
    drop(sender); // they end when all is done
    let jobs = Mutex::new(jobs);
    thread::scope(|scope| {
        for seat in &SEATS {
            scope.spawn(|| work(seat, &monitor, &jobs));
        }
    });
    monitor.stop();
    helper.stop();
    desk.help(u32::MAX); // what it may not have come to
    Ok(())
}

#[cfg_attr(
    test,
    allow(dead_code, reason = "the tests demonstrate, and look at what is told")
)]
fn main() -> std::io::Result<()> {
    demonstrate(|report| print!("{report}"))
}
