//! What a body is, and what it is given.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// What a body returns: a value that depends on its number alone, or what was wrong.
pub type Outcome = Result<u64, String>;

/// Which of the runs this is.
#[derive(Clone, Copy, Debug)]
pub struct Me {
    /// Below `of`.
    pub n: u64,
    /// How many run at once; even.
    pub of: u64,
    /// Those that run at once have the same.
    pub round: u64,
}

impl Me {
    /// Differs between all runs of a process.
    pub fn number(&self) -> u64 {
        self.round * 1_000_000 + self.n
    }
}

/// A small function with a switch at every step.
#[derive(Clone, Copy)]
pub struct Body {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Me) -> Outcome,
    /// How many run at once.
    pub fibers: u64,
    /// Whether it is run on plain threads, too.
    pub plain: bool,
}

/// How many fibers have a body at once, unless it says otherwise.
pub const FIBERS: u64 = 64;

/// A body that runs on fibers and on threads.
pub const fn body(name: &'static str, run: fn(&Me) -> Outcome) -> Body {
    Body {
        name,
        run,
        fibers: FIBERS,
        plain: true,
    }
}

/// Something that the runs of a round share, made by the first that asks for it.
pub(crate) struct Shared<T: 'static>(LazyLock<Mutex<HashMap<u64, &'static T>>>);

impl<T: Default> Shared<T> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Shared(LazyLock::new(Mutex::default))
    }

    /// What all have that give the same key.
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
