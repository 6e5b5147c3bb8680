//! Recognizes unnamed constants by their shape and the names of what they point to.
//!
//! A **vtable** is destructor or null, size, alignment, methods. Its destructor is named
//! `drop_in_place`; without one, its first method is one of a trait (`<Type as Trait>::method`), or
//! a shim that only vtables have. Three words that look like it are not enough: any table of
//! functions with two numbers may. (Not distinguishable from a row of vtables is a table without a
//! name that holds hand-written ones, filled with the same functions.)
//!
//! A **key** is a [`LocalKey`](std::thread::LocalKey): one word, the function that finds the
//! variable. That is a closure in a constant block, or the shim of one.
//!
//! A **location** is a string that ends in `.rs`, its length, line and column. Any program can
//! build such a constant from `file!()`, `line!()` and `column!()`, with more behind it. In those
//! that the compiler makes a zero follows the string. (One of these can be copied into the head of
//! something larger.)

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use crate::frames::harmless::paths::path;
use crate::frames::image::{Image, Target, symbols};

/// Bytes before the first method.
pub(super) const VTABLE: usize = 24;
/// The size of a location.
pub(super) const LOCATION: usize = 24;
/// The size of a key.
pub(super) const KEY: usize = 8;
/// Largest alignment in a vtable.
const MAX_ALIGN: usize = 1 << 29;
/// Parts of a method's name in the older mangling.
const METHOD: [&str; 3] = ["$u20$as$u20$", "$LT$impl$u20$", "vtable.shim"];
/// Largest size of a closure's shim in bytes.
const SHIM: usize = 64;

/// Reads a word that is no pointer.
fn number(image: &Image, at: usize) -> Option<usize> {
    match image.pointer(at) {
        None => image.memory.word(at),
        Some(_) => None,
    }
}

/// Whether three words here look like those of a vtable.
pub(super) fn looks_like_vtable(image: &Image, at: usize) -> bool {
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

/// Whether a vtable begins here.
pub(super) fn is_vtable(image: &Image, at: usize) -> bool {
    looks_like_vtable(image, at)
        && match image.pointer(at) {
            Some(Target::Code(destructor)) => {
                let mut names = image.symbols.functions_at(destructor);
                names.any(|name| name.contains("drop_in_place"))
            }
            Some(_) => false,
            None => match image.pointer(at + VTABLE) {
                Some(Target::Code(method)) => is_named(image, method, &METHOD, is_method),
                _ => false,
            },
        }
}

/// Whether a function has a name that satisfies `kind`. One of several names is enough, because
/// equal functions are merged. Names of the older mangling are demangled only if they contain one
/// of `parts`: demangling is slow.
fn is_named(image: &Image, function: usize, parts: &[&str], kind: fn(&str) -> bool) -> bool {
    let worth = |name: &&str| name.starts_with("_R") || parts.iter().any(|p| name.contains(p));
    let mut names = image.symbols.functions_at(function).filter(worth);
    names.any(|name| kind(&symbols::plain(name)))
}

fn is_method(name: &str) -> bool {
    let shim = name.contains("{{vtable.shim}}") || name.contains("{shim:vtable");
    let path = path(name);
    shim || path.starts_with('<') && path.contains(" as ") || path.contains("::<impl ")
}

/// Whether a key of a thread-local is here.
pub(super) fn is_key(image: &Image, at: usize) -> bool {
    let Some(Target::Code(function)) = image.pointer(at) else {
        return false;
    };
    let fits = |function| is_named(image, function, &["constant"], is_in_constant);
    fits(function) || is_shim(image, function) && callees(image, function).any(fits)
}

/// Whether a function is the shim of a closure: the closure as a plain function.
fn is_shim(image: &Image, function: usize) -> bool {
    let mut names = image.symbols.functions_at(function);
    names.any(|name| name.contains("call_once"))
}

/// Whether a name is that of a closure in a constant block.
fn is_in_constant(name: &str) -> bool {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || "{}#".contains(c));
    let Some(outer) = name.strip_suffix("closure") else {
        return false;
    };
    let outer = outer.trim_end_matches(|c: char| c.is_ascii_digit() || ":{}#".contains(c));
    outer.ends_with("{{constant") || outer.ends_with("{constant")
}

/// The functions that a short function calls, directly or through a slot.
fn callees(image: &Image, function: usize) -> impl Iterator<Item = usize> {
    let bytes = image.memory.bytes(function..function + SHIM);
    let bytes = bytes.unwrap_or_default();
    let decoder = Decoder::with_ip(64, bytes, function as u64, DecoderOptions::NONE);
    let code = decoder.into_iter();
    let code = code.take_while(|i| i.flow_control() != FlowControl::Return);
    code.filter_map(|instruction| {
        if instruction.is_ip_rel_memory_operand() {
            match image.pointer(instruction.ip_rel_memory_address() as usize) {
                Some(Target::Code(address)) => Some(address),
                _ => None,
            }
        } else {
            let call = instruction.flow_control() == FlowControl::Call;
            call.then(|| instruction.near_branch_target() as usize)
        }
    })
}

pub(super) fn is_location(image: &Image, at: usize) -> bool {
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
    line > 0 && column > 0 && name.ends_with(b".rs")
}

/// Whether a location's string has a zero behind it: that of `file!()` has none.
pub(super) fn is_made_location(image: &Image, at: usize) -> bool {
    let (Some(Target::Constant(name)), Some(length)) = (image.pointer(at), number(image, at + 8))
    else {
        return false;
    };
    let end = name.saturating_add(length);
    is_location(image, at) && image.memory.bytes(end..end.saturating_add(1)) == Some(&[0])
}
