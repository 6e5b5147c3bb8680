//! Thread-locals that are reached in ways a reader of machine code may overlook.
//!
//! The ways: through data that refers to data, from the end of a table or before its beginning,
//! through the compiled form of a `match`, by destructors and formatters that only a vtable names,
//! or by a frame that no longer exists because it ended with a jump. All bound, in every profile.

use std::cell::Cell;
use std::fmt;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::locals::by_thread;
use super::{BOUND, table};
use crate::Probe;

table! {
    hidden_in_nested_tables: BOUND;
    hidden_in_a_named_table: BOUND;
    hidden_in_a_table_read_backwards: BOUND;
    hidden_before_a_table: BOUND;
    hidden_in_an_array_on_the_stack: BOUND;
    hidden_in_a_match_of_functions: BOUND;
    hidden_in_a_match_of_objects: BOUND;
    hidden_in_a_match_of_tables: BOUND;
    hidden_in_a_static_object: BOUND;
    hidden_beside_a_counter: BOUND;
    hidden_in_a_table_of_variables: BOUND;
    hidden_in_a_tail_call: BOUND;
    hidden_by_a_frame_that_is_gone: BOUND;
    hidden_by_two_frames_that_are_gone: BOUND;
    hidden_by_a_gone_frame_with_a_table: BOUND;
    hidden_in_a_cold_call: BOUND;
    hidden_in_a_formatter: BOUND;
    hidden_in_a_destructor: BOUND;
    hidden_in_a_caught_closure: BOUND;
    hidden_in_a_comparator: BOUND;
    hidden_in_an_iterator: BOUND;
    hidden_in_a_generic: BOUND;
}

type Number = fn(u64) -> u64;

macro_rules! plain_functions {
    ($($name:ident $by:literal),*) => {
        $(#[inline(never)]
        fn $name(n: u64) -> u64 {
            n.rotate_left($by)
        })*
    };
}
plain_functions!(turn_one 1, turn_two 2, turn_three 3, turn_four 4, turn_five 5);

/// Calls it before and after the park; on one thread it returns the same.
fn stays(probe: &Probe, number: impl Fn(u64) -> u64) -> bool {
    let before = number(probe.seed);
    probe.park();
    number(probe.seed) == before
}

static INNER: [Number; 2] = [turn_one, by_thread];
static OTHER: [Number; 2] = [turn_two, turn_three];
static OUTER: [&[Number; 2]; 2] = [&OTHER, &INNER];

fn hidden_in_nested_tables(probe: &Probe) -> bool {
    stays(probe, black_box(&OUTER)[black_box(1)][black_box(1)])
}

static NAMED: [(&str, Number); 4] = [
    ("one", turn_one),
    ("two", turn_two),
    ("thread", by_thread),
    ("five", turn_five),
];

fn hidden_in_a_named_table(probe: &Probe) -> bool {
    let name = black_box("thread");
    let entry = NAMED.iter().find(|(key, _)| *key == name);
    entry.is_some_and(|(_, number)| stays(probe, number))
}

static BACKWARDS: [(u64, Number); 4] = [
    (1, by_thread),
    (2, turn_two),
    (3, turn_three),
    (4, turn_four),
];

/// May begin with the address of the end.
fn hidden_in_a_table_read_backwards(probe: &Probe) -> bool {
    let least = black_box(1);
    let entry = BACKWARDS.iter().rev().find(|(key, _)| *key <= least);
    entry.is_some_and(|(_, number)| stays(probe, number))
}

static SHIFTED: [Number; 4] = [turn_one, by_thread, turn_two, turn_three];

/// May fold the distance into the address of the table.
fn hidden_before_a_table(probe: &Probe) -> bool {
    let index: usize = black_box(1001);
    stays(probe, SHIFTED[index - 1000])
}

fn hidden_in_an_array_on_the_stack(probe: &Probe) -> bool {
    let table: [Number; 5] = [turn_one, turn_two, turn_three, by_thread, turn_four];
    stays(probe, black_box(table)[black_box(3)])
}

/// Becomes a table of addresses, or of distances.
fn hidden_in_a_match_of_functions(probe: &Probe) -> bool {
    let number: Number = match black_box(3) {
        0 => turn_one,
        1 => turn_two,
        2 => turn_three,
        3 => by_thread,
        4 => turn_four,
        _ => turn_five,
    };
    stays(probe, number)
}

trait Source: Sync {
    fn number(&self, n: u64) -> u64;
}

macro_rules! sources {
    ($($name:ident by $number:path),*) => {
        $(struct $name;

        impl Source for $name {
            fn number(&self, n: u64) -> u64 {
                $number(n)
            }
        })*
    };
}
sources!(One by turn_one, Two by turn_two, Three by turn_three, Mine by by_thread, Five by turn_five);

/// The same with vtables.
fn hidden_in_a_match_of_objects(probe: &Probe) -> bool {
    let source: &dyn Source = match black_box(3) {
        0 => &One,
        1 => &Two,
        2 => &Three,
        3 => &Mine,
        _ => &Five,
    };
    stays(probe, |n| source.number(n))
}

static FIRST: [Number; 2] = [turn_one, turn_two];
static SECOND: [Number; 2] = [turn_three, by_thread];
static THIRD: [Number; 2] = [turn_four, turn_five];
static FOURTH: [Number; 2] = [turn_two, turn_five];

