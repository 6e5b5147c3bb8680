//! Where one constant ends and the next begins.
//!
//! A reference to a constant counts as a reference to every pointer in it ([S5]), so its extent has
//! to be known. Named constants have a size. What rustc makes up itself (vtables, promoted tables,
//! locations, pieces of strings) has no symbol, and a reference may point into the middle of one
//! (`&TABLE[2]`), to its end, or before it. The space is cut where it is *certain* enough that
//! something begins:
//!
//! 1. where a symbol begins or ends, and at the edges of what the loader protects;
//! 2. at a referenced vtable: destructor or null, size, and an alignment that fits it;
//! 3. at a referenced [`Location`](std::panic::Location), and behind it: a string that ends in
//!    `.rs`, its length, line and column;
//! 4. at the first referenced address behind the methods of a vtable: nobody refers to the middle of
//!    one.
//!
//! *Referenced* is an address that is taken by code or found in a constant. A place that is only
//! read is no evidence that anything begins there.
//!
//! A reference stands for the whole piece it lies in, and for the one before or behind if it may have
//! been an end of that (see `edges::moves`).
//!
//! Cutting at every referenced address instead (the obvious rule) would cut off half of a table that
//! is also referred to in the middle, and gains nothing. Measured, functions that are Alone with
//! every / 1 to 3 / 1 to 4: a service with serde, regex, tracing, tokio of 7,198 functions in release
//! 420, 420, 420; of 35,900 in debug 1,340, 1,364, 1,340.
//!
//! A constant without pointers can still lead somewhere: a *table of distances*, 32-bit offsets
//! from its own beginning, is what LLVM makes of a table of addresses. Such a table is recognized by
//! the instruction that reads it, and ends where a distance leads out of the image.
//!
//! [S5]: ../../../DESIGN.md

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::edges::Use;
use super::image::memory::Kind;
use super::image::{Image, Target};

/// Which referenced addresses cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every one; only to compare.
    Every,
    /// 1, 2 and 3; only to compare.
    Shapes,
    /// 1 to 4.
    Certain,
}

/// How far without a pointer two pointers of one constant can be apart in an image with a fixed
/// address, where strings lie between tables and everything looks like a pointer.
const GAP: usize = 64;
/// Words before the first method.
const VTABLE: usize = 24;
/// The size of a location.
const LOCATION: usize = 24;
/// No vtable has a larger alignment.
const MAX_ALIGN: usize = 1 << 29;

/// The constants of an image, cut into pieces.
#[derive(Debug)]
pub(crate) struct Constants {
    /// Where pieces begin, in order; a piece ends where the next begins.
    starts: Vec<usize>,
    /// Addresses that anything refers to, in order.
    referenced: Vec<usize>,
}

impl Constants {
    /// Cuts the constants of an image, given the addresses its code refers to.
    pub(crate) fn cut(image: &Image, mut referenced: Vec<usize>, rule: Rule) -> Constants {
        for range in image.memory.ranges(Kind::Constant) {
            let slots = image.slots.within(&range).iter();
            referenced.extend(slots.filter_map(|&(at, _)| constant(image, at)));
            if image.fixed {
                let words = range.step_by(8);
                referenced.extend(words.filter_map(|at| constant(image, at)));
            }
        }
        referenced.sort_unstable();
        referenced.dedup();
        let mut starts: Vec<usize> = image.symbols.constant_edges().collect();
        let ranges = image.memory.ranges(Kind::Constant);
        let fences = ranges.iter().chain(&image.reserved);
        starts.extend(fences.flat_map(|range| [range.start, range.end]));
        starts.sort_unstable();
        starts.dedup();
        let starts = Cutter {
            image,
            rule,
            fixed: starts,
            found: Vec::new(),
        }
        .cut(&referenced);
        Constants { starts, referenced }
    }

    /// How many pieces there are.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The number of the piece around an address.
    fn number(&self, address: usize) -> Option<usize> {
        self.starts
            .partition_point(|&start| start <= address)
            .checked_sub(1)
    }

    pub(crate) fn range(&self, piece: usize) -> Range<usize> {
        let end = self.starts.get(piece + 1).copied();
        self.starts[piece]..end.unwrap_or(self.starts[piece])
    }

    /// The pieces a reference stands for.
    pub(crate) fn pieces(&self, reference: &Use) -> Range<usize> {
        let Some(number) = self.number(reference.address) else {
            return 0..0;
        };
        let (range, reach) = (self.range(number), reference.reach);
        let before = reference.address - range.start < reach.before as usize;
        let after = range.end.saturating_sub(reference.address) <= reach.after as usize;
        let first = number.saturating_sub(usize::from(before));
        first..(number + 1 + usize::from(after)).min(self.starts.len())
    }

    /// Where the pointers of a piece lead.
    pub(crate) fn targets(&self, image: &Image, piece: usize) -> Vec<Target> {
        let range = self.range(piece);
        let mut targets = Vec::new();
        if image.fixed {
            let words = range.start.next_multiple_of(8)..range.end;
            targets.extend(words.step_by(8).filter_map(|at| image.pointer(at)));
        } else {
            let slots = image.slots.within(&range).iter();
            targets.extend(slots.filter_map(|slot| image.pointer(slot.0)));
        }
        targets.retain(|target| leads_on(image, target));
        targets
    }

