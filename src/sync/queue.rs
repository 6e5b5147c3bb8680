#![expect(
    unsafe_code,
    reason = "links waiters that lie on their owners' stacks, and calls them by address"
)]
//! Who waits for a lock: a first-in first-out list through the stacks of those who wait.
//!
//! A *node* lies in the frame of [`Queue::wait`]. It holds the waiter (`sched/wake.rs`), what the waiter wants
//! (`N`), and its links. The list, the nodes in it and a state of the primitive's own (`S`) belong to whoever holds
//! the queue's lock ([`Locked`]). Waiting allocates nothing, and a node in the middle leaves at once.
//!
//! To *take* a node is to take it off the list in order to call it. Those taken are called when the lock has been let go.
//!
//! **L1** *A waiter is called once, or withdraws.* Both take its node off the list under the lock; who finds it
//! gone knows that the call is on its way and waits for it, deaf to everything. So whatever was handed to a waiter by
//! name (a lock, permits) has arrived, even if its deadline passed or it was asked to end that very moment.
//! **L2** *From a take to the call preemption is disabled*, and while the lock is held: nobody is stopped with something in
//! his hands that others wait for (S6). **L3** *A node is alive while it is in the list or taken*: its frame leaves
//! only by L1, and the call is the taker's last look at it.
//! **L4** *The state fits the list whenever the lock is free*: who withdraws sets right, under the same lock, what
//! depends on it ([`Plan::leave`]).
//!
//! No more than `BREATH` are taken at a time, since what the calls relied on is kept until preemption is enabled (`DeferredDrop`),
//! and a crowd is not called in one breath: who wants more looks whether there are more ([`Locked::finish`]).
//!
//! Rejected: a list of addresses in a vector, which allocates under the lock and makes withdrawing a search; one
//! table of queues for the whole process, keyed by address as parking lots have it: a lock of eight bytes less, for
//! strangers who wait for each other's buckets.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::context::{self, PreemptGuard};
use crate::sched::wake::{DeferredDrop, Waiter};
use crate::util::loom::{Mutex, MutexGuard, const_fn, lock};

/// How many can be called in one breath.
const BATCH: usize = 8;

/// How long one waits before he is served by name where others may overtake.
const PATIENCE: Duration = Duration::from_millis(1);

/// Somebody who waits for one call: [`Waiter`], or what stands for it in a model.
///
/// # Safety
/// `park` returns at some time after `call`, and `was_notified` is true from the call on, which it has seen all of.
pub(crate) unsafe trait Waits {
    /// What a call relied on, to be dropped when preemption is enabled.
    type DeferredDrop;
    /// How often to look at a lock that is held before the wait begins, each time after twice as many pauses as the
    /// time before: for one that is held for some instructions by a thread beside us.
    const SPINS: u32 = 3;
    /// How many are called in one breath, at most `BATCH`: fewer in models, where a crowd is small.
    const BREATH: usize = BATCH;
    /// How often a lock is let go while one who was woken is on his way, before another is looked at; fifteen at most.
    const PASSES: usize = 15;
    fn caller() -> Self;
    /// Whoever waits has paid for it before.
    fn park(&self, until: &Until) -> Woken;
    fn was_notified(&self) -> bool;
    /// Names what it waits for, by its address.
    fn name(&self, _address: usize) {}
    /// # Safety
    /// The waiter is alive until this call, and this is the one call it waits for.
    unsafe fn notify(guard: &PreemptGuard, waiter: *const Self) -> Self::DeferredDrop;
    /// Whether somebody has waited for long enough to be served by name.
    fn starves(since: Instant) -> bool {
        since.elapsed() >= PATIENCE
    }
}

/// Waits until something looks free, for a moment: true as soon as `free` says so. Each of the looks waits twice as long
/// as the one before.
pub(crate) fn spin(looks: u32, mut free: impl FnMut() -> bool) -> bool {
    (0..looks).any(|round| {
        (0..1 << round).for_each(|_| spin_loop());
        free()
    })
}

// SAFETY: a waiter that was called is woken; the flag is set with release and read with acquire.
unsafe impl Waits for Waiter {
    type DeferredDrop = DeferredDrop;

    fn caller() -> Self {
        Waiter::caller()
    }

    fn park(&self, until: &Until) -> Woken {
        Waiter::park_charged(self, until.deadline, until.reason, until.cancel)
    }

    fn was_notified(&self) -> bool {
        Waiter::was_notified(self)
    }

    fn name(&self, address: usize) {
        self.set_awaited(address);
    }

    unsafe fn notify(guard: &PreemptGuard, waiter: *const Self) -> DeferredDrop {
        // SAFETY: by the caller's promise.
        unsafe { Waiter::notify(guard, waiter.expose_provenance()) }
    }
}

/// How long to wait, what for, and what else to listen to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) deadline: Option<Instant>,
    pub(crate) reason: ParkReason,
    pub(crate) cancel: Cancel,
}

impl Until {
    /// As operations of users wait: a request to end is heard.
    pub(crate) fn open(deadline: Option<Instant>, reason: ParkReason) -> Self {
        Until {
            deadline,
            reason,
            cancel: Cancel::Enabled,
        }
    }

