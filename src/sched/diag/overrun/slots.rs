#![expect(unsafe_code, reason = "hands counted references from thread to thread")]
//! Slots for reports on their way from a handler to the collector.
//!
//! **I22** A slot is free, or full, or claimed by one thread. *Free* and *full* are sets
//! (`util/bitmap.rs`). A thread that claims a slot from *free* is the only one that writes to it,
//! and puts it into *full*; a thread that claims it from *full* is the only one that reads it, and
//! puts it back. A claim acquires what the put before it released. The references to records that
//! lie in a full slot are counted, and belong to the thread that claims it.
//!
//! The fields of a slot are atomic only because the compiler cannot know that.

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use indent_sysmon::frames::{Registers, Snapshot, Stack};

use crate::fiber::{FiberRef, Held, Record};
use crate::sched::diag::overrun::Kind;
use crate::util::bitmap::Bitmap;

/// Number of reports that may be on their way at once. They come milliseconds apart.
const SLOTS: usize = 16;
/// Words of a stack that are copied: the innermost frames.
const WORDS: usize = 1024;

/// Facts of an overrun besides its stack.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    /// Run time in nanoseconds; `reported` is its value at the last report.
    pub(crate) ran: u64,
    pub(crate) reported: u64,
    /// The system call it sleeps in.
    pub(crate) call: i64,
    /// Fibers that wait.
    pub(crate) interactive: usize,
    pub(crate) batch: usize,
    /// The urgent fiber that others made room for, or zero.
    pub(crate) pressed_for: u64,
}

/// A report taken out of a slot.
pub(crate) struct Captured {
    pub(crate) facts: Facts,
    pub(crate) fiber: Held,
    /// Places in the code, innermost first.
    pub(crate) frames: Vec<usize>,
}

struct Slot {
    kind: AtomicU8,
    ran: AtomicU64,
    reported: AtomicU64,
    call: AtomicI64,
    interactive: AtomicUsize,
    batch: AtomicUsize,
    pressed_for: AtomicU64,
    /// Counted, or null.
    fiber: AtomicPtr<Record>,
    /// The interrupted instruction, used if there is no stack.
    code: AtomicUsize,
    stack: Snapshot<WORDS>,
    /// Whether the stack changed while it was copied.
    torn: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            kind: AtomicU8::new(0),
            ran: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            call: AtomicI64::new(0),
            interactive: AtomicUsize::new(0),
            batch: AtomicUsize::new(0),
            pressed_for: AtomicU64::new(0),
            fiber: AtomicPtr::new(ptr::null_mut()),
            code: AtomicUsize::new(0),
            stack: Snapshot::new(),
            torn: AtomicBool::new(false),
        }
    }

    fn write(&self, facts: Facts, fiber: Held) {
        self.kind.store(facts.kind as u8, Relaxed);
        self.ran.store(facts.ran, Relaxed);
        self.reported.store(facts.reported, Relaxed);
        self.call.store(facts.call, Relaxed);
        self.interactive.store(facts.interactive, Relaxed);
        self.batch.store(facts.batch, Relaxed);
        self.pressed_for.store(facts.pressed_for, Relaxed);
        self.fiber.store(into_raw(fiber), Relaxed);
    }

    fn facts(&self) -> Facts {
        Facts {
            kind: Kind::from_number(self.kind.load(Relaxed)),
            ran: self.ran.load(Relaxed),
            reported: self.reported.load(Relaxed),
            call: self.call.load(Relaxed),
            interactive: self.interactive.load(Relaxed),
            batch: self.batch.load(Relaxed),
            pressed_for: self.pressed_for.load(Relaxed),
        }
    }
}

/// Turns a counted reference into a pointer.
fn into_raw(held: Held) -> *mut Record {
    let record = held.fiber().pointer().as_ptr();
    std::mem::forget(held);
    record
}

/// Takes back a reference that `into_raw` made a pointer, if there is one.
fn take(place: &AtomicPtr<Record>) -> Option<Held> {
    let record = ptr::NonNull::new(place.swap(ptr::null_mut(), Relaxed))?;
    // SAFETY: counted: I22.
    let fiber = unsafe { FiberRef::new(record) };
    // SAFETY: `into_raw` put it there, and the swap takes it out once.
    Some(unsafe { Held::adopt(fiber) })
}

pub(crate) struct Slots {
    slots: Box<[Slot]>,
    free: Bitmap,
    full: Bitmap,
}

impl Slots {
    pub(crate) fn new() -> Self {
        let free = Bitmap::new(SLOTS);
        (0..SLOTS).for_each(|i| assert!(free.set(i)));
        Slots {
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
            free,
            full: Bitmap::new(SLOTS),
        }
    }

