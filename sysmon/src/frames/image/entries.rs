//! Reads unwind tables of the usual form, fast without optimization.
//!
//! Linkers and compilers write one form: a sorted table of 32-bit distances, and entries with
//! 32-bit distances from where they are. The complete reader handles all other forms.

use super::Function;

/// Encoding of a pointer: 32-bit signed distance from its own place.
const RELATIVE: u8 = 0x1B;
/// Encoding of an absent pointer.
const OMITTED: u8 = 0xFF;

/// Bytes at an address.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    start: usize,
    bytes: &'a [u8],
}

/// The part that many entries share.
#[derive(Clone, Copy)]
struct Common {
    address: usize,
    /// There is a table of landing pads.
    handlers: bool,
}

impl Bytes<'_> {
    fn byte(&self, address: usize) -> Option<u8> {
        let index = address.wrapping_sub(self.start);
        let bytes = self.bytes;
        if index < bytes.len() {
            Some(bytes[index])
        } else {
            None
        }
    }

    fn half(&self, address: usize) -> Option<u32> {
        let at = address.wrapping_sub(self.start);
        let bytes = self.bytes;
        if at >= bytes.len() || bytes.len() - at < 4 {
            return None;
        }
        let [a, b, c, d] = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Some(a as u32 | (b as u32) << 8 | (c as u32) << 16 | (d as u32) << 24)
    }

    /// The address at the distance that is stored here.
    fn relative(&self, address: usize) -> Option<usize> {
        let distance = self.half(address)? as i32;
        Some(address.wrapping_add_signed(distance as isize))
    }

    /// Steps over a number of seven bits a byte. Returns its value if it fits into one.
    fn number(&self, at: &mut usize) -> Option<Option<u8>> {
        let first = self.byte(*at)?;
        while self.byte(*at)? & 0x80 != 0 {
            *at += 1;
        }
        *at += 1;
        Some((first & 0x80 == 0).then_some(first))
    }
}

/// All functions, in the order of the table; `None` if any part has another form.
pub(super) fn read(header: (usize, &[u8]), frames: (usize, &[u8])) -> Option<Vec<Function>> {
    let head = Bytes {
        start: header.0,
        bytes: header.1,
    };
    let frames = Bytes {
        start: frames.0,
        bytes: frames.1,
    };
    // Version, then the forms of the pointer to the entries, of their number, and of the table.
    let forms = head.half(head.start)?;
    if forms != u32::from_le_bytes([1, RELATIVE, 0x03, 0x3B])
        || head.relative(head.start + 4)? != frames.start
    {
        return None;
    }
    let count = head.half(head.start + 8)? as usize;
    let mut functions = Vec::with_capacity(count.min(header.1.len() / 8));
    let mut common = None;
    let mut index = 0;
    while index < count {
        let distance = head.half(head.start + 16 + 8 * index)? as i32;
        let entry = head.start.wrapping_add_signed(distance as isize);
        if let Some(function) = function(&frames, entry, &mut common)? {
            functions.push(function);
        }
        index += 1;
    }
    Some(functions)
}

/// The function of an entry, unless that is empty.
fn function(
    frames: &Bytes<'_>,
    entry: usize,
    common: &mut Option<Common>,
) -> Option<Option<Function>> {
    let end = end_of(frames, entry)?;
    let own = (entry + 4).checked_sub(frames.half(entry + 4)? as usize)?;
    let known = match *common {
        Some(known) if known.address == own => known,
        _ => read_common(frames, own)?,
    };
    *common = Some(known);
    let start = frames.relative(entry + 8)?;
    let size = i32::try_from(frames.half(entry + 12)?).ok()? as usize;
    let extra = frames.byte(entry + 16)?;
    let handlers = match (known.handlers, extra) {
        (true, 4) => Some(frames.relative(entry + 17)?),
        (false, 0) => None,
        _ => return None,
    };
    let rules = entry + 17 + usize::from(extra);
    // The first rule with its operands may end anywhere up to here.
    if end < rules + 24 {
        return short(frames, rules, end, start, size, handlers);
    }
    let rule = frames.byte(rules)?;
    let range = start..start.checked_add(size)?;
    Some((size > 0).then_some(Function {
        range,
        cold: describes_frame(rule),
        handlers,
    }))
}

/// Reads an entry with few rules. They may end before the operands of the first one do.
fn short(
    frames: &Bytes<'_>,
    rules: usize,
    end: usize,
    start: usize,
    size: usize,
    handlers: Option<usize>,
) -> Option<Option<Function>> {
    let mut at = rules;
    let mut cold = false;
    if rules < end {
        let rule = frames.byte(rules)?;
        cold = describes_frame(rule);
        at += 1;
        let operands = match rule {
            0x0C | 0x05 => 2,
            0x0D | 0x0E | 0x80..=0xBF => 1,
            0x0F => return None,
            _ => 0,
        };
        for _ in 0..operands {
            frames.number(&mut at)?;
        }
    }
    if at > end {
        return None;
    }
    let range = start..start.checked_add(size)?;
    Some((size > 0).then_some(Function {
        range,
        cold,
        handlers,
    }))
}

/// Whether a rule says where the caller's frame is, or where a register was saved.
fn describes_frame(rule: u8) -> bool {
    matches!(rule, 0x05 | 0x0C | 0x0D | 0x0E | 0x0F | 0x80..=0xBF)
}

/// Where an entry ends; `None` if that is beyond the table.
fn end_of(frames: &Bytes<'_>, entry: usize) -> Option<usize> {
    let length = frames.half(entry)?;
    let length = (length < 0x7FFF_FFFF).then_some(length as usize)?;
    let end = entry.checked_add(4)?.checked_add(length)?;
    (end - frames.start <= frames.bytes.len()).then_some(end)
}

fn read_common(frames: &Bytes<'_>, address: usize) -> Option<Common> {
    let end = end_of(frames, address)?;
    let is_common = frames.half(address + 4)? == 0 && frames.byte(address + 8)? == 1;
    let mut at = address + 9;
    if !is_common || frames.byte(at)? != b'z' {
        return None;
    }
    let mut letters = at + 1;
    while frames.byte(at)? != 0 {
        at += 1;
    }
    at += 1;
    frames.number(&mut at)?;
    frames.number(&mut at)?;
    at += 1; // the column of return addresses
    frames.number(&mut at)??;
    let (mut handlers, mut pointers) = (false, false);
    loop {
        match frames.byte(letters)? {
            0 => break,
            b'R' => {
                pointers = frames.byte(at)? == RELATIVE;
                at += 1;
            }
            b'L' => {
                let form = frames.byte(at)?;
                if !matches!(form, RELATIVE | OMITTED) {
                    return None;
                }
                handlers = form == RELATIVE;
                at += 1;
            }
            // A pointer to a function, perhaps through another pointer.
            b'P' if matches!(frames.byte(at)?, RELATIVE | 0x9B) => at += 5,
            b'S' => {} // a signal handler's caller
            _ => return None,
        }
        letters += 1;
    }
    (pointers && at <= end).then_some(Common { address, handlers })
}
