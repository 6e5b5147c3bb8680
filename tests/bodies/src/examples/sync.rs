#![expect(unsafe_code, reason = "a stack without locks frees its nodes later")]
//! Locks, cells, channels and maps.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_epoch::{Atomic, Owned};

use crate::body::{Me, Outcome, Shared, ensure};
use crate::step::{again, step};

/// Two numbers that are equal while the lock is not held, and the turn of a pair.
#[derive(Default)]
struct Locked {
    both: parking_lot::Mutex<(u64, u64)>,
    read: parking_lot::RwLock<(u64, u64)>,
    turn: parking_lot::Mutex<u64>,
    turned: parking_lot::Condvar,
}

pub(crate) fn parking_lot(me: &Me) -> Outcome {
    static ALL: Shared<Locked> = Shared::new();
    static PAIRS: Shared<Locked> = Shared::new();
    let (all, pair) = (ALL.of(me.round), PAIRS.of(me.number() / 2));
    for i in 0..5 {
        {
            let mut both = all.both.lock();
            both.0 += 1;
            step();
            both.1 += 1;
            ensure!(both.0 == both.1, "{both:?} under the lock");
        }
        step();
        if (me.n + i).is_multiple_of(8) {
            let mut both = all.read.write();
            both.0 += 1;
            step();
            both.1 += 1;
        } else {
            let both = all.read.read();
            step();
            ensure!(both.0 == both.1, "{both:?} while reading");
        }
        let mut turn = pair.turn.lock();
        while *turn % 2 != me.n % 2 {
            pair.turned.wait(&mut turn);
        }
        step();
        *turn += 1;
        pair.turned.notify_one();
    }
    Ok(me.n)
}