    /// For what must be had: nothing else ends the wait.
    pub(crate) fn uncancelled(reason: ParkReason) -> Self {
        Until {
            deadline: None,
            reason,
            cancel: Cancel::Disabled,
        }
    }
}

/// A waiter in its frame.
struct Node<N, W> {
    waiter: W,
    /// Its owner's before it is put on the list and after the call; in between of who has the lock, or took it.
    place: UnsafeCell<Place<N, W>>,
}

struct Place<N, W> {
    next: *const Node<N, W>,
    /// The first one's is the last one.
    previous: *const Node<N, W>,
    is_in: bool,
    wants: N,
}

impl<N, W> Node<N, W> {
    fn new(waiter: W, wants: N) -> Self {
        let place = Place {
            next: ptr::null(),
            previous: ptr::null(),
            is_in: false,
            wants,
        };
        Node {
            waiter,
            place: UnsafeCell::new(place),
        }
    }
}

/// What the place of a node says.
///
/// # Safety
/// The node is alive and its place the caller's (see [`Node::place`]); no other such reference is in use.
unsafe fn place<'a, N, W>(node: *const Node<N, W>) -> &'a mut Place<N, W> {
    // SAFETY: alive by the caller's promise.
    let cell = unsafe { &(*node).place };
    // SAFETY: the caller's alone.
    unsafe { &mut *cell.get() }
}

struct Inner<S, N, W> {
    /// Null if nobody waits; else the first of a ring.
    first: *const Node<N, W>,
    state: S,
}

// SAFETY: the pointers are to nodes that belong to whoever has the lock (L3), and their waiters are made to be called
// from anywhere.
unsafe impl<S: Send, N: Send, W> Send for Inner<S, N, W> {}

impl<S, N, W> Inner<S, N, W> {
    /// Puts a node on the list, in front of all or behind all.
    ///
    /// # Safety
    /// It is in no list, alive until it was taken and called or withdrawn (L3).
    unsafe fn push(&mut self, node: *const Node<N, W>, in_front: bool) {
        // SAFETY: ours until it is on the list.
        let new = unsafe { place(node) };
        new.is_in = true;
        if self.first.is_null() {
            (new.next, new.previous) = (node, node);
            self.first = node;
            return;
        }
        // SAFETY: in the list, so alive, and we have the lock.
        let last = unsafe { place(self.first) }.previous;
        (new.next, new.previous) = (self.first, last);
        // SAFETY: as above.
        unsafe { place(last) }.next = node;
        // SAFETY: as above.
        unsafe { place(self.first) }.previous = node;
        if in_front {
            self.first = node;
        }
    }

    /// # Safety
    /// It is in this list.
    unsafe fn remove(&mut self, node: *const Node<N, W>) {
        // SAFETY: in the list, so alive, and we have the lock.
        let old = unsafe { place(node) };
        old.is_in = false;
        let (next, previous) = (old.next, old.previous);
        if next == node {
            self.first = ptr::null();
            return;
        }
        // SAFETY: as above.
        unsafe { place(next) }.previous = previous;
        // SAFETY: as above.
        unsafe { place(previous) }.next = next;
        if self.first == node {
            self.first = next;
        }
    }
}

/// A list of waiters, and what they wait for.
pub(crate) struct Queue<S, N, W = Waiter> {
    inner: Mutex<Inner<S, N, W>>,
}

/// Where to wait, if at all.
pub(crate) enum Look<R> {
    /// No need to.
    Done(R),
    Behind,
    InFront,
}

/// How a wait ended.
#[must_use]
pub(crate) enum Waited<R, N> {
    /// There was no need to.
    Done(R),
    /// Called; this is what it wanted, as the caller left it.
    Called(N),
    TimedOut,
    /// The fiber is to end.
    Cancelled,
}

