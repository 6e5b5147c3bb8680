//! Finds the words that the loader filled in: pointers, imports, thread-local offsets.
//!
//! In an executable that can be mapped anywhere, a constant is a pointer if and only if the loader
//! had to relocate it. In one with a fixed address the linker wrote the pointers itself, and any
//! word that looks like one counts (see [`Image::pointer`](super::Image::pointer)).

use std::collections::HashMap;
use std::ops::Range;

use object::elf;

use super::memory::Memory;
use crate::frames::sorted;

/// What the loader put into a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// An address in this object.
    Pointer,
    /// The address of a named symbol, in whichever object it was found.
    Import(u32),
    /// The distance of a thread-local from the thread pointer.
    ThreadOffset,
    /// The first word of something copied from a library.
    Copied,
    /// Part of another way to find a thread-local.
    ThreadLocal,
}

/// All relocated words of an object.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    list: Vec<(usize, Slot)>,
    /// The address of the first slot.
    start: usize,
    /// Index of the first slot of each block of memory. `shift` is the size of a block, as a power
    /// of two.
    blocks: Vec<u32>,
    shift: u32,
    /// Imports: their names, and whether they come from another object.
    imports: Vec<(Box<str>, bool)>,
}

impl Slots {
    pub(crate) fn at(&self, address: usize) -> Option<Slot> {
        let slot = self.list.get(self.first_from(address))?;
        (slot.0 == address).then_some(slot.1)
    }

    /// The slots of a range, in order.
    pub(crate) fn within(&self, range: &Range<usize>) -> &[(usize, Slot)] {
        let from = self.first_from(range.start);
        let to = self.first_from(range.end);
        self.list.get(from..to).unwrap_or_default()
    }

    /// Whether there is a slot in a range.
    pub(crate) fn has_within(&self, range: &Range<usize>) -> bool {
        let first = self.list.get(self.first_from(range.start));
        first.is_some_and(|slot| slot.0 < range.end)
    }

    /// Index of the first slot at an address or behind it.
    fn first_from(&self, address: usize) -> usize {
        let list = self.list.as_slice();
        let Some(inside) = address.checked_sub(self.start) else {
            return 0;
        };
        let blocks = self.blocks.as_slice();
        let block = inside >> self.shift;
        if block + 1 >= blocks.len() {
            return list.len();
        }
        let (mut low, mut high) = (blocks[block] as usize, blocks[block + 1] as usize);
        while low < high {
            let middle = (low + high) / 2;
            if list[middle].0 < address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Sorts the slots, and builds the index of blocks.
    fn sort(&mut self) {
        let list = &mut self.list;
        sorted::sort(list, |slot| slot.0 as u64);
        let (Some(first), Some(last)) = (list.first(), list.last()) else {
            return;
        };
        self.start = first.0;
        let span = last.0 - first.0;
        while span >> self.shift > list.len() {
            self.shift += 1;
        }
        self.blocks.clear();
        let (list, mut index) = (self.list.as_slice(), 0);
        for block in 0..=(span >> self.shift) + 1 {
            while index < list.len() && (list[index].0 - self.start) >> self.shift < block {
                index += 1;
            }
            self.blocks.push(index as u32);
        }
    }

    /// Approximate size of the kept data in bytes.
    pub(crate) fn memory_kept(&self) -> usize {
        self.list.capacity() * size_of::<(usize, Slot)>() + self.blocks.capacity() * 4
    }

    /// Number of imports.
    pub(crate) fn imports(&self) -> usize {
        self.imports.len()
    }

    pub(crate) fn name(&self, import: u32) -> &str {
        &self.imports[import as usize].0
    }

    /// Whether an import is not defined in this object. Then its slot leads outside of this object,
    /// whatever it holds.
    pub(crate) fn is_of_others(&self, import: u32) -> bool {
        self.imports[import as usize].1
    }
}

/// Contents of `.dynamic`, with addresses as mapped.
#[derive(Debug, Default)]
struct Dynamic {
    names: usize,
    symbols: usize,
    general: Range<usize>,
    calls: Range<usize>,
    packed: Range<usize>,
}

/// Reads the relocations of an object.
pub(crate) fn slots(memory: &Memory, dynamic: &Range<usize>, bias: usize) -> Slots {
    let dynamic = read_dynamic(memory, dynamic, bias);
    let mut reader = Reader {
        memory,
        bias,
        dynamic,
        numbers: HashMap::new(),
        slots: Slots::default(),
    };
    reader.read_packed();
    reader.read_table(reader.dynamic.general.clone());
    reader.read_table(reader.dynamic.calls.clone());
    let mut slots = reader.slots;
    slots.sort();
    slots
}

fn read_dynamic(memory: &Memory, range: &Range<usize>, bias: usize) -> Dynamic {
    let mut found = HashMap::new();
    for at in range.clone().step_by(16) {
        let (Some(tag), Some(value)) = (memory.word(at), memory.word(at + 8)) else {
            break;
        };
        if tag == 0 {
            break;
        }
        found.insert(elf::DynamicTag(tag as i64), value);
    }
    let value = |tag: elf::DynamicTag| found.get(&tag).copied();
    // Some loaders write the real addresses back, others do not.
    let address = |tag| {
        value(tag).map(|v| {
            if memory.kind(v).is_some() {
                v
            } else {
                v + bias
            }
        })
    };
    let table = |start, size| match (address(start), value(size)) {
        (Some(start), Some(size)) => start..start + size,
        _ => 0..0,
    };
    Dynamic {
        names: address(elf::DT_STRTAB).unwrap_or(0),
        symbols: address(elf::DT_SYMTAB).unwrap_or(0),
        general: table(elf::DT_RELA, elf::DT_RELASZ),
        calls: table(elf::DT_JMPREL, elf::DT_PLTRELSZ),
        packed: table(elf::DT_RELR, elf::DT_RELRSZ),
    }
}

struct Reader<'a> {
    memory: &'a Memory,
    bias: usize,
    dynamic: Dynamic,
    /// Maps a symbol's index to the number of its name.
    numbers: HashMap<usize, u32>,
    slots: Slots,
}

impl Reader<'_> {
    fn read_table(&mut self, table: Range<usize>) {
        for at in table.step_by(24) {
            let (Some(offset), Some(info)) = (self.memory.word(at), self.memory.word(at + 8))
            else {
                return;
            };
            let slot = match elf::RelocationType(info as u32) {
                elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE => Slot::Pointer,
                elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_64 => {
                    Slot::Import(self.import(info >> 32))
                }
                elf::R_X86_64_COPY => Slot::Copied,
                elf::R_X86_64_TPOFF64 => Slot::ThreadOffset,
                elf::R_X86_64_DTPMOD64 | elf::R_X86_64_DTPOFF64 | elf::R_X86_64_TLSDESC => {
                    Slot::ThreadLocal
                }
                _ => continue,
            };
            self.slots.list.push((offset + self.bias, slot));
        }
    }

