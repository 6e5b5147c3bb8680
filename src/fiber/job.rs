#![expect(
    unsafe_code,
    reason = "one storage holds a closure, then its result, both of erased type"
)]
//! The closure of a fiber and, in the same place, its result.
//!
//! The storage goes through four stages, and [`Table`] holds the functions that know the types:
//! *empty* → `store` → *closure* → `run`, `fail` → *result* → `take_result`, `drop_result` →
//! *empty*. What does not fit is boxed, and the box is stored.
//!
//! The **join word** decides which side owns the result once it is there. It is empty, the address
//! of a waiter, DONE, or DETACHED:
//!
//! - the fiber completes with one swap to DONE, and must notify a waiter that it found; if it found
//!   DETACHED the result is its own, to drop on its own stack;
//! - the handle registers a waiter, or finds DONE: then the result is the handle's. A handle that
//!   several threads use may find another's waiter: then it retries later, as there is room for
//!   one;
//! - the handle withdraws a waiter, or finds DONE: then the notification is on its way and the
//!   waiter, which lies on the joiner's stack, must stay until it has come;
//! - the handle detaches, or finds DONE: then it drops the result itself.
//!
//! **I4** Either the fiber or the handle takes the result out, never both: both decide by the one
//! word, by read-modify-write, and only one of them comes second.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::JoinError;
use crate::fiber::record::Record;
use crate::fiber::switch::Outermost;
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire},
};

/// The payload with which a cancelled fiber unwinds. Private: no other code can throw or match it.
/// Code that catches and drops it has ended the unwinding.
pub(crate) struct Cancelled {
    caught: fn(),
}

impl Cancelled {
    /// Creates the payload; `caught` is called when it is dropped.
    pub(crate) fn new(caught: fn()) -> Self {
        Cancelled { caught }
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        (self.caught)();
    }
}

/// Bytes stored inside the record.
pub(crate) const INLINE: usize = 128;
/// Alignment of the storage, which starts at a cache line of the record.
const ALIGN: usize = 16;

#[repr(C)]
pub(crate) struct Job {
    table: UnsafeCell<Option<&'static Table>>,
    storage: UnsafeCell<[MaybeUninit<u64>; INLINE / 8]>,
}

// SAFETY: only `Send` closures and results are stored, and I4 says who may touch them when.
unsafe impl Sync for Job {}

struct Table {
    run: Outermost,
    give_up: unsafe fn(&Record, JoinError),
    fail: unsafe fn(&Record, JoinError),
    drop_result: unsafe fn(&Record) -> Leftover,
}

/// A value on its way into a job: boxed if it does not fit, so that code that holds a lock or has
/// disabled preemption allocates nothing.
pub(crate) struct Packed<V>(Result<V, Box<V>>);

impl<V> Packed<V> {
    pub(crate) fn unpack(self) -> V {
        self.0.unwrap_or_else(|boxed| *boxed)
    }
}

/// What kind of result no handle asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Value,
    Panic,
}

/// The functions for one pair of types.
struct Of<F, T>(PhantomData<(F, T)>);

impl<F: FnOnce() -> T, T> Of<F, T> {
    const TABLE: Table = Table {
        run: Self::run,
        give_up: Self::give_up,
        fail: Self::fail,
        drop_result: Self::drop_result,
    };

    unsafe extern "C-unwind" fn run(record: &Record) {
        // SAFETY: the caller's promise: the closure is there and ours.
        let f = unsafe { record.job.take::<F>() };
        let value = f();
        // SAFETY: the storage is empty since `take`.
        unsafe { record.job.put::<Result<T, JoinError>>(Ok(value)) };
    }

    unsafe fn give_up(record: &Record, error: JoinError) {
        // SAFETY: the caller's promise: the closure has been taken, and nothing put in its place.
        unsafe { record.job.put::<Result<T, JoinError>>(Err(error)) };
    }

    unsafe fn fail(record: &Record, error: JoinError) {
        // SAFETY: the caller's promise: the closure is there and ours.
        let f = unsafe { record.job.take::<F>() };
        // A destructor that panics has had its message printed; the fiber never ran, so there is
        // nothing it could take down.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(f)));
        // SAFETY: the storage is empty since `take`.
        unsafe { record.job.put::<Result<T, JoinError>>(Err(error)) };
    }

    unsafe fn drop_result(record: &Record) -> Leftover {
        // SAFETY: the caller's promise: the result is there and ours.
        let result = unsafe { record.job.take::<Result<T, JoinError>>() };
        let was_panic = result.as_ref().is_err_and(JoinError::is_panic);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(result)));
        if was_panic || dropped.is_err_and(|p| !p.is::<Cancelled>()) {
            Leftover::Panic
        } else {
            Leftover::Value
        }
    }
}

