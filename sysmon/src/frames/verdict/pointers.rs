//! Decides which functions a call through a pointer may lead to.
//!
//! A pointer from memory that was written to may lead to every function whose address is taken
//! anywhere, or to another library if the program looks functions up by name. If one of those
//! leaves something of its thread behind, each function that calls through a pointer may still have
//! it. That is most of a program, so three kinds are treated separately:
//!
//! - *Beginnings*: of the process, of threads and fibers, and what the kernel or the C library
//!   calls at their end. Their address is taken, and the known caller of each has no caller on a
//!   stack that parks. Some are on a list (`beginnings`); others are recognized by what they call
//!   or by what refers to them.
//! - *Accessors* of thread-locals, as long as every reference passes them to the standard library's
//!   functions for keys (`escapes`).
//! - The runtime's own functions, which leave nothing behind (S5), and accessors of its
//!   thread-locals, whose names are known to the runtime alone.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::graph::{self, Graph};
use super::{CodeLocation, Why};
use crate::frames::harmless::{LISTS, paths};
use crate::frames::image::{Image, symbols};

/// Functions that only the beginnings of the process, of its threads and of tests call.
const FIRST_FRAMES: [&str; 2] = [
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "test::assert_test_result",
];
/// Functions of the C library that look up code of other libraries.
const LOADERS: [&str; 3] = ["dlsym", "dlvsym", "dlerror"];
/// Functions between such a beginning and the pointer to it, in unoptimized code.
const WRAPPERS: [&str; 5] = [
    "core::ops::function::",
    "core::panic::unwind_safe::",
    "std::panic",
    "std::sys::",
    "std::thread::",
];

/// Decides which functions a pointer may lead to.
pub(super) struct Pointers<'a> {
    pub(super) images: &'a [Image],
    pub(super) first: &'a [u32],
    pub(super) places: &'a [CodeLocation],
    pub(super) own: &'a [Option<Why>],
    /// For pieces of constants: whether every reference passes one to the functions for keys.
    pub(super) given: &'a BTreeMap<u32, bool>,
    pub(super) starters: OnceCell<BTreeSet<u32>>,
}

impl graph::Pointers for Pointers<'_> {
    fn lead_to(&self, graph: &Graph, node: u32) -> bool {
        if self.loads_code(node) {
            return true;
        }
        self.function(node).is_some()
            && graph.referring(node).any(|from| !self.is_given(from))
            && !self.finds_runtime(node)
            && !self.is_beginning(graph, node)
    }
}

impl Pointers<'_> {
    /// Whether a function looks up code of other libraries by name.
    ///
    /// What the standard library looks up in this way belongs to the C library.
    fn loads_code(&self, node: u32) -> bool {
        let (Some((image, start)), Some(Why::Import(name))) =
            (self.function(node), &self.own[node as usize])
        else {
            return false;
        };
        let of_std = |name: String| name.trim_start_matches('<').starts_with("std::");
        LOADERS.contains(&image.slots.name(*name)) && !image.name(start).is_some_and(of_std)
    }

    /// Whether a constant is only passed to the standard library's functions for thread-locals.
    fn is_given(&self, node: u32) -> bool {
        self.given.get(&node) == Some(&true)
    }

    fn function(&self, node: u32) -> Option<(&Image, usize)> {
        match self.places[node as usize] {
            CodeLocation::Function { image, index } => {
                let image = &self.images[image as usize];
                Some((image, image.functions[index as usize].range.start))
            }
            CodeLocation::Constant { .. } => None,
        }
    }

    /// Whether a function is the accessor of a thread-local of the runtime and has no own name.
    fn finds_runtime(&self, node: u32) -> bool {
        let (Some(Why::Variable(offset)), Some((image, start))) =
            (&self.own[node as usize], self.function(node))
        else {
            return false;
        };
        let variable = image
            .variable(*offset)
            .map(|(name, _)| symbols::plain(name));
        let accessor = image.name(start);
        accessor.is_some_and(|name| name.starts_with(WRAPPERS[0]))
            && variable.is_some_and(|name| is_of_runtime(&name.replace('<', "")))
    }

    fn is_beginning(&self, graph: &Graph, node: u32) -> bool {
        let Some((image, start)) = self.function(node) else {
            return false;
        };
        let listed = |name: &str| {
            let name = symbols::plain(name);
            LISTS.beginnings.has(&name)
                || is_of_runtime(name.trim_start_matches('<')) && !paths::has_strangers(&name)
        };
        if image.symbols.are_all(start, listed) {
            return true;
        }
        let starters = self.starters.get_or_init(|| self.starters(graph));
        starters.contains(&node)
    }

    /// Whether a function only passes a call on.
    fn wraps(&self, node: u32) -> bool {
        let name = self.function(node).and_then(|(image, at)| image.name(at));
        let name = name.unwrap_or_default();
        let name = name.trim_start_matches('<');
        WRAPPERS.iter().any(|wrapper| name.starts_with(wrapper))
    }

    /// Returns the functions that start the process or its threads.
    ///
    /// They call the first frame of the process or of a thread, or only the C library's `main`
    /// refers to them.
    fn starters(&self, graph: &Graph) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for (number, image) in self.images.iter().enumerate() {
            let node_at = |start| {
                image
                    .function_at(start)
                    .map(|i| self.first[number] + i as u32)
            };
            let named = |name| {
                image
                    .symbols
                    .functions_named(name)
                    .into_iter()
                    .filter_map(node_at)
            };
            for frame in FIRST_FRAMES.into_iter().flat_map(named) {
                found.insert(frame);
                let mut callers: Vec<u32> = graph.calling(frame).collect();
                while let Some(caller) = callers.pop() {
                    if found.insert(caller) {
                        let wrappers = graph.calling(caller).filter(|&node| self.wraps(node));
                        callers.extend(wrappers);
                    }
                }
            }
            let mains: Vec<u32> = named("main").collect();
            let by_main = |node: &u32| {
                let mut referring = graph.referring(*node).peekable();
                referring.peek().is_some() && referring.all(|from| mains.contains(&from))
            };
            let functions = self.first[number]..self.first[number] + image.functions.len() as u32;
            found.extend(functions.filter(by_main));
        }
        found
    }
}

fn is_of_runtime(path: &str) -> bool {
    path.starts_with("indent::") || path.starts_with("indent_sysmon::")
}
