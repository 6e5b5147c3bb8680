//! Values and locks whose owner is a thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::LocalKey;

use parking_lot::ReentrantMutex;

use super::prepared;
use crate::body::{Me, Outcome, ensure};
use crate::step::{again, step, thread};

thread_local! {
    static COUNTED: Rc<Cell<u64>> = Rc::new(Cell::new(0));
    static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Makes the values before any fiber starts, by code that no fiber refers to.
pub(super) fn prepare() {
    drop(SOURCE.set(Box::new(|| COUNTED.with(Rc::clone))));
    drop(HANDLERS.set(handlers()));
    drop(HOLDER.set(Box::new(Holder { key: &NUMBER })));
    drop(LOCK.set(Box::new(|| Box::new(HIDDEN_LOCK.lock()))));
}

static SOURCE: OnceLock<Source> = OnceLock::new();
static HANDLERS: OnceLock<Vec<(&str, Handler)>> = OnceLock::new();
static HOLDER: OnceLock<Box<Holder>> = OnceLock::new();
static LOCK: OnceLock<Lock> = OnceLock::new();

type Source = Box<dyn Fn() -> Rc<Cell<u64>> + Send + Sync>;

/// A counted reference to a thread-local's value, handed out by a closure in a static.
pub(crate) fn hidden_rc(me: &Me) -> Outcome {
    let source = prepared(&SOURCE);
    for i in 0..20 {
        let held = source();
        held.set(me.n + i);
        step();
        let again = source();
        ensure!(Rc::ptr_eq(&held, &again), "another's value");
        let found = (held.get(), Rc::strong_count(&held));
        ensure!(found == (me.n + i, 3), "{found:?} at {i}");
    }
    Ok(me.n)
}

type Handler = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Returns the table in which a service looks up its requests.
fn handlers() -> Vec<(&'static str, Handler)> {
    vec![
        ("plain", Box::new(|n| n < u64::MAX)),
        (
            "count",
            Box::new(|n| {
                NUMBER.set(n);
                step();
                NUMBER.get() == n
            }),
        ),
        (
            "borrow",
            Box::new(|n| {
                let before = thread();
                LIST.with_borrow_mut(|list| {
                    list.push(n);
                    step();
                    list.pop() == Some(n) && thread() == before
                })
            }),
        ),
    ]
}

fn handle(name: &str, n: u64) -> Option<bool> {
    let handler = prepared(&HANDLERS).iter().find(|(key, _)| *key == name);
    handler.map(|(_, handler)| handler(n))
}

pub(crate) fn handler_table(me: &Me) -> Outcome {
    for i in 0..20 {
        ensure!(handle("plain", me.n) == Some(true), "a wrong answer");
        let right = handle("count", me.n * 100 + i);
        ensure!(right == Some(true), "another's value at {i}");
    }
    Ok(me.n)
}

/// A thread-local is borrowed while the handler switches: it must stay on its thread.
pub(crate) fn handler_borrows(me: &Me) -> Outcome {
    for i in 0..20 {
        let right = handle("borrow", me.n * 100 + i);
        ensure!(right == Some(true), "another's list, or moved, at {i}");
    }
    Ok(me.n)
}

struct Holder {
    key: &'static LocalKey<Cell<u64>>,
}

#[inline(never)]
fn over_a_step(holder: &Holder, n: u64) -> (bool, bool) {
    let before = thread();
    holder.key.with(|cell| {
        cell.set(n);
        step();
        (cell.get() == n, thread() == before)
    })
}

/// The key of a thread-local, known by a pointer on the heap only.
pub(crate) fn key_in_a_box(me: &Me) -> Outcome {
    let holder = prepared(&HOLDER);
    for i in 0..20 {
        let (right, stayed) = over_a_step(holder, me.n * 100 + i);
        ensure!(right, "another's value");
        ensure!(stayed, "moved with a reference to a thread-local");
    }
    Ok(me.n)
}

/// A lock that its owner alone takes again over switches.
struct Owned {
    lock: ReentrantMutex<Cell<u64>>,
    owner: AtomicU64,
}

impl Owned {
    const fn new() -> Self {
        Owned {
            lock: ReentrantMutex::new(Cell::new(0)),
            owner: AtomicU64::new(0),
        }
    }

    fn use_it(&self, number: u64) -> Outcome {
        for _ in 0..5 {
            let outer = self.lock.lock();
            let before = self.owner.swap(number, SeqCst);
            ensure!(before == 0, "the lock has two owners");
            outer.set(number);
            step();
            let inner = self.lock.try_lock();
            ensure!(inner.is_some(), "the owner is not known any more");
            step();
            drop(inner);
            ensure!(outer.get() == number, "another has written");
            let now = self.owner.swap(0, SeqCst);
            ensure!(now == number, "the lock has two owners");
            drop(outer);
            step();
        }
        Ok(0)
    }
}

pub(crate) fn reentrant_mutex(me: &Me) -> Outcome {
    static LOCK: Owned = Owned::new();
    LOCK.use_it(me.number() + 1)
}

type Lock = Box<dyn Fn() -> Box<dyn std::any::Any> + Send + Sync>;

static HIDDEN_LOCK: ReentrantMutex<Cell<u64>> = ReentrantMutex::new(Cell::new(0));

/// The same, taken by a closure in a static: no frame of the body names the lock.
pub(crate) fn reentrant_mutex_hidden(me: &Me) -> Outcome {
    let lock = prepared(&LOCK);
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let number = me.number() + 1;
    for _ in 0..5 {
        let guard = lock();
        let before = OWNER.swap(number, SeqCst);
        ensure!(before == 0, "the lock has two owners");
        step();
        let inner = lock();
        step();
        drop(inner);
        let now = OWNER.swap(0, SeqCst);
        ensure!(now == number, "the lock has two owners");
        drop(guard);
        step();
    }
    Ok(0)
}

/// The generator of the thread gives the same numbers after the same seed.
pub(crate) fn seeded_generator(me: &Me) -> Outcome {
    let mut sum = 0_u64;
    for i in 0..5 {
        fastrand::seed(me.n + i);
        step();
        let drawn = fastrand::u64(..);
        step();
        sum = sum.wrapping_add(drawn ^ fastrand::u64(..));
        again(|| sum);
    }
    Ok(sum)
}
