//! Random numbers and the keys of hash maps, whose state is shared by the fibers of a thread.
//!
//! No two fibers may get the same numbers, and lookups in a map must use its own keys, wherever its
//! fiber ran in between.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use indent::runtime::Runtime;
use indent::{task, time};
use indent_exemptions::{crowd, number, report, run, thread};

/// Numbers that each fiber draws.
const DRAWN: usize = 8;

fn main() {
    let count = number(1);
    run(
        |builder| builder,
        |rt| {
            rt.wait_until_surveyed(None);
            let moved = numbers(rt, count) + maps(rt, count);
            report("moved", moved);
            report("threads", rt.metrics().carriers);
        },
    );
}

fn pause(number: usize, turn: usize) {
    match (number + turn) % 3 {
        0 => task::yield_now(),
        1 => time::sleep(Duration::from_millis(1)),
        _ => (),
    }
}

/// Returns a number from the generator that all share.
#[inline(never)]
fn draw() -> u64 {
    fastrand::u64(..)
}

/// Returns a generator, seeded by a number from the one that all share.
#[inline(never)]
fn generator() -> fastrand::Rng {
    fastrand::Rng::new()
}

/// Numbers that one fiber has drawn.
struct Drawn {
    moved: bool,
    numbers: Vec<u64>,
    /// From a generator of its own, whose seed is a number drawn before.
    own: Vec<u64>,
}

fn numbers(rt: &Runtime, count: usize) -> usize {
    let all = crowd(rt, count, |n| {
        let before = thread();
        let mut own = generator();
        let (mut numbers, mut own_numbers) = (Vec::new(), Vec::new());
        for turn in 0..DRAWN {
            numbers.push(draw());
            own_numbers.push(own.u64(..));
            pause(n, turn);
        }
        Drawn {
            moved: thread() != before,
            numbers,
            own: own_numbers,
        }
    });
    let numbers = all
        .iter()
        .flat_map(|drawn| drawn.numbers.iter().chain(&drawn.own));
    let different: HashSet<_> = numbers.collect();
    // Numbers of 64 bits: a pair that is equal by chance is rarer than one in a million runs.
    assert_eq!(
        different.len(),
        2 * DRAWN * count,
        "numbers that came twice"
    );
    all.iter().filter(|drawn| drawn.moved).count()
}

/// Returns new keys; maps take theirs in the same way.
#[inline(never)]
fn keys() -> RandomState {
    RandomState::new()
}

fn maps(rt: &Runtime, count: usize) -> usize {
    let all = crowd(rt, count, |n| {
        let before = thread();
        let own = keys();
        let hash = own.hash_one(7);
        let mut map = HashMap::with_hasher(keys());
        let mut set = HashSet::with_hasher(own.clone());
        for key in 0..50 {
            map.insert(key, n);
            set.insert(format!("{n} {key}"));
            if key % 5 == 0 {
                pause(n, key);
            }
        }
        let found =
            (0..50).filter(|key| map.get(key) == Some(&n) && set.contains(&format!("{n} {key}")));
        assert_eq!(found.count(), 50, "entries are lost");
        assert_eq!(own.hash_one(7), hash, "other keys than before");
        (thread() != before, hash)
    });
    let hashes: HashSet<_> = all.iter().map(|(_, hash)| hash).collect();
    assert_eq!(hashes.len(), count, "fibers with the same keys");
    all.iter().filter(|(moved, _)| *moved).count()
}
