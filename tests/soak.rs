//! Everything at once, at random, for as long as `INDENT_SOAK_SECONDS` says (3 by default).
//!
//! Rounds of a fraction of a second each. A round starts two runtimes with random settings; fibers
//! and plain threads then spawn, join, park, unpark, yield, panic, pin, compute, block their
//! thread, hand workers over, wait for the other runtime, and list fibers. Half of the rounds end
//! in peace (all fibers stop, `wait_idle`), half in the middle of the work (both runtimes are shut
//! down at the same time, with fibers in all states).
//!
//! After each round the test checks:
//!
//! - every closure was dropped exactly once, after it finished, panicked or was cancelled;
//! - every result was dropped exactly once;
//! - no fiber was cancelled in a peaceful round;
//! - no fiber is left alive, none has a stack, and no thread is left.
//!
//! A watchdog ends the process if nothing at all happens for a while, and prints what is known of
//! each runtime.
//!
//! The seed is printed; `INDENT_TEST_SEED` repeats one, as far as threads repeat their order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indent::park::{self, ParkReason, Unparker, Woken};
use indent::runtime::{self, Handle, Runtime};
use indent::task::{self, JoinHandle};
use indent::time;

mod common;

/// Without any progress for this long, the soak counts as stuck.
const STUCK: Duration = Duration::from_secs(20);
/// Largest depth of nested spawns.
const DEPTH: u32 = 4;
/// Approximate number of fibers alive at once.
const CROWD: u64 = 1500;

/// Steps done by fibers, for the watchdog.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
/// Set by an unexpected panic, which may be on a fiber that is never joined.
static UNEXPECTED: AtomicBool = AtomicBool::new(false);
/// Fibers that reached their end, in all rounds.
///
/// A short round on a busy machine may have none.
static FINISHED: AtomicU64 = AtomicU64::new(0);
/// Current activity of the soak, for the watchdog.
static STAGE: Mutex<String> = Mutex::new(String::new());
/// The runtimes of this round, for the watchdog.
static RUNTIMES: Mutex<Vec<Handle>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Records that a fiber has done something.
///
/// Actions of plain threads do not show that a runtime makes progress.
fn progress() {
    if task::id().is_some() {
        PROGRESS.fetch_add(1, SeqCst);
    }
}

fn stage(what: String) {
    *lock(&STAGE) = what;
    PROGRESS.fetch_add(1, SeqCst);
}

/// Panic of the soak itself, for which the hook prints nothing.
struct OwnPanic(u64);

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.below(most))
    }
}

/// Counts of what happened to the closures and results of one round.
#[derive(Default)]
struct Tally {
    spawned: AtomicU64,
    finished: AtomicU64,
    panicked: AtomicU64,
    cancelled: AtomicU64,
    results_made: AtomicU64,
    results_dropped: AtomicU64,
}

impl Tally {
    fn over(&self) -> u64 {
        self.finished.load(SeqCst) + self.panicked.load(SeqCst) + self.cancelled.load(SeqCst)
    }

    fn alive(&self) -> u64 {
        let over = self.over();
        self.spawned.load(SeqCst).saturating_sub(over)
    }

    fn print(&self) -> String {
        format!(
            "{} spawned = {} finished + {} panicked + {} cancelled; results {} made, {} dropped",
            self.spawned.load(SeqCst),
            self.finished.load(SeqCst),
            self.panicked.load(SeqCst),
            self.cancelled.load(SeqCst),
            self.results_made.load(SeqCst),
            self.results_dropped.load(SeqCst),
        )
    }
}

/// Travels inside a closure; its drop is the closure's end.
struct Ticket {
    round: Arc<Round>,
    end: End,
}

#[derive(Clone, Copy)]
enum End {
    Finished,
    Panicked,
    Cancelled,
}

