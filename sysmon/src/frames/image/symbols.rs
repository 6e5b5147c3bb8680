//! Reads names from the file that an object was mapped from.
//!
//! Nothing here is required: without the file, or with a stripped one, nothing has a name, so
//! nothing is on a list of harmless things. Only the parts that matter are read, not the debug
//! information.
//!
//! The file may have been replaced since it was mapped. Its first bytes (header, segments) are
//! compared with what is mapped; another file has another layout.

#[path = "legacy.rs"]
mod legacy;

use std::ffi::CStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf::{self, FileHeader64, SectionHeader64, Sym64};
use object::{LittleEndian, pod};

use crate::frames::harmless::paths::path;
use crate::frames::sorted;

const LE: LittleEndian = LittleEndian;
/// More than any real table; a larger size means a broken file.
const TOO_LARGE: u64 = 1 << 31;

/// A section, as mapped.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) range: Range<usize>,
    pub(crate) executable: bool,
}

/// A symbol; `name` is an offset into the table of names.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// Address as mapped; for a thread-local, offset in the initial image.
    start: usize,
    size: usize,
    name: u32,
}

/// Sections and symbols of a file.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    pub(crate) sections: Vec<Section>,
    functions: Vec<Symbol>,
    constants: Vec<Symbol>,
    thread_locals: Vec<Symbol>,
    names: Vec<u8>,
}

/// Reads the file if it is the one that is mapped. `mapped` are the first mapped bytes.
pub(crate) fn read(path: &Path, mapped: &[u8], bias: usize) -> Symbols {
    try_read(path, mapped, bias).unwrap_or_default()
}

/// Opens the file and reads its section table. `None` if it is not the file that is mapped.
fn open(path: &Path, mapped: &[u8]) -> Option<(File, FileHeader64<LittleEndian>, Vec<u8>)> {
    let file = File::open(path).ok()?;
    let head = block(&file, 0, size_of::<FileHeader64<LittleEndian>>() as u64)?;
    let (header, _) = pod::from_bytes::<FileHeader64<LittleEndian>>(&head).ok()?;
    let segments = header.e_phoff.get(LE)
        + u64::from(header.e_phentsize.get(LE)) * u64::from(header.e_phnum.get(LE));
    let compared = block(&file, 0, segments.min(mapped.len() as u64))?;
    if !mapped.starts_with(&compared) || compared.len() < head.len() {
        return None;
    }
    let size = u64::from(header.e_shentsize.get(LE)) * u64::from(header.e_shnum.get(LE));
    let table = block(&file, header.e_shoff.get(LE), size)?;
    Some((file, *header, table))
}

/// Offset into the initial image, size and mangled name of every thread-local. It reads nothing
/// else, because it runs before any fiber starts. `None` if the file has no symbols.
pub(crate) fn thread_locals(path: &Path, mapped: &[u8]) -> Option<Vec<(usize, usize, String)>> {
    /// Length of the longest name.
    const LONGEST: u64 = 16 << 10;
    let (file, _, table) = open(path, mapped)?;
    let headers = pod::slice_from_all_bytes::<SectionHeader64<LittleEndian>>(&table).ok()?;
    let named = headers
        .iter()
        .find(|h| h.sh_type.get(LE) == elf::SHT_SYMTAB)?;
    let strings = headers.get(named.sh_link.get(LE) as usize)?;
    let symbols = content(&file, named)?;
    let mut found = Vec::new();
    for symbol in pod::slice_from_all_bytes::<Sym64<LittleEndian>>(&symbols).ok()? {
        let undefined = symbol.st_shndx.get(LE) == elf::SHN_UNDEF;
        if symbol.st_info.st_type() != elf::STT_TLS || undefined {
            continue;
        }
        let at = u64::from(symbol.st_name.get(LE));
        let size = strings.sh_size.get(LE).checked_sub(at)?.min(LONGEST);
        let name = block(&file, strings.sh_offset.get(LE) + at, size)?;
        let end = name.iter().position(|byte| *byte == 0);
        let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
        let (start, size) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
        found.push((start as usize, size as usize, name.into_owned()));
    }
    found.sort_unstable();
    Some(found)
}

