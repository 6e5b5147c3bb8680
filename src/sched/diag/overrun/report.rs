//! Reports of overruns, with names, as callbacks and logs get them.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

use indent_sysmon::symbols::{self, CodeLocation};
use indent_sysmon::{SystemCall, frames};

use crate::sched::diag::overrun::Kind;
use crate::sched::diag::overrun::slots::Facts;
use crate::sys::program;

/// Report of a fiber that has run longer than the
/// [quantum](crate::runtime::Builder::preempt_quantum).
///
/// The fiber has not come back to the runtime by itself in that time. It is reported again when
/// that time has doubled.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::{Duration, Instant};
///
/// let (tell, told) = mpsc::channel();
/// let rt = indent::runtime::Builder::new()
///     .workers(1)
///     .on_overrun(move |overrun| drop(tell.send(overrun.clone())))
///     .build()?;
/// let hog = rt.spawn(|| {
///     let begun = Instant::now();
///     while begun.elapsed() < Duration::from_millis(100) {}
/// });
/// let overrun = told.recv().unwrap();
/// assert_eq!(overrun.fiber, hog.id());
/// assert!(overrun.ran >= Duration::from_millis(10));
/// println!("{overrun}");
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Overrun {
    /// The fiber's id.
    pub fiber: u64,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// How long it has computed since it last parked, yielded or began.
    ///
    /// If it blocked its thread, this includes how long it has slept there.
    pub ran: Duration,
    /// What was done about it.
    pub action: OverrunAction,
    /// Fibers that waited meanwhile.
    pub waited: Waited,
    /// Its stack, innermost function first, inlined ones included.
    ///
    /// Ends early if the stack is deep; has one place or none if the fiber was on a stack of its
    /// own making.
    pub stack: Vec<CodeLocation>,
}

/// What was done about an [`Overrun`].
///
/// ```
/// use indent::runtime::OverrunAction;
///
/// let blocked = OverrunAction::Detached { call: 0, name: Some("read") };
/// assert_eq!(blocked.to_string(), "it blocks its thread in read; its worker went on without it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrunAction {
    /// Nothing: no other fiber waited, or not for long enough.
    Noticed,
    /// The fiber was stopped, with its thread, until its next turn.
    Frozen,
    /// The fiber was stopped, with its thread, in the middle of a library's code.
    ///
    /// It may hold a lock there, for example the allocator's.
    FrozenInLibrary,
    /// The fiber blocks its thread in the kernel, and its worker went on with another thread.
    Detached {
        /// The number of the system call, or -1.
        call: i64,
        /// Its name, if it is a common one.
        name: Option<&'static str>,
    },
    /// The fiber was switched out in place: other fibers run on its thread.
    InPlace,
}

impl fmt::Display for OverrunAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverrunAction::Noticed => f.write_str("it was left alone"),
            OverrunAction::Frozen => f.write_str("it was stopped with its thread"),
            OverrunAction::FrozenInLibrary => {
                f.write_str("it was stopped with its thread, in the code of a library")
            }
            OverrunAction::Detached { call, name } => {
                f.write_str("it blocks its thread in ")?;
                match name {
                    Some(name) => f.write_str(name)?,
                    None if *call >= 0 => write!(f, "system call {call}")?,
                    None => f.write_str("the kernel")?,
                }
                f.write_str("; its worker went on without it")
            }
            OverrunAction::InPlace => f.write_str("it was switched out in place"),
        }
    }
}

/// Fibers that waited while another one overran.
///
/// The counts are what was visible at a glance: at least so many waited.
///
/// ```
/// use indent::runtime::Waited;
///
/// assert_eq!(Waited::default().to_string(), "nobody waited");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waited {
    /// Fibers that compute little, or of which nothing is known.
    pub interactive: usize,
    /// Fibers that compute much, including those that were stopped before.
    pub batch: usize,
    /// The fiber for which it was stopped at once, if that fiber was woken meanwhile.
    pub pressed_for: Option<u64>,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.interactive, self.batch) {
            (0, 0) if self.pressed_for.is_none() => return f.write_str("nobody waited"),
            (interactive, 0) => write!(f, "{interactive} waited")?,
            (interactive, batch) => write!(f, "{interactive} and {batch} that compute waited")?,
        }
        match self.pressed_for {
            Some(fiber) => write!(f, ", of them fiber {fiber} was woken just now"),
            None => Ok(()),
        }
    }
}

