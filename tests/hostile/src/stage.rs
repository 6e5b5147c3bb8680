//! What a program gets to run on: the runtime, the time it has, and where it complains.
//!
//! A stage lives as long as the process, so that fibers may borrow it and their first frames have
//! nothing to drop.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indent::runtime::Handle;
use indent::task::{self, JoinHandle, Mobility, Phase};

use crate::region::{pure, region};

/// Inputs a kernel is tried with; each fiber goes through them in turn.
const INPUTS: u64 = 4;
/// More complaints than this say nothing new.
const MOST_COMPLAINTS: usize = 20;
/// So many fibers in a row that were meant to be bound and are not: none will be.
const MOST_MOVABLE: u32 = 100;

/// A computation: the same number for the same number.
pub(crate) type Kernel = fn(u64) -> u64;

/// What a program runs on.
pub(crate) struct Stage {
    /// The program's name.
    pub(crate) name: &'static str,
    /// The runtime, of two workers.
    pub(crate) runtime: Handle,
    /// Where what looks random comes from.
    pub(crate) seed: u64,
    time: Duration,
    /// Known when it is first asked for: what comes before is preparation. Among others it is known
    /// from the beginning, since preparation takes its time there.
    until: OnceLock<Instant>,
    rounds: AtomicU64,
    wrong: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl Stage {
    /// For a program that ends after that time.
    pub(crate) fn new(
        name: &'static str,
        runtime: Handle,
        seed: u64,
        time: Duration,
    ) -> &'static Self {
        Box::leak(Box::new(Stage {
            name,
            runtime,
            seed,
            time,
            until: OnceLock::new(),
            rounds: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            complaints: Mutex::new(Vec::new()),
        }))
    }

    /// For a program that ends at that time, however long it takes to prepare itself.
    pub(crate) fn until(
        name: &'static str,
        runtime: Handle,
        seed: u64,
        until: Instant,
    ) -> &'static Self {
        let stage = Stage::new(name, runtime, seed, Duration::ZERO);
        stage.until.get_or_init(|| until);
        stage
    }

    /// Whether it is time to end.
    pub(crate) fn over(&self) -> bool {
        let now = Instant::now();
        now >= *self.until.get_or_init(|| now + self.time)
    }

    /// Counts a piece of work that came out right.
    pub(crate) fn round(&self) {
        self.rounds.fetch_add(1, Relaxed);
    }

    /// How many did.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Relaxed)
    }

    /// How many did not.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Relaxed)
    }

    /// Says what is wrong; the program goes on.
    pub(crate) fn complain(&self, what: String) {
        self.wrong.fetch_add(1, Relaxed);
        let mut complaints = self.lock();
        if complaints.len() < MOST_COMPLAINTS {
            complaints.push(format!("{}: {what}", self.name));
        }
    }

    /// Complains unless the two are the same.
    pub(crate) fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, is: T, should: T) {
        if is == should {
            self.round();
        } else {
            self.complain(format!("{what} is {is:?}, should be {should:?}"));
        }
    }

    /// What was said.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs that many fibers with one body, and waits for them; a panic is a complaint.
    pub(crate) fn crew<F>(&'static self, fibers: usize, body: F)
    where
        F: Fn(usize) + Send + Sync + 'static,
    {
        let body: &'static F = Box::leak(Box::new(body));
        // By one fiber: each of them may keep a worker for long.
        let spawn = |i| self.spawn(&format!("{i}"), None, move || body(i));
        let handles: Vec<_> = self.runtime.block_on(|| (0..fibers).map(spawn).collect());
        self.join(handles);
    }

    /// Starts a fiber, on that worker if one is named.
    pub(crate) fn spawn<F, T>(&self, label: &str, worker: Option<usize>, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut builder = task::Builder::new().name(format!("{}/{label}", self.name));
        if let Some(index) = worker {
            builder = builder.worker(index);
        }
        match task::current() {
            Some(_) => builder.spawn(body),
            None => self.runtime.block_on(move || builder.spawn(body)),
        }
    }

    /// Waits for fibers; those that panicked are complaints.
    pub(crate) fn join(&self, handles: impl IntoIterator<Item = JoinHandle<()>>) {
        for handle in handles {
            if let Err(error) = handle.join() {
                self.complain(error.to_string());
            }
        }
    }

    /// Runs a computation over and over in that many fibers; each time the result must be what this
    /// thread, which nobody disturbs, gets of it.
    pub(crate) fn repeat(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, kernel);
    }

    /// The same with a computation that may run in a region, and does if that is asked for.
    pub(crate) fn repeat_pure(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, move |input| pure(|| kernel(input)));
    }

    /// The same, in a region whatever is asked for.
    pub(crate) fn repeat_in_region(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, move |input| region(|| kernel(input)));
    }

    /// Runs `disturbed` in fibers; its results must be those of `kernel` on this thread.
    pub(crate) fn compare<F>(
        &'static self,
        fibers: usize,
        kernel: impl Fn(u64) -> u64,
        disturbed: F,
    ) where
        F: Fn(u64) -> u64 + Send + Sync + 'static,
    {
        let inputs = (0..INPUTS).map(|i| self.seed.wrapping_add(i) % 1_000_003);
        let expected: Vec<(u64, u64)> = inputs.map(|input| (input, kernel(input))).collect();
        self.crew(fibers, move |i| {
            for &(input, expected) in expected.iter().cycle().skip(i) {
                let got = disturbed(input);
                self.same(&format!("result for {input}"), got, expected);
                if self.over() {
                    return;
                }
            }
        });
    }

    /// Starts and releases fibers, one after the other, until the runtime knows that one which parks
    /// like them is bound to its thread. Complains if such fibers are movable.
    pub(crate) fn until_known_bound(&self, start: impl Fn() -> JoinHandle<()>, release: impl Fn()) {
        let mut movable = 0;
        loop {
            let fiber = start();
            let verdict = loop {
                let seen = fiber.fiber();
                let (phase, verdict) = (seen.phase(), seen.binding().mobility());
                let parked = phase == Phase::Parked && verdict != Mobility::Unjudged;
                if verdict == Mobility::Bound || parked || phase == Phase::Done {
                    break verdict;
                }
                std::thread::sleep(Duration::from_micros(500));
            };
            release();
            fiber.unparker().unpark();
            self.join([fiber]);
            if verdict == Mobility::Bound || self.is_past() {
                return;
            }
            movable += u32::from(verdict == Mobility::Movable);
            if movable == MOST_MOVABLE {
                return self.complain("its fibers should be bound, and are movable".to_owned());
            }
        }
    }

    /// Whether the time to end is known and has come.
    fn is_past(&self) -> bool {
        self.until
            .get()
            .is_some_and(|&until| Instant::now() >= until)
    }
}
