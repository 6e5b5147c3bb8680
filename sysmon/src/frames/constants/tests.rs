#![expect(unsafe_code, reason = "reads memory it made up")]
#![expect(clippy::single_range_in_vec_init, reason = "one range is meant")]

use super::*;
use crate::frames::edges::Reach;
use crate::frames::image::memory::Memory;
use crate::frames::image::symbols::Symbols;
use crate::frames::image::unwind::Function;

/// Builds an image with sixteen words of code, then constants. It has a fixed address, so that its
/// pointers need no slots.
fn image(constants: &[Word]) -> (Image, usize) {
    let memory: &'static mut [usize] = vec![0; 16 + constants.len()].leak();
    let start = memory.as_ptr() as usize;
    let first = start + 16 * 8;
    for (word, value) in memory[16..].iter_mut().zip(constants) {
        *word = match *value {
            Word::Code => start + 8,
            Word::Drop => start + 16,
            Word::Method => start + 24,
            Word::Constant(index) => first + index * 8,
            Word::Number(number) => number,
        };
    }
    let end = first + constants.len() * 8;
    let mut known = Memory::default();
    // SAFETY: leaked, and no longer written.
    unsafe { known.add(start..first, Kind::Text, true) };
    // SAFETY: leaked, and no longer written.
    unsafe { known.add(first..end, Kind::Constant, true) };
    let image = Image {
        memory: known,
        range: start..end,
        fixed: true,
        functions: vec![Function {
            range: start..first,
            cold: false,
            handlers: None,
        }],
        symbols: Symbols::of_functions(&[
            (start + 8, "_ZN4user4code17h0123456789abcdefE"),
            (
                start + 16,
                "_ZN4core3ptr13drop_in_place17h0123456789abcdefE",
            ),
            (start + 24, METHOD),
        ]),
        ..Image::default()
    };
    (image, first)
}

/// `<user::Type as user::Trait>::method`
const METHOD: &str = "_ZN42_$LT$user..Type$u20$as$u20$user..Trait$GT$6method17h0123456789abcdefE";

#[derive(Clone, Copy)]
enum Word {
    Code,
    Drop,
    Method,
    Constant(usize),
    Number(usize),
}
use Word::{Code, Drop, Method, Number};

/// A vtable with two methods, then a table of three functions, then another vtable.
const SAMPLE: [Word; 12] = [
    Drop,
    Number(8),
    Number(8),
    Code,
    Code,
    Code,
    Code,
    Code,
    Number(0),
    Number(0),
    Number(1),
    Method,
];
const TABLE: usize = 5 * 8;
const SECOND: usize = 8 * 8;

fn at(address: usize, before: u32, after: u32) -> Use {
    Use {
        address,
        reach: Reach { before, after },
        distances: false,
        given: false,
    }
}

fn plain(address: usize) -> Use {
    at(address, 0, 0)
}

fn ranges(constants: &Constants, reference: Use, first: usize) -> Vec<Range<usize>> {
    let pieces = constants.pieces(&reference);
    let ranges = pieces.map(|piece| constants.range(piece));
    ranges.map(|r| r.start - first..r.end - first).collect()
}

#[test]
fn vtables_begin_where_they_are_referred_to_and_end_at_the_next_reference() {
    let (image, first) = image(&SAMPLE);
    let referenced = [first, first + TABLE, first + SECOND].map(plain);
    let constants = Constants::cut(&image, &referenced, Rule::Certain);
    assert_eq!(ranges(&constants, at(first, 0, 0), first), [0..TABLE]);
    assert_eq!(
        ranges(&constants, at(first + TABLE, 0, 0), first),
        [TABLE..SECOND]
    );
    assert_eq!(
        ranges(&constants, at(first + SECOND, 0, 0), first),
        [SECOND..96]
    );
}

#[test]
fn a_reference_to_the_middle_does_not_cut_a_table() {
    let (image, first) = image(&SAMPLE);
    let middle = first + TABLE + 8;
    let referenced = [first, first + TABLE, middle, first + SECOND].map(plain);
    let constants = Constants::cut(&image, &referenced, Rule::Certain);
    assert_eq!(ranges(&constants, at(middle, 0, 0), first), [TABLE..SECOND]);
    assert_eq!(
        constants
            .targets(&image, constants.pieces(&at(middle, 0, 0)).start)
            .len(),
        3
    );
    // The obvious rule does, and half of the table is lost.
    let constants = Constants::cut(&image, &referenced, Rule::Every);
    assert_eq!(
        ranges(&constants, at(first + TABLE, 0, 0), first),
        [TABLE..TABLE + 8]
    );
}