impl Job {
    /// Returns the address of the function that runs the closure.
    ///
    /// # Safety
    /// The closure is there and the caller's.
    pub(crate) unsafe fn entry(&self) -> usize {
        // SAFETY: by the caller's promise no thread writes it.
        let table = unsafe { *self.table.get() };
        table.map_or(0, |table| table.run as usize)
    }

    fn fits<V>() -> bool {
        size_of::<V>() <= INLINE && align_of::<V>() <= ALIGN
    }

    /// # Safety
    /// The storage is empty and the caller's.
    unsafe fn put<V>(&self, value: V) {
        // SAFETY: by the caller's promise.
        unsafe { self.put_packed(Self::pack(value)) };
    }

    /// Prepares a value for storage, with all allocation that it needs.
    #[inline]
    pub(crate) fn pack<V>(value: V) -> Packed<V> {
        Packed(if Self::fits::<V>() {
            Ok(value)
        } else {
            Err(Box::new(value))
        })
    }

    /// # Safety
    /// The storage is empty and the caller's.
    #[inline]
    unsafe fn put_packed<V>(&self, value: Packed<V>) {
        let place = self.storage.get();
        debug_assert_eq!(place.addr() % ALIGN, 0);
        match value.0 {
            // SAFETY: large and aligned enough by `pack`, ours by the caller's promise.
            Ok(value) => unsafe { place.cast::<V>().write(value) },
            // SAFETY: a pointer fits, and the place is ours by the caller's promise.
            Err(boxed) => unsafe { place.cast::<*mut V>().write(Box::into_raw(boxed)) },
        }
    }

    /// # Safety
    /// The storage holds a `V` put there by `put` and is the caller's; it is empty afterwards.
    unsafe fn take<V>(&self) -> V {
        let place = self.storage.get();
        if Self::fits::<V>() {
            // SAFETY: by the caller's promise.
            return unsafe { place.cast::<V>().read() };
        }
        // SAFETY: `put` wrote this pointer, from `Box::into_raw`.
        let boxed = unsafe { place.cast::<*mut V>().read() };
        // SAFETY: as above; read once, since the storage counts as empty now.
        *unsafe { Box::from_raw(boxed) }
    }

    /// Stores the closure of a new fiber.
    ///
    /// # Safety
    /// The record is not queued yet, and whatever the closure borrows outlives the fiber.
    pub(crate) unsafe fn store<F, T>(&self, f: Packed<F>)
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: no other thread knows the record.
        unsafe { *self.table.get() = Some(&Of::<F, T>::TABLE) };
        // SAFETY: as above, and a free record's storage is empty.
        unsafe { self.put_packed(f) };
    }

    fn table(&self) -> &'static Table {
        // SAFETY: written before the record was queued, never changed while it is in use.
        unsafe { *self.table.get() }.expect("a queued record has a job")
    }

    /// Runs the closure by `call`; the result, or how it ended, takes its place.
    ///
    /// A panic is caught here and not where the closure is called: that frame would bind the fiber
    /// to its thread, since std counts panics by thread.
    ///
    /// # Safety
    /// Called once, by the fiber itself, for the record this job is in; `call` calls what it is
    /// given.
    pub(crate) unsafe fn run(record: &Record, call: impl FnOnce(Outermost)) {
        let table = record.job.table();
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(table.run))) else {
            return;
        };
        let error = if payload.is::<Cancelled>() {
            JoinError::cancelled(record.id())
        } else {
            JoinError::panicked(record.id(), payload)
        };
        // SAFETY: the closure was called, and has not returned.
        unsafe { (table.give_up)(record, error) };
    }

    /// Drops the closure of a fiber that will never run; `error` becomes its result.
    ///
    /// # Safety
    /// The fiber has not run, and the caller took it out of its queue for good.
    pub(crate) unsafe fn fail(record: &Record, error: JoinError) {
        // SAFETY: by the caller's promise.
        unsafe { (record.job.table().fail)(record, error) }
    }

    /// Drops a result that no handle will ask for.
    ///
    /// # Safety
    /// The join word gave the result to the caller (I4).
    pub(crate) unsafe fn drop_result(record: &Record) -> Leftover {
        // SAFETY: by the caller's promise.
        unsafe { (record.job.table().drop_result)(record) }
    }

    /// # Safety
    /// The join word gave the result to the caller (I4), and `T` is the closure's type.
    pub(crate) unsafe fn take_result<T>(&self) -> Result<T, JoinError> {
        // SAFETY: by the caller's promise.
        unsafe { self.take() }
    }
}