    /// Where a table of distances leads. Distances to the middle of a function are its own jumps,
    /// unless that is a part of another one.
    pub(crate) fn distances(&self, image: &Image, table: usize) -> Vec<Target> {
        let after = self.referenced.partition_point(|&r| r <= table);
        let end = self.referenced.get(after).copied().unwrap_or(usize::MAX);
        let mut targets = Vec::new();
        let places = (table..end).step_by(4);
        for distance in places.map_while(|at| image.memory.half(at)) {
            let address = table.wrapping_add_signed(distance as isize);
            match image.address(address) {
                None => break,
                Some(Target::Code(code)) if !is_entry(image, code) => {}
                Some(target) => targets.push(target),
            }
        }
        targets.retain(|target| leads_on(image, target));
        targets
    }
}

/// Whether a function begins at an address, or a part of one is around it.
fn is_entry(image: &Image, code: usize) -> bool {
    let function = image.function_at(code).map(|f| &image.functions[f]);
    function.is_some_and(|f| f.cold || f.range.start == code)
}

/// The constant that a word points to.
fn constant(image: &Image, at: usize) -> Option<usize> {
    match image.pointer(at)? {
        Target::Constant(address) => Some(address),
        _ => None,
    }
}

/// Whether a pointer can lead to a function: in an image that was relocated, what is mapped
/// read-only from the file has no pointers.
fn leads_on(image: &Image, target: &Target) -> bool {
    match target {
        Target::Constant(address) => image.fixed || !image.memory.is_frozen(*address),
        _ => true,
    }
}

/// Cuts at one referenced address after the other.
struct Cutter<'a> {
    image: &'a Image,
    rule: Rule,
    fixed: Vec<usize>,
    found: Vec<usize>,
}

impl Cutter<'_> {
    fn cut(mut self, referenced: &[usize]) -> Vec<usize> {
        for &address in referenced {
            if !self.is_anonymous(address) {
                continue;
            }
            if is_location(self.image, address) && self.rule != Rule::Every {
                self.found.extend([address, address + LOCATION]);
            } else if self.begins(address) {
                self.found.push(address);
            }
        }
        let mut starts = self.fixed;
        starts.append(&mut self.found);
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// A constant of the program, and not in the middle of a named one.
    fn is_anonymous(&self, address: usize) -> bool {
        let named = self.image.symbols.constant_around(address);
        self.image.memory.kind(address) == Some(Kind::Constant)
            && !self.image.reserved.iter().any(|r| r.contains(&address))
            && named.is_none_or(|named| named.start == address)
    }

    fn begins(&self, address: usize) -> bool {
        let image = self.image;
        if self.rule == Rule::Every
            || image.fixed && is_far_from_pointers(image, address)
            || is_vtable(image, address)
        {
            return true;
        }
        self.rule == Rule::Certain && self.is_after_vtable(address)
    }

    /// Whether there is nothing but a vtable from the last cut up to here.
    fn is_after_vtable(&self, address: usize) -> bool {
        let after = self.fixed.partition_point(|&start| start <= address);
        let fixed = self.fixed[..after].last().copied().unwrap_or(0);
        let start = self.found.last().copied().unwrap_or(0).max(fixed);
        let mut methods = (start + VTABLE..address).step_by(8);
        address >= start + VTABLE
            && is_vtable(self.image, start)
            && methods.all(|at| match self.image.pointer(at) {
                Some(_) => true,
                None => self.image.memory.word(at) == Some(0),
            })
    }
}

/// A word that is no pointer.
fn number(image: &Image, at: usize) -> Option<usize> {
    match image.pointer(at) {
        None => image.memory.word(at),
        Some(_) => None,
    }
}

fn is_vtable(image: &Image, at: usize) -> bool {
    let destructor = match image.pointer(at) {
        Some(Target::Code(_) | Target::Import(..)) => true,
        Some(_) => false,
        None => image.memory.word(at) == Some(0),
    };
    let (Some(size), Some(align)) = (number(image, at + 8), number(image, at + 16)) else {
        return false;
    };
    let fits = align.is_power_of_two() && align <= MAX_ALIGN && size % align == 0;
    at.is_multiple_of(8) && destructor && fits
}

fn is_location(image: &Image, at: usize) -> bool {
    let (Some(Target::Constant(name)), Some(length), Some(place)) = (
        image.pointer(at),
        number(image, at + 8),
        number(image, at + 16),
    ) else {
        return false;
    };
    let (line, column) = (place as u32, place >> 32);
    let text = name..name.saturating_add(length);
    let Some(name) = image.memory.bytes(text).filter(|b| b.len() == length) else {
        return false;
    };
    line > 0 && column > 0 && (name.ends_with(b".rs") || name.ends_with(b".rs\0"))
}

/// Whether no pointer to a function or a vtable is near.
fn is_far_from_pointers(image: &Image, at: usize) -> bool {
    let around = (at & !7).saturating_sub(GAP)..at.saturating_add(GAP);
    let mut words = around.step_by(8);
    !words.any(|word| match image.pointer(word) {
        Some(Target::Constant(address)) => is_vtable(image, address),
        Some(_) => true,
        None => false,
    })
}
