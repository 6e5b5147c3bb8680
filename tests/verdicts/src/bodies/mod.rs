//! The table of bodies; each file has those of one subject, with the reason for each verdict.
//!
//! The verdicts are what rule S5 of the design demands of a sound analysis that reads machine code:
//!
//! - *free*: no frame touches a thread-local or reaches one, but through functions that are harmless
//!   (nothing thread-bound outlives a call of them);
//! - *home*: only harmless variables are touched or reached (std's hash keys, `errno`, the number
//!   that regex gives a thread, the generator of `rand`): an address of one may sit in a register
//!   over the park, so the fiber may not move; but another fiber on the same thread does no harm;
//! - *alone*: everything else.
//!
//! A body's own frame is always on the stack, so what it *reaches* counts even when the call is over
//! before the park. Where the optimizer decides whether a harmless function is called or inlined,
//! the verdict is free or home by profile; both are sound.

use crate::Probe;
use crate::noted::Verdict;

mod collections;
mod control;
mod foreign;
mod hidden;
mod kernel;
mod locals;
mod logging;
mod random;
mod sync;
mod system;
mod text;
mod threads;

pub use locals::by_thread as hidden_number;
pub use logging::install_sinks;

/// How a program was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// `cargo build`.
    Debug,
    /// `cargo build --release`.
    Release,
    /// Release with `opt-level = "s"`.
    Small,
    /// Release with `lto = "thin"`.
    Thin,
    /// Release with `lto = "fat"` and one unit of code generation.
    Fat,
}

/// The right verdicts.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// In every profile.
    Always(Verdict),
    /// In the order of [`Profile`].
    Each([Verdict; 5]),
}

impl Expected {
    /// The right verdict in one profile.
    pub fn in_profile(self, profile: Profile) -> Verdict {
        match self {
            Expected::Always(verdict) => verdict,
            Expected::Each(verdicts) => verdicts[profile as usize],
        }
    }

    /// The loosest of all profiles.
    pub fn loosest(self) -> Verdict {
        match self {
            Expected::Always(verdict) => verdict,
            Expected::Each(verdicts) => verdicts.into_iter().min().unwrap_or(Verdict::Alone),
        }
    }

    /// The strictest of all profiles.
    pub fn strictest(self) -> Verdict {
        match self {
            Expected::Always(verdict) => verdict,
            Expected::Each(verdicts) => verdicts.into_iter().max().unwrap_or(Verdict::Alone),
        }
    }
}

/// One body and what is expected of it.
#[derive(Clone, Copy)]
pub struct Body {
    /// The function's.
    pub name: &'static str,
    /// True if all values were right.
    pub run: fn(&Probe) -> bool,
    /// At its first park.
    pub expected: Expected,
    /// It keeps to the rules for users, so it must be right wherever it is run; the others show what
    /// nobody can see from outside, and run where nobody moves them.
    pub lawful: bool,
}

/// `name: verdict` for each body of a file; `unlawful` after the verdict for those that break the
/// rules.
macro_rules! table {
    ($($name:ident: $expected:expr $(, $unlawful:ident)?;)*) => {
        pub(super) const TABLE: &[$crate::Body] = &[$($crate::Body {
            name: stringify!($name),
            run: $name,
            expected: $expected,
            lawful: $crate::bodies::table!(@lawful $($unlawful)?),
        }),*];
    };
    (@lawful) => { true };
    (@lawful unlawful) => { false };
}
use table;

/// One letter for each profile, in their order: what the optimizer decides, by what it inlines.
/// Inlined into a frame, a harmless function is none: stricter than need be. An entered span is the
/// one thing that gets lost so: with link-time optimization it is up to the user (README).
const fn each(letters: &str) -> Expected {
    let letters = letters.as_bytes();
    assert!(letters.len() == 5);
    let mut verdicts = [Verdict::Alone; 5];
    let mut i = 0;
    while i < 5 {
        verdicts[i] = match letters[i] {
            b'F' => Verdict::Free,
            b'H' => Verdict::Home,
            b'A' => Verdict::Alone,
            _ => panic!("F, H or A"),
        };
        i += 1;
    }
    Expected::Each(verdicts)
}

const FREE: Expected = Expected::Always(Verdict::Free);
const HOME: Expected = Expected::Always(Verdict::Home);
const ALONE: Expected = Expected::Always(Verdict::Alone);

/// All bodies.
pub fn all() -> Vec<Body> {
    let tables = [
        collections::TABLE,
        control::TABLE,
        foreign::TABLE,
        hidden::TABLE,
        kernel::TABLE,
        locals::TABLE,
        logging::TABLE,
        random::TABLE,
        sync::TABLE,
        system::TABLE,
        text::TABLE,
        threads::TABLE,
    ];
    tables.concat()
}
