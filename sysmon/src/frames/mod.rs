//! Decides whether a suspended stack may continue on another thread.
//!
//! Rust, LLVM and most libraries assume that a function begins and ends on one thread: the address
//! of a thread-local may stay in a register across any call. A suspended stack may change threads
//! only if none of its frames can hold such an address, and this is read from the machine code
//! ([S5]). The verdict on each function is its [`Mobility`]; one bound frame binds a stack.
//!
//! | file | what it does |
//! |---|---|
//! | `objects` | lists what is mapped: executable and libraries, their segments |
//! | `image` | reads one object: its functions, constants, slots, names |
//! | `edges` | reads one function: what it touches, and what it leads to |
//! | `constants` | finds where one constant ends and the next begins |
//! | `harmless` | lists names of code that leaves nothing behind, a reason each |
//! | `verdict` | covers all functions: which reaches which; the verdicts, and why |
//! | `peek` | reads memory |
//! | `sorted` | sorts, and searches sorted lists |
//! | `rows` | knows how to climb from a frame to its caller |
//! | `sites` | maps each place where a stack was seen to its verdict and row, for any reader |
//! | `walk` | climbs a suspended stack and judges it |
//! | `snapshot` | copies a stack in a signal handler, climbs the copy later |
//! | `ahead` | requests the sites that a walk will need next |
//! | `study` | runs the survey and answers requests |
//! | `trace` | remembers walks, so that the next one is cheap |
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

/// Returns offset, size and mangled name of each thread-local of an object.
///
/// The source is the symbols in the object's file.
pub(crate) fn symbols_of_thread_locals(
    object: &objects::Object,
    path: &std::path::Path,
) -> Option<Vec<(usize, usize, String)>> {
    let memory = image::map(object);
    let start = object.segments.iter().map(|s| s.range.start).min()?;
    let end = object.segments.iter().map(|s| s.range.end).max()?;
    image::symbols::thread_locals(path, memory.bytes(start..end).unwrap_or_default())
}

/// Whether the address of this thread-local is known to stay inside the functions that use it.
///
/// The thread-local is given by name and size.
pub(crate) fn is_vouched_for(name: &str, size: usize) -> bool {
    harmless::LISTS.variables.whose(name, size).is_some()
}

/// Returns a mangled name in readable form.
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
    /// Nothing on the stack belongs to the thread: it may continue on another thread.
    Movable,
    /// The stack may hold something of its thread.
    ///
    /// It stays there, and no other stack runs there meanwhile.
    Bound,
}