    /// Reads the packed table. A word is either an address, which is relocated, or a bit map of the
    /// words that follow.
    fn read_packed(&mut self) {
        let mut next = 0;
        for at in self.dynamic.packed.clone().step_by(8) {
            let Some(entry) = self.memory.word(at) else {
                return;
            };
            if entry & 1 == 0 {
                self.slots.list.push((entry + self.bias, Slot::Pointer));
                next = entry + self.bias + 8;
                continue;
            }
            let marked = (0..63).filter(|bit| entry >> (bit + 1) & 1 == 1);
            let slots = marked.map(|bit| (next + 8 * bit, Slot::Pointer));
            self.slots.list.extend(slots);
            next += 8 * 63;
        }
    }

    fn import(&mut self, symbol: usize) -> u32 {
        if let Some(&number) = self.numbers.get(&symbol) {
            return number;
        }
        let name = self.symbol_name(symbol).unwrap_or_default();
        let number = self.slots.imports.len() as u32;
        let section = self.entry(symbol).map_or(0, |entry| entry >> 48);
        self.slots.imports.push((name.into(), section == 0));
        self.numbers.insert(symbol, number);
        number
    }

    /// The first word of a symbol: where its name is, its kind, and its section.
    fn entry(&self, symbol: usize) -> Option<usize> {
        self.memory.word(self.dynamic.symbols + symbol * 24)
    }

    fn symbol_name(&self, symbol: usize) -> Option<String> {
        let entry = self.entry(symbol)?;
        let start = self.dynamic.names + entry as u32 as usize;
        let bytes = self.memory.bytes(start..usize::MAX)?;
        let length = bytes.iter().position(|&b| b == 0)?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_wherever_they_are() {
        for addresses in [
            &[][..],
            &[8],
            &[0, 8, 16],
            &[64, 72, 4096, 1 << 40],
            &[7, 7, 9],
        ] {
            let mut slots = Slots::default();
            let entries = addresses.iter().rev().map(|&at| (at, Slot::Pointer));
            slots.list.extend(entries);
            slots.sort();
            let around = |&at: &usize| [at.saturating_sub(1), at, at + 1];
            for at in addresses.iter().flat_map(around).chain([0, 1 << 50]) {
                assert_eq!(slots.at(at).is_some(), addresses.contains(&at), "{at}");
                let expected = addresses
                    .iter()
                    .filter(|&&a| a >= at && a < at + 70)
                    .count();
                assert_eq!(slots.within(&(at..at + 70)).len(), expected, "{at}");
                assert_eq!(slots.has_within(&(at..at + 70)), expected > 0, "{at}");
            }
        }
    }
}
