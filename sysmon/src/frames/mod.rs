//! What a stack may do: whether a suspended stack may go on on another thread.
//!
//! Rust, LLVM and most libraries take it for granted that a function begins and ends on one thread:
//! an address of a thread-local may sit in a register across any call. A suspended stack may change
//! threads only if none of its frames can hold such a thing, and this is read off the machine code
//! ([S5]). Each frame's function gets a [`Verdict`]; the worst one of a stack decides.
//!
//! | file | what it knows |
//! |---|---|
//! | `objects` | what is mapped: executable and libraries, their segments |
//! | `image` | one object: its functions, constants, slots, names |
//! | `edges` | one function: what it touches, and what it leads to |
//! | `constants` | where one constant ends and the next begins |
//! | `harmless` | lists of names: what leaves nothing behind, a reason each |
//! | `verdict` | all functions: who reaches what; the verdicts, and why |
//! | `peek` | how memory is read |
//! | `rows` | how to climb from a frame to its caller |
//! | `sites` | verdict and row of each place where a stack was seen: read by anybody |
//! | `walk` | climbs a suspended stack and judges it |
//! | `snapshot` | copies a stack in a handler, climbs the copy later |
//! | `ahead` | asks for what a walk will want next |
//! | `study` | when all this is found out |
//! | `trace` | remembers walks, so that the next one costs little |
//!
//! Everything that decodes or allocates happens on the helper's thread; looking something up
//! allocates nothing and takes no lock.
//!
//! [S5]: ../../../DESIGN.md

mod ahead;
mod constants;
mod edges;
mod harmless;
mod image;
pub(crate) mod objects;
mod peek;
#[cfg(all(test, not(indent_loom)))]
mod probe;
mod rows;
mod sites;
mod snapshot;
mod study;
mod trace;
mod verdict;
mod walk;

pub use sites::resolve;
pub use snapshot::{Snapshot, beginnings};
pub use study::{changes_thread, has_failed, is_asked, judge, study, verdict_of};
pub use trace::TraceCache;
pub use verdict::{Binding, Function, Judge, Statistics, Step};
pub use walk::{End, Frame, Judgement, Registers, Stack, judge_stack, walk};

/// What the frames of a suspended stack allow. Ordered: the worst of several decides.
///
/// ```
/// use indent_sysmon::frames::Verdict;
/// assert_eq!(Verdict::Free.max(Verdict::Alone), Verdict::Alone);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Nothing on the stack belongs to the thread: it may go on on another one.
    Free = 0,
    /// It may share its thread with others but not leave it.
    Home = 1,
    /// It may neither leave its thread, nor may another stack run on the thread meanwhile.
    Alone = 2,
}
