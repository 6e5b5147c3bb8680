//! Tables that look like something else: entries like locations, like vtables. In a program of
//! their own, for whatever happens to lie beside such a table may count as a part of it.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use Mobility::{Bound, Movable};
use indent_sysmon::frames::{self, Judge, Mobility};

thread_local!(static CONSTANT: Cell<u32> = const { Cell::new(0) });

/// Reads the code of this program. What its tables lead to is to be found by their contents alone.
#[expect(unsafe_code, reason = "vouches for calls through pointers")]
fn survey() -> Judge {
    // SAFETY: no stack of this program goes to another thread.
    unsafe { frames::trust_pointers() };
    Judge::survey()
}

fn adds() -> u32 {
    black_box(1) + 1
}
fn counts() -> u32 {
    CONSTANT.replace(black_box(7))
}

/// Looks like a location, and goes on.
struct CodeLocation {
    file: &'static str,
    line: u32,
    column: u32,
}
struct Case {
    place: CodeLocation,
    run: fn() -> u32,
}
macro_rules! case {
    ($run:expr) => {
        Case {
            place: CodeLocation {
                file: file!(),
                line: line!(),
                column: column!(),
            },
            run: $run,
        }
    };
}
static CASES: [Case; 3] = [case!(counts), case!(adds), case!(adds)];
const UNNAMED_CASES: &[Case] = &[case!(adds), case!(adds), case!(counts)];
const SECOND_CASE: &Case = &UNNAMED_CASES[1];

#[inline(never)]
fn run_all(cases: &[Case]) {
    for case in cases {
        let place = &case.place;
        black_box((place.file, place.line, place.column));
        black_box((case.run)());
    }
}
#[inline(never)]
fn runs_cases() {
    run_all(black_box(&CASES));
}
#[inline(never)]
fn runs_one_case() {
    run_all(std::slice::from_ref(black_box(&case!(counts))));
}
#[inline(never)]
fn runs_unnamed_cases() {
    run_all(black_box(UNNAMED_CASES));
}
#[inline(never)]
fn refers_to_the_second_case() {
    black_box(black_box(SECOND_CASE).place.line);
}

/// With a location that the compiler made.
struct At {
    at: std::panic::Location<'static>,
    run: fn() -> u32,
}
const LOCATED: &At = &At {
    at: *std::panic::Location::caller(),
    run: counts,
};
#[inline(never)]
fn runs_a_located_one() {
    let located = black_box(LOCATED);
    black_box(located.at);
    black_box((located.run)());
}

/// Looks like a vtable.
struct Operation {
    run: fn() -> u32,
    size: usize,
    align: usize,
}
const fn operation(run: fn() -> u32) -> Operation {
    Operation {
        run,
        size: 8,
        align: 8,
    }
}
const OPERATIONS: &[Operation] = &[operation(adds), operation(adds), operation(counts)];
const SECOND: &Operation = &OPERATIONS[1];
const THIRD: &Operation = &OPERATIONS[2];

#[inline(never)]
fn runs_operations() {
    for operation in black_box(OPERATIONS) {
        black_box((operation.size, operation.align));
        black_box((operation.run)());
    }
}
#[inline(never)]
fn refers_to_operations() {
    black_box((black_box(SECOND).size, black_box(THIRD).size));
}

#[test]
fn what_looks_like_something_else_is_not_cut_in_two() {
    let judge = survey();
    refers_to_operations();
    refers_to_the_second_case();
    assert_eq!(judge.mobility(runs_cases as fn() as usize), Bound);
    assert_eq!(judge.mobility(runs_one_case as fn() as usize), Bound);
    assert_eq!(judge.mobility(runs_unnamed_cases as fn() as usize), Bound);
    assert_eq!(judge.mobility(runs_a_located_one as fn() as usize), Bound);
    assert_eq!(judge.mobility(runs_operations as fn() as usize), Bound);
}

/// A table in a section of its own, which linkers make writable.
#[expect(unsafe_code, reason = "a section of its own")]
// SAFETY: nothing else is in that section.
#[unsafe(link_section = "some_table")]
static SECTIONED: [fn() -> u32; 2] = [adds, counts];
#[expect(unsafe_code, reason = "a section of its own")]
// SAFETY: the same.
#[unsafe(link_section = "another_table")]
static FIRST: fn() -> u32 = adds;
#[expect(unsafe_code, reason = "a section of its own")]
// SAFETY: the same.
#[used]
#[unsafe(link_section = "another_table")]
static LAST: fn() -> u32 = counts;

/// Constant but for its counter.
struct Registered {
    used: AtomicU32,
    run: fn() -> u32,
}
static REGISTERED: Registered = Registered {
    used: AtomicU32::new(0),
    run: counts,
};
static PLAIN: Registered = Registered {
    used: AtomicU32::new(0),
    run: adds,
};

#[inline(never)]
fn runs_a_section() {
    black_box(SECTIONED[black_box(0)]());
}
#[inline(never)]
fn begins_with_the_first_of_a_section() {
    black_box(black_box(&FIRST)());
}
#[inline(never)]
fn runs_what_is_registered() {
    let registered = black_box(&REGISTERED);
    registered.used.fetch_add(1, Relaxed);
    black_box((registered.run)());
}
#[inline(never)]
fn runs_what_is_plain() {
    let registered = black_box(&PLAIN);
    registered.used.fetch_add(1, Relaxed);
    black_box((registered.run)());
}

#[test]
fn functions_in_the_first_contents_of_variables_count() {
    let judge = survey();
    let verdict = |function: fn()| judge.mobility(function as usize);
    assert_eq!(verdict(runs_a_section), Bound);
    assert_eq!(verdict(begins_with_the_first_of_a_section), Bound);
    assert_eq!(verdict(runs_what_is_registered), Bound);
    assert_eq!(verdict(runs_what_is_plain), Movable);
}
