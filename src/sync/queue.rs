#![expect(
    unsafe_code,
    reason = "links waiters that lie on their owners' stacks, and calls them by address"
)]
//! The wait queue of locks: a first-in, first-out list of waiters, linked through the waiters'
//! stacks.
//!
//! A *node* lies in the stack frame of [`Queue::wait`]. It contains the waiter
//! (`sched/block/wake.rs`), its request (`N`), and its links. The list, the nodes in it and the
//! state of the primitive (`S`) belong to the holder of the queue's lock ([`Locked`]). Waiting
//! allocates nothing, and a node in the middle is removed in O(1).
//!
//! To *take* a node is to remove it from the list in order to notify its waiter. Taken waiters are
//! notified after the lock is released.
//!
//! **L1** *A waiter is notified once, or withdraws.* Both remove its node from the list under the
//! lock. A waiter that finds its node gone knows that its notification is under way, and waits for
//! it, ignoring deadline and cancellation. So what was handed to a waiter (a lock, permits) has
//! arrived, even if its deadline passed or it was cancelled at that moment.
//!
//! **L2** *From a take to the notification preemption is disabled*, and while the lock is held: a
//! fiber is not preempted while it holds what others wait for (S6).
//!
//! **L3** *A node is alive while it is in the list or taken.* Its frame is left only by L1, and the
//! notification is the taker's last access to it.
//!
//! **L4** *The state fits the list whenever the lock is free.* A waiter that withdraws corrects,
//! under the same lock, the state that depends on it ([`Plan::leave`]).
//!
//! Waiters are notified in batches of at most `Waits::BATCH`, for two reasons: what a notification
//! relied on is kept until preemption is enabled (`DeferredDrop`), and preemption must not stay
//! disabled for long. A caller that wants to take more repeats while [`Locked::finish`] returns
//! true.
//!
//! Rejected: a vector of addresses, because it allocates under the lock and a withdrawal has to
//! search; one table of queues for the whole process, keyed by address as in parking lots, because
//! it saves eight bytes per lock, and unrelated waiters contend for the same buckets.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::workers::context::{self, PreemptGuard};
use crate::util::loom::{Mutex, MutexGuard, const_fn, lock};

/// The largest number of waiters that can be taken under one lock hold.
const MAX_BATCH: usize = 8;

/// How long a waiter waits, where later ones may overtake it, before the lock is handed to it.
const PATIENCE: Duration = Duration::from_millis(1);

/// Something that waits for one notification: [`Waiter`], or its stand-in in a model.
///
/// # Safety
/// `park` returns some time after `notify`. `was_notified` is true from `notify` on, and a caller
/// that sees this also sees everything before `notify`.
pub(crate) unsafe trait Waits {
    /// What a notification relied on, to be dropped when preemption is enabled.
    type DeferredDrop;
    /// How often to check a held lock before waiting, each time after twice as many pauses as
    /// before. This pays if a thread on another core holds the lock for some instructions.
    const SPINS: u32 = 3;
    /// How many waiters are notified at a time, at most `MAX_BATCH`. Models use less, as they have
    /// few waiters.
    const BATCH: usize = MAX_BATCH;
    /// How often a lock may be released while a woken waiter has not taken it, before another
    /// waiter is considered. At most fifteen.
    const PASSES: usize = 15;
    fn caller() -> Self;
    /// Blocks until notified or `until`. The caller was charged for the operation before.
    fn park(&self, until: &Until) -> Woken;
    fn was_notified(&self) -> bool;
    /// Records the address of the primitive waited for, for diagnostics.
    fn set_awaited(&self, _address: usize) {}
    /// # Safety
    /// The waiter is alive until this call, and is notified only once.
    unsafe fn notify(guard: &PreemptGuard, waiter: *const Self) -> Self::DeferredDrop;
    /// Whether a waiter has waited for long enough that the lock is handed to it.
    fn starves(since: Instant) -> bool {
        since.elapsed() >= PATIENCE
    }
}

/// Spins until `free` returns true, for at most `looks` checks. Returns whether it did. Each check
/// comes after twice as many pauses as the one before.
pub(crate) fn spin(looks: u32, mut free: impl FnMut() -> bool) -> bool {
    (0..looks).any(|round| {
        (0..1 << round).for_each(|_| spin_loop());
        free()
    })
}

// SAFETY: a notified waiter is woken; the flag is set with release and read with acquire.
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

    fn set_awaited(&self, address: usize) {
        self.set_awaited(address);
    }

    unsafe fn notify(guard: &PreemptGuard, waiter: *const Self) -> DeferredDrop {
        // SAFETY: by the caller's promise.
        unsafe { Waiter::notify(guard, waiter.expose_provenance()) }
    }
}