fn try_read(path: &Path, mapped: &[u8], bias: usize) -> Option<Symbols> {
    let (file, header, table) = open(path, mapped)?;
    let headers = pod::slice_from_all_bytes::<SectionHeader64<LittleEndian>>(&table).ok()?;
    let names = headers.get(usize::from(header.e_shstrndx.get(LE).0))?;
    let names = content(&file, names)?;
    let mut symbols = Symbols {
        sections: headers.iter().map(|h| section(h, &names, bias)).collect(),
        ..Symbols::default()
    };
    symbols.sections.retain(|section| !section.range.is_empty());
    let named = headers
        .iter()
        .find(|h| h.sh_type.get(LE) == elf::SHT_SYMTAB);
    if let Some(named) = named {
        let strings = headers.get(named.sh_link.get(LE) as usize)?;
        symbols.names = content(&file, strings)?;
        symbols.sort_in(&content(&file, named)?, bias)?;
    }
    Some(symbols)
}

fn block(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size < TOO_LARGE)?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn content(file: &File, header: &SectionHeader64<LittleEndian>) -> Option<Vec<u8>> {
    block(file, header.sh_offset.get(LE), header.sh_size.get(LE))
}

/// Describes a section. One that is not mapped, or only in threads' own memory, gets an empty
/// range.
fn section(header: &SectionHeader64<LittleEndian>, names: &[u8], bias: usize) -> Section {
    let flags = header.sh_flags.get(LE).0;
    let start = (header.sh_addr.get(LE) as usize).wrapping_add(bias);
    let nowhere = flags & elf::SHF_ALLOC.0 == 0
        || flags & elf::SHF_TLS.0 != 0 && header.sh_type.get(LE) == elf::SHT_NOBITS;
    let size = if nowhere {
        0
    } else {
        header.sh_size.get(LE) as usize
    };
    Section {
        name: string(names, header.sh_name.get(LE))
            .unwrap_or("")
            .to_owned(),
        range: start..start.wrapping_add(size),
        executable: flags & elf::SHF_EXECINSTR.0 != 0,
    }
}

/// Whether a text contains a part. Uses the C library, which is optimized in any build.
#[expect(unsafe_code, reason = "calls the C library")]
fn has(text: &str, part: &str) -> bool {
    let (text, part) = (text.as_bytes(), part.as_bytes());
    // SAFETY: both pointers are valid for their lengths, and the bytes are only read.
    let found = unsafe {
        libc::memmem(
            text.as_ptr().cast(),
            text.len(),
            part.as_ptr().cast(),
            part.len(),
        )
    };
    !found.is_null()
}

