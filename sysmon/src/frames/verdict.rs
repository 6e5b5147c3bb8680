//! Computes the verdict on every function: propagates what each one touches backwards along all
//! edges.
//!
//! A function has two roles. *As a frame* of a suspended stack, it counts with everything it
//! touches and reaches. *As a callee*, it counts the same, unless it is on a list of harmless
//! functions: then nothing thread-bound outlives a call of it, and the search ends there. `_print`
//! as a callee is harmless; as a frame, under a `Display` that parks, it holds a lock of its thread
//! and is bound. Functions of the runtime itself count as frames with their own instructions only:
//! they know that they switch, and they read everything again afterwards.
//!
//! All code is read at once, on the first request: every edge has to be known backwards, and the
//! ends of constants depend on all references to them (`constants`). Then what is touched is
//! propagated backwards along the edges, nearest first; the functions that are left are movable.
//! For every bound function, the next step of a shortest path is kept, so that the reason can be
//! shown.
//!
//! Nodes are functions, then pieces of constants.
//!
//! Rejected: deciding function by function on demand. The first question about any real program
//! reads most of its code anyway (formatting alone leads to a third of the standard library).

mod escapes;
mod explain;
mod graph;
mod in_place;
mod near;
mod pointers;
mod survey;
mod within;

pub use explain::{Binding, Step};
pub(crate) use in_place::InPlace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::edges::How;
use super::image::{Image, symbols};
use super::objects::Objects;
use super::{Misfit, Mobility};
use graph::Graph;
use in_place::InPlaces;
use survey::Survey;

/// Reason why a function is bound by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Variable(i64),
    /// A thread-local that the caller names by its key.
    ByKey,
    Unknown(&'static str),
    /// A direct system call, with its number if that is known.
    Kernel(Option<i64>),
    /// An import that hands out something of the thread, or whose origin is unknown.
    Import(u32),
    Foreign(usize),
    /// Code without an unwind entry.
    Uncovered(usize),
}

/// Location of a node: a function, or a piece of constants.
#[derive(Clone, Copy, Debug)]
enum CodeLocation {
    Function { image: u32, index: u32 },
    Constant { image: u32, start: usize },
}

/// Holds the verdict on every function of the executable.
///
/// It is made once, from the memory of the process and, for names, the file of the executable.
/// Making it takes some milliseconds for each megabyte of code, and allocates. Its verdicts never
/// change.
///
/// ```
/// use indent_sysmon::frames::{Judge, Mobility};
/// use std::cell::Cell;
///
/// thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
///
/// #[inline(never)]
/// fn counts() -> u32 {
///     COUNT.replace(std::hint::black_box(7))
/// }
/// #[inline(never)]
/// fn adds(a: u32, b: u32) -> u32 {
///     a.wrapping_add(b)
/// }
///
/// let judge = Judge::survey();
/// assert_eq!(judge.mobility(counts as fn() -> u32 as usize), Mobility::Bound);
/// assert_eq!(judge.mobility(adds as fn(u32, u32) -> u32 as usize), Mobility::Movable);
/// assert_eq!(judge.mobility(0), Mobility::Bound); // no code of this program
/// ```
pub struct Judge {
    images: Vec<Image>,
    /// The number of each image's first function.
    first: Vec<u32>,
    places: Vec<CodeLocation>,
    /// What binds each node by itself.
    own: Vec<Option<Why>>,
    /// What binds a frame of a function but not the frames of its callers.
    held: BTreeMap<u32, Why>,
    /// How functions lose track of the address of a thread-local.
    lost: BTreeMap<u32, &'static str>,
    /// The standard library's functions that look up a thread-local by its key.
    asking: BTreeSet<u32>,
    /// Functions that find thread-locals by their keys, each with one such thread-local.
    finds: BTreeMap<u32, Why>,
    /// Whether the survey assumed that fibers have thread-locals of their own.
    own_locals: bool,
    graph: Graph,
    /// How each function is related to the runtime.
    nearness: Vec<Nearness>,
    /// Functions that have the address of a thread-local between two instructions.
    having: Vec<u32>,
    /// Functions that use a thread-local that stays with the thread.
    staying: Vec<u32>,
    /// Computed on the first request: most programs never make one.
    in_place: OnceLock<InPlaces>,
    /// Start addresses of functions that may change attributes of their thread; sorted.
    changers: Vec<usize>,
    /// Declarations that match nothing in the program.
    misfits: Vec<Misfit>,
    /// Start addresses of functions that may still have the address of a thread-local; sorted.
    near_addresses: Vec<usize>,
    statistics: Statistics,
}