impl Overrun {
    /// Makes a report with names, which takes long.
    pub(crate) fn new(told: &Told, names: &mut Names) -> Self {
        let facts = &told.facts;
        let stack = names.of(&told.frames);
        let action = match facts.kind {
            Kind::Noticed => OverrunAction::Noticed,
            Kind::Freeze => OverrunAction::Frozen,
            Kind::SuspectFreeze => OverrunAction::FrozenInLibrary,
            Kind::InPlace => OverrunAction::InPlace,
            Kind::Detach => OverrunAction::Detached {
                call: facts.call,
                name: SystemCall::name_of(facts.call),
            },
        };
        Overrun {
            fiber: told.fiber.id,
            name: told.fiber.name.clone(),
            location: told.fiber.location,
            ran: Duration::from_nanos(facts.ran),
            action,
            waited: Waited {
                interactive: facts.interactive,
                batch: facts.batch,
                pressed_for: (facts.pressed_for != 0).then_some(facts.pressed_for),
            },
            stack,
        }
    }

    /// Returns the function that most likely caused the overrun.
    ///
    /// It is the innermost one of the program that is neither the runtime's nor the standard
    /// library's. Closures count as the function they are written in.
    ///
    /// ```
    /// # let (tell, told) = std::sync::mpsc::channel();
    /// # let rt = indent::runtime::Builder::new()
    /// #     .workers(1)
    /// #     .on_overrun(move |overrun| drop(tell.send(overrun.function())))
    /// #     .build()?;
    /// #[inline(never)]
    /// fn crunch() {
    ///     let begun = std::time::Instant::now();
    ///     while begun.elapsed().as_millis() < 100 {}
    /// }
    ///
    /// let hog = rt.spawn(crunch);
    /// # let function = told.recv().unwrap().unwrap(); // from a callback: `overrun.function()`
    /// assert!(function.ends_with("crunch"), "{function}");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn function(&self) -> Option<String> {
        culprit(&self.stack)
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fiber {}", self.fiber)?;
        if let Some(name) = &self.name {
            write!(f, " '{name}'")?;
        }
        let (file, line) = (self.location.file(), self.location.line());
        write!(
            f,
            ", spawned at {file}:{line}, has run for {:.1?}",
            self.ran
        )?;
        write!(f, ": {}; {}", self.action, self.waited)?;
        // Without the runtime's frames around the overrun and below the closure.
        let ours = |place: &CodeLocation| Whose::of(place) == Whose::Runtimes;
        let first = self.stack.iter().position(|place| !ours(place));
        let last = self.stack.iter().rposition(|place| !ours(place));
        if let (Some(first), Some(last)) = (first, last) {
            for place in &self.stack[first..=last] {
                write!(f, "\n    {place}")?;
            }
        }
        Ok(())
    }
}

/// Cache of function names.
///
/// Most frames of a report were in the last one, too.
#[derive(Default)]
pub(crate) struct Names(HashMap<usize, Vec<CodeLocation>>);

impl Names {
    const MOST: usize = 4096;

    fn of(&mut self, addresses: &[usize]) -> Vec<CodeLocation> {
        if self.0.len() + addresses.len() > Self::MOST {
            self.0.clear();
        }
        let mut places = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let known = self.0.entry(address);
            let named = known.or_insert_with(|| symbols::name(&[address]));
            places.extend_from_slice(named);
        }
        places
    }
}

/// A fiber as it was when it was captured.
pub(crate) struct Named {
    pub(crate) id: u64,
    pub(crate) name: Option<String>,
    pub(crate) location: &'static Location<'static>,
}

/// A report without names of functions.
pub(crate) struct Told {
    pub(crate) facts: Facts,
    pub(crate) fiber: Named,
    pub(crate) frames: Vec<usize>,
}

/// Returns the name of the function that most likely caused the overrun.
///
/// Line tables name functions without their path, so files decide as well.
pub(crate) fn culprit(stack: &[CodeLocation]) -> Option<String> {
    let inside = || {
        stack
            .iter()
            .filter(|place| program::contains(place.address))
    };
    let of = |whose: Whose| inside().filter(move |place| Whose::of(place) == whose);
    let has_name = |place: &&CodeLocation| place.function.as_deref().is_some_and(is_name);
    let own = of(Whose::Programs);
    if let Some(found) = own.clone().find(has_name) {
        return found
            .function
            .as_deref()
            .map(|name| outside_closures(name).to_owned());
    }
    if let Some(closure) = own.clone().find(|place| place.function.is_some()) {
        let file = closure.file.as_deref().and_then(Path::file_name);
        return Some(match file {
            Some(file) => format!("a closure in {}", file.display()),
            None => "a closure".to_owned(),
        });
    }
    let other = of(Whose::Librarys).next().or_else(|| stack.first())?;
    other.function.clone()
}

