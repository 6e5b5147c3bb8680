//! Random numbers and hashes, which are kept for each thread.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::body::{Me, Outcome, Shared, ensure};
use crate::step::{again, step};

/// Numbers that were drawn in a round.
type Drawn = Mutex<HashSet<u128>>;

/// Returns true if a number is drawn for the first time.
#[inline(never)]
fn is_new(drawn: &Drawn, number: impl Into<u128>) -> bool {
    let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
    drawn.insert(number.into())
}

/// A generator that is held, and one that is fetched each time.
pub(crate) fn rand(me: &Me) -> Outcome {
    static DRAWN: Shared<Drawn> = Shared::new();
    let drawn = DRAWN.of(me.round);
    let mut rng = rand::rng();
    for _ in 0..10 {
        let number = again(|| rng.random::<u64>());
        step();
        ensure!(is_new(drawn, number), "{number} was drawn twice");
        let number: u64 = rand::random();
        ensure!(is_new(drawn, number), "{number} was drawn twice");
        step();
        let mut deck: Vec<u32> = (0..52).collect();
        deck.shuffle(&mut rng);
        step();
        let die = rng.random_range(1..=6);
        ensure!((1..=6).contains(&die), "a die shows {die}");
        deck.sort_unstable();
        ensure!(deck.iter().copied().eq(0..52), "a deck with {deck:?}");
    }
    Ok(me.n)
}

pub(crate) fn fastrand(me: &Me) -> Outcome {
    static DRAWN: Shared<Drawn> = Shared::new();
    let drawn = DRAWN.of(me.round);
    for _ in 0..10 {
        let number = again(|| fastrand::u64(..));
        step();
        ensure!(is_new(drawn, number), "{number} was drawn twice");
        let mut deck: Vec<u32> = (0..52).collect();
        fastrand::shuffle(&mut deck);
        step();
        let mut own = fastrand::Rng::with_seed(me.n);
        let first = own.u64(..);
        step();
        ensure!(
            fastrand::Rng::with_seed(me.n).u64(..) == first,
            "not by the seed"
        );
        deck.sort_unstable();
        ensure!(deck.iter().copied().eq(0..52), "a deck with {deck:?}");
    }
    Ok(fastrand::Rng::with_seed(me.n).u64(..))
}

pub(crate) fn ahash(me: &Me) -> Outcome {
    let mut map = ahash::AHashMap::new();
    let state = ahash::RandomState::new();
    let hash = state.hash_one(me.n);
    for key in 0..200 {
        again(|| map.insert(key, key * me.n));
        if key % 10 == 0 {
            step();
            ensure!(state.hash_one(me.n) == hash, "another hash of {}", me.n);
        }
    }
    let fixed = ahash::RandomState::with_seeds(1, 2, 3, 4);
    let before = fixed.hash_one(me.n);
    step();
    ensure!(fixed.hash_one(me.n) == before, "another hash by fixed keys");
    Ok(map.values().sum())
}

/// Those of version 7 are in order for each process.
pub(crate) fn uuid(me: &Me) -> Outcome {
    static DRAWN: Shared<Drawn> = Shared::new();
    let drawn = DRAWN.of(me.round);
    let mut last = uuid::Uuid::nil();
    for _ in 0..10 {
        let random = again(uuid::Uuid::new_v4);
        step();
        ensure!(is_new(drawn, random.as_u128()), "{random} twice");
        let ordered = again(uuid::Uuid::now_v7);
        step();
        ensure!(is_new(drawn, ordered.as_u128()), "{ordered} twice");
        ensure!(last < ordered, "{ordered} after {last}");
        last = ordered;
        let text = random.hyphenated().to_string();
        step();
        ensure!(
            uuid::Uuid::parse_str(&text) == Ok(random),
            "{text} is not {random}"
        );
    }
    Ok(me.n)
}
