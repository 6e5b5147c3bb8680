//! Runs thousands of fibers with all sorts of bodies while workers change carriers.
//!
//! Fibers live in *slots*; a slot whose fiber has ended gets the next one, with a body drawn at
//! random. Slots are of two kinds: many for bodies that are movable, and fewer for those that may
//! be bound, each of which has a thread to itself while it is parked.
//!
//! One thread takes workers from their carriers at random, another unparks all fibers in turn, and
//! the caller fills slots. Each fiber reports at its end whether its values were right, and whether
//! it ended on another thread than it began on. A body that is bound in every profile must not have
//! changed threads.
//!
//! State that fibers share is never freed, so that their first frames have nothing to drop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indent::park::Unparker;
use indent::runtime::{Handle, Runtime};

use crate::probe::{Mode, Note};
use crate::{Body, Kit, Probe};

#[path = "../../common/random.rs"]
mod random;
pub use random::Random;

/// Fibers alive at once whose bodies are movable.
const MANY: usize = 2000;
/// Fibers alive at once that may be bound: one thread each.
const FEW: usize = 200;
/// Without the end of any fiber for this long, the crowd counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// Results of the fibers with one body.
#[derive(Default)]
struct Account {
    runs: AtomicU64,
    wrong: AtomicU64,
    /// Fibers that ended by a panic: a borrow that was taken, an index out of bounds.
    panicked: AtomicU64,
    moved: AtomicU64,
}

struct Slot {
    unparker: Mutex<Option<Unparker>>,
    free: AtomicBool,
}

/// State that fibers and threads share.
struct Crowd {
    bodies: Vec<Body>,
    accounts: Vec<Account>,
    slots: Vec<Slot>,
    kit: &'static Kit,
    over: AtomicBool,
    ended: AtomicU64,
    handed_over: AtomicU64,
}

/// Reports at the end of a fiber, however it ends.
///
/// It is in the fiber's first frame, so it uses atomics only.
struct Report<'a> {
    account: &'a Account,
    slot: &'a Slot,
    ended: &'a AtomicU64,
    returned: bool,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.account.runs.fetch_add(1, Relaxed);
        self.account
            .panicked
            .fetch_add(u64::from(!self.returned), Relaxed);
        self.ended.fetch_add(1, Relaxed);
        self.slot.free.store(true, Relaxed);
    }
}

impl Crowd {
    /// Returns true if a body may be in a slot.
    fn fits(&self, slot: usize, body: &Body) -> bool {
        (slot >= MANY) == body.expected.may_be_bound()
    }

    fn fill(&'static self, handle: &Handle, slot: usize, random: &mut Random) {
        let fitting: Vec<usize> = (0..self.bodies.len())
            .filter(|index| self.fits(slot, &self.bodies[*index]))
            .collect();
        if fitting.is_empty() || !self.slots[slot].free.swap(false, Relaxed) {
            return;
        }
        let index = fitting[random.below(fitting.len() as u64) as usize];
        let mode = Mode::Park(1 + random.below(3) as u32);
        let probe = Probe::new(random.below(u64::MAX), mode, self.kit);
        let fiber = self.spawn(handle, slot, index, probe);
        *self.unparker(slot) = Some(fiber);
    }

    fn spawn(&'static self, handle: &Handle, slot: usize, index: usize, probe: Probe) -> Unparker {
        let (crowd, run) = (self, self.bodies[index].run);
        let fiber = handle.spawn(move || {
            let account = &crowd.accounts[index];
            let mut report = Report {
                account,
                slot: &crowd.slots[slot],
                ended: &crowd.ended,
                returned: false,
            };
            // Called through memory, so that it does not count as reached.
            let before = (probe.kit.hidden)(0);
            let right = run(&probe);
            let moved = (probe.kit.hidden)(0) != before;
            report.returned = true;
            account.wrong.fetch_add(u64::from(!right), Relaxed);
            account.moved.fetch_add(u64::from(moved), Relaxed);
        });
        fiber.unparker()
    }

