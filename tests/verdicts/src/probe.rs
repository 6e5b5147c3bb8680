//! The environment of a body: the seed of its values, a way to park, and things made elsewhere.
//!
//! [`Probe::park`] stays on the stack while the fiber is parked, so its own frame must be movable:
//! it takes no lock, and everything it calls is the runtime's or std's memory and atomics. For the
//! same reason nothing here is ever freed: what a fiber's first frame might drop counts as reached.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use indent::park;
use regex::Regex;

use crate::bodies::hidden_number;
use crate::noted::{self, Noted};

/// The action of a park.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// Note the verdict if it is the first one, park until it has been checked, and continue.
    Note(&'static Note),
    /// Park this many times until unparked; the code that started the fiber unparks it.
    Park(u32),
}

/// Fetches a number; its caller cannot see what else it does.
pub type Hidden = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// Things made by the code that starts the fibers.
///
/// No frame of a fiber refers to what made them.
pub struct Kit {
    /// Finds words of letters.
    pub words: Regex,
    /// Finds `key=number`.
    pub pairs: Regex,
    /// A number that differs from thread to thread.
    pub hidden: fn(u64) -> u64,
    /// The first returns its argument, the other one is as `hidden`.
    pub closures: Vec<Hidden>,
}

impl Kit {
    /// Makes a kit for the rest of the process.
    pub fn leak() -> &'static Kit {
        let regex = |pattern| Regex::new(pattern).expect("a regular expression");
        Box::leak(Box::new(Kit {
            words: regex(r"\b[a-z]+\b"),
            pairs: regex(r"(?<key>\w+)=(?<number>\d+)"),
            hidden: hidden_number,
            closures: vec![Box::new(|n| n), Box::new(hidden_number)],
        }))
    }
}

/// Place for a verdict.
#[derive(Debug, Default)]
pub struct Note {
    /// The verdict at the first park.
    pub first: OnceLock<Noted>,
    /// Set once the verdict on the parked fiber has been checked.
    pub seen: AtomicBool,
}

/// The environment of one fiber; nothing in it needs to be dropped.
pub struct Probe {
    /// Differs from fiber to fiber.
    pub seed: u64,
    /// Shared by all.
    pub kit: &'static Kit,
    mode: Mode,
    parks: AtomicUsize,
}

impl Probe {
    /// Makes a probe for one run of one body.
    pub fn new(seed: u64, mode: Mode, kit: &'static Kit) -> Probe {
        Probe {
            seed,
            kit,
            mode,
            parks: AtomicUsize::new(0),
        }
    }

    /// Parks, in the middle of every body.
    #[inline(never)]
    pub fn park(&self) {
        self.parks.fetch_add(1, Relaxed);
        match self.mode {
            Mode::Note(note) => {
                let _ = note.first.set(noted::now());
                while !note.seen.load(Relaxed) {
                    park::park();
                }
            }
            Mode::Park(times) => (0..times).for_each(|_| park::park()),
        }
    }

    /// Returns how often the body parked.
    pub fn parks(&self) -> usize {
        self.parks.load(Relaxed)
    }
}
