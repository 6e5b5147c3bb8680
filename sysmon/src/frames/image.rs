//! One object as it is mapped: its functions, constants and names.
//!
//! | file | what it reads |
//! |---|---|
//! | `memory` | bytes, and what kind of memory they are |
//! | `unwind` | where functions begin and end |
//! | `relocs` | which words the loader filled in, and with what |
//! | `symbols` | names, if the file can be read and was not stripped |
//!
//! The first three describe the process as it runs. Names come from the file and only ever make
//! more things harmless, or explanations better.

pub(crate) mod memory;
pub(crate) mod relocs;
pub(crate) mod symbols;
pub(crate) mod unwind;

use std::ops::Range;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

use super::edges::Reach;
use super::objects::Object;
use memory::{Kind, Memory};
use relocs::{Slot, Slots};
use symbols::Symbols;
use unwind::Function;

/// Target of an address that is in a constant, or loaded from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A place in the image's text.
    Code(usize),
    /// A place in the image's constants.
    Constant(usize),
    /// Something imported: the number of its name, and its address.
    Import(u32, usize),
    /// The offset of a thread-local from the thread pointer.
    ThreadOffset(i64),
    /// A thread-local, found in a way that is not followed.
    ThreadLocal,
    /// A place outside of the image that has no name.
    Foreign(usize),
}

/// One object as it is mapped.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pub(crate) memory: Memory,
    /// The whole address range of the object.
    pub(crate) range: Range<usize>,
    pub(crate) functions: Vec<Function>,
    pub(crate) slots: Slots,
    pub(crate) symbols: Symbols,
    /// Linked for one address: pointers are not marked.
    pub(crate) fixed: bool,
    /// Variables without an initial value, where the linker wrote no pointer.
    pub(crate) zeroed: Vec<Range<usize>>,
    /// Memory that belongs to no constant, including the loader's own tables.
    pub(crate) reserved: Vec<Range<usize>>,
    /// The reserved slots that the linker made. Code reads them by their place and takes the
    /// address of none; a pointer to one means the end of what lies before it.
    pub(crate) linkers: Vec<Range<usize>>,
    /// Distance from the thread pointer to the initial image, for an executable.
    pub(crate) tls: Option<i64>,
}

impl Image {
    /// Reads an object of this process, which must never be unloaded. Its file is at `path`.
    pub(crate) fn read(object: &Object, path: &Path, executable: bool) -> Image {
        let mut memory = map(object);
        let start = object.segments.iter().map(|s| s.range.start).min();
        let end = object.segments.iter().map(|s| s.range.end).max();
        let range = start.unwrap_or(0)..end.unwrap_or(0);
        let head = memory.bytes(range.clone()).unwrap_or_default();
        let symbols = symbols::read(path, head, object.bias);
        refine(&mut memory, object, &symbols);
        let unwind = object.unwind.clone().unwrap_or(0..0);
        let dynamic = object.dynamic.clone().unwrap_or(0..0);
        let functions = unwind::functions(&memory, &unwind);
        let slots = relocs::slots(&memory, &dynamic, object.bias);
        Image {
            range,
            functions,
            slots,
            fixed: object.bias == 0,
            zeroed: object.segments.iter().map(|s| s.zeroed.clone()).collect(),
            reserved: reserved(object, &symbols),
            linkers: linkers(&symbols),
            tls: (object.tls).filter(|_| executable).map(|tls| tls.offset()),
            symbols,
            memory,
        }
    }

    /// Index of the function around an address.
    pub(crate) fn function_at(&self, address: usize) -> Option<usize> {
        // A plain loop: this is most of a survey's work in builds without optimization.
        let functions = self.functions.as_slice();
        let (mut low, mut high) = (0, functions.len());
        while low < high {
            let middle = (low + high) / 2;
            if functions[middle].range.start <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low > 0 && address < functions[low - 1].range.end).then(|| low - 1)
    }

    /// Where the word at an address leads, if anywhere.
    pub(crate) fn pointer(&self, at: usize) -> Option<Target> {
        match self.slots.at(at) {
            Some(Slot::ThreadLocal) => Some(Target::ThreadLocal),
            // Its pointers are those of the library.
            Some(Slot::Copied) => Some(Target::Foreign(at)),
            Some(Slot::ThreadOffset) => {
                let offset = self.memory.word(at)? as i64;
                Some(Target::ThreadOffset(offset))
            }
            Some(Slot::Import(name)) => {
                let value = self.memory.word(at)?;
                match self.address(value) {
                    _ if value == 0 => None,
                    Some(inside) if !self.slots.is_of_others(name) && !self.is_stub(value) => {
                        Some(inside)
                    }
                    // Outside of this image, not bound yet, or a variable of this image: the name
                    // decides.
                    _ => Some(Target::Import(name, value)),
                }
            }
            Some(Slot::Pointer) => {
                let value = self.memory.word(at)?;
                // A variable may have changed, and then it is writable memory like any other.
                let changed = self.memory.kind(at) == Some(Kind::Variable);
                let outside = !self.range.contains(&value) && value != 0 && !changed;
                self.address(value)
                    .or(outside.then_some(Target::Foreign(value)))
            }
            None if self.fixed && !self.zeroed.iter().any(|range| range.contains(&at)) => {
                self.guess(self.memory.word(at)?)
            }
            None => None,
        }
    }

    /// Whether an unbound slot leads here: a place in the procedure linkage table. Some linkers
    /// give such a place an unwind entry.
    fn is_stub(&self, address: usize) -> bool {
        let mut tables = self.symbols.sections.iter();
        let table = tables.any(|s| s.name.starts_with(".plt") && s.range.contains(&address));
        let uncovered = self.function_at(address).is_none();
        table || uncovered && self.memory.kind(address) == Some(Kind::Text)
    }