/// Two numbers that are equal, and how many there are.
struct Pair(u64, u64, &'static AtomicU64);

impl Pair {
    fn new(n: u64, alive: &'static AtomicU64) -> Arc<Pair> {
        alive.fetch_add(1, SeqCst);
        Arc::new(Pair(n, n, alive))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.1 = u64::MAX;
        self.2.fetch_sub(1, SeqCst);
    }
}

struct Swapped(arc_swap::ArcSwap<Pair>);

impl Default for Swapped {
    fn default() -> Self {
        Swapped(arc_swap::ArcSwap::new(Pair::new(0, &SHARED_PAIRS)))
    }
}

static SHARED_PAIRS: AtomicU64 = AtomicU64::new(0);

/// Guards that are held while others store.
pub(crate) fn arc_swap(me: &Me) -> Outcome {
    static ALL: Shared<Swapped> = Shared::new();
    static OWN_PAIRS: Shared<AtomicU64> = Shared::new();
    let all = &ALL.of(me.round).0;
    let own_pairs = OWN_PAIRS.of(me.number());
    let own = arc_swap::ArcSwap::new(Pair::new(0, own_pairs));
    for i in 1..=10 {
        let guards: Vec<_> = (0..12).map(|_| all.load()).collect(); // more than fast slots
        let mine = own.load();
        step();
        all.store(Pair::new(me.number(), &SHARED_PAIRS));
        own.store(Pair::new(i, own_pairs));
        step();
        for guard in &guards {
            ensure!(guard.0 == guard.1, "a guard of what is gone: {}", guard.0);
        }
        ensure!((mine.0, mine.1) == (i - 1, i - 1), "{} at {i}", mine.0);
        again(|| all.load_full().0);
        drop(guards);
        step();
    }
    drop(own);
    let alive = own_pairs.load(SeqCst);
    ensure!(alive == 0, "{alive} values are left");
    Ok(me.n)
}

/// A store visits the places of all owners: they must not be as many as the fibers.
pub(crate) fn arc_swap_many(me: &Me) -> Outcome {
    /// A thousand times what it takes beside a few threads.
    const LIMIT: Duration = Duration::from_micros(500);
    static ALL: Shared<Swapped> = Shared::new();
    let all = &ALL.of(me.round).0;
    let guard = all.load();
    step();
    ensure!(guard.0 == guard.1, "a guard of what is gone");
    drop(guard);
    let store = |_| {
        let begin = Instant::now();
        all.store(Pair::new(me.n, &SHARED_PAIRS));
        begin.elapsed()
    };
    let fastest = (0..50).map(store).min();
    ensure!(fastest < Some(LIMIT), "a store takes {fastest:?}");
    Ok(me.n)
}

#[derive(Default)]
struct Made {
    cell: once_cell::sync::OnceCell<u64>,
    times: AtomicU64,
}

/// Fibers race for a value whose initializer switches.
pub(crate) fn once_cell(me: &Me) -> Outcome {
    thread_local! {
        static OWN: RefCell<once_cell::unsync::OnceCell<u64>> =
            const { RefCell::new(once_cell::unsync::OnceCell::new()) };
    }
    static ALL: Shared<Made> = Shared::new();
    for i in 0..5 {
        let made = ALL.of(me.round * 100 + i);
        let value = made.cell.get_or_init(|| {
            step();
            made.times.fetch_add(1, SeqCst);
            step();
            me.round * 100 + i
        });
        step();
        ensure!(*value == me.round * 100 + i, "{value} at {i}");
        let times = made.times.load(SeqCst);
        ensure!(times == 1, "made {times} times");
        let own = OWN.with_borrow(|own| *own.get_or_init(|| me.n));
        ensure!(own == me.n, "{own} instead of {}", me.n);
        let lazy = once_cell::unsync::Lazy::new(|| {
            step();
            me.n
        });
        ensure!(*lazy == me.n, "{} instead of {}", *lazy, me.n);
    }
    // Where thread-locals are the threads', the next fiber on this thread finds what is left here.
    OWN.take();
    Ok(me.n)
}

struct Node {
    value: ManuallyDrop<u64>,
    next: Atomic<Node>,
}

#[derive(Default)]
struct Stack {
    head: Atomic<Node>,
    pushed: AtomicU64,
    popped: AtomicU64,
}

impl Stack {
    fn push(&self, value: u64) {
        let mut node = Owned::new(Node {
            value: ManuallyDrop::new(value),
            next: Atomic::null(),
        });
        let guard = crossbeam_epoch::pin();
        loop {
            let head = self.head.load(Relaxed, &guard);
            node.next.store(head, Relaxed);
            step();
            let exchanged = self
                .head
                .compare_exchange(head, node, SeqCst, Relaxed, &guard);
            match exchanged {
                Ok(_) => return,
                Err(error) => node = error.new,
            }
        }
    }

    fn pop(&self) -> Option<u64> {
        let guard = crossbeam_epoch::pin();
        loop {
            let head = self.head.load(SeqCst, &guard);
            step(); // pinned: nodes that other fibers pop now are not freed
            // SAFETY: loaded under this guard.
            let node = unsafe { head.as_ref() }?;
            let next = node.next.load(Relaxed, &guard);
            let exchanged = self
                .head
                .compare_exchange(head, next, SeqCst, Relaxed, &guard);
            if exchanged.is_ok() {
                let value = *node.value;
                // SAFETY: it was taken out by this call, and is not reached from the head any more.
                unsafe { guard.defer_destroy(head) };
                return Some(value);
            }
        }
    }
}

/// The stack of Treiber, with guards over the switches.
pub(crate) fn crossbeam_epoch(me: &Me) -> Outcome {
    static ALL: Shared<Stack> = Shared::new();
    let all = ALL.of(me.round);
    for i in 0..5 {
        all.push(me.n * 1000 + i);
        all.pushed.fetch_add(me.n * 1000 + i, SeqCst);
        step();
        let Some(value) = all.pop() else {
            return Err("less was pushed than popped".to_owned());
        };
        ensure!(
            value / 1000 < me.of && value % 1000 < 5,
            "{value} was never pushed"
        );
        all.popped.fetch_add(value, SeqCst);
        let guard = crossbeam_epoch::pin();
        step();
        guard.flush();
    }
    Ok(me.n)
}

struct Channel<T>(crossbeam_channel::Sender<T>, crossbeam_channel::Receiver<T>);

impl<T> Default for Channel<T> {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(0);
        Channel(sender, receiver)
    }
}

