//! The allocator's caches and locks, and std's per-thread state, interrupted at any instruction.
//!
//! std keeps state per thread for hash maps and random numbers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use rand::Rng;

use super::Program;
use crate::noise::{Random, checksum, compute_for, mix, stir};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "allocation",
        "a storm over all size classes, freed out of order and elsewhere",
        allocation,
    )
    .pure(),
    Program::new(
        "hash-maps",
        "RandomState draws its keys from a thread-local",
        hash_maps,
    )
    .pure(),
    Program::new("btree", "many small allocations, many pointers", btree).pure(),
    Program::new(
        "rng-held",
        "rand::rng() is a pointer to its thread's generator",
        rng_held,
    ),
];

const FIBERS: usize = 8;
/// Blocks that a fiber holds at a time.
const HELD: usize = 200;

/// Fills blocks when they are allocated, and checks them when they are freed.
///
/// Every so often all of them go to the next fiber, so that most are freed on another thread than
/// the one that allocated them.
fn allocation(stage: &'static Stage) {
    type Basket = std::sync::Mutex<Vec<Vec<u8>>>;
    let baskets: Vec<Basket> = (0..FIBERS).map(|_| Basket::default()).collect();
    stage.crew(FIBERS, move |i| {
        let mut random = Random::new(stage.seed + i as u64);
        let mut held: Vec<Vec<u8>> = Vec::new();
        while !stage.over() {
            pure(|| exchange(stage, &mut held, &mut random));
            let basket = &baskets[(i + 1) % FIBERS];
            std::mem::swap(&mut *basket.lock().expect("no panic inside"), &mut held);
            stage.round();
        }
        held.iter().for_each(|block| check(stage, block));
        stage.round();
    });
}

/// Allocates and frees blocks in random order.
fn exchange(stage: &Stage, held: &mut Vec<Vec<u8>>, random: &mut Random) {
    for _ in 0..2_000 {
        if held.len() < HELD {
            held.push(block(random));
        } else {
            let going = held.swap_remove(random.below(HELD as u64) as usize);
            check(stage, &going);
        }
    }
}

/// Returns a block of any size class, small ones far more often, filled with its own number.
fn block(random: &mut Random) -> Vec<u8> {
    let class = random.below(14).min(random.below(18));
    let size = (8 << class) + random.below(8 << class);
    vec![size as u8; size as usize]
}

fn check(stage: &Stage, block: &[u8]) {
    let own = block.len() as u8;
    if block.iter().any(|&byte| byte != own) {
        stage.complain(format!("a block of {} bytes was overwritten", block.len()));
    }
}

/// Fills maps: the order in a map differs each time, its contents do not.
fn hash_maps(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, maps);
}

pub(super) fn maps(seed: u64) -> u64 {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for i in 0..8_000 {
        *counts.entry(stir(seed + i) % 500).or_default() += i;
    }
    let words: HashMap<String, u64> = counts.iter().map(|(k, v)| (k.to_string(), *v)).collect();
    let state = RandomState::new();
    let agree = counts.keys().all(|key| {
        state.hash_one(key) == state.clone().hash_one(key) && counts[key] == words[&key.to_string()]
    });
    let sum = words
        .values()
        .fold(0, |sum: u64, v| sum.wrapping_add(stir(*v)));
    mix(sum, u64::from(agree))
}

fn btree(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, tree);
}

pub(super) fn tree(seed: u64) -> u64 {
    let mut tree = BTreeMap::new();
    for i in 0..6_000 {
        tree.insert(stir(seed + i) % 5_000, vec![i as u8; (i % 60) as usize]);
    }
    tree.retain(|key, _| key % 3 > 0);
    tree.iter()
        .fold(0, |sum, (key, value)| mix(sum ^ key, checksum(value)))
}

/// Fetches the generator once and uses it for long.
///
/// Another fiber on the same thread, in the middle of a draw, would leave an index out of bounds or
/// give two fibers the same numbers.
fn rng_held(stage: &'static Stage) {
    stage.crew(FIBERS, move |_| {
        let mut rng = rand::rng();
        while !stage.over() {
            let mut ones = 0;
            for _ in 0..20_000 {
                ones += rng.next_u64().count_ones();
            }
            compute_for(std::time::Duration::from_micros(200));
            let mut bytes = [0; 999];
            rng.fill_bytes(&mut bytes);
            // 20,000 words have 640,000 one bits, give or take 600; a value far away is broken.
            if ones.abs_diff(640_000) < 20_000 && bytes.iter().any(|&byte| byte != 0) {
                stage.round();
            } else {
                stage.complain(format!("{ones} ones of 1,280,000"));
            }
        }
        stage.round();
    });
}