    /// What an address itself leads to. Variables count with what they hold, too: many are really
    /// tables, beside a counter or in a section of their own.
    pub(crate) fn address(&self, value: usize) -> Option<Target> {
        if !self.range.contains(&value) {
            return None;
        }
        match self.memory.kind(value)? {
            Kind::Text => Some(Target::Code(value)),
            Kind::Constant | Kind::Variable => Some(Target::Constant(value)),
        }
    }

    /// Whether a table of this image may be meant by an address with an index.
    pub(crate) fn is_near(&self, address: usize) -> bool {
        let (before, after) = (Reach::FAR.before as usize, Reach::FAR.after as usize);
        let start = self.range.start.saturating_sub(after);
        (start..self.range.end.saturating_add(before)).contains(&address)
    }

    /// What a number leads to that may or may not be an address. Nothing of the program lies in the
    /// headers and the loader's tables.
    pub(crate) fn guess(&self, value: usize) -> Option<Target> {
        let target = self.address(value)?;
        let theirs = self.reserved.iter().any(|range| range.contains(&value));
        (!theirs || target == Target::Code(value)).then_some(target)
    }

    /// The slot that a stub of the procedure linkage table jumps through.
    pub(crate) fn stub(&self, address: usize) -> Option<usize> {
        let bytes = self.memory.bytes(address..address + 24)?;
        let mut decoder = Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
        let mut instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Endbr64 {
            instruction = decoder.decode();
        }
        let jump = instruction.mnemonic() == Mnemonic::Jmp
            && instruction.op0_kind() == OpKind::Memory
            && instruction.is_ip_rel_memory_operand();
        let slot = instruction.ip_rel_memory_address() as usize;
        let known = matches!(self.slots.at(slot), Some(Slot::Import(_)));
        (jump && known).then_some(slot)
    }

    /// Name and size of the thread-local at an offset from the thread pointer.
    pub(crate) fn variable(&self, offset: i64) -> Option<(&str, usize)> {
        let inside = usize::try_from(offset - self.tls?).ok()?;
        self.symbols.thread_local_at(inside)
    }

    /// A function's name, demangled; the shortest of several.
    pub(crate) fn name(&self, start: usize) -> Option<String> {
        let names = self.symbols.functions_at(start).map(symbols::plain);
        names.min_by_key(String::len)
    }
}

/// Describes the memory of an object by its segments.
#[expect(unsafe_code, reason = "trusts the loader")]
pub(crate) fn map(object: &Object) -> Memory {
    let mut memory = Memory::default();
    for segment in &object.segments {
        let kind = match (segment.executable, segment.writable) {
            (true, _) => Kind::Text,
            (false, false) => Kind::Constant,
            (false, true) if protected(object).is_none() => Kind::Constant,
            (false, true) => Kind::Variable,
        };
        // SAFETY: the loader mapped it, it is never unloaded (see the header of `memory`), and what
        // is not writable is not written.
        unsafe { memory.add(segment.range.clone(), kind, !segment.writable) };
    }
    if let Some(relro) = protected(object) {
        memory.rename(relro, Kind::Constant);
    }
    memory
}

/// The range that the loader protects after relocation, if there is one.
fn protected(object: &Object) -> Option<Range<usize>> {
    let relro = object.relro.clone()?;
    let overlaps = |range: &Range<usize>| range.start < relro.end && relro.start < range.end;
    let mut segments = object.segments.iter().filter(|s| s.writable);
    segments.any(|s| overlaps(&s.range)).then_some(relro)
}

/// Corrects kinds of memory by sections: constants in an executable segment, variables among the
/// constants.
fn refine(memory: &mut Memory, object: &Object, symbols: &Symbols) {
    let executable = object.segments.iter().filter(|s| s.executable);
    for segment in executable {
        let inside = |range: &Range<usize>| {
            range.start >= segment.range.start && range.end <= segment.range.end
        };
        let sections = symbols.sections.iter();
        let constants = sections.filter(|s| !s.executable && inside(&s.range));
        for section in constants {
            memory.rename(section.range.clone(), Kind::Constant);
        }
    }
    if protected(object).is_none() {
        let variables = [".data", ".bss"];
        let sections = symbols.sections.iter();
        for section in sections.filter(|s| variables.contains(&s.name.as_str())) {
            memory.rename(section.range.clone(), Kind::Variable);
        }
    }
}

fn linkers(symbols: &Symbols) -> Vec<Range<usize>> {
    let sections = symbols.sections.iter();
    let slots = sections.filter(|s| s.name == ".got" || s.name == ".got.plt");
    slots.map(|s| s.range.clone()).collect()
}

/// Ranges where no constant of the program lies. These are the table of slots, and what the loader
/// reads. Without sections this is everything from `.dynamic` on, which is where linkers put the
/// slots.
fn reserved(object: &Object, symbols: &Symbols) -> Vec<Range<usize>> {
    let ours = |name: &str| name.starts_with(".rodata") || name.starts_with(".data");
    let sections = symbols.sections.iter();
    let theirs = sections.filter(|s| !s.executable && !ours(&s.name));
    let mut ranges: Vec<Range<usize>> = theirs.map(|s| s.range.clone()).collect();
    let first = symbols.sections.iter().map(|s| s.range.start).min();
    let start = object.segments.iter().map(|s| s.range.start).min();
    ranges.extend(start.zip(first).map(|(start, first)| start..first));
    if symbols.sections.is_empty()
        && let (Some(dynamic), Some(relro)) = (&object.dynamic, &object.relro)
    {
        ranges.push(dynamic.start..relro.end.max(dynamic.end));
    }
    ranges
}
