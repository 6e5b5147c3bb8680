//! Compares the decoder for ordinary instructions with the complete one.

use std::path::Path;

use iced_x86::{FlowControl, Mnemonic};

use super::*;
use crate::frames::edges::starts::START;
use crate::frames::edges::{Reader, control, has_memory, has_near_target};
use crate::frames::objects::Objects;

/// Prefixes as compilers and linkers use them, and some that they do not use.
const PREFIXES: [&[u8]; 16] = [
    &[],
    &[0x66],
    &[0xF2],
    &[0xF3],
    &[0xF0],
    &[0x66, 0xF0],
    &[0x67],
    &[0x2E],
    &[0x3E],
    &[0x64],
    &[0x65],
    &[0x66, 0x66, 0x2E],
    &[0xF3, 0x66],
    &[0x66, 0xF3],
    &[0xF2, 0xF3],
    &[0x48, 0x66], // REX that does not count
];
/// REX prefixes with each bit set.
const REX: [&[u8]; 8] = [
    &[],
    &[0x40],
    &[0x41],
    &[0x42],
    &[0x44],
    &[0x48],
    &[0x4D],
    &[0x4F],
];
/// Bytes behind the operand's first byte: SIB, displacement, number, each with a sign and without.
const TAILS: [[u8; 16]; 5] = [
    [
        0x25, 0x12, 0x23, 0x34, 0x45, 0x56, 0x67, 0x78, 1, 2, 3, 4, 5, 6, 7, 8,
    ],
    [
        0xA4, 0xF8, 0xFF, 0xFF, 0xFF, 0xF0, 0xFF, 0xFF, 0xFF, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
        0x90,
    ],
    [
        0x8D, 0x00, 0x00, 0x00, 0x80, 0x7F, 0x80, 0x00, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
        0xFF,
    ],
    [
        0x55, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00,
        0x80,
    ],
    [
        0xE0, 0x10, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x30, 0x00, 0x00, 0x00, 0x40, 0x00,
        0x00,
    ],
];
/// Address at which the samples are decoded.
const IP: u64 = 0x5555_0000_0000;

/// Checks that what `brief` knows of an instruction is what the complete decoder says.
fn compare(bytes: &[u8]) -> Result<bool, String> {
    let code = &Code::new(bytes, bytes.len() - MARGIN).expect("a margin");
    let mut marks = [0; 64];
    let (skipped, stays) = brief::skip(code, 0, &mut marks);
    let mut brief = Brief::default();
    if !brief.read(code, 0) {
        return match skipped {
            0 => Ok(false),
            _ => Err("skipped, but not known".into()),
        };
    }
    let inside = |distance: i32| {
        let target = brief.next as i64 + i64::from(distance);
        target > 0 && target < code.end as i64
    };
    let quiet = match brief.turn() {
        Turn::Next => !brief.relative && !brief.is_movsxd(),
        Turn::Branch(distance) | Turn::Jump(distance) => inside(distance),
        Turn::Return => true,
        _ => false,
    };
    if skipped != 0 && !quiet {
        return Err("skipped, but says something".into());
    }
    if skipped != 0 && stays != goes_on(bytes, skipped) {
        return Err("skipped, but does not go on alike".into());
    }
    if skipped != 0 && !same_steps(bytes, skipped) {
        return Err("skipped to the middle of an instruction".into());
    }
    if skipped != 0 && marks != marks_of(bytes, skipped) {
        return Err(format!("skipped, but marked {marks:?}"));
    }
    for puts in [false, true] {
        let still = brief::skip_still(code, 0, puts);
        let motion = brief.motion();
        let mut nothing = Motion {
            base: motion.base,
            ..Motion::default()
        };
        if !puts && motion.put != 0 {
            (nothing.put, nothing.slot) = (motion.put, motion.slot);
        }
        if still != 0 && motion != nothing {
            return Err("skipped, but does something".into());
        }
        if still != 0 && !same_steps(bytes, still) {
            return Err("skipped as still to the middle of an instruction".into());
        }
    }
    let noted = Noted::of(&Decoder::with_ip(64, code.from(0), IP, DecoderOptions::NONE).decode());
    let known = Noted::brief(&brief);
    match known == noted {
        true => Ok(true),
        false => Err(format!("{known:?}\n{noted:?}")),
    }
}

