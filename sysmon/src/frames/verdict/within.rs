//! Thread-locals that only functions of one crate use, and whose value identifies the thread.
//!
//! Such a value (the number of a shard, for example) is valid only on the thread that it was read
//! on, and for as long as the crate's code uses it. An entry in the list vouches that the crate
//! hands it to no other code. So the frames that may have it are those of the crate, from the
//! function that reads it outwards, and the first function that is not the crate's: code of the
//! crate may have been inlined there. The functions that call that one are left with nothing.
//!
//! Functions of the standard library that take a closure may stand between two functions of the
//! crate, and the search passes through them. It does not pass through destructors: they return
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Graph;
use super::{CodeLocation, Why};
use crate::frames::image::Image;
use crate::frames::image::symbols;

/// How names of functions of the standard library begin.
const STANDARD: [&str; 3] = ["std::", "core::", "alloc::"];
const DESTRUCTOR: &str = "core::ptr::drop_in_place";

/// Functions that read such variables, by crate.
#[derive(Default)]
pub(super) struct Within(BTreeMap<String, Vec<(u32, Why)>>);

impl Within {
    /// Records that a function uses a variable with this name.
    pub(super) fn add(&mut self, node: u32, name: &str, why: Why) {
        let name = name.trim_start_matches('<');
        let (of, _) = name.split_once("::").unwrap_or((name, ""));
        let uses = self.0.entry(of.to_owned()).or_default();
        uses.push((node, why));
    }

    /// Returns all functions whose frames may have such a value.
    pub(super) fn functions(
        &self,
        images: &[Image],
        places: &[CodeLocation],
        graph: &Graph,
    ) -> Vec<(u32, Why)> {
        let mut functions = Vec::new();
        for (of, uses) in &self.0 {
            let mut seen: BTreeSet<u32> = uses.iter().map(|(node, _)| *node).collect();
            let mut next = uses.clone();
            while let Some((node, why)) = next.pop() {
                let goes_on = match places[node as usize] {
                    CodeLocation::Constant { .. } => true,
                    CodeLocation::Function { image, index } => {
                        functions.push((node, why.clone()));
                        let image = &images[image as usize];
                        is_inside(image, image.functions[index as usize].range.start, of)
                    }
                };
                let leading = graph.leading_to(node).filter(|_| goes_on);
                let new = leading.filter(|from| seen.insert(*from));
                next.extend(new.map(|from| (from, why.clone())));
            }
        }
        functions
    }
}

/// Whether a function may return to code of a crate what that code passed to it.
fn is_inside(image: &Image, start: usize, of: &str) -> bool {
    let mut names = image.symbols.functions_at(start);
    let inside = |name: &str| {
        let name = symbols::plain(name);
        let name = name.trim_start_matches('<');
        let rest = name.strip_prefix(of);
        rest.is_some_and(|rest| rest.starts_with("::"))
            || STANDARD.iter().any(|s| name.starts_with(s)) && !name.starts_with(DESTRUCTOR)
    };
    // Functions with equal code share it, under all of their names.
    names.any(inside)
}
