//! Finds where one constant ends and the next begins.
//!
//! A reference to a constant counts as a reference to every pointer in it ([S5]), so its extent has
//! to be known. Named constants have a size. What rustc makes itself (vtables, promoted tables,
//! locations, pieces of strings) has no symbol, and a reference may point into the middle of one
//! (`&TABLE[2]`), to its end, or before it. The space is cut where it is *certain* enough that
//! something begins:
//!
//! 1. where a symbol begins or ends, and at the edges of what the loader protects;
//! 2. at a referenced vtable (`shapes`);
//! 3. at a referenced key of a thread-local: a constant that is one function, made by
//!    `thread_local!`;
//! 4. at a referenced [`Location`](std::panic::Location), if what is behind it is certain to be
//!    something else, that is, begins by one of these rules, too. Likewise *behind* a location, if
//!    the compiler made it (a zero follows its string), and what follows is referenced and no code
//!    counts or indexes that address;
//! 5. at the first referenced address behind a key or the methods of a vtable: no reference leads
//!    to the middle of one.
//!
//! There is never a cut within a symbol, and when in doubt there is none. A cut in the middle of a
//! table loses the rest of it, and with it a function that touches; a missing cut only makes more
//! functions bound. So a constant that looks like a location may be the head of an entry with a
//! function behind it (`struct Case { file, line, column, run: fn() }`), and three words like those
//! of a vtable may be the description of a type (`struct Op { run: fn(), size, align }`). Only
//! names distinguish these from the real ones, and without symbols only rule 1 and some of 4 are
//! left.
//!
//! An address is *referenced* if code takes it or a constant contains it. A place that is only read
//! is no evidence that anything begins there.
//!
//! A reference stands for the whole piece it lies in, and for the one before or behind if the
//! address may have been an end of that (see `edges::moves`).
//!
//! Rejected: cutting at every referenced address, the obvious rule. It would cut off half of a
//! table that is also referenced in the middle, and gains nothing. Also rejected: cutting at
//! symbols and locations alone, which gains too little. Measured, functions that are bound with
//! symbols and locations alone / with all rules, for a service with serde, regex, tracing: of 4,355
//! functions in release 81, 76; of 23,900 in debug 211, 104.
//!
//! Variables count like constants, with the pointers the loader put into them: a table in a section
//! of its own is writable, and so is one beside a counter. Each variable is cut by its symbol
//! alone; a section that programs use as one table is not cut at all. Pointers stored there later
//! are not seen (S5).
//!
//! In an image with a fixed address pointers are not marked: every word that looks like one counts,
//! except in variables without an initial value. The compiler folds a constant index into the
//! address of a table, so a pointer that is read by an address with an index may come from any
//! piece within [`Reach::FAR`].
//!
//! A constant without pointers can still lead somewhere: LLVM turns a table of addresses into a
//! *table of distances*, 32-bit offsets from its own beginning. Such a table is recognized by the
//! instruction that reads it, and ends where a distance leads out of the image.
//!
//! [S5]: ../../../docs/invariants.md

mod shapes;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::edges::{Reach, Use};
use super::image::memory::Kind;
use super::image::{Image, Target};
use super::sorted;
use shapes::{KEY, LOCATION, VTABLE};

/// Selects the referenced addresses that cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every one, to show what is lost by that.
    #[cfg(test)]
    Every,
    /// Rules 1 to 5.
    Certain,
}

/// Largest distance without a pointer between two pointers of one constant, with a fixed address.
///
/// In an image with a fixed address strings lie between tables, and everything looks like a
/// pointer.
const GAP: usize = 64;

/// The constants of an image, cut into pieces.
#[derive(Debug)]
pub(crate) struct Constants {
    /// Where pieces begin, in order; a piece ends where the next begins.
    starts: Vec<usize>,
    /// Referenced addresses, in order.
    referenced: Vec<usize>,
}