impl Ticket {
    fn new(round: &Arc<Round>) -> Self {
        round.tally.spawned.fetch_add(1, SeqCst);
        Ticket {
            round: round.clone(),
            end: End::Cancelled, // until another end is known
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let tally = &self.round.tally;
        let counter = match self.end {
            End::Finished => &tally.finished,
            End::Panicked => &tally.panicked,
            End::Cancelled => &tally.cancelled,
        };
        counter.fetch_add(1, SeqCst);
        progress();
    }
}

/// Result of a fiber.
struct Receipt {
    round: Arc<Round>,
    number: u64,
}

impl Receipt {
    fn new(round: &Arc<Round>, number: u64) -> Self {
        round.tally.results_made.fetch_add(1, SeqCst);
        Receipt {
            round: round.clone(),
            number,
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.round.tally.results_dropped.fetch_add(1, SeqCst);
    }
}

/// A fiber that can be joined.
struct Child {
    handle: JoinHandle<Receipt>,
    number: u64,
}

struct Round {
    handles: [Handle; 2],
    workers: [usize; 2],
    tally: Tally,
    numbers: AtomicU64,
    /// Unparkers of fibers and threads that park without a deadline, for others to use.
    board: Mutex<Vec<Unparker>>,
    /// Fibers for any fiber or thread to join.
    pool: Mutex<Vec<Child>>,
    /// If set, no new work begins.
    stop: AtomicBool,
    /// If set, a runtime is being shut down, and cancellations are expected.
    closing: AtomicBool,
}

impl Round {
    fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn crowded(&self) -> bool {
        self.stopped() || self.tally.alive() > CROWD
    }

    /// Registers the caller on the board, so that it will be unparked.
    fn post(&self, rng: &mut Rng) {
        let mut board = lock(&self.board);
        let replaced = if board.len() >= 256 {
            let i = rng.index(board.len());
            Some(std::mem::replace(&mut board[i], park::unparker()))
        } else {
            board.push(park::unparker());
            None
        };
        drop(board);
        if let Some(replaced) = replaced {
            replaced.unpark();
        }
    }

    fn unpark_one(&self, rng: &mut Rng) {
        let mut board = lock(&self.board);
        if board.is_empty() {
            return;
        }
        let i = rng.index(board.len());
        let unparker = board.swap_remove(i);
        drop(board);
        unparker.unpark();
        if rng.one_in(4) {
            unparker.unpark(); // once more than needed
        }
    }

    fn unpark_all(&self) {
        let all = std::mem::take(&mut *lock(&self.board));
        all.iter().for_each(Unparker::unpark);
    }

    /// Spawns a random fiber on a random one of the two runtimes, or on this one if `here` is set.
    fn spawn(self: &Arc<Self>, rng: &mut Rng, depth: u32, here: bool) -> Child {
        let number = self.numbers.fetch_add(1, SeqCst);
        let ticket = Ticket::new(self);
        let inner = rng.fork();
        let ballast = [number; 3];
        let large = [number; 40]; // does not fit into a record
        let with_ballast = rng.one_in(4);
        let body = move |ticket: Ticket| {
            let receipt = run_fiber(ticket, inner, depth, number);
            assert!(ballast.iter().all(|&n| n == number));
            receipt
        };
        let handle = if here {
            let mut builder = task::Builder::new();
            if rng.one_in(4) {
                builder = builder.name(format!("soak {number}"));
            }
            if rng.one_in(4) {
                builder = builder.stack_size((64 * 1024) << rng.below(6));
            }
            if rng.one_in(8) {
                builder = builder.pinned();
            }
            if rng.one_in(8) {
                builder = builder.worker(0);
            } else if rng.one_in(8) {
                builder = builder.preferred_worker(rng.index(4));
            }
            builder.spawn(move || body(ticket))
        } else {
            let runtime = &self.handles[rng.index(2)];
            if with_ballast {
                runtime.spawn(move || {
                    assert!(large.iter().all(|&n| n == number));
                    body(ticket)
                })
            } else {
                runtime.spawn(move || body(ticket))
            }
        };
        Child { handle, number }
    }

