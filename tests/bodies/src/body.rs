//! A body, and its arguments and result.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Result of a body: a value that depends on its number alone, or an error text.
pub type Outcome = Result<u64, String>;

/// Identifies one run of a body.
#[derive(Clone, Copy, Debug)]
pub struct Me {
    /// Number of the run, below `of`.
    pub n: u64,
    /// Number of runs at once; even.
    pub of: u64,
    /// Number of the round, the same for all runs at once.
    pub round: u64,
}

impl Me {
    /// Returns a number that differs between all runs of a process.
    pub fn number(&self) -> u64 {
        self.round * 1_000_000 + self.n
    }
}

/// A small function with a switch at every step.
#[derive(Clone, Copy)]
pub struct Body {
    /// Name of the body.
    pub name: &'static str,
    /// The function.
    pub run: fn(&Me) -> Outcome,
    /// Number of fibers that run it at once.
    pub fibers: u64,
    /// If set, plain threads run it, too.
    pub plain: bool,
}

/// Default number of fibers that run a body at once.
pub const FIBERS: u64 = 64;

/// Makes a body that runs on fibers and on threads.
pub const fn body(name: &'static str, run: fn(&Me) -> Outcome) -> Body {
    Body {
        name,
        run,
        fibers: FIBERS,
        plain: true,
    }
}

/// A value that the runs of a round share, made by the first that asks for it.
pub(crate) struct Shared<T: 'static>(LazyLock<Mutex<HashMap<u64, &'static T>>>);

impl<T: Default> Shared<T> {
    /// Makes an empty map.
    pub(crate) const fn new() -> Self {
        Shared(LazyLock::new(Mutex::default))
    }

    /// Returns the value for a key, the same for all callers with that key.
    #[inline(never)]
    pub(crate) fn of(&self, key: u64) -> &'static T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key)
            .or_insert_with(|| Box::leak(Box::<T>::default()))
    }
}

/// Returns an error from a body unless something holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}
pub(crate) use ensure;