/// What one wait does under the lock.
pub(crate) trait Plan<S, N, W: Waits> {
    type Answer;
    /// Before it is put on the list.
    fn look(&mut self, locked: &mut Locked<'_, S, N, W>, wants: &mut N) -> Look<Self::Answer>;
    /// On the list, the lock is free.
    fn queued(&mut self) {}
    /// Withdrawn: it is off the list. Asked again if it wanted to take more than fit.
    fn leave(&mut self, _locked: &mut Locked<'_, S, N, W>) {}
}

impl<S, N, W> Queue<S, N, W> {
    const_fn! {
        pub(crate) const fn new(state: S) -> Self {
            let first = ptr::null();
            Queue { inner: Mutex::new(Inner { first, state }) }
        }
    }
}

impl<S, N, W: Waits> Queue<S, N, W> {
    pub(crate) fn lock(&self) -> Locked<'_, S, N, W> {
        let guard = context::disable_preempt();
        Locked {
            inner: Some(lock(&self.inner)),
            taken: [ptr::null(); BATCH],
            count: 0,
            more: false,
            guard: Some(guard),
            _node: PhantomData,
        }
    }

    /// Waits as planned.
    pub(crate) fn wait<P: Plan<S, N, W>>(
        &self,
        wants: N,
        until: &Until,
        plan: &mut P,
    ) -> Waited<P::Answer, N> {
        let node = Node::new(W::caller(), wants);
        let mut locked = self.lock();
        // SAFETY: on no list so far.
        let wants = unsafe { &mut place(&raw const node).wants };
        let in_front = match plan.look(&mut locked, wants) {
            Look::Done(answer) => return Waited::Done(answer),
            Look::Behind => false,
            Look::InFront => true,
        };
        let bomb = AbortOnDrop("a waiter left its frame while others know of it");
        // SAFETY: it stays in this frame, which is left by L1 only.
        unsafe { locked.inner().push(&raw const node, in_front) };
        drop(locked);
        plan.queued();
        let woken = self.stay(&node, until, plan);
        std::mem::forget(bomb);
        match woken {
            Woken::ByWake => Waited::Called(node.place.into_inner().wants),
            Woken::ByDeadline => Waited::TimedOut,
            Woken::ByCancel => Waited::Cancelled,
        }
    }

    /// Until it was called (`ByWake`) or has withdrawn (L1).
    fn stay<P: Plan<S, N, W>>(&self, node: &Node<N, W>, until: &Until, plan: &mut P) -> Woken {
        let mut until = *until;
        node.waiter.name(ptr::from_ref(self).addr());
        loop {
            let woken = node.waiter.park(&until);
            if node.waiter.was_notified() {
                return Woken::ByWake;
            }
            if woken == Woken::ByWake {
                continue; // meant for an earlier wait
            }
            let mut locked = self.lock();
            if locked.withdraw(node) {
                plan.leave(&mut locked);
                while locked.finish() {
                    locked = self.lock();
                    plan.leave(&mut locked);
                }
                return woken;
            }
            drop(locked);
            (until.deadline, until.cancel) = (None, Cancel::Disabled); // the call is on its way
        }
    }
}

/// The right to the list and the state. When it goes, the lock is let go, those taken are called, and the
/// mark goes down.
pub(crate) struct Locked<'a, S, N, W: Waits> {
    /// There until it is dropped.
    inner: Option<MutexGuard<'a, Inner<S, N, W>>>,
    taken: [*const Node<N, W>; BATCH],
    count: usize,
    /// One more was to be taken.
    more: bool,
    guard: Option<PreemptGuard>,
    _node: PhantomData<Node<N, W>>,
}

impl<S, N, W: Waits> Locked<'_, S, N, W> {
    fn inner(&mut self) -> &mut Inner<S, N, W> {
        self.inner.as_mut().expect("locked until it is dropped")
    }

    pub(crate) fn state(&mut self) -> &mut S {
        &mut self.inner().state
    }

    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.inner.as_ref().expect("locked until it is dropped");
        inner.first.is_null()
    }

    /// What the first one wants.
    pub(crate) fn first(&mut self) -> Option<&mut N> {
        let first = self.inner().first;
        if first.is_null() {
            return None;
        }
        // SAFETY: in the list, so alive, and we have the lock; `self` is borrowed for as long.
        Some(unsafe { &mut place(first).wants })
    }

    /// Takes the first one, if there is one and not too many have been taken: then [`finish`](Self::finish) says that
    /// there are more.
    pub(crate) fn take(&mut self) -> Option<&mut N> {
        let first = self.inner().first;
        if first.is_null() {
            return None;
        }
        if self.count == W::BREATH {
            self.more = true;
            return None;
        }
        // SAFETY: it is the first of this list.
        unsafe { self.inner().remove(first) };
        self.taken[self.count] = first;
        self.count += 1;
        // SAFETY: taken by us, so alive until we call it; `self` is borrowed for as long.
        Some(unsafe { &mut place(first).wants })
    }

    /// Lets the lock go and calls those taken; true if one more was to be taken.
    #[must_use]
    pub(crate) fn finish(self) -> bool {
        self.more
    }

    /// False if it is not in the list: somebody took it.
    fn withdraw(&mut self, node: &Node<N, W>) -> bool {
        let inner = self.inner();
        // SAFETY: alive, and we have the lock; if somebody took it he looks at it no more but to call it.
        let is_in = unsafe { place(node) }.is_in;
        if is_in {
            // SAFETY: it says so.
            unsafe { inner.remove(node) };
        }
        is_in
    }
}

impl<S, N, W: Waits> Drop for Locked<'_, S, N, W> {
    fn drop(&mut self) {
        drop(self.inner.take());
        let mut kept: [Option<W::DeferredDrop>; BATCH] = [const { None }; BATCH];
        if let Some(guard) = &self.guard {
            for (at, node) in self.taken[..self.count].iter().enumerate() {
                // SAFETY: L3: taken, and not called yet.
                let waiter = unsafe { &raw const (**node).waiter };
                // SAFETY: L1: this is the one call.
                kept[at] = Some(unsafe { W::notify(guard, waiter) });
            }
        }
        drop(self.guard.take());
        drop(kept);
    }
}

#[cfg(test)]
pub(crate) mod tests;