/// Relation of an interrupted function to the runtime.
///
/// It matters for a function that is interrupted, not for one suspended in a call. The runtime's
/// own functions may hold anything of their thread between two instructions, and code of the
/// runtime that was inlined into other functions may hold what such a function has just returned.
/// The same holds for functions that use a thread-local whose address they keep to themselves, and
/// for all functions that lead to those: a function in between may just have been given the
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Nearness {
    /// Unrelated.
    Apart,
    /// Leads directly to one of the runtime's functions, or to one that holds something for itself.
    Leads,
    /// Is one of the runtime's functions.
    Within,
}

/// Figures of one survey.
///
/// ```
/// use indent_sysmon::frames::Judge;
///
/// let seen = Judge::survey().statistics();
/// assert!(seen.touching <= seen.functions);
/// assert!(seen.bound <= seen.functions);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Number of objects whose code was read.
    pub objects: usize,
    /// Number of functions in them.
    pub functions: usize,
    /// Number of functions that touch a thread-local themselves.
    pub touching: usize,
    /// Number of functions that are bound as frames.
    pub bound: usize,
    /// Number of functions where the search ended because they are on a list of harmless functions.
    pub harmless: usize,
    /// Number of bytes of code read.
    pub text: usize,
    /// Number of edges found.
    pub edges: usize,
    /// Number of bytes kept in memory.
    pub memory: usize,
    /// Duration of the survey.
    pub time: Duration,
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut judge = f.debug_struct("Judge");
        judge.field("statistics", &self.statistics).finish()
    }
}

impl Judge {
    /// Returns whether the verdicts hold only for stacks that take their thread-locals along.
    ///
    /// See [`assume_own_thread_locals`](super::assume_own_thread_locals).
    ///
    /// ```
    /// assert!(!indent_sysmon::frames::Judge::survey().assumes_own_thread_locals());
    /// ```
    pub fn assumes_own_thread_locals(&self) -> bool {
        self.own_locals
    }

    /// Reads the code of the executable, and of the library that contains this code, if another
    /// one.
    ///
    /// See [`Judge`] for an example.
    pub fn survey() -> Judge {
        let begun = Instant::now();
        let objects = Objects::now();
        let own = Judge::survey as fn() -> Judge as usize;
        let mut images = Vec::new();
        if let Some(executable) = objects.list.first() {
            let path = Path::new("/proc/self/exe");
            images.push(Image::read(executable, path, true));
        }
        let library = objects.list.iter().skip(1).find(|o| o.contains(own));
        images.extend(library.map(|library| Image::read(library, &library.name, false)));
        let own_locals = super::study::has_own_thread_locals();
        let mut survey = Survey::new(images, &objects.list, own_locals);
        survey.read_code();
        survey.read_constants();
        survey.conclude(begun)
    }

    /// Returns the verdict on a frame of the function around an address.
    ///
    /// An address outside of the code that was read, or in code without an unwind entry, is bound.
    /// A return address may be the first address after its function, so pass the address before it.
    ///
    /// See [`Judge`] for an example.
    pub fn mobility(&self, ip: usize) -> Mobility {
        self.number(ip)
            .map_or(Mobility::Bound, |function| self.graph.mobility(function))
    }

    /// Whether this is a function of the standard library whose caller names the thread-local.
    pub(crate) fn asks_caller(&self, ip: usize) -> bool {
        self.number(ip)
            .is_some_and(|node| self.asking.contains(&node))
    }

    /// What binds a node by itself.
    fn reason_of(&self, node: u32) -> Option<&Why> {
        let own = self.own[node as usize].as_ref();
        own.or_else(|| self.held.get(&node))
    }

    /// Whether the function at this address may change an attribute of its thread.
    ///
    /// The address is where the function begins. The attributes are those that the kernel keeps for
    /// a thread: namespaces, credentials, capabilities, filters, scheduling. What libraries other
    /// than the C library do inside is not seen.
    ///
    /// ```
    /// use indent_sysmon::frames::Judge;
    ///
    /// #[inline(never)]
    /// fn nicer() {
    ///     unsafe { libc::nice(std::hint::black_box(0)) };
    /// }
    /// #[inline(never)]
    /// fn adds(a: u32, b: u32) -> u32 {
    ///     a.wrapping_add(b)
    /// }
    ///
    /// let judge = Judge::survey();
    /// assert!(judge.changes_thread(nicer as fn() as usize));
    /// assert!(!judge.changes_thread(adds as fn(u32, u32) -> u32 as usize));
    /// ```
    pub fn changes_thread(&self, function: usize) -> bool {
        self.changers.binary_search(&function).is_ok()
    }

    /// Returns how the function around an address is related to the runtime.
    pub(crate) fn nearness(&self, ip: usize) -> Nearness {
        self.number(ip)
            .and_then(|function| self.nearness.get(function as usize).copied())
            .unwrap_or(Nearness::Within)
    }

