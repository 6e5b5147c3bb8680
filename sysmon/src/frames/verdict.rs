//! The verdict on every function: what is touched, handed back along all edges.
//!
//! A function has two sides. *As a frame* of a suspended stack it counts with everything it touches
//! and reaches. *As a callee* it counts the same, unless it is on a list of harmless ones: then
//! nothing thread-bound outlives a call of it, and the search ends there. `_print` as a callee is
//! harmless; as a frame, under a `Display` that parks, it holds a lock of its thread and is bound.
//! Functions of the runtime itself count as frames with their own instructions only: they know that
//! they switch, and read everything anew afterwards.
//!
//! All code is read at once, on the first demand: every edge has to be known backwards, and where
//! constants end depends on all references to them (`constants`). Then what is touched is handed
//! back along the edges, nearest first; what is left is movable. For every bound function the next
//! step of a shortest way is kept, so that the reason can be shown.
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

/// Why a function is bound by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Variable(i64),
    /// A thread-local that the caller says, by its key.
    ByKey,
    Unknown(&'static str),
    /// The kernel, asked directly.
    Kernel(Option<i64>),
    /// Hands out something of the thread, or comes from who knows where.
    Import(u32),
    Foreign(usize),
    /// Code without an unwind entry.
    Uncovered(usize),
}

/// A function or a piece of constants.
#[derive(Clone, Copy, Debug)]
enum CodeLocation {
    Function { image: u32, index: u32 },
    Constant { image: u32, start: usize },
}

/// Knows the verdict on every function of the executable.
///
/// Made once, from the memory of the process and, for names, the file of the executable; takes some
/// milliseconds for each megabyte of code, and allocates. What it says holds for ever.
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
    /// What binds a frame of a function, but not its callers.
    held: BTreeMap<u32, Why>,
    /// How functions lose the address of a thread-local.
    lost: BTreeMap<u32, &'static str>,
    /// Std's functions for keys.
    asking: BTreeSet<u32>,
    /// Functions that find thread-locals by their keys, and one of those.
    finds: BTreeMap<u32, Why>,
    /// Fibers were taken to have thread-locals of their own.
    own_locals: bool,
    graph: Graph,
    /// Of each function, what it has to do with the runtime.
    nearness: Vec<Nearness>,
    /// Functions that have an address of a thread-local between two instructions.
    having: Vec<u32>,
    /// Functions that use a thread-local that stays with the thread.
    staying: Vec<u32>,
    /// Known once it was asked for: most programs never do.
    in_place: OnceLock<InPlaces>,
    /// Where functions begin that may change attributes of their thread; sorted.
    changers: Vec<usize>,
    /// Declarations that fit nothing.
    misfits: Vec<Misfit>,
    /// Where functions begin that may have been left with the address of a thread-local; sorted.
    near_addresses: Vec<usize>,
    statistics: Statistics,
}

/// What a function has to do with the runtime, for one that is interrupted and not suspended in a call.
///
/// The runtime's own functions may hold anything of their thread between two instructions, and code of
/// the runtime that was inlined into others may hold what such a function has just returned. The same goes
/// for functions that use a thread-local whose address they keep to themselves, and for all that lead to
/// those: one in between may just have been given the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Nearness {
    /// Nothing.
    Apart,
    /// It leads to one of the runtime's functions directly, or to one that holds something for itself.
    Leads,
    /// It is one.
    Within,
}

/// What a survey has seen.
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
    /// Objects whose code was read.
    pub objects: usize,
    /// Functions in them.
    pub functions: usize,
    /// Functions that touch a thread-local themselves.
    pub touching: usize,
    /// Functions that are bound as frames.
    pub bound: usize,
    /// Functions the search ended at, being on a list of harmless ones.
    pub harmless: usize,
    /// Bytes of code read.
    pub text: usize,
    /// Edges found.
    pub edges: usize,
    /// Bytes kept.
    pub memory: usize,
    /// How long it took.
    pub time: Duration,
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut judge = f.debug_struct("Judge");
        judge.field("statistics", &self.statistics).finish()
    }
}

impl Judge {
    /// Whether the verdicts hold only for stacks that take their thread-locals along; see
    /// [`assume_own_thread_locals`](super::assume_own_thread_locals).
    ///
    /// ```
    /// assert!(!indent_sysmon::frames::Judge::survey().assumes_own_thread_locals());
    /// ```
    pub fn assumes_own_thread_locals(&self) -> bool {
        self.own_locals
    }

    /// Reads the code of the executable, and of the library this code is in if it is another one.
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

    /// The verdict on a frame of the function around an address.
    ///
    /// An address outside of what was read, or in code without an unwind entry: bound. Mind that a
    /// return address may be the first one behind its function: ask for the one before.
    ///
    /// See [`Judge`] for an example.
    pub fn mobility(&self, ip: usize) -> Mobility {
        self.number(ip)
            .map_or(Mobility::Bound, |function| self.graph.mobility(function))
    }

    /// Whether a function is one of std's for thread-locals, whose caller says which it is.
    pub(crate) fn asks_caller(&self, ip: usize) -> bool {
        self.number(ip)
            .is_some_and(|node| self.asking.contains(&node))
    }

    /// What binds a node by itself.
    fn reason_of(&self, node: u32) -> Option<&Why> {
        let own = self.own[node as usize].as_ref();
        own.or_else(|| self.held.get(&node))
    }

    /// Whether the function that begins at this address may change an attribute that the kernel
    /// keeps for its thread: namespaces, credentials, capabilities, filters, scheduling. What other
    /// libraries than the C library do inside is not seen.
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

    /// What the function around an address has to do with the runtime.
    pub(crate) fn nearness(&self, ip: usize) -> Nearness {
        self.number(ip)
            .and_then(|function| self.nearness.get(function as usize).copied())
            .unwrap_or(Nearness::Within)
    }

    /// Why no interrupted stack of this program is left where it stands outside of regions, if so.
    /// None is before this was asked for the first time, which takes a while.
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

    /// The same as a yes or no, for handlers: they find out nothing.
    pub(crate) fn allows_in_place(&self) -> bool {
        let known = self.in_place.get();
        known.is_some_and(|known| known.refusal.is_none())
    }

    /// What an interrupted stack with a frame at an address may do.
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

    /// Whether an object that was read has no symbols of functions, as when it was stripped or its
    /// file cannot be read. Then nothing is on a list of harmless functions, and nearly every frame
    /// is bound.
    ///
    /// ```
    /// assert!(!indent_sysmon::frames::Judge::survey().lacks_symbols());
    /// ```
    pub fn lacks_symbols(&self) -> bool {
        self.images
            .iter()
            .any(|image| image.symbols.has_no_functions())
    }

    /// Declarations by [`declare_harmless`](super::declare_harmless) that fit nothing in the
    /// program: misspelt, or the compiler has left the function or variable out. None are known
    /// where symbols are missing.
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

    /// What was seen.
    ///
    /// See [`Statistics`] for an example.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The address of a function, by its name or a part of it; needs symbols.
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
        // The first of the best.
        let best = fits.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (best.0 > 0).then_some(best.1)
    }

    /// All functions, in the order of their addresses.
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
    /// Its first address.
    pub start: usize,
    /// The first address behind it.
    pub end: usize,
    /// As a frame.
    pub mobility: Mobility,
    /// Whether its own instructions alone bind it.
    pub touches: bool,
    image: &'a Image,
}

impl Function<'_> {
    /// Its name, demangled, if there are symbols.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.functions().any(|f| f.name().is_some_and(|name| name == "main")));
    /// ```
    pub fn name(&self) -> Option<String> {
        self.image.name(self.start)
    }
}
