//! The table of bodies; each file has those of one subject, with the reason for each verdict.
//!
//! The verdicts are what rule S5 of the design demands of a sound analysis that reads machine code:
//!
//! - *movable*: no frame touches a thread-local or reaches one, except through functions that are
//!   harmless (nothing thread-bound outlives a call of them);
//! - *own*: what is held is the value of a thread-local, or follows from it: movable where fibers
//!   have thread-locals of their own, and bound where they do not;
//! - *bound*: everything else.
//!
//! A body's own frame is always on the stack, so what it *reaches* counts even when the call is
//! over before the park. Where the optimizer decides whether a harmless function is called or
//! inlined, the verdict depends on the profile; both are sound.

use crate::Probe;
use crate::noted::Mobility;

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

/// The build profile of a program.
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

/// The right verdict in one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Movable, whether thread-locals belong to fibers or threads.
    Movable,
    /// Movable if fibers have thread-locals of their own.
    Own,
    /// Bound in either case.
    Bound,
    /// Either is sound; it depends on what lies beside a variable that the body refers to.
    Either,
}

/// The right verdicts.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// The same in every profile.
    Always(Verdict),
    /// One for each profile, in the order of [`Profile`].
    Each([Verdict; 5]),
}

impl Expected {
    /// Returns the right verdict in one profile, or `None` if either is right.
    ///
    /// `own` says whether fibers have thread-locals of their own.
    pub fn in_profile(self, profile: Profile, own: bool) -> Option<Mobility> {
        match self.all()[profile as usize] {
            Verdict::Movable => Some(Mobility::Movable),
            Verdict::Own if own => Some(Mobility::Movable),
            Verdict::Own | Verdict::Bound => Some(Mobility::Bound),
            Verdict::Either => None,
        }
    }

    /// Returns true if it is bound in every profile.
    pub fn is_bound(self) -> bool {
        self.all() == [Verdict::Bound; 5]
    }

    /// Returns true if it is bound in some profile.
    pub fn may_be_bound(self) -> bool {
        self.all() != [Verdict::Movable; 5]
    }

    fn all(self) -> [Verdict; 5] {
        match self {
            Expected::Always(verdict) => [verdict; 5],
            Expected::Each(all) => all,
        }
    }
}

/// One body and its expected verdict.
#[derive(Clone, Copy)]
pub struct Body {
    /// Name of the function.
    pub name: &'static str,
    /// Returns true if all values were right.
    pub run: fn(&Probe) -> bool,
    /// Expected verdict at its first park.
    pub expected: Expected,
    /// If set, it keeps to the rules for users, so it must be right wherever it runs.
    ///
    /// The others show errors that the runtime cannot see, and run only where no fiber moves.
    pub lawful: bool,
}

/// Makes the table of a file from lines `name: verdict`.
///
/// `unlawful` after the verdict marks bodies that break the rules.
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

/// Expects one letter for each profile, in their order, where inlining decides.
///
/// A harmless function that is inlined into a frame does not count as one: stricter than necessary.
const fn each(letters: &str) -> Expected {
    let letters = letters.as_bytes();
    assert!(letters.len() == 5);
    let mut all = [Verdict::Either; 5];
    let mut i = 0;
    while i < 5 {
        all[i] = match letters[i] {
            b'M' => Verdict::Movable,
            b'O' => Verdict::Own,
            b'B' => Verdict::Bound,
            b'?' => Verdict::Either,
            _ => panic!("M, O, B or ?"),
        };
        i += 1;
    }
    Expected::Each(all)
}

const MOVABLE: Expected = Expected::Always(Verdict::Movable);
const OWN: Expected = Expected::Always(Verdict::Own);
const BOUND: Expected = Expected::Always(Verdict::Bound);

/// Returns all bodies.
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