/// How long to wait, for what, and whether cancellation ends the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) deadline: Option<Instant>,
    pub(crate) reason: ParkReason,
    pub(crate) cancel: Cancel,
}

impl Until {
    /// A wait of a user's operation: cancellation ends it.
    pub(crate) fn cancellable(deadline: Option<Instant>, reason: ParkReason) -> Self {
        Until {
            deadline,
            reason,
            cancel: Cancel::Enabled,
        }
    }

    /// A wait that only a notification ends.
    pub(crate) fn uncancelled(reason: ParkReason) -> Self {
        Until {
            deadline: None,
            reason,
            cancel: Cancel::Disabled,
        }
    }
}

/// A waiter in its stack frame.
struct Node<N, W> {
    waiter: W,
    /// Belongs to the owner before it is in the list and after the notification; in between to the
    /// holder of the lock or to the taker.
    place: UnsafeCell<Place<N, W>>,
}

struct Place<N, W> {
    next: *const Node<N, W>,
    /// The `previous` of the first node is the last node.
    previous: *const Node<N, W>,
    is_in: bool,
    request: N,
}

impl<N, W> Node<N, W> {
    fn new(waiter: W, request: N) -> Self {
        let place = Place {
            next: ptr::null(),
            previous: ptr::null(),
            is_in: false,
            request,
        };
        Node {
            waiter,
            place: UnsafeCell::new(place),
        }
    }
}

/// Returns the `place` of a node.
///
/// # Safety
/// The node is alive and its place belongs to the caller (see [`Node::place`]); no other such
/// reference is in use.
unsafe fn place<'a, N, W>(node: *const Node<N, W>) -> &'a mut Place<N, W> {
    // SAFETY: the node is alive by the caller's promise.
    let cell = unsafe { &(*node).place };
    // SAFETY: the place is the caller's alone.
    unsafe { &mut *cell.get() }
}

struct Inner<S, N, W> {
    /// The first node of a circular list, or null if there are no waiters.
    first: *const Node<N, W>,
    state: S,
}

// SAFETY: the pointers are to nodes that belong to the holder of the lock (L3), and their waiters
// can be notified from any thread.
unsafe impl<S: Send, N: Send, W> Send for Inner<S, N, W> {}