    /// Puts a report into a slot; false if none is free.
    ///
    /// `still` returns, after the copy, whether it is valid. May be called in handlers.
    pub(crate) fn put(
        &self,
        facts: Facts,
        fiber: Held,
        (start, stack, code): (&Registers, &Stack, usize),
        still: impl FnOnce() -> bool,
    ) -> bool {
        let Some(index) = self.free.claim_any(0) else {
            return false;
        };
        let slot = &self.slots[index];
        slot.write(facts, fiber);
        slot.code.store(code, Relaxed);
        let _without_one = slot.stack.take(start, stack);
        slot.torn.store(!still(), Relaxed);
        self.full.set(index);
        true
    }

    /// Takes a report out of a slot. Not for handlers.
    pub(crate) fn take(&self) -> Option<Captured> {
        let index = self.full.claim_any(0)?;
        let slot = &self.slots[index];
        let facts = slot.facts();
        let fiber = take(&slot.fiber);
        let code = slot.code.load(Relaxed);
        let frames = (slot.stack.frames())
            .filter(|_| !slot.torn.load(Relaxed))
            .unwrap_or_else(|| vec![code]);
        self.free.set(index);
        Some(Captured {
            facts,
            fiber: fiber.expect("a full slot has its fiber"),
            frames,
        })
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use crate::util::bitmap::Bitmap;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// I22 with one slot, two writers and one reader.
    ///
    /// What is read was written by one thread.
    #[test]
    fn loom_a_report_is_read_as_one_hand_wrote_it() {
        loom::model(|| {
            let all = Arc::new((
                Bitmap::new(1),
                Bitmap::new(1),
                [AtomicUsize::new(0), AtomicUsize::new(0)],
            ));
            all.0.set(0);
            let writers: Vec<_> = (1..3)
                .map(|n| {
                    let all = all.clone();
                    loom::thread::spawn(move || {
                        if all.0.claim(0) {
                            all.2.iter().for_each(|word| word.store(n, Relaxed));
                            all.1.set(0);
                        }
                    })
                })
                .collect();
            if all.1.claim(0) {
                let [a, b] = [0, 1].map(|i: usize| all.2[i].load(Relaxed));
                assert!(a == b && a > 0);
                all.0.set(0);
            }
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
        });
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fiber::switch;
    use crate::sched::workers::context;

    fn facts(ran: u64) -> Facts {
        Facts {
            kind: Kind::Freeze,
            ran,
            reported: 0,
            call: 0,
            interactive: 1,
            batch: 2,
            pressed_for: 3,
        }
    }

    /// Puts a report of the calling fiber into a slot, as a handler would.
    #[inline(never)]
    fn put(slots: &Slots, ran: u64) -> bool {
        let fiber = context::current_fiber().expect("on a fiber");
        let registers = crate::sys::arch::registers();
        // SAFETY: the caller's own fiber, and we do not leave this function meanwhile.
        let at = unsafe { switch::running(fiber, registers) };
        // SAFETY: as above.
        let stack = unsafe { Stack::new(at.inside()) };
        let [code, sp, bp] = registers;
        let start = Registers::interrupted(code, sp, bp);
        slots.put(facts(ran), fiber.hold(), (&start, &stack, code), || true)
    }

    #[test]
    fn slots_hold_so_many_reports_and_give_each_out_once() {
        crate::runtime::block_on(|| {
            let slots = Slots::new();
            let _guard = context::disable_preempt();
            let filed = (0..2 * SLOTS as u64)
                .filter(|ran| put(&slots, *ran))
                .count();
            assert_eq!(filed, SLOTS);
            let id = context::current_fiber().map(|fiber| fiber.id());
            let mut taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
            taken.sort_by_key(|captured| captured.facts.ran);
            for (i, captured) in taken.iter().enumerate() {
                assert_eq!((captured.facts.ran, captured.facts.batch), (i as u64, 2));
                assert_eq!(Some(captured.fiber.id()), id);
                assert!(captured.frames.len() > 1, "{:?}", captured.frames);
            }
            assert_eq!(taken.len(), SLOTS);
            assert!(put(&slots, 0), "there is room again");
            drop(slots.take());
        });
    }

    /// Calls `f` on a stack that fills a slot.
    #[inline(never)]
    fn deep(room: &mut [u64; 2 * WORDS], f: impl FnOnce()) {
        f();
        std::hint::black_box(room);
    }

    #[test]
    #[ignore = "prints a figure"]
    fn what_a_capture_costs() {
        crate::runtime::block_on(|| {
            let slots = Slots::new();
            let mut took: Vec<Duration> = Vec::new();
            deep(&mut [1; 2 * WORDS], || {
                let _guard = context::disable_preempt();
                for _ in 0..1_000 {
                    let begun = Instant::now();
                    assert!(put(&slots, 0));
                    took.push(begun.elapsed());
                    drop(slots.take());
                }
            });
            took.sort();
            println!("a capture takes {:?}, at most {:?}", took[500], took[999]);
        });
    }
}
