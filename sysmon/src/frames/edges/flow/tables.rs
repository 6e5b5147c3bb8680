//! Where a function may continue after a jump through a register.
//!
//! Compilers make such jumps for a `match`, through a table of distances or, from C, of addresses.
//! The function itself takes the table's address, in any register and at any place. So every
//! constant whose address it takes is read as both kinds of table, as far as that makes sense, and
//! every entry that leads into the function is a place where it may continue. Too many places do no
//! harm: nothing is known of the registers there. In an image with a fixed address tables cannot be
//! recognized, so no places are known.
//!
//! Rejected: finding the one table of each jump. This needs the same flow analysis that the places
//! are found for.

use std::ops::Range;

use iced_x86::{Code, Instruction};

use super::place_of;
use crate::frames::image::Image;
use crate::frames::image::memory::Kind;
use crate::frames::image::relocs::Slot;

/// Finds the places in the function that tables lead to.
pub(in crate::frames::edges) fn places(
    image: &Image,
    range: &Range<usize>,
    code: &[Instruction],
) -> Vec<usize> {
    let takes = |i: &&Instruction| i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand();
    let mut places = Vec::new();
    for table in code.iter().filter(takes) {
        let table = table.ip_rel_memory_address() as usize;
        let targets = distances(image, table).chain(addresses(image, table));
        let inside = targets.filter(|target| range.contains(target));
        places.extend(inside.filter_map(|target| place_of(code, target)));
    }
    places
}

fn distances(image: &Image, table: usize) -> impl Iterator<Item = usize> {
    let halves = (table..).step_by(4).map_while(|at| image.memory.half(at));
    let targets = halves.map(move |distance| table.wrapping_add_signed(distance as isize));
    targets.take_while(|&target| image.memory.kind(target) == Some(Kind::Text))
}

fn addresses(image: &Image, table: usize) -> impl Iterator<Item = usize> {
    let slots = (table..).step_by(8);
    let slots = slots.take_while(|&at| image.slots.at(at) == Some(Slot::Pointer));
    slots.map_while(|at| image.memory.word(at))
}