    fn unparker(&self, slot: usize) -> std::sync::MutexGuard<'_, Option<Unparker>> {
        let slot = &self.slots[slot].unparker;
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unpark_all(&self) {
        while !self.over.load(Relaxed) {
            for slot in 0..self.slots.len() {
                let unparker = self.unparker(slot).clone();
                unparker.iter().for_each(Unparker::unpark);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn hand_over(&self, handle: &Handle, workers: usize, mut random: Random) {
        while !self.over.load(Relaxed) {
            let done = handle.handoff(random.below(workers as u64) as usize);
            self.handed_over.fetch_add(u64::from(done), Relaxed);
            std::thread::sleep(Duration::from_micros(20 + random.below(200)));
        }
    }

    /// Waits until no slot is taken; returns false if nothing happens any more.
    fn drain(&self) -> bool {
        let mut seen = (self.ended.load(Relaxed), Instant::now());
        while self.slots.iter().any(|slot| !slot.free.load(Relaxed)) {
            let now = self.ended.load(Relaxed);
            if now != seen.0 {
                seen = (now, Instant::now());
            } else if seen.1.elapsed() > STUCK {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Results of one run of these fibers.
pub struct Outcome {
    /// One line for each error.
    pub complaints: Vec<String>,
    /// Figures, in readable form.
    pub summary: String,
}

/// Runs every body by itself, once for its verdict and a few times with a park.
///
/// Afterwards all of its frames are known.
pub fn warm_up(runtime: &Runtime, bodies: &[Body]) {
    let kit = Kit::leak();
    for body in bodies {
        let note: &'static Note = Box::leak(Box::default());
        note.seen.store(true, Relaxed);
        for mode in [
            Mode::Note(note),
            Mode::Park(1),
            Mode::Park(2),
            Mode::Park(3),
        ] {
            let (run, probe) = (body.run, Probe::new(1, mode, kit));
            let mut fiber = runtime.spawn(move || run(&probe));
            loop {
                fiber.unparker().unpark();
                match fiber.join_timeout(Duration::from_millis(2)) {
                    Ok(_) => break,
                    Err(back) => fiber = back,
                }
            }
        }
    }
}

/// Runs the bodies for this long on a runtime with this many workers.
pub fn run(
    runtime: &Runtime,
    workers: usize,
    bodies: Vec<Body>,
    time: Duration,
    seed: u64,
) -> Outcome {
    let slot = |_| Slot {
        unparker: Mutex::new(None),
        free: AtomicBool::new(true),
    };
    let crowd: &'static Crowd = Box::leak(Box::new(Crowd {
        accounts: bodies.iter().map(|_| Account::default()).collect(),
        bodies,
        slots: (0..MANY + FEW).map(slot).collect(),
        kit: Kit::leak(),
        over: AtomicBool::new(false),
        ended: AtomicU64::new(0),
        handed_over: AtomicU64::new(0),
    }));
    let handle = runtime.handle();
    let (mut random, others) = (Random::new(seed), Random::new(!seed));
    let drained = std::thread::scope(|scope| {
        scope.spawn(|| crowd.unpark_all());
        scope.spawn(|| crowd.hand_over(handle, workers, others));
        let until = Instant::now() + time;
        while Instant::now() < until {
            for slot in 0..crowd.slots.len() {
                crowd.fill(handle, slot, &mut random);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let drained = crowd.drain();
        crowd.over.store(true, Relaxed);
        drained
    });
    let mut outcome = account(crowd, time);
    if !drained {
        let missing = crowd.slots.iter().filter(|slot| !slot.free.load(Relaxed));
        let missing = missing.count();
        let complaint = format!("{missing} fibers never ended");
        outcome.complaints.push(complaint);
    }
    outcome
}

fn account(crowd: &Crowd, time: Duration) -> Outcome {
    let mut complaints = Vec::new();
    let (mut runs, mut moved) = (0, 0);
    for (body, account) in crowd.bodies.iter().zip(&crowd.accounts) {
        let name = body.name;
        let count = |of: &AtomicU64| of.load(Relaxed);
        let mut complain = |number: u64, what: &str| {
            if number > 0 {
                let all = count(&account.runs);
                complaints.push(format!("{name}: {number} of {all} {what}"));
            }
        };
        complain(count(&account.wrong), "found a wrong value");
        complain(count(&account.panicked), "panicked");
        if body.expected.is_bound() {
            complain(count(&account.moved), "changed threads and must not");
        }
        runs += count(&account.runs);
        moved += count(&account.moved);
    }
    let handed_over = crowd.handed_over.load(Relaxed);
    let each_second = handed_over as f64 / time.as_secs_f64();
    let summary = format!(
        "{runs} fibers of {} bodies, {moved} changed threads; \
         {handed_over} hand-overs, {each_second:.0} a second",
        crowd.bodies.len(),
    );
    Outcome {
        complaints,
        summary,
    }
}
