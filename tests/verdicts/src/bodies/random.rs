//! Generators of random numbers. `rand::rng()` is a counted reference to a generator of the thread:
//! it must never be used from another one.

use std::hint::black_box;

use rand::rngs::{SmallRng, StdRng, ThreadRng};
use rand::{Rng, RngExt, SeedableRng};

use super::{MOVABLE, OWN, table};
use crate::Probe;

table! {
    rng_held: OWN;
    rng_in_a_struct: OWN;
    rng_in_a_dyn_box: OWN;
    rng_by_closures: OWN;
    rng_by_functions: OWN;
    rng_used_and_gone: OWN;
    shuffled_while_parking: OWN;
    rng_within_a_limit: OWN;
    rng_out_of_a_limit: OWN;
    small_rng_seeded: MOVABLE;
    std_rng_seeded: MOVABLE;
    std_rng_in_a_dyn_box: MOVABLE;
}

/// Draws until the block of the generator is used up several times over.
fn draw(rng: &mut (impl Rng + ?Sized)) -> u64 {
    (0..70).fold(0, |sum, _| sum ^ rng.next_u64())
}

fn rng_held(probe: &Probe) -> bool {
    let mut rng = rand::rng();
    let before = draw(&mut rng);
    probe.park();
    draw(&mut rng) != before
}

/// The runtime calls a closure that parks: its frame is the runtime's by name.
fn rng_within_a_limit(probe: &Probe) -> bool {
    let limit = std::time::Duration::from_secs(600);
    let different = indent::time::timeout(limit, || {
        let mut rng = rand::rng();
        let before = draw(&mut rng);
        probe.park();
        draw(&mut rng) != before
    });
    different == Ok(true)
}

/// The runtime calls a closure that returns something of the thread.
fn rng_out_of_a_limit(probe: &Probe) -> bool {
    let limit = std::time::Duration::from_secs(600);
    let Ok(mut rng) = indent::time::timeout(limit, rand::rng) else {
        return false;
    };
    let before = draw(&mut rng);
    probe.park();
    draw(&mut rng) != before
}

struct Dice {
    sides: u64,
    rng: ThreadRng,
}

impl Dice {
    fn roll(&mut self) -> u64 {
        self.rng.random_range(1..=self.sides)
    }
}

fn rng_in_a_struct(probe: &Probe) -> bool {
    let mut dice = Dice {
        sides: 6,
        rng: rand::rng(),
    };
    let before = dice.roll();
    probe.park();
    let rolls: Vec<u64> = (0..200).map(|_| dice.roll()).collect();
    (1..=6).contains(&before) && rolls.iter().all(|n| (1..=6).contains(n))
}

fn rng_in_a_dyn_box(probe: &Probe) -> bool {
    let mut rng: Box<dyn Rng> = black_box(Box::new(rand::rng()));
    let before = draw(&mut *rng);
    probe.park();
    draw(&mut *rng) != before
}

fn rng_by_closures(probe: &Probe) -> bool {
    let seed = probe.seed;
    let sources: [Box<dyn Fn() -> Box<dyn Rng>>; 2] = [
        Box::new(move || Box::new(StdRng::seed_from_u64(seed))),
        Box::new(|| Box::new(rand::rng())),
    ];
    let mut rng = black_box(sources)[black_box(1)]();
    let before = draw(&mut *rng);
    probe.park();
    draw(&mut *rng) != before
}

fn of_the_thread() -> Box<dyn Rng> {
    Box::new(rand::rng())
}

fn of_nobody() -> Box<dyn Rng> {
    Box::new(SmallRng::seed_from_u64(7))
}

static SOURCES: [fn() -> Box<dyn Rng>; 2] = [of_nobody, of_the_thread];

fn rng_by_functions(probe: &Probe) -> bool {
    let mut rng = black_box(&SOURCES)[black_box(1)]();
    let before = draw(&mut *rng);
    probe.park();
    draw(&mut *rng) != before
}

fn rng_used_and_gone(probe: &Probe) -> bool {
    let jitter = rand::random_range(0..100u64);
    probe.park();
    black_box(jitter) < 100
}

fn shuffled_while_parking(probe: &Probe) -> bool {
    use rand::seq::SliceRandom;
    let mut numbers: Vec<u64> = (0..100).collect();
    let mut rng = rand::rng();
    numbers.shuffle(&mut rng);
    probe.park();
    numbers.shuffle(&mut rng);
    numbers.sort_unstable();
    numbers.iter().copied().eq(0..100)
}

fn small_rng_seeded(probe: &Probe) -> bool {
    let mut rng = SmallRng::seed_from_u64(probe.seed);
    draw(&mut rng);
    let mut same = rng.clone();
    probe.park();
    draw(&mut rng) == draw(&mut same)
}

fn std_rng_seeded(probe: &Probe) -> bool {
    let mut rng = StdRng::seed_from_u64(probe.seed);
    let before = draw(&mut rng);
    probe.park();
    before == draw(&mut StdRng::seed_from_u64(probe.seed))
}

fn std_rng_in_a_dyn_box(probe: &Probe) -> bool {
    let mut rng: Box<dyn Rng> = black_box(Box::new(StdRng::seed_from_u64(probe.seed)));
    let before = draw(&mut *rng);
    probe.park();
    before != draw(&mut *rng)
}
