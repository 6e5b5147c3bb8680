#![expect(unsafe_code, reason = "shares memory with the kernel")]
//! Possible uses of io_uring beyond those in `src/driver/uring.rs`.
//!
//! No runtime: one thread pushes and takes, on rings that are made as the driver makes them, with
//! the caller's buffer, over loopback. So each figure is the most that a runtime could gain. Rows
//! of a table take turns in every round. Beside a median stands the median of its ratios to the
//! first row of the same round, and the range in which half of the ratios lay. A row `again` is the
//! first row once more: a difference as large as its own has no meaning.
//!
//! One iteration of `echo` = a message that is received and sent back, of `accept` = a connection
//! that is taken and closed, of `wake` = a thread that sleeps is woken. `cargo bench --bench ring`;
//! an argument after `--` names a table.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

#[path = "ring/accept.rs"]
mod accept;
#[path = "ring/echo.rs"]
mod echo;
#[path = "ring/wake.rs"]
mod wake;

/// Sizes of the ring, as in the driver.
const ENTRIES: u32 = 256;
const COMPLETIONS: u32 = 4096;
const BATCH: usize = 32;

/// Number of times that each row is run.
const ROUNDS: usize = 15;

/// Makes a ring as the driver makes them.
fn ring() -> IoUring {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(COMPLETIONS);
    builder.setup_submit_all().dontfork();
    builder.build(ENTRIES).expect("a ring")
}

/// Adds an entry to the ring; the next sleep submits it, or a lack of room.
///
/// # Safety
///
/// The memory that the entry names must stay valid until its completion was taken.
unsafe fn push(ring: &mut IoUring, entry: &Entry) {
    // SAFETY: by the caller's promise.
    while unsafe { ring.submission().push(entry) }.is_err() {
        ring.submit().expect("submitted");
    }
}

/// Submits, and sleeps until there is a completion; may return early without a reason.
fn sleep(ring: &IoUring) {
    if let Err(error) = ring.submit_and_wait(1) {
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
    }
}

/// Takes completions, as many as the driver takes at once.
fn take(ring: &mut IoUring) -> impl Iterator<Item = cqueue::Entry> + use<> {
    let mut batch = [const { None }; BATCH];
    let mut queue = ring.completion();
    batch.fill_with(|| queue.next());
    batch.into_iter().flatten()
}

/// Pins the calling thread to one of the process's CPUs, if there are several.
fn pin(which: usize) {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    let cpus = CPUS.get_or_init(|| {
        let all = sched_getaffinity(Pid::from_raw(0)).expect("a mask");
        let is_ours = |cpu: &usize| all.is_set(*cpu) == Ok(true);
        (0..CpuSet::count()).filter(is_ours).collect()
    });
    if cpus.len() > 1 {
        let mut one = CpuSet::new();
        one.set(cpus[which]).expect("a CPU there is");
        sched_setaffinity(Pid::from_raw(0), &one).expect("one of ours");
    }
}

/// Returns the CPU time that the calling thread has used so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("a clock")
        .into()
}

/// Start of a measured part of the calling thread's work, in time and CPU time.
struct Stretch {
    start: Instant,
    cpu: Duration,
}

impl Stretch {
    fn begin() -> Self {
        Stretch {
            start: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// Returns the rate per second, and CPU nanoseconds for one.
    fn end(&self, count: usize) -> [f64; 2] {
        let (cpu, time) = (cpu_time() - self.cpu, self.start.elapsed());
        let count = count as f64;
        [count / time.as_secs_f64(), cpu.as_secs_f64() * 1e9 / count]
    }
}

/// Returns the value below which this part of the values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// A row of a table: its name and its function.
type Row<'a, const N: usize> = (&'a str, &'a dyn Fn() -> [f64; N]);

/// Runs the rows in turn and prints their results.
fn compare<const N: usize>(title: &str, units: [&str; N], rows: &[Row<'_, N>]) {
    let mut seen = vec![Vec::new(); rows.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<_> = (0..rows.len()).collect();
        order.rotate_left(round % rows.len());
        if round % 2 == 1 {
            order.reverse();
        }
        for row in order {
            seen[row].push((rows[row].1)());
        }
    }
    print!("\n{title:<44}");
    units.iter().for_each(|unit| print!(" | {unit:<28}"));
    println!();
    for ((name, _), row) in rows.iter().zip(&seen) {
        print!("{name:<44}");
        for unit in 0..N {
            let mut values: Vec<_> = row.iter().map(|figures| figures[unit]).collect();
            let pairs = row.iter().zip(&seen[0]);
            let mut ratios: Vec<_> = pairs.map(|(own, first)| own[unit] / first[unit]).collect();
            let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut ratios, part));
            let value = quantile(&mut values, 0.5);
            let places = usize::from(value < 100.0);
            print!(" | {value:>9.places$} {middle:>5.2} ({low:.2}–{high:.2})");
        }
        println!();
    }
}

fn main() {
    let wanted: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |table: &str| wanted.is_empty() || wanted.iter().any(|name| name == table);
    let tables: [(&str, fn()); 3] = [
        ("echo", echo::tables),
        ("accept", accept::tables),
        ("wake", wake::tables),
    ];
    pin(0);
    for (_, print) in tables.iter().filter(|(name, _)| is_wanted(name)) {
        print();
    }
}