impl Constants {
    /// Cuts the constants of an image, given what its code refers to.
    pub(crate) fn cut(image: &Image, uses: &[Use], rule: Rule) -> Constants {
        let mut referenced: Vec<usize> = uses.iter().map(|u| u.address).collect();
        let moved = uses.iter().filter(|u| u.reach != Reach::default());
        let mut moved: Vec<usize> = moved.map(|u| u.address).collect();
        sorted::sort(&mut moved, |&address| address as u64);
        for range in image.memory.ranges(Kind::Constant) {
            let slots = image.slots.within(&range).iter();
            referenced.extend(slots.filter_map(|&(at, _)| constant(image, at)));
            if image.fixed {
                let words = range.step_by(8);
                referenced.extend(words.filter_map(|at| constant(image, at)));
            }
        }
        sorted::sort(&mut referenced, |&address| address as u64);
        referenced.dedup();
        // A section that code finds by its name is one table of many symbols.
        let tables = image.symbols.tables();
        let inside = |table: &Range<usize>, at| table.start < at && at < table.end;
        let joined = |at: &usize| tables.iter().any(|table| inside(table, *at));
        let edges = image.symbols.constant_edges();
        let mut starts: Vec<usize> = edges.filter(|at| !joined(at)).collect();
        let kinds = [Kind::Constant, Kind::Variable];
        let ranges = kinds.map(|kind| image.memory.ranges(kind)).concat();
        let fences = ranges.iter().chain(&image.reserved);
        starts.extend(fences.flat_map(|range| [range.start, range.end]));
        starts.sort_unstable();
        starts.dedup();
        let starts = Cutter {
            image,
            rule,
            referenced: &referenced,
            moved,
            fixed: starts,
            closed: vec![false; referenced.len()],
            found: Vec::new(),
            last: Shape::Unknown,
        }
        .cut();
        Constants { starts, referenced }
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Index of the piece around an address.
    fn number(&self, address: usize) -> Option<usize> {
        sorted::first_from(&self.starts, address.saturating_add(1)).checked_sub(1)
    }

    pub(crate) fn range(&self, piece: usize) -> Range<usize> {
        let end = self.starts.get(piece + 1).copied();
        self.starts[piece]..end.unwrap_or(self.starts[piece])
    }

    /// The pieces a reference stands for.
    pub(crate) fn pieces(&self, reference: &Use) -> Range<usize> {
        let reach = reference.reach;
        if reach == Reach::FAR {
            let from = reference.address.saturating_sub(reach.before as usize);
            let to = reference.address.saturating_add(reach.after as usize);
            return self.number(from).unwrap_or(0)..self.number(to).map_or(0, |last| last + 1);
        }
        let Some(number) = self.number(reference.address) else {
            return 0..0;
        };
        let range = self.range(number);
        let before = reference.address - range.start < reach.before as usize;
        let after = range.end.saturating_sub(reference.address) <= reach.after as usize;
        let first = number.saturating_sub(usize::from(before));
        first..(number + 1 + usize::from(after)).min(self.starts.len())
    }

    /// Where the pointers of a piece lead.
    pub(crate) fn targets(&self, image: &Image, piece: usize) -> Vec<Target> {
        let range = self.range(piece);
        let mut targets = Vec::new();
        if image.linkers.iter().any(|l| l.contains(&range.start)) {
            return targets;
        }
        let mut marked = range.clone();
        if image.fixed {
            if image.memory.kind(range.start) == Some(Kind::Text) {
                return targets; // between two constants, and in reach of an index
            }
            // Where the linker wrote nothing, only the loader may have.
            let mut zeroed = image.zeroed.iter();
            let zeroed = zeroed.find(|zeroed| zeroed.start < range.end && range.start < zeroed.end);
            marked.start = zeroed.map_or(range.end, |zeroed| zeroed.start.max(range.start));
            let words = range.start.next_multiple_of(8)..marked.start;
            targets.extend(words.step_by(8).filter_map(|at| image.pointer(at)));
        }
        let slots = image.slots.within(&marked).iter();
        targets.extend(slots.filter_map(|slot| image.pointer(slot.0)));
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

/// Whether a pointer can lead to a function. In a relocated image, memory mapped read-only from the
/// file has no pointers.
fn leads_on(image: &Image, target: &Target) -> bool {
    match target {
        Target::Constant(address) => image.fixed || !image.memory.is_frozen(*address),
        _ => true,
    }
}

/// Cuts at one referenced address after another.
struct Cutter<'a> {
    image: &'a Image,
    rule: Rule,
    referenced: &'a [usize],
    /// Addresses that some code counts or indexes: perhaps no beginning.
    moved: Vec<usize>,
    fixed: Vec<usize>,
    /// Whether a referenced address is a location behind which something else begins.
    closed: Vec<bool>,
    found: Vec<usize>,
    /// The shape that was found last.
    last: Shape,
}

/// What is certain to begin at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Unknown,
    Vtable,
    Key,
}

impl Cutter<'_> {
    fn cut(mut self) -> Vec<usize> {
        if self.rule == Rule::Certain {
            self.close_locations();
        }
        for &address in self.referenced {
            if !self.is_anonymous(address) {
                continue;
            }
            let shape = self.shape(address);
            if self.begins(address, shape) {
                self.last = shape;
                self.found.push(address);
            }
        }
        let mut starts = self.fixed;
        starts.append(&mut self.found);
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Whether the address is in the program's constants, but not inside a named one.
    fn is_anonymous(&self, address: usize) -> bool {
        if self.image.memory.kind(address) != Some(Kind::Constant) {
            return false;
        }
        let reserved = self.image.reserved.as_slice();
        let mut index = 0;
        while index < reserved.len() {
            if reserved[index].start <= address && address < reserved[index].end {
                return false;
            }
            index += 1;
        }
        let named = self.image.symbols.constant_around(address);
        named.is_none_or(|named| named.start == address)
    }

    fn begins(&self, address: usize, shape: Shape) -> bool {
        match self.rule {
            #[cfg(test)]
            Rule::Every => true,
            Rule::Certain => {
                shape != Shape::Unknown
                    || self.is_closed(address)
                    || self.is_behind_location(address)
                    || self.image.fixed && is_far_from_pointers(self.image, address)
                    || self.is_behind(address)
            }
        }
    }

    fn is_closed(&self, address: usize) -> bool {
        sorted::index_of(self.referenced, address).is_some_and(|index| self.closed[index])
    }

    /// The shape that the memory at an address has.
    fn shape(&self, address: usize) -> Shape {
        if shapes::is_vtable(self.image, address) {
            Shape::Vtable
        } else if shapes::is_key(self.image, address) {
            Shape::Key
        } else {
            Shape::Unknown
        }
    }

    /// Finds the locations behind which something else begins, the last ones first.
    fn close_locations(&mut self) {
        for (index, &address) in self.referenced.iter().enumerate().rev() {
            if shapes::is_location(self.image, address) && self.ends(address + LOCATION) {
                self.closed[index] = true;
            }
        }
    }

    /// Whether a constant certainly ends with the location before this address.
    fn ends(&self, end: usize) -> bool {
        sorted::index_of(&self.fixed, end).is_some()
            || self.is_closed(end)
            || self.is_behind_location(end)
            || self.is_referenced(end) && self.shape(end) != Shape::Unknown
    }

    fn is_referenced(&self, address: usize) -> bool {
        sorted::index_of(self.referenced, address).is_some()
    }

    /// Whether a location that the compiler made ends here. The address must not be just where a
    /// loop begins.
    fn is_behind_location(&self, address: usize) -> bool {
        let before = address - LOCATION;
        self.is_referenced(address)
            && sorted::index_of(&self.moved, address).is_none()
            && self.is_referenced(before)
            && shapes::is_made_location(self.image, before)
    }

    /// Whether only a vtable or a key lies between the last cut and here.
    fn is_behind(&self, address: usize) -> bool {
        let after = sorted::first_from(&self.fixed, address.saturating_add(1));
        let fixed = self.fixed[..after].last().copied().unwrap_or(0);
        let found = self.found.last().copied().unwrap_or(0);
        let (start, shape) = match found >= fixed {
            true => (found, self.last),
            false => (fixed, self.shape(fixed)),
        };
        let is_method = |at| match self.image.pointer(at) {
            Some(_) => true,
            None => self.image.memory.word(at) == Some(0),
        };
        match shape {
            Shape::Vtable => {
                address >= start + VTABLE && (start + VTABLE..address).step_by(8).all(is_method)
            }
            Shape::Key => address >= start + KEY,
            Shape::Unknown => false,
        }
    }
}

/// Whether no pointer to a function or a vtable is near.
fn is_far_from_pointers(image: &Image, at: usize) -> bool {
    let around = (at & !7).saturating_sub(GAP)..at.saturating_add(GAP);
    let mut words = around.step_by(8);
    !words.any(|word| match image.pointer(word) {
        Some(Target::Constant(address)) => shapes::looks_like_vtable(image, address),
        Some(_) => true,
        None => false,
    })
}