/// Index of the first symbol at an address or behind it. A plain loop, which is fast in builds
/// without optimization.
fn first_from(symbols: &[Symbol], address: usize) -> usize {
    let (mut low, mut high) = (0, symbols.len());
    while low < high {
        let middle = (low + high) / 2;
        if symbols[middle].start < address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The string that begins at an offset of a table.
fn string(table: &[u8], offset: u32) -> Option<&str> {
    let rest = table.get(offset as usize..)?;
    CStr::from_bytes_until_nul(rest).ok()?.to_str().ok()
}

impl Symbols {
    fn sort_in(&mut self, table: &[u8], bias: usize) -> Option<()> {
        for symbol in pod::slice_from_all_bytes::<Sym64<LittleEndian>>(table).ok()? {
            let kind = symbol.st_info.st_type();
            let value = symbol.st_value.get(LE) as usize;
            let list = match kind {
                _ if symbol.st_shndx.get(LE) == elf::SHN_UNDEF => continue,
                elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE => &mut self.functions,
                elf::STT_OBJECT => &mut self.constants,
                elf::STT_TLS => &mut self.thread_locals,
                _ => continue,
            };
            let bias = if kind == elf::STT_TLS { 0 } else { bias };
            list.push(Symbol {
                start: value.wrapping_add(bias),
                size: symbol.st_size.get(LE) as usize,
                name: symbol.st_name.get(LE),
            });
        }
        for list in [
            &mut self.functions,
            &mut self.constants,
            &mut self.thread_locals,
        ] {
            sorted::sort(list, |symbol| symbol.start as u64);
        }
        Some(())
    }

    /// Builds symbols of functions with these names, for tests.
    #[cfg(test)]
    pub(crate) fn of_functions(functions: &[(usize, &str)]) -> Symbols {
        let mut symbols = Symbols::default();
        for &(start, name) in functions {
            symbols.functions.push(Symbol {
                start,
                size: 8,
                name: symbols.names.len() as u32,
            });
            symbols.names.extend(name.bytes().chain([0]));
        }
        symbols
            .functions
            .sort_unstable_by_key(|symbol| symbol.start);
        symbols
    }

    /// Whether no function has a name.
    pub(crate) fn has_no_functions(&self) -> bool {
        self.functions.is_empty()
    }

    /// Approximate size of the kept data in bytes.
    pub(crate) fn memory_kept(&self) -> usize {
        let symbols = self.functions.capacity() + self.constants.capacity();
        self.names.capacity() + symbols * size_of::<Symbol>()
    }

    /// All names of the function at an address; several if equal functions were merged.
    pub(crate) fn functions_at(&self, start: usize) -> impl Iterator<Item = &str> {
        let from = first_from(&self.functions, start);
        let here = self.functions[from..].iter();
        here.take_while(move |f| f.start == start)
            .filter_map(|f| string(&self.names, f.name))
            .filter(|name| !name.is_empty())
    }

    /// Whether a function has a name, and all of its names satisfy `like`.
    pub(crate) fn are_all(&self, start: usize, like: impl FnMut(&str) -> bool) -> bool {
        let mut names = self.functions_at(start).peekable();
        names.peek().is_some() && names.all(like)
    }

    /// Addresses of functions whose mangled names all satisfy `like`.
    pub(crate) fn functions_like(&self, like: fn(&str) -> bool) -> impl Iterator<Item = usize> {
        let name = |function: &Symbol| string(&self.names, function.name);
        let named = self
            .functions
            .iter()
            .filter(move |f| name(f).is_some_and(like));
        named
            .map(|f| f.start)
            .filter(move |&start| self.are_all(start, like))
    }

    /// Addresses of the functions with this demangled name. Only names that contain its last two
    /// parts are demangled.
    pub(crate) fn functions_named(&self, name: &str) -> Vec<usize> {
        let parts: Vec<_> = name.rsplit("::").take(2).collect();
        let mut found = Vec::new();
        for function in &self.functions {
            let Some(mangled) = string(&self.names, function.name) else {
                continue;
            };
            if parts.iter().all(|part| has(mangled, part)) && path(&plain(mangled)) == name {
                found.push(function.start);
            }
        }
        found
    }

    /// The mangled names of all functions that contain a part.
    pub(crate) fn function_names<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.functions.iter();
        let names = names.filter_map(|function| string(&self.names, function.name));
        names.filter(move |name| has(name, part))
    }

    /// The mangled names of all thread-locals.
    pub(crate) fn thread_local_names(&self) -> impl Iterator<Item = &str> {
        let names = self.thread_locals.iter();
        names.filter_map(|variable| string(&self.names, variable.name))
    }

    /// Addresses and names of functions of a crate. Their names begin with the crate, or with a
    /// type of it.
    pub(crate) fn functions_of<'a>(
        &'a self,
        of: &'a str,
    ) -> impl Iterator<Item = (usize, String)> + 'a {
        let legacy = [format!("{}{of}", of.len()), format!("_$LT${of}..")];
        self.functions.iter().filter_map(move |function| {
            let mangled = string(&self.names, function.name)?;
            let may_begin = match mangled.strip_prefix("_ZN") {
                Some(first) => {
                    let bytes = first.as_bytes();
                    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
                    first.starts_with(&legacy[0]) || first[digits..].starts_with(&legacy[1])
                }
                None => true,
            };
            (may_begin && has(mangled, of)).then(|| (function.start, plain(mangled)))
        })
    }

    /// The range of the named constant around an address.
    pub(crate) fn constant_around(&self, address: usize) -> Option<Range<usize>> {
        let after = first_from(&self.constants, address.saturating_add(1));
        let near = self.constants[..after].iter().rev().take(4);
        let mut around = near.filter(|c| address < c.start + c.size);
        around.next().map(|c| c.start..c.start + c.size)
    }

    /// Sections whose names are C identifiers. Linkers give such a section two symbols, and
    /// programs use it as one table.
    pub(crate) fn tables(&self) -> Vec<Range<usize>> {
        let tables = self.sections.iter().filter(|s| is_table(s));
        tables.map(|s| s.range.clone()).collect()
    }

    /// Where named constants begin and end, in no order.
    pub(crate) fn constant_edges(&self) -> impl Iterator<Item = usize> {
        let sized = self.constants.iter().filter(|c| c.size > 0);
        sized.flat_map(|c| [c.start, c.start + c.size])
    }

    /// Name and size of the thread-local around an offset into the initial image.
    pub(crate) fn thread_local_at(&self, offset: usize) -> Option<(&str, usize)> {
        let after = self.thread_locals.partition_point(|t| t.start <= offset);
        let near = self.thread_locals[..after].last()?;
        let inside = offset < near.start + near.size.max(1);
        let name = inside.then(|| string(&self.names, near.name))??;
        Some((name, near.size))
    }
}

