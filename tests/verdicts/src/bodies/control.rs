//! Control flow over a park: calls through pointers, recursion, destructors, panics.
//!
//! None of it belongs to a thread, except unwinding.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{BOUND, MOVABLE, each, table};
use crate::Probe;

table! {
    nothing_held: MOVABLE;
    dyn_trait_called: MOVABLE;
    table_of_functions: MOVABLE;
    boxed_closures: MOVABLE;
    state_machine: MOVABLE;
    large_aligned_array: MOVABLE;
    recursion_twenty_deep: MOVABLE;
    iterator_chain: MOVABLE;
    destructor_parks: MOVABLE;
    panic_caught_around_a_park: each("MMMBB");
    question_mark_with_boxed_error: MOVABLE;
    unwinding_destructor_parks: BOUND;
}

fn nothing_held(probe: &Probe) -> bool {
    probe.park();
    true
}

trait Shape {
    fn area(&self, probe: &Probe) -> u64;
}

struct Square(u64);
struct Rectangle(u64, u64);

impl Shape for Square {
    fn area(&self, probe: &Probe) -> u64 {
        probe.park();
        self.0 * self.0
    }
}

impl Shape for Rectangle {
    fn area(&self, probe: &Probe) -> u64 {
        probe.park();
        self.0 * self.1
    }
}

fn dyn_trait_called(probe: &Probe) -> bool {
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Square(3)), Box::new(Rectangle(2, 5))];
    let areas: Vec<u64> = black_box(&shapes).iter().map(|s| s.area(probe)).collect();
    areas == [9, 10]
}

fn double(n: u64) -> u64 {
    n.wrapping_mul(2)
}

fn flip(n: u64) -> u64 {
    !n
}

static OPERATIONS: [fn(u64) -> u64; 2] = [double, flip];

fn table_of_functions(probe: &Probe) -> bool {
    let operation = black_box(&OPERATIONS)[(probe.seed % 2) as usize];
    let before = operation(probe.seed);
    probe.park();
    before == operation(probe.seed)
}

fn boxed_closures(probe: &Probe) -> bool {
    let seed = probe.seed;
    let closures: Vec<Box<dyn Fn(u64) -> u64>> =
        vec![Box::new(move |n| n ^ seed), Box::new(move |n| n & seed)];
    let before: Vec<u64> = black_box(&closures).iter().map(|f| f(77)).collect();
    probe.park();
    before == [77 ^ seed, 77 & seed]
}

enum Step {
    Begin,
    Middle(u64),
    End(u64),
}

fn state_machine(probe: &Probe) -> bool {
    let mut step = Step::Begin;
    loop {
        step = match black_box(step) {
            Step::Begin => Step::Middle(probe.seed),
            Step::Middle(n) => {
                probe.park();
                Step::End(n ^ 1)
            }
            Step::End(n) => return n ^ 1 == probe.seed,
        }
    }
}

#[repr(align(64))]
struct Aligned([u64; 1024]);

/// A frame of eight kilobytes whose size is not known from its stack pointer alone.
fn large_aligned_array(probe: &Probe) -> bool {
    let mut array = Aligned([probe.seed; 1024]);
    black_box(&mut array).0[7] = 1;
    probe.park();
    let address = black_box(&raw const array) as usize;
    address.is_multiple_of(64) && array.0[7] == 1 && array.0[1023] == probe.seed
}

fn recursion_twenty_deep(probe: &Probe) -> bool {
    fn go(probe: &Probe, depth: u64) -> u64 {
        if depth == 0 {
            probe.park();
            return 0;
        }
        black_box(depth) + go(probe, depth - 1)
    }
    go(probe, 20) == 210
}

fn iterator_chain(probe: &Probe) -> bool {
    let sum: u64 = (0..8u64)
        .filter(|i| i % 2 == 0)
        .inspect(|i| {
            if *i == 4 {
                probe.park();
            }
        })
        .sum();
    sum == 12
}

struct ParksAtEnd<'a>(&'a Probe, &'a mut u64);

impl Drop for ParksAtEnd<'_> {
    fn drop(&mut self) {
        self.0.park();
        *self.1 += 1;
    }
}

fn destructor_parks(probe: &Probe) -> bool {
    let mut ended = 0;
    drop(ParksAtEnd(probe, &mut ended));
    ended == 1
}

/// Catching decrements the panic count, in a thread-local that always belongs to the present
/// thread.
///
/// A fiber that has caught is not unwinding any more.
fn panic_caught_around_a_park(probe: &Probe) -> bool {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        probe.park();
        resume_unwind(Box::new(probe.seed));
    }));
    probe.park();
    caught.is_err_and(|payload| payload.downcast_ref() == Some(&probe.seed))
}

fn question_mark_with_boxed_error(probe: &Probe) -> bool {
    let parse = |text: &str| -> Result<u64, Box<dyn std::error::Error>> {
        let number = text.parse()?;
        probe.park();
        Ok(number)
    };
    parse(black_box("12")).is_ok_and(|n| n == 12) && parse(black_box("x")).is_err()
}

/// Its frames show nothing: a landing pad runs in the frame that has it.
///
/// But the thread counts a panic, so a fiber that unwinds is bound (S3).
fn unwinding_destructor_parks(probe: &Probe) -> bool {
    let mut ended = 0;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _parks = ParksAtEnd(probe, &mut ended);
        resume_unwind(Box::new(()));
    }));
    caught.is_err() && ended == 1
}