    /// Checks that the result of a join fits the fiber and the time.
    fn check(&self, number: u64, result: Result<Receipt, indent::JoinError>) {
        progress();
        match result {
            Ok(receipt) => assert_eq!(receipt.number, number, "another fiber's result"),
            Err(error) if error.is_panic() => {
                let payload = error.into_panic();
                if !is_expected(&*payload, self.closing.load(SeqCst)) {
                    resume_unwind(payload);
                }
                if let Some(OwnPanic(n)) = payload.downcast_ref() {
                    assert_eq!(*n, number, "another fiber's panic");
                }
            }
            // Parents that hold all threads wait for children that get none.
            Err(error) if error.is_no_thread() => {}
            Err(error) => {
                assert!(error.is_cancelled(), "{error}");
                assert!(
                    self.closing.load(SeqCst),
                    "cancelled for no reason: {error}"
                );
            }
        }
    }

    /// Joins without a limit.
    fn join(&self, child: Child) {
        let result = child.handle.join();
        self.check(child.number, result);
    }

    /// Joins with a limit, repeatedly or once.
    fn join_timeout(&self, child: Child, rng: &mut Rng, patient: bool) -> Option<Child> {
        let Child { mut handle, number } = child;
        loop {
            match handle.join_timeout(rng.micros(2000)) {
                Ok(result) => {
                    self.check(number, result);
                    return None;
                }
                Err(back) if patient => handle = back,
                Err(back) => {
                    return Some(Child {
                        handle: back,
                        number,
                    });
                }
            }
        }
    }

    fn put_into_pool(&self, child: Child, rng: &mut Rng) {
        let mut pool = lock(&self.pool);
        pool.push(child);
        let detached = if pool.len() > 200 {
            let i = rng.index(pool.len());
            Some(pool.swap_remove(i))
        } else {
            None
        };
        drop(pool); // drops detached results without the lock
        drop(detached);
    }

    fn take_from_pool(&self, rng: &mut Rng) -> Option<Child> {
        let mut pool = lock(&self.pool);
        if pool.is_empty() {
            return None;
        }
        let i = rng.index(pool.len());
        Some(pool.swap_remove(i))
    }

    /// Runs a small task on one of the runtimes and waits for it, from a fiber or a plain thread.
    fn block_on(self: &Arc<Self>, rng: &mut Rng, which: usize) {
        let mut inner = rng.fork();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut borrowed = 0;
            self.handles[which].block_on(|| {
                for _ in 0..inner.below(4) {
                    task::yield_now();
                    borrowed += 1;
                }
                if inner.one_in(3) {
                    let until = Instant::now() + inner.micros(500);
                    let _ = park::park_until(Some(until), ParkReason::Park);
                }
                if inner.one_in(3) && !self.crowded() {
                    let child = self.spawn(&mut inner, 1, true);
                    self.join(child);
                }
            });
            borrowed
        }));
        if let Err(payload) = done
            && !is_expected(&*payload, self.closing.load(SeqCst))
        {
            resume_unwind(payload);
        }
    }
}

/// Returns true for panics that belong to the soak.
///
/// They are its own, a wait for a runtime that is being shut down, and a wait for a fiber that got
/// no thread.
fn is_expected(payload: &(dyn Any + Send), closing: bool) -> bool {
    let text = payload.downcast_ref::<String>();
    payload.is::<OwnPanic>()
        || text.is_some_and(|text| {
            text.starts_with("block_on at ") && (closing || text.contains("got no thread"))
        })
}

/// Parks in its destructor, also while its fiber unwinds.
struct ParksWhenDropped {
    round: Arc<Round>,
    rng: Rng,
}

impl Drop for ParksWhenDropped {
    fn drop(&mut self) {
        if self.rng.one_in(2) {
            self.round.post(&mut self.rng);
            let _ = park::park_until(None, ParkReason::Park);
        } else {
            let until = Instant::now() + self.rng.micros(1000);
            let _ = park::park_until(Some(until), ParkReason::Park);
        }
        if self.rng.one_in(4) && !self.round.crowded() {
            let child = self.round.spawn(&mut self.rng, 0, false);
            self.round.put_into_pool(child, &mut self.rng);
        }
        progress();
    }
}