const EMPTY: usize = 0;
const DONE: usize = 1;
const DETACHED: usize = 2;

/// What the fiber must do once its result is there.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Completed {
    /// Nothing: the handle will find the result.
    Nothing,
    /// Notify this waiter; it stays valid until then.
    Notify(usize),
    /// Drop the result: no handle will ask for it.
    DropResult,
}

pub(crate) fn complete(word: &AtomicUsize) -> Completed {
    match word.swap(DONE, AcqRel) {
        EMPTY => Completed::Nothing,
        DETACHED => Completed::DropResult,
        DONE => unreachable!("a fiber completed twice"),
        waiter => Completed::Notify(waiter),
    }
}

/// Whether its handle was dropped, so that it will not be joined.
pub(crate) fn is_detached(word: &AtomicUsize) -> bool {
    word.load(Acquire) == DETACHED
}

pub(crate) fn is_done(word: &AtomicUsize) -> bool {
    word.load(Acquire) == DONE
}

/// The outcome of [`register`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// The waiter is registered: it will be notified, or withdraws.
    Waits,
    /// The fiber is done.
    Done,
    /// Another waiter is registered, and there is room for one.
    Occupied,
}

pub(crate) fn register(word: &AtomicUsize, waiter: usize) -> Registered {
    debug_assert!(waiter > DETACHED);
    match word.compare_exchange(EMPTY, waiter, AcqRel, Acquire) {
        Ok(_) => Registered::Waits,
        Err(DONE) => Registered::Done,
        Err(DETACHED) => unreachable!("a waiter was registered for a detached fiber"),
        Err(_) => Registered::Occupied,
    }
}

/// Withdraws a waiter. False if the fiber is done: then its notification is on its way.
#[must_use]
pub(crate) fn withdraw(word: &AtomicUsize, waiter: usize) -> bool {
    word.compare_exchange(waiter, EMPTY, AcqRel, Acquire)
        .is_ok()
}

/// Detaches the handle. False if the fiber is done: then the result is the caller's to drop.
#[must_use]
pub(crate) fn detach(word: &AtomicUsize) -> bool {
    word.compare_exchange(EMPTY, DETACHED, AcqRel, Acquire)
        .is_ok()
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};

    const WAITER: usize = 64;

    struct Model {
        word: AtomicUsize,
        woken: AtomicBool,
        drops: AtomicUsize,
    }

    fn fiber_beside(handle: impl Fn(&Model) + Sync + Send + 'static) {
        let handle = std::sync::Arc::new(handle);
        loom::model(move || {
            let model = Arc::new(Model {
                word: AtomicUsize::new(EMPTY),
                woken: AtomicBool::new(false),
                drops: AtomicUsize::new(0),
            });
            let other = model.clone();
            let fiber = loom::thread::spawn(move || match complete(&other.word) {
                Completed::Nothing => {}
                Completed::Notify(waiter) => {
                    assert_eq!(waiter, WAITER);
                    other.woken.store(true, SeqCst);
                }
                Completed::DropResult => assert_eq!(other.drops.fetch_add(1, SeqCst), 0),
            });
            handle(&model);
            fiber.join().unwrap();
            assert_eq!(model.drops.load(SeqCst), 1, "I4");
        });
    }

    #[test]
    fn loom_a_dropped_handle_and_its_fiber_drop_the_result_once() {
        fiber_beside(|model| {
            if !detach(&model.word) {
                model.drops.fetch_add(1, SeqCst);
            }
        });
    }

    #[test]
    fn loom_who_finds_another_waiting_is_not_told_that_it_is_over() {
        fiber_beside(|model| {
            let first = register(&model.word, WAITER);
            assert_ne!(first, Registered::Occupied);
            let second = register(&model.word, 2 * WAITER);
            assert!(is_done(&model.word) || second == Registered::Occupied);
            if first == Registered::Waits && !withdraw(&model.word, WAITER) {
                while !model.woken.load(SeqCst) {
                    loom::thread::yield_now();
                }
            }
            if !detach(&model.word) {
                model.drops.fetch_add(1, SeqCst);
            }
        });
    }

    #[test]
    fn loom_a_waiter_that_cannot_withdraw_is_woken() {
        fiber_beside(|model| {
            if register(&model.word, WAITER) == Registered::Waits && !withdraw(&model.word, WAITER)
            {
                while !model.woken.load(SeqCst) {
                    loom::thread::yield_now();
                }
            }
            if !detach(&model.word) {
                model.drops.fetch_add(1, SeqCst);
            }
        });
    }
}
