//! Values of std and similar crates, held over a park.
//!
//! `!Send` has no meaning here: an `Rc` that never leaves its fiber may move with it.

use std::cell::RefCell;
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::hint::black_box;
use std::rc::Rc;

use super::{Expected, MOVABLE, each, table};
use crate::Probe;

/// `RandomState::new` is harmless: it copies two numbers out of a thread-local and increments one.
///
/// If it is inlined, its access binds like any other.
const HASH_KEYS: Expected = each("MBBBB");

/// With optimization the compiler may keep the address of the keys in a register over the park, for
/// the next map.
const KEPT: Expected = each("O???O");

table! {
    rc_held: MOVABLE;
    ref_cell_borrowed: MOVABLE;
    hash_map_held: KEPT;
    hash_map_of_a_call: KEPT;
    hash_set_collected: HASH_KEYS;
    random_state_held: HASH_KEYS;
    hash_map_fixed_keys: MOVABLE;
    hashbrown_fixed_keys: MOVABLE;
    hashbrown_own_keys: MOVABLE;
    btree_map_held: MOVABLE;
    heap_and_deque: MOVABLE;
    sort_parks_in_comparator: MOVABLE;
    bytes_split: MOVABLE;
}

type Fixed = BuildHasherDefault<DefaultHasher>;

fn rc_held(probe: &Probe) -> bool {
    let one = Rc::new(probe.seed);
    let two = black_box(one.clone());
    probe.park();
    *one == probe.seed && Rc::strong_count(&two) == 2
}

fn ref_cell_borrowed(probe: &Probe) -> bool {
    let cell = RefCell::new(vec![probe.seed]);
    let mut borrowed = cell.borrow_mut();
    probe.park();
    borrowed.push(1);
    drop(borrowed);
    cell.borrow().len() == 2
}

fn fill<S: BuildHasher>(map: &mut HashMap<u64, String, S>, seed: u64) {
    for i in 0..20 {
        map.insert(seed ^ i, i.to_string());
    }
}

fn is_filled<S: BuildHasher>(map: &HashMap<u64, String, S>, seed: u64) -> bool {
    (0..20).all(|i| {
        map.get(&(seed ^ i))
            .is_some_and(|text| *text == i.to_string())
    })
}

fn hash_map_held(probe: &Probe) -> bool {
    let mut map = HashMap::new();
    fill(&mut map, probe.seed);
    probe.park();
    is_filled(&map, probe.seed)
}

/// Over before the park; the frame that made it is still there.
fn hash_map_of_a_call(probe: &Probe) -> bool {
    let distinct = |of: u64| {
        let mut map = HashMap::new();
        for i in 0..10 {
            map.insert(i % of, i);
        }
        map.len() as u64
    };
    let before = distinct(black_box(3));
    probe.park();
    before == 3
}

fn hash_set_collected(probe: &Probe) -> bool {
    let set: HashSet<u64> = (0..50).map(|i| i % 7 + probe.seed).collect();
    probe.park();
    set.len() == 7 && set.contains(&probe.seed)
}

fn random_state_held(probe: &Probe) -> bool {
    let state = RandomState::new();
    let before = state.hash_one(probe.seed);
    probe.park();
    before == state.hash_one(probe.seed)
}

fn hash_map_fixed_keys(probe: &Probe) -> bool {
    let mut map = HashMap::with_hasher(Fixed::default());
    fill(&mut map, probe.seed);
    probe.park();
    is_filled(&map, probe.seed)
}

fn hashbrown_fixed_keys(probe: &Probe) -> bool {
    let mut map = hashbrown::HashMap::with_hasher(Fixed::default());
    for i in 0..20 {
        map.insert(i, i ^ probe.seed);
    }
    probe.park();
    map.iter().all(|(i, value)| *value == i ^ probe.seed) && map.len() == 20
}

/// Its seeds come from addresses and a counter of the process, not from a thread-local.
fn hashbrown_own_keys(probe: &Probe) -> bool {
    let mut map = hashbrown::HashMap::new();
    for i in 0..20 {
        map.insert(i, i ^ probe.seed);
    }
    probe.park();
    map.get(&7) == Some(&(7 ^ probe.seed))
}

fn btree_map_held(probe: &Probe) -> bool {
    let map: BTreeMap<u64, u64> = (0..40).map(|i| (i * 7 % 41, i)).collect();
    let mut entries = map.iter();
    let first = entries.next();
    probe.park();
    first.is_some() && entries.clone().count() == map.len() - 1 && entries.is_sorted()
}

fn heap_and_deque(probe: &Probe) -> bool {
    let mut heap: BinaryHeap<u64> = (0..9).map(|i| i * 5 % 9).collect();
    let mut deque: VecDeque<u64> = heap.drain().collect();
    deque.push_front(probe.seed);
    probe.park();
    deque.pop_front() == Some(probe.seed) && deque.len() == 9
}

fn sort_parks_in_comparator(probe: &Probe) -> bool {
    let mut numbers: Vec<u64> = (0..64).map(|i| i * 37 % 64).collect();
    let mut calls = 0;
    numbers.sort_by(|a, b| {
        calls += 1;
        if calls == 5 {
            probe.park();
        }
        a.cmp(b)
    });
    numbers.is_sorted() && numbers.len() == 64
}

fn bytes_split(probe: &Probe) -> bool {
    let mut whole = bytes::Bytes::from(probe.seed.to_string().repeat(8));
    let half = whole.split_to(whole.len() / 2);
    probe.park();
    half == whole
}