/// Runs the body of one fiber.
fn run_fiber(mut ticket: Ticket, mut rng: Rng, depth: u32, number: u64) -> Receipt {
    let round = ticket.round.clone();
    let thread = std::thread::current().id();
    let id = task::id().expect("on a fiber");
    let _parks = rng.one_in(6).then(|| ParksWhenDropped {
        round: round.clone(),
        rng: rng.fork(),
    });
    for _ in 0..rng.below(12) {
        if round.stopped() && rng.one_in(2) {
            break;
        }
        progress();
        step(&round, &mut ticket, &mut rng, depth, number);
        assert_eq!(task::id(), Some(id), "somebody else's stack");
        assert_eq!(std::thread::current().id(), thread, "a started fiber moved");
    }
    ticket.end = End::Finished;
    Receipt::new(&round, number)
}

fn step(round: &Arc<Round>, ticket: &mut Ticket, rng: &mut Rng, depth: u32, number: u64) {
    match rng.below(30) {
        0..=3 => task::yield_now(),
        4 => (0..rng.below(300)).for_each(|_| task::checkpoint()),
        5 => {
            if rng.one_in(2) {
                round.post(rng);
            }
            let until = Instant::now() + rng.micros(1500);
            if park::park_until(Some(until), ParkReason::Park) == Woken::ByCancel {
                task::checkpoint();
            }
        }
        6 => {
            round.post(rng);
            park::park();
        }
        7 | 8 => round.unpark_one(rng),
        9 if depth > 0 && !round.crowded() => {
            let child = round.spawn(rng, depth - 1, true);
            round.join(child);
        }
        10 if depth > 0 && !round.crowded() => {
            let child = round.spawn(rng, depth - 1, false);
            let _ = round.join_timeout(child, rng, true);
        }
        11 if depth > 0 && !round.crowded() => drop(round.spawn(rng, depth - 1, true).handle),
        12 if depth > 0 && !round.crowded() => {
            let n = rng.below(8);
            let children: Vec<_> = (0..n).map(|_| round.spawn(rng, depth - 1, true)).collect();
            children.into_iter().for_each(|child| round.join(child));
        }
        13 => spin(rng.micros(300)),
        14 => {
            let _pinned = task::pin();
            (0..rng.below(4)).for_each(|_| task::yield_now());
        }
        15 => runtime::handoff(),
        16 if depth > 0 => {
            let which = rng.index(2);
            round.block_on(rng, which);
        }
        17 if rng.one_in(3) => {
            ticket.end = End::Panicked;
            let _parks = rng.one_in(2).then(|| ParksWhenDropped {
                round: round.clone(),
                rng: rng.fork(),
            });
            panic_any(OwnPanic(number));
        }
        18 if rng.one_in(20) => look_at_all(round, rng),
        19 => std::thread::sleep(rng.micros(200)),
        20 if depth > 0 && !round.crowded() => {
            let child = round.spawn(rng, depth - 1, false);
            round.put_into_pool(child, rng);
        }
        21 => {
            if let Some(child) = round.take_from_pool(rng)
                && let Some(child) = round.join_timeout(child, rng, false)
            {
                round.put_into_pool(child, rng);
            }
        }
        22 if rng.one_in(2) => {
            // A caught cancellation is not over: the next blocking call raises it again.
            round.post(rng);
            if catch_unwind(park::park).is_err() {
                assert!(round.closing.load(SeqCst), "cancelled for no reason");
                task::yield_now();
            }
        }
        24 => time::sleep(rng.micros(2000)),
        25 => {
            let (limit, sleep) = (rng.micros(1500), rng.one_in(2));
            let _ = time::timeout(limit, || {
                let _parks = rng.one_in(4).then(|| ParksWhenDropped {
                    round: round.clone(),
                    rng: rng.fork(),
                });
                if sleep {
                    time::sleep(Duration::from_secs(60));
                }
                round.post(rng);
                park::park();
            });
        }
        26 => {
            let (pause, before) = (rng.micros(300), std::thread::current().id());
            let there = runtime::blocking(|| {
                std::thread::sleep(pause);
                std::thread::current().id()
            });
            assert_ne!(there, before, "on the carrier");
        }
        27 if rng.one_in(4) => {
            let (pause, mut sum) = (rng.micros(300), 0);
            runtime::compute(|| {
                spin(pause);
                sum += number;
            });
            assert_eq!(sum, number);
        }
        28 if rng.one_in(4) => {
            let late = runtime::spawn_blocking(move || number);
            if rng.one_in(2)
                && let Ok(back) = late.join()
            {
                assert_eq!(back, number);
            }
        }
        _ => {}
    }
}

