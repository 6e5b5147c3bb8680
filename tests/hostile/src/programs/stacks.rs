//! Signals that arrive when there is hardly any stack left.
//!
//! The kernel's frame for a signal takes some kilobytes; a handler without a stack of its own would
//! run into the guard page. The runtime here has guards that are mappings, so that a fiber can see
//! in `/proc/self/maps` where its stack ends.

use std::hint::black_box;

use indent::runtime::{Builder, StackGuard};
use indent::task;

use super::Program;
use crate::noise::{mix, stir};
use crate::region::{self, pure, region};
use crate::say::say;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("deep", "computes where the stack ends", |stage| {
        deep(stage, |end, seed| pure(|| descend(end, seed)));
    })
    .pure(),
    Program::new(
        "region-deep",
        "the same in a region, where there is no room to switch",
        |stage| deep(stage, |end, seed| region(|| descend(end, seed))),
    )
    .regions()
    .seldom(),
];

const FIBERS: usize = 6;
const STACK: usize = 64 << 10;
/// Bytes of stack left when a fiber computes: less than any signal frame with wide registers.
const LEFT: usize = 2048;

/// Computes with `run`, which gets the stack's end and a seed.
fn deep(stage: &'static Stage, run: fn(usize, u64) -> u64) {
    let builder = Builder::new().workers(2).stack_guard(StackGuard::Page);
    let runtime = builder.build().expect("a runtime");
    let expected = at_the_bottom(stage.seed);
    let body = move || {
        let end = end_of_stack();
        while !stage.over() {
            stage.same("a result", run(end, stage.seed), expected);
        }
    };
    let fibers: Vec<_> = runtime.block_on(|| {
        let new = || task::Builder::new().name("deep").stack_size(STACK);
        (0..FIBERS).map(|_| new().spawn(body)).collect()
    });
    stage.join(fibers);
    let metrics = runtime.metrics();
    say(&format!(
        "{}: {} freezes and {} switches in place there",
        stage.name,
        metrics.freezes_total,
        region::switches(&metrics)
    ));
}

/// Returns the lowest address of the mapping that holds this frame.
#[inline(never)]
fn end_of_stack() -> usize {
    let here = address_of_local();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let range = |line: &str| {
        let (from, rest) = line.split_once('-')?;
        let (to, _) = rest.split_once(' ')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(from)?, number(to)?))
    };
    let own = maps
        .lines()
        .filter_map(range)
        .find(|(from, to)| (*from..*to).contains(&here));
    own.expect("a mapping for our stack").0
}

#[inline(always)]
fn address_of_local() -> usize {
    let local = 0_u8;
    black_box(&raw const local) as usize
}

/// Recurses until there is hardly any room.
#[inline(never)]
fn descend(end: usize, seed: u64) -> u64 {
    let frame = black_box([seed; 8]);
    if address_of_local() - end < LEFT {
        return at_the_bottom(frame[3]);
    }
    let result = descend(end, frame[5]);
    black_box(frame);
    result
}

#[inline(never)]
fn at_the_bottom(seed: u64) -> u64 {
    let (mut sum, mut i) = (seed, 0);
    while i < 200_000 {
        sum = mix(sum, stir(black_box(i)));
        i += 1;
    }
    sum
}
