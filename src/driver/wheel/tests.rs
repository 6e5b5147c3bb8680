//! The wheel beside a sorted set that does the same.

use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// A wheel, its entries, and what a sorted set would do. An entry's payload is its number.
struct World {
    wheel: Wheel<usize>,
    /// All there ever were.
    entries: Vec<Rc<Entry<usize>>>,
    /// Tick (W2) and number of those that wait.
    waiting: BTreeSet<(u64, usize)>,
    /// The latest time that was passed to the wheel.
    now: u64,
}

impl World {
    fn new(now: u64) -> Self {
        World {
            wheel: Wheel::new(now),
            entries: Vec::new(),
            waiting: BTreeSet::new(),
            now,
        }
    }

    /// Inserts a new entry and returns its number.
    fn insert(&mut self, when: u64) -> usize {
        let number = self.entries.len();
        self.entries.push(Rc::new(Entry::new(when, number)));
        self.insert_again(number);
        number
    }

    fn insert_again(&mut self, number: usize) {
        let entry = &self.entries[number];
        // SAFETY: the world keeps it, shared, until its own end, and removes it there.
        unsafe { self.wheel.insert(entry) };
        let tick = entry.when.max(self.wheel.hand);
        assert!(self.waiting.insert((tick, number)));
    }

    fn remove(&mut self, number: usize) -> bool {
        // SAFETY: a world has one wheel.
        let removed = unsafe { self.wheel.remove(&self.entries[number]) };
        let before = self.waiting.len();
        self.waiting.retain(|(_, waiting)| *waiting != number);
        assert_eq!(removed, self.waiting.len() < before, "entry {number}");
        removed
    }

    fn earliest(&self) -> Option<u64> {
        self.waiting.first().map(|(tick, _)| *tick)
    }

    /// One step, held against the set.
    fn step(&mut self, time: u64) -> Step<usize> {
        let hand = self.wheel.hand;
        let now = time.max(hand);
        self.now = self.now.max(time);
        let step = self.wheel.step(time);
        assert!(self.wheel.hand >= hand, "the hand went back");
        assert!(self.wheel.hand <= now, "the hand is ahead of time");
        match step {
            Step::Fired(number) => {
                let (tick, first) = self.waiting.pop_first().unwrap();
                assert_eq!(number, first);
                assert!(tick <= now, "{tick} fired at {now}");
            }
            Step::Moved => {}
            Step::Nothing => {
                assert!(self.earliest().is_none_or(|tick| tick > now));
                assert_eq!(self.wheel.hand, now);
            }
        }
        step
    }

    /// Steps until nothing is due; returns what fired.
    fn poll(&mut self, now: u64) -> Vec<usize> {
        let mut fired = Vec::new();
        let most = (self.wheel.len() * LEVELS) + 1;
        for _ in 0..most {
            match self.step(now) {
                Step::Fired(number) => fired.push(number),
                Step::Moved => {}
                Step::Nothing => {
                    self.check_next();
                    return fired;
                }
            }
        }
        panic!("not done after {most} steps");
    }

    fn check_next(&self) {
        assert_eq!(self.wheel.len(), self.waiting.len());
        assert_eq!(self.wheel.is_empty(), self.waiting.is_empty());
        let bound = self.wheel.next(0);
        let exact = self.wheel.next(usize::MAX);
        assert_eq!(bound.is_some(), self.earliest().is_some());
        assert!(bound <= self.earliest(), "{bound:?}");
        if self.wheel.spreading == 0 {
            assert_eq!(exact, self.earliest());
            assert!(bound >= Some(self.wheel.hand) || bound.is_none());
        } else {
            assert_eq!(exact, Some(self.wheel.hand));
        }
    }