/// Two meet at a channel without a buffer, and each either sends or receives.
pub(crate) fn crossbeam_channel(me: &Me) -> Outcome {
    static PAIRS: Shared<Channel<u64>> = Shared::new();
    let (sender, receiver) = {
        let Channel(sender, receiver) = PAIRS.of(me.number() / 2);
        (sender.clone(), receiver.clone())
    };
    for i in 0..10 {
        crossbeam_channel::select! {
            recv(receiver) -> peer => {
                let expected = (me.n ^ 1) * 100 + i;
                ensure!(peer == Ok(expected), "{peer:?} instead of {expected}");
            }
            send(sender, me.n * 100 + i) -> sent => ensure!(sent.is_ok(), "{sent:?}"),
        }
        step();
    }
    let (sender, receiver) = crossbeam_channel::unbounded();
    for i in 0..10 {
        ensure!(sender.send(i).is_ok(), "a closed channel");
        step();
    }
    drop(sender);
    Ok(receiver.iter().sum::<u64>() + me.n)
}

pub(crate) fn crossbeam_scope(me: &Me) -> Outcome {
    let mut numbers: Vec<u64> = (0..8).map(|i| i * me.n).collect();
    let parker = crossbeam_utils::sync::Parker::new();
    let unparker = parker.unparker().clone();
    let sum = crossbeam_utils::thread::scope(|scope| {
        let (left, right) = numbers.split_at_mut(4);
        let add = |part: &mut [u64]| {
            step();
            part.iter_mut().for_each(|number| *number += 1);
            part.iter().sum::<u64>()
        };
        let other = scope.spawn(move |_| {
            unparker.unpark();
            add(right)
        });
        step();
        parker.park();
        add(left) + other.join().unwrap_or(0)
    });
    let sum = sum.unwrap_or(0);
    ensure!(sum == 28 * me.n + 8, "{sum} instead of {}", 28 * me.n + 8);
    Ok(sum)
}

/// Entries that are locked over a switch.
pub(crate) fn dashmap(me: &Me) -> Outcome {
    static ALL: Shared<dashmap::DashMap<u64, (u64, u64)>> = Shared::new();
    let all = ALL.of(me.round);
    for i in 0..10 {
        {
            let mut entry = all.entry(i).or_default();
            entry.0 += 1;
            if i % 5 == 0 {
                step();
            }
            entry.1 += 1;
        }
        step();
        let Some(entry) = all.get(&i) else {
            return Err(format!("no entry {i}"));
        };
        ensure!(entry.0 == entry.1, "{:?} at {i}", *entry);
        drop(entry);
        all.insert(me.n + 1000, (me.n, i));
        step();
        let own = again(|| all.get(&(me.n + 1000)).map(|entry| *entry));
        ensure!(own == Some((me.n, i)), "{own:?} at {i}");
    }
    Ok(me.n)
}

struct Cache(moka::sync::Cache<u64, u64>, AtomicU64);

impl Default for Cache {
    fn default() -> Self {
        Cache(moka::sync::Cache::new(1000), AtomicU64::new(0))
    }
}

/// Each value is made once.
pub(crate) fn moka(me: &Me) -> Outcome {
    static ALL: Shared<Cache> = Shared::new();
    let Cache(cache, made) = ALL.of(me.round);
    for i in 0..10 {
        let key = (me.n + i) % 16;
        let value = cache.get_with(key, || {
            step();
            made.fetch_add(1, SeqCst);
            key * key
        });
        ensure!(value == key * key, "{value} for {key}");
        step();
        cache.insert(me.n + 100, i);
        let own = again(|| cache.get(&(me.n + 100)));
        ensure!(own == Some(i), "{own:?} at {i}");
    }
    let made = made.load(SeqCst);
    ensure!(made <= 16, "{made} values for 16 keys");
    Ok(me.n)
}

/// A value for each thread of an object, which is one for each fiber.
pub(crate) fn thread_local(me: &Me) -> Outcome {
    static ALL: Shared<thread_local::ThreadLocal<Cell<u64>>> = Shared::new();
    let all = ALL.of(me.round);
    let own = all.get_or(Cell::default);
    own.set(me.n);
    for _ in 0..10 {
        step();
        let again = all.get_or_default();
        ensure!(std::ptr::eq(own, again), "another's value");
        ensure!(own.get() == me.n, "{} instead of {}", own.get(), me.n);
        again.set(me.n);
    }
    Ok(own.get())
}