/// Where `skip` stops.
fn skip(code: &Code<'_>) -> usize {
    brief::skip(code, 0, &mut [0; 64]).0
}

/// Whether the complete decoder reaches this place, too.
fn same_steps(code: &[u8], end: usize) -> bool {
    let mut decoder = Decoder::with_ip(64, code, IP, DecoderOptions::NONE);
    let mut at = 0;
    while at < end {
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::INVALID {
            return false;
        }
        at += instruction.len();
    }
    at == end
}

/// The marks that the complete decoder sets up to a place.
fn marks_of(code: &[u8], end: usize) -> [u8; 64] {
    let mut marks = [0; 64];
    let decoder = Decoder::with_ip(64, &code[..end], IP, DecoderOptions::NONE);
    for instruction in decoder {
        if has_near_target(&instruction) {
            let target = instruction.near_branch_target().wrapping_sub(IP);
            starts::lead_to(&mut marks, target as usize);
        }
        marks[(instruction.ip() - IP) as usize] |= START;
    }
    marks
}

/// Whether the last instruction before a place continues with the next.
fn goes_on(code: &[u8], end: usize) -> bool {
    let decoder = Decoder::with_ip(64, &code[..end], IP, DecoderOptions::NONE);
    let last = decoder.into_iter().last().expect("an instruction");
    matches!(
        last.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    )
}

/// All that `Pass` uses of an instruction.
#[derive(Debug, PartialEq)]
struct Noted {
    length: usize,
    /// It needs the complete decoder.
    odd: bool,
    pad: bool,
    flow: FlowControl,
    target: Option<u64>,
    relative: Option<u64>,
    lea: Option<u32>,
    distances: u32,
    motion: Motion,
}

impl Noted {
    fn of(instruction: &Instruction) -> Noted {
        let mnemonic = instruction.mnemonic();
        let segment = matches!(instruction.segment_prefix(), Register::FS | Register::GS);
        let far = matches!(instruction.memory_segment(), Register::FS | Register::GS);
        let pad = mnemonic == Mnemonic::Nop;
        let odd = match mnemonic {
            Mnemonic::INVALID
            | Mnemonic::Syscall
            | Mnemonic::Sysenter
            | Mnemonic::Int
            | Mnemonic::Rdfsbase
            | Mnemonic::Wrfsbase
            | Mnemonic::Rdgsbase
            | Mnemonic::Wrgsbase => true,
            Mnemonic::Nop => false,
            _ => {
                segment
                    || has_memory(instruction) && far
                    || control::loads(mnemonic)
                    || control::loads_segment(instruction)
            }
        };
        let relative = has_memory(instruction) && instruction.is_ip_rel_memory_operand() && !pad;
        let lea = mnemonic == Mnemonic::Lea && relative;
        let table = mnemonic == Mnemonic::Movsxd
            && has_memory(instruction)
            && instruction.memory_index_scale() == 4
            && instruction.memory_index() != Register::None;
        Noted {
            length: instruction.len(),
            odd,
            pad,
            flow: instruction.flow_control(),
            target: has_near_target(instruction).then(|| instruction.near_branch_target()),
            relative: relative.then(|| instruction.ip_rel_memory_address()),
            lea: lea.then(|| super::super::bit(instruction.op0_register())),
            distances: match table {
                true => super::super::bit(instruction.memory_base()),
                false => 0,
            },
            motion: Motion::of(instruction),
        }
    }

    fn brief(brief: &Brief) -> Noted {
        let to = |distance: i32| (IP + brief.next as u64).wrapping_add_signed(distance as i64);
        let (mut target, mut pad) = (None, false);
        let flow = match brief.turn() {
            Turn::Next => FlowControl::Next,
            Turn::Pad => {
                pad = true;
                FlowControl::Next
            }
            Turn::Call(distance) => {
                target = Some(to(distance));
                FlowControl::Call
            }
            Turn::Jump(distance) => {
                target = Some(to(distance));
                FlowControl::UnconditionalBranch
            }
            Turn::Branch(distance) => {
                target = Some(to(distance));
                FlowControl::ConditionalBranch
            }
            Turn::IndirectCall => FlowControl::IndirectCall,
            Turn::IndirectJump => FlowControl::IndirectBranch,
            Turn::Return => FlowControl::Return,
            Turn::Trap => FlowControl::Exception,
            Turn::Break => FlowControl::Interrupt,
        };
        let relative = brief.relative && !pad;
        let table = brief.is_movsxd()
            && brief.memory
            && brief.scale == 2
            && brief.index != brief::NONE
            && brief.base != brief::NONE;
        Noted {
            length: brief.next,
            odd: false,
            pad,
            flow,
            target,
            relative: relative.then(|| to(brief.displacement)),
            lea: (relative && brief.is_lea()).then(|| 1 << brief.register()),
            distances: if table { 1 << brief.base } else { 0 },
            motion: brief.motion(),
        }
    }
}