    /// W2 and W3, and that all links have a way back.
    fn check_places(&self) {
        let wheel = &self.wheel;
        let spread = Place::of(wheel.hand, wheel.spreading);
        let mut seen = 0;
        for level in 0..LEVELS as u8 {
            for slot in 0..SLOTS as u8 {
                let here = Place { level, slot };
                let bit = wheel.occupied[usize::from(level)] >> slot & 1;
                let mut before: Option<Link<usize>> = None;
                let mut at = wheel.slot(here).head;
                assert_eq!(bit == 1, at.is_some(), "{here:?}");
                while let Some(entry) = at {
                    let tick = wheel.tick(&entry);
                    let home = Place::of(tick, wheel.level(tick));
                    assert!(here == home || (wheel.spreading > 0 && here == spread));
                    assert_eq!(entry.place.get(), Some(here));
                    assert_eq!(entry.prev.get().map(|l| l.0), before.map(|l| l.0));
                    before = Some(entry);
                    at = entry.next.get();
                    seen += 1;
                }
                assert_eq!(
                    wheel.slot(here).tail.map(|l| l.0),
                    before.map(|l| l.0),
                    "{here:?}"
                );
            }
        }
        assert_eq!(seen, wheel.len());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for entry in &self.entries {
            // SAFETY: a world has one wheel.
            unsafe { self.wheel.remove(entry) };
        }
    }
}

/// Ticks beside every power of `SLOTS`, and both ends.
fn boundaries() -> Vec<u64> {
    let powers = (0..LEVELS as u32).map(|level| 1u64 << (DIGIT * level));
    let mut ticks: Vec<u64> = powers.flat_map(|tick| [tick - 1, tick, tick + 1]).collect();
    ticks.extend([u64::MAX - 1, u64::MAX]);
    ticks.dedup();
    ticks
}

/// How time passes.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// In steps of this size, from a little before each deadline.
    Steps(u64),
    /// All at once.
    Jump,
    /// From one `next` with this look to the next.
    Sleep(usize),
}

fn let_pass(mut world: World, pace: Pace) {
    let mut now = world.now;
    let mut in_vain = 0;
    while let Some(earliest) = world.earliest() {
        now = match pace {
            Pace::Jump => u64::MAX,
            Pace::Sleep(look) => world.wheel.next(look).unwrap(),
            Pace::Steps(size) => {
                let near = earliest.saturating_sub(2 * size + 1);
                near.max(now.saturating_add(size))
            }
        };
        match (world.poll(now).is_empty(), pace) {
            (false, _) => in_vain = 0,
            (true, Pace::Sleep(look)) => {
                assert!(look < 2, "woke up to spread, though it had looked");
                in_vain += 1;
                assert!(in_vain < LEVELS);
            }
            (true, Pace::Steps(_)) => {}
            (true, Pace::Jump) => panic!("nothing fired at the end of time"),
        }
    }
}

#[test]
fn one_or_two_entries_beside_any_boundary_fire_when_due() {
    let ticks = boundaries();
    let paces = [1, 63, 64, 65].map(Pace::Steps).into_iter().chain([
        Pace::Jump,
        Pace::Sleep(0),
        Pace::Sleep(2),
    ]);
    for pace in paces {
        for &start in &ticks {
            for (i, &one) in ticks.iter().enumerate() {
                let mut world = World::new(start);
                world.insert(one);
                let_pass(world, pace);
                for &two in &ticks[..=i] {
                    let mut world = World::new(start);
                    world.insert(one);
                    world.insert(two);
                    let_pass(world, pace);
                }
            }
        }
    }
}

#[test]
fn an_entry_at_every_tick_fires_at_its_tick() {
    const SPAN: u64 = 4_200; // more than two levels
    for start in [0, 4_095, 262_143, (1 << 36) - 2_000, u64::MAX - SPAN] {
        for size in [1, 63, 64, 65, 4_095, 4_097] {
            let mut world = World::new(start);
            for n in 0..SPAN {
                world.insert(start + n * 1_009 % SPAN); // a prime: every tick once, in no order
            }
            world.check_places();
            let mut fired = 0;
            let mut now = start;
            while !world.wheel.is_empty() {
                fired += world.poll(now).len() as u64;
                assert_eq!(fired, (now - start + 1).min(SPAN));
                now = now.saturating_add(size);
            }
        }
    }
}

