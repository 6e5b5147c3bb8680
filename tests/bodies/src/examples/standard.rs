//! The standard library.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::{self, Thread};

use crate::body::{Me, Outcome, Shared, ensure};
use crate::step::{again, step};

/// The two ends of two channels without buffers.
type Ends = Mutex<Vec<(SyncSender<u64>, Receiver<u64>)>>;

struct Meeting(Ends);

impl Default for Meeting {
    fn default() -> Self {
        let (to_left, left) = mpsc::sync_channel(0);
        let (to_right, right) = mpsc::sync_channel(0);
        Meeting(Mutex::new(vec![(to_left, right), (to_right, left)]))
    }
}

#[inline(never)]
fn end_of(meeting: &Meeting) -> Option<(SyncSender<u64>, Receiver<u64>)> {
    meeting
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop()
}

/// Pairs that meet, and a channel with a buffer.
pub(crate) fn mpsc(me: &Me) -> Outcome {
    static PAIRS: Shared<Meeting> = Shared::new();
    let Some((sender, receiver)) = end_of(PAIRS.of(me.number() / 2)) else {
        return Err("three of a pair".to_owned());
    };
    for i in 0..10 {
        let received = if me.n.is_multiple_of(2) {
            ensure!(sender.send(i).is_ok(), "closed at {i}");
            step();
            receiver.recv()
        } else {
            let received = receiver.recv();
            step();
            ensure!(sender.send(i).is_ok(), "closed at {i}");
            received
        };
        ensure!(received == Ok(i), "{received:?} at {i}");
        step();
    }
    let (sender, receiver) = mpsc::channel();
    for i in 0..10 {
        ensure!(sender.send(me.n * i).is_ok(), "closed");
        step();
    }
    drop(sender);
    Ok(receiver.iter().sum())
}

pub(crate) fn scope(me: &Me) -> Outcome {
    let mut numbers = [me.n; 6];
    let main = thread::current().id();
    let right = thread::scope(|scope| {
        let threads = numbers.each_mut().map(|number| {
            scope.spawn(move || {
                step();
                *number += 1;
                thread::current().id() != main
            })
        });
        step();
        threads.map(|thread| thread.join().is_ok_and(|other| other))
    });
    step();
    ensure!(right == [true; 6], "one thread for two");
    ensure!(thread::current().id() == main, "another thread");
    Ok(numbers.iter().sum())
}

/// State that one of a pair leaves for the other.
#[derive(Default)]
struct Turns {
    threads: [OnceLock<Thread>; 2],
    turn: AtomicU64,
}

/// A pair takes turns: each parks and is unparked by the handle that it has left.
pub(crate) fn park(me: &Me) -> Outcome {
    static PAIRS: Shared<Turns> = Shared::new();
    let pair = PAIRS.of(me.number() / 2);
    let (mine, other) = (me.n as usize % 2, 1 - me.n as usize % 2);
    let handle = thread::current();
    ensure!(pair.threads[mine].set(handle).is_ok(), "three of a pair");
    for _ in 0..10 {
        step();
        while pair.turn.load(SeqCst) % 2 != me.n % 2 {
            thread::park();
        }
        step();
        pair.turn.fetch_add(1, SeqCst);
        if let Some(other) = pair.threads[other].get() {
            other.unpark();
        }
    }
    let me_again = pair.threads[mine].get().map(Thread::id);
    ensure!(me_again == Some(thread::current().id()), "another handle");
    Ok(me.n)
}

/// Standard output, locked over switches.
pub(crate) fn stdout(me: &Me) -> Outcome {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    for _ in 0..5 {
        let mut lock = io::stdout().lock();
        ensure!(!INSIDE.swap(true, SeqCst), "two have the lock");
        step();
        ensure!(lock.write_all(b"").is_ok(), "not written");
        step();
        ensure!(INSIDE.swap(false, SeqCst), "two had the lock");
        drop(lock);
        step();
    }
    Ok(me.n)
}

/// Standard error, locked again by its owner.
pub(crate) fn reentrant(me: &Me) -> Outcome {
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let number = me.number() + 1;
    for _ in 0..5 {
        let outer = io::stderr().lock();
        let before = OWNER.swap(number, SeqCst);
        ensure!(before == 0, "{number} has the lock of {before}");
        step();
        {
            let mut inner = io::stderr().lock();
            step();
            ensure!(inner.write_all(b"").is_ok(), "not written");
        }
        step();
        let now = OWNER.swap(0, SeqCst);
        ensure!(now == number, "{now} has the lock of {number}");
        drop(outer);
        step();
    }
    Ok(me.n)
}