fn spin(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn look_at_all(round: &Round, rng: &mut Rng) {
    let fibers = round.handles[rng.index(2)].fibers();
    for fiber in &fibers {
        assert!(fiber.id() > 0);
        if let Some(name) = fiber.name() {
            assert!(name.starts_with("soak "), "{name}");
            assert!(fiber.location().file().ends_with("soak.rs"));
        }
        assert!(!format!("{fiber:?} {}", fiber.park_reason()).is_empty());
    }
}

/// Runs the body of one plain thread.
fn run_thread(round: &Arc<Round>, rng: &mut Rng) {
    while !round.stopped() {
        match rng.below(13) {
            0..=2 if !round.crowded() => {
                let child = round.spawn(rng, DEPTH, false);
                round.put_into_pool(child, rng);
            }
            3 if !round.crowded() => {
                let child = round.spawn(rng, DEPTH, false);
                let _ = round.join_timeout(child, rng, true);
            }
            4 => {
                if let Some(child) = round.take_from_pool(rng) {
                    round.join(child);
                }
            }
            5 => {
                if let Some(child) = round.take_from_pool(rng) {
                    drop(child.handle);
                }
            }
            6 => {
                let which = rng.index(2);
                let worker = rng.index(round.workers[which]);
                round.handles[which].handoff(worker);
            }
            7 => {
                let which = rng.index(2);
                round.block_on(rng, which);
            }
            8 => {
                round.post(rng);
                let until = Instant::now() + rng.micros(500);
                let _ = park::park_until(Some(until), ParkReason::Park);
            }
            9 => round.unpark_one(rng),
            10 if rng.one_in(20) => look_at_all(round, rng),
            11 => {
                let which = rng.index(2);
                round.handles[which].resize(1 + rng.index(round.workers[which]));
            }
            _ => std::thread::sleep(rng.micros(300)),
        }
    }
}

fn start(rng: &mut Rng) -> (Runtime, usize) {
    let workers = 1 + rng.index(4);
    let runtime = runtime::Builder::new()
        .workers(workers)
        .max_carriers([48, 128, 512][rng.index(3)])
        .start_timeout(Duration::from_millis(200))
        .stack_size([64 * 1024, 256 * 1024][rng.index(2)])
        .coop_budget([1, 2, 16, 128][rng.index(4)])
        .local_queue([4, 16, 256][rng.index(3)])
        .global_interval([1, 7, 61][rng.index(3)])
        .build()
        .expect("a runtime");
    (runtime, workers)
}

/// Plays one round; returns what it did, for the log.
fn play(rng: &mut Rng, number: u64) -> String {
    let begun = Instant::now();
    let ((one, workers_one), (two, workers_two)) = (start(rng), start(rng));
    let round = Arc::new(Round {
        handles: [one.handle().clone(), two.handle().clone()],
        workers: [workers_one, workers_two],
        tally: Tally::default(),
        numbers: AtomicU64::new(0),
        board: Mutex::default(),
        pool: Mutex::default(),
        stop: AtomicBool::new(false),
        closing: AtomicBool::new(false),
    });
    *lock(&RUNTIMES) = round.handles.to_vec();
    stage(format!("round {number}: work"));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (round, mut rng) = (round.clone(), rng.fork());
            std::thread::spawn(move || run_thread(&round, &mut rng))
        })
        .collect();
    // Keeps the promise of `post` until the end of the round.
    let over = Arc::new(AtomicBool::new(false));
    let pump = std::thread::spawn({
        let (round, over) = (round.clone(), over.clone());
        move || {
            while !over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
                round.unpark_all();
            }
        }
    });
    std::thread::sleep(Duration::from_millis(20) + rng.micros(400_000));

    let peaceful = rng.one_in(2);
    if peaceful {
        stage(format!("round {number}: threads end"));
        round.stop.store(true, SeqCst);
        threads
            .into_iter()
            .for_each(|t| t.join().expect("a thread"));
        stage(format!("round {number}: idle"));
        while one.metrics().fibers_alive + two.metrics().fibers_alive > 0 {
            one.wait_idle();
            two.wait_idle();
        }
        for runtime in [&one, &two] {
            let metrics = runtime.metrics();
            assert_eq!(metrics.stacks_in_use, 0, "{metrics:?}");
            assert_eq!(metrics.global_queue_depth, 0, "{metrics:?}");
            assert_eq!(metrics.fibers_waiting_for_stack, 0, "{metrics:?}");
        }
        stage(format!("round {number}: pool"));
        let pool = std::mem::take(&mut *lock(&round.pool));
        pool.into_iter().for_each(|child| round.join(child));
        let without_thread: u64 = [&one, &two]
            .map(|runtime| runtime.metrics().fibers_never_started_total)
            .iter()
            .sum();
        let cancelled = round.tally.cancelled.load(SeqCst);
        assert!(
            cancelled <= without_thread,
            "{cancelled} closures dropped, {without_thread} fibers without a thread"
        );
        for runtime in [one, two] {
            let report = runtime.shutdown_timeout(3 * STUCK);
            assert!(report.is_clean(), "{report}");
        }
    } else {
        stage(format!("round {number}: shutdown"));
        round.closing.store(true, SeqCst);
        let (first, second) = if rng.one_in(2) {
            (one, two)
        } else {
            (two, one)
        };
        let pause = rng.one_in(2).then(|| rng.micros(3000));
        let ending = std::thread::spawn(move || first.shutdown_timeout(3 * STUCK));
        pause.into_iter().for_each(std::thread::sleep);
        let reports = [
            second.shutdown_timeout(3 * STUCK),
            ending.join().expect("a report"),
        ];
        for report in reports {
            assert!(report.is_clean(), "{report}");
        }
        round.stop.store(true, SeqCst);
        stage(format!("round {number}: threads end"));
        threads
            .into_iter()
            .for_each(|t| t.join().expect("a thread"));
        let pool = std::mem::take(&mut *lock(&round.pool));
        pool.into_iter().for_each(|child| round.join(child));
    }
    stage(format!("round {number}: accounts"));
    over.store(true, SeqCst);
    pump.join().expect("the pump");
    for handle in &round.handles {
        let metrics = handle.metrics();
        assert_eq!(
            (metrics.fibers_alive, metrics.stacks_in_use),
            (0, 0),
            "{metrics:?}"
        );
        assert_eq!(handle.fibers().len(), 0);
    }
    let (tally, text) = (&round.tally, round.tally.print());
    assert_eq!(tally.spawned.load(SeqCst), tally.over(), "{text}");
    assert_eq!(
        tally.results_made.load(SeqCst),
        tally.results_dropped.load(SeqCst),
        "{text}"
    );
    FINISHED.fetch_add(tally.finished.load(SeqCst), SeqCst);
    lock(&RUNTIMES).clear();
    lock(&round.board).clear();
    let seconds = begun.elapsed().as_secs_f32();
    let manner = if peaceful { "peaceful" } else { "cut off" };
    format!("round {number}, {manner}, {seconds:.2} s: {text}")
}