fn is_table(section: &Section) -> bool {
    let mut name = section.name.chars();
    !section.executable && name.all(|c| c.is_alphanumeric() || c == '_')
}

/// Demangles a name, without the hash.
pub(crate) fn plain(name: &str) -> String {
    legacy::plain(name).unwrap_or_else(|| format!("{:#}", rustc_demangle::demangle(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::image::Image;
    use crate::frames::objects::Objects;

    #[test]
    fn names_of_the_program_are_demangled_as_by_the_complete_demangler() {
        let objects = Objects::now();
        let executable = objects.list.first().expect("the executable");
        let symbols = Image::read(executable, Path::new("/proc/self/exe"), true).symbols;
        let (mut old, mut known) = (0, 0);
        for function in &symbols.functions {
            let name = string(&symbols.names, function.name).expect("a name");
            old += usize::from(name.starts_with("_ZN"));
            if let Some(plain) = legacy::plain(name) {
                known += 1;
                assert_eq!(plain, format!("{:#}", rustc_demangle::demangle(name)));
            }
        }
        assert!(known * 10 >= old * 9, "{known} of {old} known");
    }

    #[test]
    fn functions_of_a_crate_are_found_in_both_manglings() {
        let names = [
            "_ZN6indent5sched3run17h0123456789abcdefE",
            "_ZN30_$LT$indent..Fiber$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
            "_RNvCs1234_6indent3run",
            "_ZN4core3ptr30drop_in_place$LT$indent..Fiber$GT$17h0123456789abcdefE",
            "_ZN13indent_sysmon3run17h0123456789abcdefE",
        ];
        let functions: Vec<_> = (1..).zip(names).collect();
        let symbols = Symbols::of_functions(&functions);
        let found: Vec<usize> = symbols.functions_of("indent").map(|f| f.0).collect();
        assert_eq!(found, [1, 2, 3]);
    }

    /// `functions_of` relies on this.
    #[test]
    fn all_functions_of_the_runtime_that_are_listed_begin_with_its_crate() {
        let list = include_str!("../lists/runtime.txt").lines();
        let entries = list.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        for entry in entries {
            let begins = ["indent::", "<indent::"]
                .iter()
                .any(|b| entry.starts_with(b));
            assert!(begins, "{entry}");
        }
    }
}