#[test]
fn entries_of_one_tick_fire_in_order_of_insertion() {
    let when = 5 * 4_096 + 7 * 64 + 9;
    let mut world = World::new(0);
    let mut expected = Vec::new();
    // From far, from near, from its own block, and when it is there.
    for now in [0, 4 * 4_096, 5 * 4_096 + 1, when - 3, when - 1] {
        assert!(world.poll(now).is_empty());
        expected.push(world.insert(when));
        world.insert(when + 1);
        expected.push(world.insert(when));
    }
    assert_eq!(world.poll(when), expected);
}

#[test]
fn a_late_entry_fires_at_once_but_behind_what_is_due_already() {
    let mut world = World::new(1_000);
    let (a, b, c) = (
        world.insert(2_000),
        world.insert(2_000),
        world.insert(2_001),
    );
    // The first of two fires; the hand stays at their tick.
    while world.step(3_000) != Step::Fired(a) {}
    let late = world.insert(5);
    assert_eq!(world.poll(3_000), [b, late, c]);
    let late = world.insert(5);
    assert_eq!(world.wheel.next(0), Some(3_000));
    assert_eq!(world.poll(3_000), [late]);
}

#[test]
fn order_holds_for_entries_inserted_while_their_slot_is_spread() {
    let mut world = World::new(0);
    let slot = 2 * 4_096;
    let old: Vec<usize> = (0..4).map(|_| world.insert(slot + 70)).collect();
    assert_eq!(world.step(slot + 100), Step::Moved);
    assert_eq!(world.step(slot + 100), Step::Moved);
    assert_eq!(world.wheel.next(0), Some(slot), "there is work to do");
    let same = world.insert(slot + 70);
    let earlier = world.insert(slot + 1);
    let late = world.insert(3);
    let beyond = world.insert(3 * 4_096);
    world.check_places();
    let mut expected = vec![late, earlier];
    expected.extend(old);
    expected.push(same);
    assert_eq!(world.poll(slot + 100), expected);
    assert_eq!(world.poll(3 * 4_096), [beyond]);
}

#[test]
fn removing_the_rest_of_a_slot_ends_its_spreading() {
    let mut world = World::new(0);
    let (first, second) = (world.insert(130), world.insert(140));
    assert_eq!(world.step(128), Step::Moved);
    assert!(world.remove(second));
    assert_eq!(world.wheel.next(0), Some(130));
    world.check_places();
    assert_eq!(world.poll(130), [first]);
}

#[test]
fn an_entry_can_be_removed_once_from_any_position() {
    for gone in 0..3 {
        let mut world = World::new(10);
        (0..3).for_each(|_| _ = world.insert(500));
        assert!(world.remove(gone));
        assert!(!world.remove(gone));
        world.check_places();
        let kept: Vec<usize> = (0..3).filter(|n| *n != gone).collect();
        assert_eq!(world.poll(500), kept);
        assert!(!world.remove(kept[0]), "it has fired");
    }
}

#[test]
fn an_entry_that_fired_may_be_inserted_again() {
    let mut world = World::new(0);
    let entry = world.insert(100);
    for now in [100, 100, 200] {
        assert_eq!(world.poll(now), [entry]);
        world.insert_again(entry);
    }
    assert!(world.remove(entry));
    assert!(world.wheel.is_empty());
}

#[test]
fn time_that_goes_back_changes_nothing() {
    let mut world = World::new(5_000);
    let (due, later) = (world.insert(5_100), world.insert(5_200));
    assert!(world.poll(5_050).is_empty());
    assert!(world.poll(0).is_empty());
    assert_eq!(world.wheel.next(8), Some(5_100));
    // Halfway through what was due at a time that has been.
    while world.step(5_100) == Step::Moved {}
    assert!(!world.remove(due));
    let late = world.insert(5_090);
    assert_eq!(world.poll(0), [late]);
    assert_eq!(world.poll(5_200), [later]);
}

#[test]
fn an_entry_moves_less_often_than_there_are_levels() {
    for level in 0..LEVELS as u32 {
        // A one in each digit up to this one: spread at every level below.
        let when = (0..=level).map(|digit| 1u64 << (DIGIT * digit)).sum();
        let mut world = World::new(0);
        world.insert(when);
        let mut moves = 0;
        while world.step(u64::MAX) == Step::Moved {
            moves += 1;
        }
        assert_eq!(moves, level);
    }
}

