//! What a stack may do: whether a suspended stack may go on on another thread.
//!
//! Rust, LLVM and most libraries take it for granted that a function begins and ends on one thread:
//! an address of a thread-local may sit in a register across any call. A suspended stack may change
//! threads only if none of its frames can hold such a thing, and this is read off the machine code
//! ([S5]). The verdict on each function is its [`Mobility`]; one bound frame binds a stack.
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
//! | `sorted` | sorts, and searches what is sorted |
//! | `rows` | how to climb from a frame to its caller |
//! | `sites` | verdict and row of each place where a stack was seen: for any reader |
//! | `walk` | climbs a suspended stack and judges it |
//! | `snapshot` | copies a stack in a handler, climbs the copy later |
//! | `ahead` | asks for what a walk will want next |
//! | `study` | when all this is found out |
//! | `trace` | remembers walks, so that the next one costs little |
//! | `anywhere` | judges a stack that was interrupted at an instruction |
//!
//! Everything that decodes or allocates happens on the helper's thread; looking something up
//! allocates nothing and takes no lock.
//!
//! [S5]: ../../../docs/invariants.md

mod ahead;
mod anywhere;
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
mod sorted;
mod study;
mod trace;
mod verdict;
mod walk;

pub use harmless::declared::{Declaration, Misfit, declare_harmless};
pub(crate) use harmless::is_within;
pub use sites::resolve;
pub use snapshot::{Snapshot, beginnings};
pub use study::{
    assume_own_thread_locals, changes_thread, has_failed, is_asked, judge, mobility_of, study,
    trust_pointers,
};
pub use trace::TraceCache;
pub use verdict::{Binding, Function, Judge, Statistics, Step};
pub use walk::{Judgement, Registers, Stack, judge_stack};

/// Offset, size and mangled name of each thread-local of an object, by the symbols in its file.
pub(crate) fn symbols_of_thread_locals(
    object: &objects::Object,
    path: &std::path::Path,
) -> Option<Vec<(usize, usize, String)>> {
    let memory = image::map(object);
    let start = object.segments.iter().map(|s| s.range.start).min()?;
    let end = object.segments.iter().map(|s| s.range.end).max()?;
    image::symbols::thread_locals(path, memory.bytes(start..end).unwrap_or_default())
}

/// Whether the address of a thread-local with this name and size is known to stay inside the functions
/// that use it.
pub(crate) fn is_vouched_for(name: &str, size: usize) -> bool {
    harmless::LISTS.variables.whose(name, size).is_some()
}

/// A mangled name as people write it.
pub(crate) fn written_plainly(name: &str) -> String {
    image::symbols::plain(name)
}

/// Whether a suspended stack, or a frame of a function, may change threads.
///
/// ```
/// use indent_sysmon::frames::{Judge, Mobility};
/// assert_eq!(Judge::survey().mobility(0), Mobility::Bound); // no code of this program
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mobility {
    /// Nothing on the stack belongs to the thread: it may go on on another one.
    Movable,
    /// It may hold something of its thread: it stays there, and no other stack runs there
    /// meanwhile.
    Bound,
}