    /// Returns why no interrupted stack of this program is left in place outside of regions.
    ///
    /// `None` means that stacks may be left in place. The first call computes the answer, which
    /// takes a while.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// // Verdicts of this one do not rely on thread-locals that stacks take along.
    /// assert!(judge.in_place_refusal().is_some());
    /// ```
    pub fn in_place_refusal(&self) -> Option<&'static str> {
        if !self.own_locals {
            return Some("thread-locals belong to threads");
        }
        self.in_place.get_or_init(|| InPlaces::of(self)).refusal
    }

    /// Whether interrupted stacks may be left in place; for signal handlers, as it computes
    /// nothing.
    pub(crate) fn allows_in_place(&self) -> bool {
        let known = self.in_place.get();
        known.is_some_and(|known| known.refusal.is_none())
    }

    /// Returns what an interrupted stack with a frame at this address may do.
    pub(crate) fn in_place(&self, ip: usize) -> InPlace {
        let known = self.in_place.get().zip(self.number(ip));
        known
            .and_then(|(known, function)| known.of_functions.get(function as usize).copied())
            .unwrap_or(InPlace::Never)
    }

    fn number(&self, ip: usize) -> Option<u32> {
        let inside = |image: &Image| image.range.contains(&ip);
        let image = self.images.iter().position(inside)?;
        let index = self.images[image].function_at(ip)?;
        Some(self.first[image] + index as u32)
    }

    /// Returns whether an object that was read has no function symbols.
    ///
    /// It was stripped, or its file cannot be read. Then no function is on a list of harmless
    /// functions, and nearly every frame is bound.
    ///
    /// ```
    /// assert!(!indent_sysmon::frames::Judge::survey().lacks_symbols());
    /// ```
    pub fn lacks_symbols(&self) -> bool {
        self.images
            .iter()
            .any(|image| image.symbols.has_no_functions())
    }

    /// Returns the declarations by [`declare_harmless`](super::declare_harmless) that match
    /// nothing.
    ///
    /// Their names are misspelt, or the compiler has removed the function or variable. Without
    /// symbols, none are known.
    ///
    /// ```
    /// use indent_sysmon::frames::{Declaration, Judge, declare_harmless};
    ///
    /// let misspelt = Declaration::Function("std::time::Instant::noww".to_owned());
    /// // SAFETY: there is no function of this name.
    /// unsafe { declare_harmless(&[misspelt.clone()]) }.unwrap();
    /// assert!(std::time::Instant::now().elapsed().as_secs() < 60);
    /// let judge = Judge::survey();
    /// assert_eq!(judge.misfits()[0].declaration, misspelt);
    /// assert_eq!(judge.misfits()[0].near[0], "std::time::Instant::now");
    /// ```
    pub fn misfits(&self) -> &[Misfit] {
        &self.misfits
    }

    /// Returns the figures of this survey.
    ///
    /// See [`Statistics`] for an example.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Finds the address of a function by its name or a part of it; needs symbols.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.find("panicking::panic_fmt").is_some());
    /// assert!(judge.find("no such function").is_none());
    /// ```
    pub fn find(&self, name: &str) -> Option<usize> {
        let suffix = format!("::{name}");
        let fit = |whole: &str| match whole {
            _ if whole == name => 3,
            _ if whole.ends_with(&suffix) => 2,
            _ if whole.contains(name) => 1,
            _ => 0,
        };
        let fits = self
            .functions()
            .filter_map(|f| Some((fit(&f.name()?), f.start)));
        // Of several equally good matches, the first one wins.
        let best = fits.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (best.0 > 0).then_some(best.1)
    }

    /// Returns all functions, in the order of their addresses.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// let longest = judge.functions().max_by_key(|f| f.end - f.start).unwrap();
    /// assert_eq!(judge.mobility(longest.start), longest.mobility);
    /// ```
    pub fn functions(&self) -> impl Iterator<Item = Function<'_>> {
        let images = self.images.iter().zip(&self.first);
        images.flat_map(move |(image, &first)| {
            let functions = (first..).zip(&image.functions);
            functions.map(move |(number, function)| Function {
                start: function.range.start,
                end: function.range.end,
                mobility: self.graph.mobility(number),
                touches: self.own[number as usize].is_some() || self.held.contains_key(&number),
                image,
            })
        })
    }
}

/// A function and the verdict on it.
///
/// See [`Judge::functions`] for an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Function<'a> {
    /// First address of the function.
    pub start: usize,
    /// First address after the function.
    pub end: usize,
    /// Verdict on the function as a frame.
    pub mobility: Mobility,
    /// Whether its own instructions alone bind it.
    pub touches: bool,
    image: &'a Image,
}

impl Function<'_> {
    /// Returns the demangled name, if there are symbols.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.functions().any(|f| f.name().is_some_and(|name| name == "main")));
    /// ```
    pub fn name(&self) -> Option<String> {
        self.image.name(self.start)
    }
}