impl<S, N, W> Inner<S, N, W> {
    /// Puts a node at the front or the back of the list.
    ///
    /// # Safety
    /// The node is in no list, and alive until it is taken and notified, or withdrawn (L3).
    unsafe fn push(&mut self, node: *const Node<N, W>, in_front: bool) {
        // SAFETY: the node's place is ours until it is in the list.
        let new = unsafe { place(node) };
        new.is_in = true;
        if self.first.is_null() {
            (new.next, new.previous) = (node, node);
            self.first = node;
            return;
        }
        // SAFETY: in the list, so alive, and we hold the lock.
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
    /// The node is in this list.
    unsafe fn remove(&mut self, node: *const Node<N, W>) {
        // SAFETY: in the list, so alive, and we hold the lock.
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

/// A list of waiters, and the state that its lock protects.
pub(crate) struct Queue<S, N, W = Waiter> {
    inner: Mutex<Inner<S, N, W>>,
}

/// Whether to wait, and at which end of the queue.
pub(crate) enum Look<R> {
    /// There is no need to wait.
    Done(R),
    Behind,
    InFront,
}

/// The result of a wait.
#[must_use]
pub(crate) enum Waited<R, N> {
    /// There was no need to wait.
    Done(R),
    /// The waiter was notified. Contains its request, as the notifier left it.
    Notified(N),
    TimedOut,
    /// The fiber is cancelled.
    Cancelled,
}

/// What one wait does under the queue's lock.
pub(crate) trait Plan<S, N, W: Waits> {
    type Answer;
    /// Decides whether to wait, before the node is put in the list.
    fn look(&mut self, locked: &mut Locked<'_, S, N, W>, request: &mut N) -> Look<Self::Answer>;
    /// Called once the node is in the list and the lock is free.
    fn queued(&mut self) {}
    /// Corrects the state after a withdrawal (L4). Called again if it had to take more waiters than
    /// fit in a batch.
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
            taken: [ptr::null(); MAX_BATCH],
            count: 0,
            more: false,
            guard: Some(guard),
            _node: PhantomData,
        }
    }

    /// Waits as `plan` decides.
    pub(crate) fn wait<P: Plan<S, N, W>>(
        &self,
        request: N,
        until: &Until,
        plan: &mut P,
    ) -> Waited<P::Answer, N> {
        let node = Node::new(W::caller(), request);
        let mut locked = self.lock();
        // SAFETY: the node is in no list yet.
        let request = unsafe { &mut place(&raw const node).request };
        let in_front = match plan.look(&mut locked, request) {
            Look::Done(answer) => return Waited::Done(answer),
            Look::Behind => false,
            Look::InFront => true,
        };
        let bomb = AbortOnDrop("a waiter left its stack frame while it was in a wait queue");
        // SAFETY: the node stays in this frame, which is left by L1 only.
        unsafe { locked.inner().push(&raw const node, in_front) };
        drop(locked);
        plan.queued();
        let woken = self.park_until_notified(&node, until, plan);
        std::mem::forget(bomb);
        match woken {
            Woken::ByWake => Waited::Notified(node.place.into_inner().request),
            Woken::ByDeadline => Waited::TimedOut,
            Woken::ByCancel => Waited::Cancelled,
        }
    }

    /// Parks until the waiter was notified (`ByWake`) or has withdrawn (L1).
    fn park_until_notified<P: Plan<S, N, W>>(
        &self,
        node: &Node<N, W>,
        until: &Until,
        plan: &mut P,
    ) -> Woken {
        let mut until = *until;
        node.waiter.set_awaited(ptr::from_ref(self).addr());
        loop {
            let woken = node.waiter.park(&until);
            if node.waiter.was_notified() {
                return Woken::ByWake;
            }
            if woken == Woken::ByWake {
                continue; // this wake-up was for an earlier wait
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
            // The notification is under way.
            (until.deadline, until.cancel) = (None, Cancel::Disabled);
        }
    }
}

/// The locked queue. When dropped it releases the lock, notifies the taken waiters, and enables
/// preemption.
pub(crate) struct Locked<'a, S, N, W: Waits> {
    /// `Some` until it is dropped.
    inner: Option<MutexGuard<'a, Inner<S, N, W>>>,
    taken: [*const Node<N, W>; MAX_BATCH],
    count: usize,
    /// Set by a `take` that found the batch full.
    more: bool,
    guard: Option<PreemptGuard>,
    _node: PhantomData<Node<N, W>>,
}

impl<S, N, W: Waits> Locked<'_, S, N, W> {
    fn inner(&mut self) -> &mut Inner<S, N, W> {
        self.inner
            .as_mut()
            .expect("the queue is locked until `Locked` is dropped")
    }

    pub(crate) fn state(&mut self) -> &mut S {
        &mut self.inner().state
    }

    pub(crate) fn is_empty(&self) -> bool {
        let inner = self
            .inner
            .as_ref()
            .expect("the queue is locked until `Locked` is dropped");
        inner.first.is_null()
    }

    /// The request of the first waiter.
    pub(crate) fn first(&mut self) -> Option<&mut N> {
        let first = self.inner().first;
        if first.is_null() {
            return None;
        }
        // SAFETY: in the list, so alive, and we hold the lock; `self` is borrowed for as long.
        Some(unsafe { &mut place(first).request })
    }

    /// Takes the first waiter and returns its request. Returns `None` if there is none or the batch
    /// is full; in the latter case [`finish`](Self::finish) returns true.
    pub(crate) fn take(&mut self) -> Option<&mut N> {
        let first = self.inner().first;
        if first.is_null() {
            return None;
        }
        if self.count == W::BATCH {
            self.more = true;
            return None;
        }
        // SAFETY: the node is the first of this list.
        unsafe { self.inner().remove(first) };
        self.taken[self.count] = first;
        self.count += 1;
        // SAFETY: we took the node, so it is alive until we notify it; `self` is borrowed for as
        // long.
        Some(unsafe { &mut place(first).request })
    }

    /// Releases the lock and notifies the taken waiters. Returns true if there are more to be
    /// taken.
    #[must_use]
    pub(crate) fn finish(self) -> bool {
        self.more
    }

    /// Removes the node. Returns false if it is not in the list, because it was taken.
    fn withdraw(&mut self, node: &Node<N, W>) -> bool {
        let inner = self.inner();
        // SAFETY: the node is alive, and we hold the lock; a taker accesses it only to notify its
        // waiter, and not its place.
        let is_in = unsafe { place(node) }.is_in;
        if is_in {
            // SAFETY: `is_in` says that the node is in this list.
            unsafe { inner.remove(node) };
        }
        is_in
    }
}

impl<S, N, W: Waits> Drop for Locked<'_, S, N, W> {
    fn drop(&mut self) {
        drop(self.inner.take());
        let mut kept: [Option<W::DeferredDrop>; MAX_BATCH] = [const { None }; MAX_BATCH];
        if let Some(guard) = &self.guard {
            for (at, node) in self.taken[..self.count].iter().enumerate() {
                // SAFETY: L3: the node was taken, and not notified yet.
                let waiter = unsafe { &raw const (**node).waiter };
                // SAFETY: L1: this is the only notification.
                kept[at] = Some(unsafe { W::notify(guard, waiter) });
            }
        }
        drop(self.guard.take());
        drop(kept);
    }
}

#[cfg(test)]
pub(crate) mod tests;