/// Returns whether this is a name, not a closure of a function without one.
fn is_name(function: &str) -> bool {
    !outside_closures(function).starts_with('{')
}

/// Returns the function a closure is written in; other names are returned unchanged.
fn outside_closures(mut name: &str) -> &str {
    loop {
        let shorter = name
            .strip_suffix("::{{closure}}")
            .or_else(|| Some(name.strip_suffix('}')?.rsplit_once("::{closure#")?.0));
        match shorter {
            Some(shorter) => name = shorter,
            None => return name,
        }
    }
}

/// Author of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Programs,
    /// Of the standard library, or of what stands in for it.
    Librarys,
    Runtimes,
}

impl Whose {
    pub(crate) fn of(place: &CodeLocation) -> Whose {
        const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
        let file = place.file.as_deref().and_then(Path::to_str);
        let of_std = ["/rustc/", "/rustlib/src/rust/", "/hashbrown-"];
        match (file, place.function.as_deref().map(crate_of)) {
            (Some(file), _) if file.starts_with(OURS) => Whose::Runtimes,
            (Some(file), _) if of_std.iter().any(|part| file.contains(part)) => Whose::Librarys,
            (_, Some("indent" | "indent_sysmon" | "corosensei")) => Whose::Runtimes,
            (_, Some("std" | "core" | "alloc" | "hashbrown" | "compiler_builtins")) => {
                Whose::Librarys
            }
            (None, Some("")) | (None, None) => Whose::Librarys, // not Rust, or unknown
            _ => Whose::Programs,
        }
    }
}

/// Returns the first part of a function's path, or of the type it is implemented for.
///
/// Empty if it has no path.
fn crate_of(function: &str) -> &str {
    let name = function.trim_start_matches(['<', '&', '*']);
    let name = ["dyn ", "mut ", "const "]
        .iter()
        .fold(name, |name, word| name.strip_prefix(word).unwrap_or(name));
    let end = name.find(['<', '(', '{', ' ']).unwrap_or(name.len());
    name[..end].split_once("::").map_or("", |(first, _)| first)
}

/// Returns where the innermost functions of the program begin.
pub(crate) fn functions<const N: usize>(frames: &[usize]) -> [usize; N] {
    let ours = frames.iter().copied().filter(|at| program::contains(*at));
    let ours: Vec<_> = ours.take(N).collect();
    let mut found = [0; N];
    for (place, begin) in found.iter_mut().zip(frames::beginnings(&ours)) {
        *place = begin;
    }
    found
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn place(function: &str) -> CodeLocation {
        CodeLocation {
            address: place as fn(&str) -> CodeLocation as usize,
            function: Some(function.to_owned()),
            file: None,
            line: None,
        }
    }

    fn at(function: &str, file: &str) -> CodeLocation {
        CodeLocation {
            file: Some(file.into()),
            ..place(function)
        }
    }

    #[test]
    fn the_culprit_is_the_innermost_function_that_is_the_programs_own() {
        program::find();
        let stack = [
            "indent::sched::threads::carrier::Carrier::leave",
            "core::slice::sort::quick",
            "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend",
            "__rust_alloc",
            "shop::pay::{{closure}}",
            "shop::serve",
        ];
        assert_eq!(culprit(&stack.map(place)).as_deref(), Some("shop::pay"));
        let closures = [place("shop::pay::{closure#0}::{closure#12}")];
        assert_eq!(culprit(&closures).as_deref(), Some("shop::pay"));
        let library = [place("core::slice::sort::quick"), place("std::rt::x")];
        let sorted = culprit(&library);
        assert_eq!(sorted.as_deref(), Some("core::slice::sort::quick"));
        assert_eq!(culprit(&[]), None);
    }

    #[test]
    fn where_names_have_no_path_files_tell_whose_they_are() {
        program::find();
        let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fiber/job.rs");
        let stack = [
            at("leave", ours),
            at(
                "quicksort<u64, fn(&u64, &u64) -> bool>",
                "/rustc/1/library/core/sort.rs",
            ),
            at("{closure#0}", "/home/shop/src/main.rs"),
            at("pay", "/home/shop/src/main.rs"),
            at("run<shop::serve::{closure_env#0}, ()>", ours),
        ];
        assert_eq!(culprit(&stack).as_deref(), Some("pay"));
        let closure = [stack[2].clone(), stack[4].clone()];
        assert_eq!(culprit(&closure).as_deref(), Some("a closure in main.rs"));
        let library = culprit(&stack[..2]).unwrap();
        assert!(library.starts_with("quicksort<"), "{library}");
    }
}