/// Every opcode of both maps, with every first byte of an operand.
#[test]
fn what_is_known_of_an_instruction_is_what_the_complete_decoder_says() {
    let (mut known, mut wrong, mut first) = (0_u32, 0_u32, String::new());
    for opcode in 0..512_u32 {
        let escape: &[u8] = if opcode < 256 { &[] } else { &[0x0F] };
        for (prefix, rex) in PREFIXES.iter().flat_map(|p| REX.map(|rex| (*p, rex))) {
            let head = [prefix, rex, escape, &[opcode as u8]].concat();
            let operand = head.len();
            let mut code = [&head[..], &[0], &TAILS[0], &[0x90; MARGIN]].concat();
            // Most are not known at all.
            let any = |operand_byte: u8| {
                let mut code = code.clone();
                code[operand] = operand_byte;
                let code = &Code::new(&code, code.len() - MARGIN).expect("a margin");
                Brief::default().read(code, 0) || skip(code) != 0
            };
            if !(0..=255).any(any) {
                continue;
            }
            for (byte, tail) in (0..=255).flat_map(|byte| TAILS.iter().map(move |t| (byte, t))) {
                code[operand] = byte;
                code[operand + 1..][..tail.len()].copy_from_slice(tail);
                match compare(&code) {
                    Ok(is_known) => known += u32::from(is_known),
                    Err(why) => {
                        wrong += 1;
                        if wrong <= 20 {
                            first += &format!("{code:02x?}: {why}\n");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(wrong, 0, "first ones:\n{first}");
    println!("{known} known");
    assert!(known > 500_000, "{known} of them known");
}

#[test]
fn what_ends_too_early_is_not_known() {
    let mut bytes = vec![0x48, 0xC7, 0x84, 0x24, 1, 2, 3, 4, 5, 6, 7, 8];
    let whole = bytes.len();
    bytes.resize(whole + MARGIN, 0x90);
    let cut = |length| Code::new(&bytes, length).expect("a margin");
    let mut brief = Brief::default();
    assert!(brief.read(&cut(whole), 0) && brief.next == whole);
    assert_eq!(skip(&cut(whole)), whole);
    for length in 0..whole {
        assert!(!brief.read(&cut(length), 0), "{length} bytes");
        assert_eq!(skip(&cut(length)), 0);
    }
    let prefixes = [0x66; 64];
    let prefixes = Code::new(&prefixes, 64 - MARGIN).expect("a margin");
    assert!(!brief.read(&prefixes, 0));
    assert!(Code::new(&[0; MARGIN], 1).is_none());
}

/// Reads the whole of this test program and of its libraries, function by function.
#[test]
fn a_program_is_read_alike_by_both_decoders() {
    for (number, object) in Objects::now().list.iter().enumerate() {
        if !object.segments.iter().any(|segment| segment.executable) {
            continue;
        }
        let executable = number == 0;
        let path = match executable {
            true => Path::new("/proc/self/exe"),
            false => &object.name,
        };
        let image = Image::read(object, path, executable);
        let all = image.functions.len();
        let known = read_alike(&image);
        println!("{known} of {all} functions of {path:?}");
        if executable {
            assert!(image.fixed || known * 10 > all * 8, "{known} of {all}");
        }
    }
}

/// Compares what both decoders find in the functions of an image. Returns how many functions both
/// know.
fn read_alike(image: &Image) -> usize {
    let (mut quick, mut full) = (Reader::default(), Reader::default());
    let mut known = 0;
    for function in &image.functions {
        quick.facts.clear();
        if !read(image, function, &mut quick.starts, &mut quick.facts) {
            continue;
        }
        known += 1;
        full.facts.clear();
        full.read_fully(image, function);
        let name = image.name(function.range.start);
        assert_eq!(quick.facts, full.facts, "{name:?} at {:x?}", function.range);
    }
    known
}