#[test]
fn a_jump_over_all_time_costs_no_more_than_the_entries_there_are() {
    let mut world = World::new(0);
    for when in boundaries() {
        world.insert(when);
    }
    let (mut steps, entries) = (1, world.wheel.len());
    while world.step(u64::MAX) != Step::Nothing {
        steps += 1;
    }
    assert!(
        steps <= entries * LEVELS,
        "{steps} steps, {entries} entries"
    );
    let mut empty = World::new(0);
    assert_eq!(empty.step(u64::MAX), Step::Nothing);
}

#[test]
fn a_look_into_a_crowded_slot_is_cut_short() {
    let mut world = World::new(0);
    for when in [4_099, 4_098, 4_097] {
        world.insert(when);
    }
    assert_eq!(world.wheel.next(3), Some(4_097));
    assert_eq!(world.wheel.next(2), Some(4_096));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "remove it first")]
fn an_entry_that_dies_in_the_wheel_is_reported() {
    let mut wheel = Wheel::new(0);
    let entry = Entry::new(7, ());
    // SAFETY: none; the promise is broken, and nothing touches the wheel afterwards.
    unsafe { wheel.insert(&entry) };
    drop(entry);
}

#[derive(Clone, Debug)]
enum Act {
    InsertAfter(u64),
    InsertBefore(u64),
    /// For the same time as an earlier entry.
    InsertBeside(prop::sample::Index),
    Remove(prop::sample::Index),
    /// Let this much time pass, and do so many steps.
    Steps(u64, usize),
    /// Let this much time pass, and do all there is to do.
    Poll(u64),
    PollAtNext(usize),
    GoBack(u64),
}

/// Distances of every order of magnitude, near boundaries or not.
fn distance() -> impl Strategy<Value = u64> {
    let near_a_power = (0..LEVELS as u32, 1..SLOTS as u64, -2i64..=2)
        .prop_map(|(level, digit, more)| (digit << (DIGIT * level)).saturating_add_signed(more));
    let of_any_size = (any::<u64>(), 0..u64::BITS).prop_map(|(value, shift)| value >> shift);
    prop_oneof![4 => near_a_power, 2 => of_any_size, 4 => 0u64..200]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => distance().prop_map(Act::InsertAfter),
        1 => distance().prop_map(Act::InsertBefore),
        3 => any::<prop::sample::Index>().prop_map(Act::InsertBeside),
        3 => any::<prop::sample::Index>().prop_map(Act::Remove),
        4 => (distance(), 0usize..12).prop_map(|(time, steps)| Act::Steps(time, steps)),
        1 => distance().prop_map(Act::Poll),
        2 => (0usize..4).prop_map(Act::PollAtNext),
        1 => distance().prop_map(Act::GoBack),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        distance(),
        any::<u64>(),
        distance().prop_map(|left| u64::MAX - left)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_does_what_a_sorted_set_does(start in start(), acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new(start);
        for act in acts {
            let count = world.entries.len();
            match act {
                Act::InsertAfter(time) => _ = world.insert(world.now.saturating_add(time)),
                Act::InsertBefore(time) => _ = world.insert(world.now.saturating_sub(time)),
                Act::InsertBeside(_) | Act::Remove(_) if count == 0 => {}
                Act::InsertBeside(which) => {
                    let when = world.entries[which.index(count)].when;
                    world.insert(when);
                }
                Act::Remove(which) => _ = world.remove(which.index(count)),
                Act::Steps(time, steps) => {
                    let now = world.now.saturating_add(time);
                    for _ in 0..steps {
                        if world.step(now) == Step::Nothing {
                            break;
                        }
                    }
                }
                Act::Poll(time) => _ = world.poll(world.now.saturating_add(time)),
                Act::PollAtNext(look) => {
                    let next = world.wheel.next(look);
                    _ = world.poll(next.unwrap_or(world.now));
                }
                Act::GoBack(time) => _ = world.poll(world.now.saturating_sub(time)),
            }
            world.check_next();
            world.check_places();
        }
        world.poll(u64::MAX);
        prop_assert!(world.wheel.is_empty());
    }
}
