//! Thread-locals of this crate, in every form in which a frame may hold on to one.
//!
//! All must be bound: the analysis does not know what they mean to the code that declared them.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;

use super::{BOUND, MOVABLE, each, table};
use crate::Probe;

table! {
    const_local_around_a_park: BOUND;
    lazy_local_around_a_park: BOUND;
    cell_set_before_and_after: BOUND;
    borrowed_over_a_park: BOUND;
    read_changed_written: BOUND;
    saved_and_restored: BOUND;
    read_once_and_over: each("BOOOO");
    shared_rc_out_of_a_local: BOUND;
    local_by_table_of_functions: BOUND;
    local_by_middle_of_a_table: BOUND;
    local_by_boxed_closure: BOUND;
    local_by_dyn_trait: BOUND;
    local_in_destructor: BOUND;
    local_in_another_frame: BOUND;
    local_behind_a_pointer: MOVABLE;
    local_held_behind_a_pointer: MOVABLE, unlawful;
}

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static LAZY: Cell<u64> = Cell::new(first_number());
    static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static SHARED: Rc<Cell<u64>> = Rc::new(Cell::new(0));
    static MARK: u8 = const { 0 };
}

fn first_number() -> u64 {
    u64::from(std::process::id())
}

fn const_local_around_a_park(probe: &Probe) -> bool {
    NUMBER.with(|number| {
        number.set(probe.seed);
        probe.park();
        number.get() == probe.seed
    })
}

fn lazy_local_around_a_park(probe: &Probe) -> bool {
    LAZY.with(|number| {
        number.set(probe.seed);
        probe.park();
        number.get() == probe.seed
    })
}

/// Optimized, the address stays in a register over the park.
fn cell_set_before_and_after(probe: &Probe) -> bool {
    NUMBER.set(1);
    probe.park();
    let before = NUMBER.replace(2);
    before == 1
}

/// Optimized, this frame no longer exists when the fiber parks.
///
/// `LocalKey::with` was jumped to, and reaches the thread-local through a pointer that it was
/// given. The caller called this by a pointer, too.
fn borrowed_over_a_park(probe: &Probe) -> bool {
    LIST.with_borrow_mut(|list| {
        list.push(probe.seed);
        probe.park();
        list.pop() == Some(probe.seed) && list.is_empty()
    })
}

/// Makes an update that is lost if another fiber on the thread does the same meanwhile.
fn read_changed_written(probe: &Probe) -> bool {
    let before = NUMBER.get();
    probe.park();
    let undisturbed = NUMBER.get() == before;
    NUMBER.set(before.wrapping_add(1));
    undisturbed
}

/// Does what crates do that keep a context for a callback.
fn saved_and_restored(probe: &Probe) -> bool {
    let outer = CURRENT.replace(probe.seed);
    probe.park();
    let inner = CURRENT.replace(outer);
    inner == probe.seed && outer == 0
}

#[inline(never)]
fn next_number() -> u64 {
    let next = LAZY.get().wrapping_add(1);
    LAZY.set(next);
    next
}

/// Nothing of it is left, but the analysis cannot know: `next_number` might have returned an
/// address.
fn read_once_and_over(probe: &Probe) -> bool {
    let number = next_number();
    probe.park();
    black_box(number) == number
}

/// Counted without atomics, so two threads must not count at once.
fn shared_rc_out_of_a_local(probe: &Probe) -> bool {
    let mine = SHARED.with(Rc::clone);
    mine.set(mine.get().wrapping_add(1));
    let before = Rc::strong_count(&mine);
    probe.park();
    SHARED.with(|shared| Rc::ptr_eq(shared, &mine)) && Rc::strong_count(&mine) == before
}

/// Returns a number that stays the same on one thread and differs between threads.
///
/// Without the black box the compiler knows that it stays the same, and two of them are never
/// compared.
pub fn by_thread(salt: u64) -> u64 {
    MARK.with(|mark| black_box(mark as *const u8 as u64)) ^ salt
}

fn plainly(salt: u64) -> u64 {
    salt
}

type Number = fn(u64) -> u64;

static BY_TABLE: [Number; 4] = [plainly, plainly, by_thread, plainly];

fn local_by_table_of_functions(probe: &Probe) -> bool {
    let number = black_box(&BY_TABLE)[black_box(2)];
    let before = number(probe.seed);
    probe.park();
    number(probe.seed) == before
}

static LONG_TABLE: [(u64, Number); 5] = [
    (1, plainly),
    (2, by_thread),
    (3, plainly),
    (4, plainly),
    (5, plainly),
];

/// Refers to an entry in the middle, and gets at another one from there.
fn local_by_middle_of_a_table(probe: &Probe) -> bool {
    let at = |index: usize| LONG_TABLE[2 + index - 1].1;
    let number = at(black_box(0));
    let before = number(probe.seed);
    probe.park();
    number(probe.seed) == before
}

fn local_by_boxed_closure(probe: &Probe) -> bool {
    let seed = probe.seed;
    let closures: [Box<dyn Fn() -> u64>; 2] =
        [Box::new(move || seed), Box::new(move || by_thread(seed))];
    let closures = black_box(closures);
    let before = closures[1]();
    probe.park();
    closures[1]() == before && closures[0]() == seed
}

trait Source {
    fn number(&self) -> u64;
}

struct Thread(u64);

impl Source for Thread {
    fn number(&self) -> u64 {
        by_thread(self.0)
    }
}

fn local_by_dyn_trait(probe: &Probe) -> bool {
    let source: Box<dyn Source> = black_box(Box::new(Thread(probe.seed)));
    let before = source.number();
    probe.park();
    source.number() == before
}

struct Restores(u64);

impl Drop for Restores {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

fn local_in_destructor(probe: &Probe) -> bool {
    let _restores = Restores(CURRENT.replace(probe.seed));
    probe.park();
    CURRENT.get() == probe.seed
}

#[inline(never)]
fn park_in_the_middle(probe: &Probe) {
    probe.park();
}

/// The frame that parks is movable; its caller is not.
fn local_in_another_frame(probe: &Probe) -> bool {
    NUMBER.set(probe.seed);
    park_in_the_middle(probe);
    NUMBER.get() == probe.seed
}

/// The analysis does not see a call through writable memory.
///
/// It may touch anything, as long as nothing of it is left when it returns: the rule for users.
fn local_behind_a_pointer(probe: &Probe) -> bool {
    let numbers: Vec<u64> = probe.kit.closures.iter().map(|f| f(probe.seed)).collect();
    probe.park();
    numbers.len() == 2 && numbers[0] == probe.seed
}

/// Breaks that rule: here a move shows, and the runtime cannot know.
fn local_held_behind_a_pointer(probe: &Probe) -> bool {
    let before = (probe.kit.hidden)(probe.seed);
    probe.park();
    (probe.kit.hidden)(probe.seed) == before
}