/// The same with tables.
fn hidden_in_a_match_of_tables(probe: &Probe) -> bool {
    let table: &[Number; 2] = match black_box(1) {
        0 => &FIRST,
        1 => &SECOND,
        2 => &THIRD,
        _ => &FOURTH,
    };
    stays(probe, table[black_box(1)])
}

static OBJECT: &dyn Source = &Mine;

fn hidden_in_a_static_object(probe: &Probe) -> bool {
    let object = *black_box(&OBJECT);
    stays(probe, |n| object.number(n))
}

struct Counted {
    calls: AtomicU64,
    number: Number,
}

/// Not constant, because of the counter.
static COUNTED: Counted = Counted {
    calls: AtomicU64::new(0),
    number: by_thread,
};

fn hidden_beside_a_counter(probe: &Probe) -> bool {
    let counted = black_box(&COUNTED);
    stays(probe, |n| {
        counted.calls.fetch_add(1, Relaxed);
        (counted.number)(n)
    })
}

static MANY: [(AtomicU64, &[Number; 2]); 2] =
    [(AtomicU64::new(1), &OTHER), (AtomicU64::new(2), &INNER)];

/// A variable that leads to a constant that leads to the function.
fn hidden_in_a_table_of_variables(probe: &Probe) -> bool {
    let key = black_box(2);
    let entry = MANY.iter().find(|entry| entry.0.load(Relaxed) == key);
    entry.is_some_and(|entry| stays(probe, entry.1[black_box(1)]))
}

#[inline(never)]
fn ends_with_another(n: u64) -> u64 {
    by_thread(black_box(n))
}

fn hidden_in_a_tail_call(probe: &Probe) -> bool {
    stays(probe, ends_with_another)
}

thread_local! {
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// Touches no thread-local itself.
#[inline(never)]
fn hold(number: &Cell<u64>, probe: &Probe) -> bool {
    number.set(probe.seed);
    probe.park();
    number.get() == probe.seed
}

/// Optimized, it jumps to `hold` with the address, and its own frame is gone.
fn hidden_by_a_frame_that_is_gone(probe: &Probe) -> bool {
    HELD.with(|number| hold(number, probe))
}

#[inline(never)]
fn hold_by(key: &'static std::thread::LocalKey<Cell<u64>>, probe: &Probe) -> bool {
    black_box(key).with(|number| hold(number, probe))
}

/// The same twice over.
fn hidden_by_two_frames_that_are_gone(probe: &Probe) -> bool {
    hold_by(&HELD, probe)
}

#[inline(never)]
fn stays_by(table: &'static [Number; 2], probe: &Probe) -> bool {
    stays(probe, table[black_box(1)])
}

/// Gives the next function a table to call by, and is gone.
fn hidden_by_a_gone_frame_with_a_table(probe: &Probe) -> bool {
    stays_by(black_box(&INNER), probe)
}

#[cold]
#[inline(never)]
fn seldom(n: u64) -> u64 {
    by_thread(n) ^ 1
}

fn hidden_in_a_cold_call(probe: &Probe) -> bool {
    stays(probe, |n| if black_box(n) == 0 { n } else { seldom(n) })
}

struct Shown(u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", by_thread(self.0))
    }
}

fn hidden_in_a_formatter(probe: &Probe) -> bool {
    let before = format!("{:>4}", Shown(probe.seed));
    probe.park();
    before == format!("{:>4}", Shown(probe.seed))
}

struct Notes<'a>(&'a Cell<u64>);

impl Drop for Notes<'_> {
    fn drop(&mut self) {
        self.0.set(by_thread(self.0.get()));
    }
}

trait Nothing {}
impl Nothing for Notes<'_> {}

fn hidden_in_a_destructor(probe: &Probe) -> bool {
    let note = |cell: &Cell<u64>| {
        let boxed: Box<dyn Nothing + '_> = Box::new(Notes(cell));
        drop(black_box(boxed));
    };
    let (one, other) = (Cell::new(probe.seed), Cell::new(probe.seed));
    note(&one);
    probe.park();
    note(&other);
    one == other
}

fn hidden_in_a_caught_closure(probe: &Probe) -> bool {
    stays(probe, |n| {
        catch_unwind(|| by_thread(black_box(n))).unwrap_or(0)
    })
}

fn hidden_in_a_comparator(probe: &Probe) -> bool {
    let sum = Cell::new(0);
    let compare = |a: &u64, b: &u64| {
        sum.set(by_thread(*a));
        a.cmp(b)
    };
    let mut numbers = [3, 1, 2].map(black_box);
    numbers.sort_by(compare);
    probe.park();
    numbers == [1, 2, 3] && sum.get() == by_thread(black_box(sum.get() ^ by_thread(0)))
}

fn hidden_in_an_iterator(probe: &Probe) -> bool {
    let numbers = |seed: u64| -> Box<dyn Iterator<Item = u64>> {
        black_box(Box::new((0..3).map(move |i| by_thread(i ^ seed))))
    };
    let before: u64 = numbers(probe.seed).fold(0, |sum, n| sum ^ n);
    probe.park();
    before == numbers(probe.seed).fold(0, |sum, n| sum ^ n)
}

/// Instances of one generic function are different functions.
fn hidden_in_a_generic(probe: &Probe) -> bool {
    #[inline(never)]
    fn apply<F: Fn(u64) -> u64>(f: F, n: u64) -> u64 {
        f(black_box(n))
    }
    let plain = apply(turn_one, probe.seed);
    let before = apply(by_thread, probe.seed);
    probe.park();
    plain == apply(turn_one, probe.seed) && before == apply(by_thread, probe.seed)
}
