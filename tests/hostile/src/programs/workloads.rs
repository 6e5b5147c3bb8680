//! Ordinary computations, all of them in regions.
//!
//! Most are taken from other programs, where they may run outside regions as well. A crate's
//! thread-local is fetched and used in a section without preemption: between two draws of
//! `rand::rng()` another fiber may run, in the middle of a draw it may not. The frames of a draw do
//! not show that the generator was fetched from a thread-local.

use indent::runtime::no_preempt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::{Program, allocation, arithmetic, foreign, libraries};
use crate::noise::{bytes, checksum, mix};
use crate::region::Hidden;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("region-arith", "whole numbers", |stage| {
        stage.repeat_in_region(FIBERS, arithmetic::whole_numbers);
    })
    .regions(),
    Program::new("region-float", "other numbers", |stage| {
        stage.repeat_in_region(FIBERS, arithmetic::fractions);
    })
    .regions(),
    Program::new(
        "region-sort",
        "comparators in the middle of a sort",
        |stage| {
            stage.repeat_in_region(FIBERS, libraries::sorted);
        },
    )
    .regions(),
    Program::new("region-btree", "allocations, pointers", |stage| {
        stage.repeat_in_region(FIBERS, allocation::tree);
    })
    .regions()
    .seldom(), // with whole-program optimization its frames bind
    Program::new(
        "region-hashmap",
        "keys drawn from a thread-local",
        |stage| {
            stage.repeat_in_region(FIBERS, allocation::maps);
        },
    )
    .regions()
    .seldom(), // every frame here leads to the thread-local
    Program::new("region-json", "text there and back", |stage| {
        stage.repeat_in_region(FIBERS, libraries::parsed);
    })
    .regions(),
    Program::new("region-format", "the formatting machinery", |stage| {
        stage.repeat_in_region(FIBERS, libraries::formatted);
    })
    .regions(),
    Program::new("region-regex", "caches handed out from a pool", |stage| {
        stage.repeat_in_region(FIBERS, libraries::matched);
    })
    .regions()
    .seldom(), // the pool reads its thread's identity
    Program::new(
        "region-sha",
        "instructions for hashes, if there are any",
        |stage| {
            stage.repeat_in_region(FIBERS, hashed);
        },
    )
    .regions(),
    Program::new("region-zlib", "C in this very program", |stage| {
        stage.repeat_in_region(FIBERS, foreign::compressed);
    })
    .regions(),
    Program::new(
        "region-rand",
        "a generator in a thread-local, and one's own",
        rand,
    )
    .regions(),
];

const FIBERS: usize = 6;

fn hashed(seed: u64) -> u64 {
    let data = bytes(seed, 100_000);
    let mut hash = Sha256::new();
    (0..10).for_each(|_| hash.update(&data));
    checksum(&hash.finalize())
}

/// Number of draws from the thread's generator in one section.
const DRAWS: u32 = 200;
const SECTIONS: u32 = 100;

static DRAWN: Hidden<fn() -> u32> = Hidden::new();

fn rand(stage: &'static Stage) {
    DRAWN.is(drawn);
    stage.repeat_in_region(FIBERS, |seed| {
        let mut own = StdRng::seed_from_u64(seed);
        let (mut sum, mut ones) = (seed, 0);
        for _ in 0..SECTIONS {
            ones += DRAWN.get()();
            sum = (0..DRAWS).fold(sum, |sum, _| mix(sum, own.next_u64()));
        }
        // Half of the bits, give or take 600; a value far away is broken.
        let even = ones.abs_diff(SECTIONS * DRAWS * 32) < 20_000;
        mix(sum, u64::from(even))
    });
}

/// Counts the one bits of some draws.
///
/// A fiber that visibly calls it is bound to its thread.
fn drawn() -> u32 {
    no_preempt(|| {
        let mut shared = rand::rng();
        let draws = (0..DRAWS).map(|_| shared.next_u64().count_ones());
        draws.sum::<u32>()
    })
}