#[derive(Default)]
struct Locks {
    both: Mutex<(u64, u64)>,
    read: RwLock<(u64, u64)>,
    turn: Mutex<u64>,
    turned: Condvar,
}

pub(crate) fn locks(me: &Me) -> Outcome {
    static ALL: Shared<Locks> = Shared::new();
    static PAIRS: Shared<Locks> = Shared::new();
    let (all, pair) = (ALL.of(me.round), PAIRS.of(me.number() / 2));
    let poisoned = || "poisoned".to_owned();
    for i in 0..5 {
        {
            let mut both = all.both.lock().map_err(|_| poisoned())?;
            both.0 += 1;
            step();
            both.1 += 1;
            ensure!(both.0 == both.1, "{both:?} under the lock");
        }
        if (me.n + i).is_multiple_of(8) {
            let mut both = all.read.write().map_err(|_| poisoned())?;
            both.0 += 1;
            step();
            both.1 += 1;
        } else {
            let both = all.read.read().map_err(|_| poisoned())?;
            step();
            ensure!(both.0 == both.1, "{both:?} while reading");
        }
        let mut turn = pair.turn.lock().map_err(|_| poisoned())?;
        while *turn % 2 != me.n % 2 {
            turn = pair.turned.wait(turn).map_err(|_| poisoned())?;
        }
        step();
        *turn += 1;
        pair.turned.notify_one();
    }
    Ok(me.n)
}

#[derive(Default)]
struct Made {
    cell: OnceLock<u64>,
    times: AtomicU64,
}

/// Fibers race for a value whose initializer switches.
pub(crate) fn lazy(me: &Me) -> Outcome {
    static ALL: Shared<Made> = Shared::new();
    for i in 0..5 {
        let key = me.round * 100 + i;
        let made = ALL.of(key);
        let value = made.cell.get_or_init(|| {
            step();
            made.times.fetch_add(1, SeqCst);
            step();
            key
        });
        step();
        let times = made.times.load(SeqCst);
        ensure!((*value, times) == (key, 1), "{value}, made {times} times");
    }
    Ok(me.n)
}

pub(crate) fn hash_map(me: &Me) -> Outcome {
    let mut map = HashMap::new();
    for key in 0..200 {
        again(|| map.insert(key, key * me.n));
        if key % 10 == 0 {
            step();
            let other: HashMap<u64, u64> = map.iter().map(|(key, value)| (*key, *value)).collect();
            step();
            ensure!(other == map, "a map differs from its copy");
        }
    }
    Ok(map.values().sum())
}

/// Counts its drops.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(7) };
    static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static LAZY: Rc<Cell<u64>> = Rc::new(Cell::new(0));
    static COUNTED: RefCell<Option<Counted>> = const { RefCell::new(None) };
}

/// Thread-locals of all sorts, borrowed over switches.
pub(crate) fn thread_local(me: &Me) -> Outcome {
    ensure!(COUNT.get() == 7, "begins with {}", COUNT.get());
    let id = thread::current().id();
    let dropped = Arc::new(AtomicU64::new(0));
    COUNTED.set(Some(Counted(dropped.clone())));
    let held = LAZY.with(Rc::clone);
    for i in 0..10 {
        COUNT.set(me.n + i);
        held.set(me.n * i);
        step();
        ensure!(COUNT.get() == me.n + i, "{} at {i}", COUNT.get());
        let same = LAZY.with(|lazy| Rc::ptr_eq(lazy, &held));
        ensure!(same && held.get() == me.n * i, "another's value");
        let right = LIST.with_borrow_mut(|list| {
            list.push(i);
            step();
            list.len() as u64 == i + 1
        });
        ensure!(right, "another's list at {i}");
        ensure!(thread::current().id() == id, "another thread");
    }
    COUNTED.set(None);
    ensure!(dropped.load(SeqCst) == 1, "not dropped once");
    // Where thread-locals are the threads', the next fiber on this thread finds what is left here.
    COUNT.set(7);
    Ok(LIST.take().iter().sum())
}

/// A panic that is caught, with switches while it unwinds.
#[cfg(panic = "unwind")]
pub(crate) fn catch_unwind(me: &Me) -> Outcome {
    struct Switches;
    impl Drop for Switches {
        fn drop(&mut self) {
            step();
        }
    }
    for i in 0..5 {
        let caught = std::panic::catch_unwind(|| {
            let _switches = Switches;
            step();
            if i < 10 {
                std::panic::resume_unwind(Box::new(me.n + i));
            }
        });
        step();
        let payload = caught
            .err()
            .and_then(|payload| payload.downcast::<u64>().ok());
        ensure!(payload == Some(Box::new(me.n + i)), "{payload:?} at {i}");
        ensure!(!thread::panicking(), "still panicking");
    }
    Ok(me.n)
}