/// Ends the process, with what is known, when nothing happens any more.
fn watch(done: &AtomicBool, seed: u64) {
    let mut seen = (PROGRESS.load(SeqCst), Instant::now());
    while !done.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
        let now = PROGRESS.load(SeqCst);
        if now != seen.0 {
            seen = (now, Instant::now());
        } else if seen.1.elapsed() > STUCK {
            eprintln!("no progress for {STUCK:?}; seed {seed}; {}", lock(&STAGE));
            for handle in lock(&RUNTIMES).iter() {
                eprintln!("{:#?}", handle.metrics());
                for fiber in handle.fibers().iter().take(20) {
                    let (reason, asked) = (fiber.park_reason(), fiber.is_cancelled());
                    eprintln!("  {fiber:?}, waits for {reason}, asked to end: {asked}");
                }
            }
            if let Some(pause) = number_from("INDENT_STUCK_SECONDS") {
                eprintln!(
                    "process {} waits {pause} s for a debugger",
                    std::process::id()
                );
                std::thread::sleep(Duration::from_secs(pause));
            }
            std::process::abort();
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: a number, please")),
    )
}

fn silence_own_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !is_expected(info.payload(), true) {
            UNEXPECTED.store(true, SeqCst);
            before(info);
        }
    }));
}

#[test]
fn stress_everything_at_once_and_account_for_it() {
    let child = common::in_child("the_soak_itself", &[]);
    // The runtime rightly reports every panic that is never joined.
    let noise = "panicked; nobody joined it";
    let text = common::text(&child);
    for line in text.lines().filter(|line| !line.ends_with(noise)) {
        println!("{line}");
    }
    assert!(child.status.success(), "see above");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn the_soak_itself() {
    let seconds = number_from("INDENT_SOAK_SECONDS").unwrap_or(3);
    let seed = number_from("INDENT_TEST_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |time| time.as_nanos() as u64)
    });
    println!("soak: {seconds} s, INDENT_TEST_SEED={seed}");
    silence_own_panics();
    let done = Arc::new(AtomicBool::new(false));
    let watchdog = std::thread::spawn({
        let done = done.clone();
        move || watch(&done, seed)
    });
    let threads_before = common::threads();
    let mut rng = Rng(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < until {
        println!("{}", play(&mut rng, rounds));
        assert!(
            !UNEXPECTED.load(SeqCst),
            "a panic that was not ours; see above"
        );
        rounds += 1;
        stage(format!("round {rounds}: threads go"));
        let patience = Instant::now() + STUCK;
        while common::threads() > threads_before {
            assert!(
                Instant::now() < patience,
                "threads are left: {}",
                common::threads()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    done.store(true, SeqCst);
    watchdog.join().expect("the watchdog");
    let finished = FINISHED.load(SeqCst);
    println!("soak: {rounds} rounds, {finished} fibers finished");
    assert!(finished > 0);
}

/// Lets every fiber hand its worker over sometimes, so that many carriers want one at once.
#[test]
fn workers_that_are_wanted_everywhere_run_fibers_between_moves() {
    for interval in [1, 2, 61] {
        let rt = runtime::Builder::new()
            .workers(3)
            .global_interval(interval)
            .build()
            .expect("a runtime");
        let body = || {
            for i in 0..100 {
                if i % 5 == 0 {
                    runtime::handoff();
                }
                task::yield_now();
            }
        };
        let fibers: Vec<_> = (0..60).map(|_| rt.spawn(body)).collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let metrics = rt.metrics();
        let moves: u64 = metrics
            .workers
            .iter()
            .map(|worker| worker.carrier_moves_total)
            .sum();
        let dispatches: u64 = metrics
            .workers
            .iter()
            .map(|worker| worker.dispatches_total)
            .sum();
        println!("interval {interval}: {moves} moves, {dispatches} dispatches");
        assert!(dispatches >= 60 * 100);
        assert!(
            moves < 5 * dispatches,
            "{moves} moves for {dispatches} dispatches"
        );
    }
}
