//! Reads from the unwind tables where functions begin and end.
//!
//! Every function that a stack can be suspended in has an entry there, also when all symbols are
//! stripped. An entry whose frame is already set up at its first instruction is the *cold part* of
//! another function, which the compiler moved elsewhere: it is entered by a jump and shares that
//! function's frame.

#[path = "entries.rs"]
mod entries;

use std::cmp::Reverse;
use std::ops::Range;

use gimli::{
    BaseAddresses, CallFrameInstruction, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Pointer, Reader, UnwindSection,
};

use super::memory::Memory;

type Bytes = EndianSlice<'static, LittleEndian>;

/// One entry of the unwind tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) range: Range<usize>,
    /// A part of another function.
    pub(crate) cold: bool,
    /// The table of its landing pads: where it is entered when something it called unwinds.
    pub(crate) handlers: Option<usize>,
}

/// All functions, in the order of their addresses; none without readable tables.
pub(crate) fn functions(memory: &Memory, header: &Range<usize>) -> Vec<Function> {
    let mut functions = read(memory, header).unwrap_or_default();
    // Of several that begin at one place the longest is kept: all their code is read.
    functions.sort_unstable_by_key(|f| (f.range.start, Reverse(f.range.end)));
    functions.dedup_by_key(|f| f.range.start);
    functions
}

fn read(memory: &Memory, header: &Range<usize>) -> Option<Vec<Function>> {
    read_usual(memory, header).or_else(|| read_any(memory, header))
}

fn read_usual(memory: &Memory, header: &Range<usize>) -> Option<Vec<Function>> {
    let bytes = memory.bytes(header.clone())?;
    let distance = bytes.get(4..)?.first_chunk().copied()?;
    let distance = i32::from_le_bytes(distance) as isize;
    let start = (header.start + 4).wrapping_add_signed(distance);
    let frames = memory.bytes(start..usize::MAX)?;
    entries::read((header.start, bytes), (start, frames))
}

/// Reads the functions with the complete reader.
fn read_any(memory: &Memory, header: &Range<usize>) -> Option<Vec<Function>> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start as u64);
    let parsed = EhFrameHdr::new(memory.bytes(header.clone())?, LittleEndian)
        .parse(&bases, 8)
        .ok()?;
    let start = address(parsed.eh_frame_ptr())?;
    let bases = bases.set_eh_frame(start as u64);
    let frames = EhFrame::new(memory.bytes(start..usize::MAX)?, LittleEndian);
    let table = parsed.table()?;
    let mut entries = table.iter(&bases);
    let mut functions = Vec::new();
    while let Ok(Some((_, entry))) = entries.next() {
        let offset = table.pointer_to_offset(entry).ok()?;
        let entry = frames
            .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
            .ok()?;
        let range = entry.initial_address() as usize..entry.end_address() as usize;
        if !range.is_empty() {
            let cold = begins_inside_a_frame(&frames, &bases, &entry);
            let handlers = entry.lsda().map(|table| table.pointer() as usize);
            functions.push(Function {
                range,
                cold,
                handlers,
            });
        }
    }
    Some(functions)
}

fn address(pointer: Pointer) -> Option<usize> {
    match pointer {
        Pointer::Direct(address) => Some(address as usize),
        Pointer::Indirect(_) => None,
    }
}

/// The landing pads of a function; `None` if its table has an unknown form.
pub(crate) fn landing_pads(memory: &Memory, function: &Function) -> Option<Vec<usize>> {
    const OMITTED: u8 = 0xff;
    let Some(table) = function.handlers else {
        return Some(Vec::new());
    };
    let mut bytes = EndianSlice::new(memory.bytes(table..usize::MAX)?, LittleEndian);
    if bytes.read_u8().ok()? != OMITTED {
        return None;
    }
    if bytes.read_u8().ok()? != OMITTED {
        bytes.read_uleb128().ok()?;
    }
    let encoding = gimli::DwEhPe(bytes.read_u8().ok()?);
    let length = bytes.read_uleb128().ok()? as usize;
    let mut sites = bytes.split(length).ok()?;
    let mut pads = Vec::new();
    while !sites.is_empty() {
        let mut number = || match encoding {
            gimli::DW_EH_PE_uleb128 => sites.read_uleb128().ok(),
            gimli::DW_EH_PE_udata4 => sites.read_u32().ok().map(u64::from),
            _ => None,
        };
        let (_start, _length, pad) = (number()?, number()?, number()?);
        sites.read_uleb128().ok()?;
        if pad != 0 {
            pads.push(function.range.start + pad as usize);
        }
    }
    Some(pads)
}

/// Whether the frame is described before the first instruction is over.
fn begins_inside_a_frame(
    frames: &EhFrame<Bytes>,
    bases: &BaseAddresses,
    entry: &FrameDescriptionEntry<Bytes>,
) -> bool {
    use CallFrameInstruction as Rule;
    let first = entry.instructions(frames, bases).next();
    matches!(
        first,
        Ok(Some(
            Rule::DefCfa { .. }
                | Rule::DefCfaOffset { .. }
                | Rule::DefCfaRegister { .. }
                | Rule::DefCfaExpression { .. }
                | Rule::Offset { .. }
        ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::image::Image;
    use crate::frames::objects::Objects;
    use std::path::Path;

    #[test]
    fn tables_of_the_usual_form_are_read_alike_by_both_readers() {
        for (number, object) in Objects::now().list.into_iter().enumerate() {
            let image = Image::read(&object, Path::new(&object.name), false);
            let Some(header) = &object.unwind else {
                continue;
            };
            match read_usual(&image.memory, header) {
                Some(functions) => {
                    let any = read_any(&image.memory, header).expect("readable tables");
                    assert!(functions == any, "{:?}", object.name);
                }
                None => assert_ne!(number, 0, "the executable's have another form"),
            }
        }
    }
}