#[test]
fn an_end_stands_for_both_sides() {
    let (image, first) = image(&SAMPLE);
    let referenced = [first, first + TABLE, first + SECOND].map(plain);
    let constants = Constants::cut(&image, &referenced, Rule::Certain);
    let end = ranges(&constants, at(first + SECOND, 8, 0), first);
    assert_eq!(end, [TABLE..SECOND, SECOND..96]);
    let before = ranges(&constants, at(first + TABLE - 8, 0, 8), first);
    assert_eq!(before, [0..TABLE, TABLE..SECOND]);
}

#[test]
fn pointers_lead_to_code_and_constants() {
    let words = [Code, Number(8), Number(8), Word::Constant(0), Number(3)];
    let (image, first) = image(&words);
    let constants = Constants::cut(&image, &[plain(first)], Rule::Certain);
    let piece = constants.pieces(&at(first, 0, 0)).start;
    let targets = constants.targets(&image, piece);
    assert_eq!(targets.len(), 2);
    assert!(targets.contains(&Target::Constant(first)));
}

#[test]
fn a_table_of_distances_leads_where_its_distances_do() {
    // Distances to the first word of code, to the table itself, and out of the image.
    let low = (-128_i32) as u32 as usize;
    let words = [Number(low), Number(0x4000_0000)];
    let (image, first) = image(&words);
    let constants = Constants::cut(&image, &[plain(first)], Rule::Certain);
    let targets = constants.distances(&image, first);
    assert_eq!(
        targets,
        [Target::Code(first - 128), Target::Constant(first)]
    );
}

/// Descriptions of types: a function, a size, an alignment. Each is referenced.
#[test]
fn what_only_looks_like_vtables_is_not_cut() {
    let one = [Code, Number(8), Number(8)];
    let none = [Number(0), Number(8), Number(8), Code];
    for words in [one.repeat(3), none.repeat(3)] {
        let stride = words.len() / 3 * 8;
        let (image, first) = image(&words);
        let referenced = [first, first + stride, first + 2 * stride].map(plain);
        let constants = Constants::cut(&image, &referenced, Rule::Certain);
        let whole = ranges(&constants, plain(first), first);
        assert_eq!(whole, [0..3 * stride]);
    }
}

/// Where the piece of these words leads, if they are a variable.
fn variable(words: &[Word], zeroed: bool) -> Vec<Target> {
    let (mut image, first) = image(words);
    let end = first + words.len() * 8;
    image.memory.rename(first..end, Kind::Variable);
    image.zeroed = if zeroed { vec![first..end] } else { vec![] };
    let constants = Constants::cut(&image, &[], Rule::Certain);
    let pieces = constants.pieces(&plain(first));
    pieces
        .flat_map(|piece| constants.targets(&image, piece))
        .collect()
}

#[test]
fn a_function_in_a_variable_counts_without_relocations() {
    let code = variable(&[Number(1), Code], false);
    assert!(matches!(code[..], [Target::Code(_)]), "{code:?}");
}

#[test]
fn a_variable_without_an_initial_value_leads_nowhere() {
    assert_eq!(variable(&[Number(1), Code], true), []);
}

/// `TABLE[i - 1000]` reads at `TABLE - 8000 + 8 * i`.
#[test]
fn a_table_counts_whose_address_has_an_index_folded_into_it() {
    let mut words = vec![Number(0); 1200];
    words[1100] = Code;
    let (image, first) = image(&words);
    let table = first + 1100 * 8;
    let constants = Constants::cut(&image, &[plain(table)], Rule::Certain);
    let found = |reference| {
        let pieces = constants.pieces(&reference);
        let mut targets = pieces.flat_map(|piece| constants.targets(&image, piece));
        targets.any(|target| matches!(target, Target::Code(_)))
    };
    let far = |address| at(address, Reach::FAR.before, Reach::FAR.after);
    assert!(found(far(table - 8000)));
    assert!(found(far(first - 64)), "where no constant is");
    assert!(!found(plain(first - 64)));
}
