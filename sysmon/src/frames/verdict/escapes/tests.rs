//! Real functions that call each other, assembled into this program and followed.

use std::ops::Range;

use super::*;
use crate::frames::edges::How;
use crate::frames::edges::tests::{function, sample};
use crate::frames::image::memory::{Kind, Memory};

/// Returns what each function does with addresses, in a program of these functions alone.
///
/// All can be called directly only; the first one uses a thread-local, which is vouched for or not.
fn kept<const N: usize>(ranges: [Range<usize>; N], vouched: bool) -> [Keeps; N] {
    let mut memory = Memory::default();
    for range in &ranges {
        // SAFETY: code of this program.
        unsafe { memory.add(range.clone(), Kind::Text, true) };
    }
    let mut functions: Vec<_> = ranges.iter().cloned().map(function).collect();
    functions.sort_unstable_by_key(|function| function.range.start);
    let [start, end] = [functions[0].range.start, functions[N - 1].range.end];
    let image = Image {
        range: start..end,
        memory,
        functions,
        ..Image::default()
    };
    let node = |range: &Range<usize>| image.function_at(range.start).expect("a function") as u32;
    let nodes: Vec<u32> = ranges.iter().map(node).collect();
    let mut graph = Graph::default();
    for &caller in &nodes[1..] {
        graph.add(caller, nodes[0], How::Call);
    }
    graph.sort(N);
    let place = |index| CodeLocation::Function { image: 0, index };
    let places: Vec<CodeLocation> = (0..N as u32).map(place).collect();
    let (images, given) = ([image], BTreeMap::new());
    let mut escapes = Escapes::new(&images, &[0], &places, &graph, &given);
    escapes.add(nodes[0], Why::Variable(-0x38), vouched);
    escapes.settle();
    let found = escapes.found();
    std::array::from_fn(|n| {
        let of_it = found.iter().find(|(node, ..)| *node == nodes[n]);
        of_it.map_or(Keeps::Briefly, |(_, _, keeps)| keeps.clone())
    })
}

sample!(returns_quietly, "xor eax, eax", "ret");
sample!(hands_out, "mov rax, fs:0", "lea rax, [rax - 0x38]", "ret");
sample!(
    handed_then_stored,
    "push rbx",
    "mov rbx, rdi",
    "call indent_sample_hands_out",
    "mov [rbx], rax",
    "xor eax, eax",
    "pop rbx",
    "ret",
);
sample!(
    handed_then_held,
    "push rbx",
    "call indent_sample_hands_out",
    "mov rbx, rax",
    "call indent_sample_returns_quietly",
    "inc dword ptr [rbx]",
    "xor eax, eax",
    "pop rbx",
    "ret",
);

#[test]
fn a_function_that_is_handed_an_address_and_stores_it_at_once_loses_it() {
    let ranges = [
        hands_out::range(),
        handed_then_stored::range(),
        handed_then_held::range(),
        returns_quietly::range(),
    ];
    let [hands_out, stores, holds, _] = kept(ranges.clone(), false);
    assert_eq!(hands_out, Keeps::Briefly);
    assert!(matches!(stores, Keeps::Lost(_)), "{stores:?}");
    assert_eq!(holds, Keeps::Held);
    let [hands_out, stores, holds, _] = kept(ranges, true);
    assert_eq!(hands_out, Keeps::Briefly);
    assert_eq!(stores, Keeps::Held, "nothing of it is left afterwards");
    assert_eq!(holds, Keeps::Held);
}
