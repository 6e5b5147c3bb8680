//! The heartbeat: a fiber that wakes every few milliseconds, and how late it was.
//!
//! Beside it a plain thread does the same. On a machine with more work than CPUs both are late.
//! Only a fiber that is much later than the thread was delayed by the runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::Handle;
use indent::task::{self, JoinHandle, Mobility};

const BEAT: Duration = Duration::from_millis(5);
/// Starvation is a median above this, and above so many times the thread's median.
const LATE: Duration = Duration::from_millis(20);
const TIMES_THREAD: u32 = 20;
/// Switches between threads that each wait for a CPU before a beat.
const SWITCHES: u32 = 4;
/// So many times fewer beats than the thread's are starvation, too.
///
/// A median may hide some long waits.
const RARE: usize = 10;
/// Longest time to wait for the runtime to read the program's code.
const WARM: Duration = Duration::from_secs(10);
/// With fewer beats than this, the thread shows nothing.
const FEW: usize = 40;

/// A fiber and a thread that beat.
pub(crate) struct Heartbeat {
    stop: Arc<AtomicBool>,
    fiber: JoinHandle<Vec<Duration>>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

/// Latenesses of fiber and thread, sorted.
pub(crate) struct Lateness {
    fiber: Vec<Duration>,
    thread: Vec<Duration>,
}

impl Heartbeat {
    pub(crate) fn start(runtime: &Handle) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (one, other) = (stop.clone(), stop.clone());
        let fiber = runtime.block_on(move || {
            let heart = move || beat(&one, indent::time::sleep_until);
            task::Builder::new().name("heartbeat").spawn(heart)
        });
        let sleep = |until: Instant| thread::sleep(until.saturating_duration_since(Instant::now()));
        let thread = thread::spawn(move || beat(&other, sleep));
        Heartbeat {
            stop,
            fiber,
            thread,
        }
    }

    /// Waits, for a limited time, until the runtime has judged the fiber.
    pub(crate) fn warm_up(&self) {
        let start = Instant::now();
        while self.fiber.fiber().binding().mobility() == Mobility::Unjudged
            && start.elapsed() < WARM
        {
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn stop(self) -> Lateness {
        self.stop.store(true, Relaxed);
        let mut fiber = self.fiber.join().expect("a heartbeat never panics");
        let mut thread = self.thread.join().expect("nor does this one");
        fiber.sort_unstable();
        thread.sort_unstable();
        Lateness { fiber, thread }
    }
}

fn beat(stop: &AtomicBool, sleep_until: impl Fn(Instant)) -> Vec<Duration> {
    let mut late = Vec::new();
    while !stop.load(Relaxed) {
        let due = Instant::now() + BEAT;
        sleep_until(due);
        late.push(due.elapsed());
    }
    late
}

impl Lateness {
    /// Returns what is wrong with the fiber's lateness; only a large difference counts.
    pub(crate) fn complaint(&self) -> Option<String> {
        // A beat may take several switches of threads, each of which waits for a CPU: the thread's
        // 99th percentile shows for how long, where other programs run beside this one.
        let contended = SWITCHES * quantile(&self.thread, 0.99);
        let allowed = LATE + TIMES_THREAD * quantile(&self.thread, 0.5) + contended;
        let late = quantile(&self.fiber, 0.5) > allowed;
        let rare = self.fiber.len() * RARE < self.thread.len();
        let starved = (late || rare) && self.thread.len() >= FEW;
        starved.then(|| format!("the heartbeat starved: {self}"))
    }
}

impl std::fmt::Display for Lateness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |late: &[Duration], q| quantile(late, q).as_secs_f64() * 1e3;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| of(&self.fiber, q));
        let [thread50, thread99] = [0.5, 0.99].map(|q| of(&self.thread, q));
        let beats = self.fiber.len();
        write!(
            f,
            "{beats} beats, late {p50:.2} / {p99:.2} / {max:.2} ms (p50 / p99 / max)"
        )?;
        write!(f, ", a thread {thread50:.2} / {thread99:.2}")
    }
}

fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * q).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}
