//! The environment of a program: the runtime, its time, and the list of complaints.
//!
//! A stage lives as long as the process, so that fibers may borrow it and their first frames have
//! nothing to drop.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indent::runtime::Handle;
use indent::task::{self, JoinHandle, Mobility, Phase};

use crate::region::{pure, region};

/// Inputs that a kernel is tried with; each fiber goes through them in turn.
const INPUTS: u64 = 4;
/// More complaints than this add nothing new.
const MOST_COMPLAINTS: usize = 20;
/// So many fibers in a row that should be bound and are not: none will be.
const MOST_MOVABLE: u32 = 100;

/// A computation: the same result for the same number.
pub(crate) type Kernel = fn(u64) -> u64;

/// The environment that a program runs in.
pub(crate) struct Stage {
    /// The program's name.
    pub(crate) name: &'static str,
    /// The runtime, of two workers.
    pub(crate) runtime: Handle,
    /// Source of pseudo-random numbers.
    pub(crate) seed: u64,
    time: Duration,
    /// Known when it is first asked for: everything before is preparation.
    ///
    /// If programs run together it is known from the beginning, since preparation then takes from
    /// its time.
    until: OnceLock<Instant>,
    rounds: AtomicU64,
    wrong: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl Stage {
    /// Makes a stage for a program that ends after that time.
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

    /// Makes a stage for a program that ends at that time, however long its preparation takes.
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

    /// Returns true if it is time to end.
    pub(crate) fn over(&self) -> bool {
        let now = Instant::now();
        now >= *self.until.get_or_init(|| now + self.time)
    }

    /// Counts a piece of work with the right result.
    pub(crate) fn round(&self) {
        self.rounds.fetch_add(1, Relaxed);
    }

    /// Returns the number of pieces of work with the right result.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Relaxed)
    }

    /// Returns the number of wrong results.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Relaxed)
    }

    /// Records what is wrong; the program continues.
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

    /// Returns the complaints.
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
        // Spawned by one fiber, because each of them may keep a worker for long.
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

    /// Waits for fibers; a panic is a complaint.
    pub(crate) fn join(&self, handles: impl IntoIterator<Item = JoinHandle<()>>) {
        for handle in handles {
            if let Err(error) = handle.join() {
                self.complain(error.to_string());
            }
        }
    }

    /// Runs a computation repeatedly in that many fibers.
    ///
    /// Each result must equal the result on this thread, which is not disturbed.
    pub(crate) fn repeat(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, kernel);
    }

    /// Does the same with a computation that may run in a region, and does if the command line asks
    /// for it.
    pub(crate) fn repeat_pure(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, move |input| pure(|| kernel(input)));
    }

    /// Does the same in a region, whatever the command line says.
    pub(crate) fn repeat_in_region(&'static self, fibers: usize, kernel: Kernel) {
        self.compare(fibers, kernel, move |input| region(|| kernel(input)));
    }

    /// Runs `disturbed` in fibers; its results must equal those of `kernel` on this thread.
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

    /// Starts and releases fibers until the runtime knows that one which parks like them is bound.
    ///
    /// Complains if such fibers are movable.
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

    /// Returns true if the time to end is known and has passed.
    fn is_past(&self) -> bool {
        self.until
            .get()
            .is_some_and(|&until| Instant::now() >= until)
    }
}
