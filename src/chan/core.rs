#![expect(unsafe_code, reason = "values move by pointer from stack to stack")]
//! A channel: a buffer, the waiting senders, the waiting receivers; and how values move between
//! them.
//!
//! Every decision is made under one lock (`park/queue.rs`). A value lies in the sender's *slot*,
//! then in the buffer or in the receiver's slot, and nowhere else. It is moved by a copy of its
//! bytes under the lock. The result of the operation says which side owns the value afterwards.
//!
//! **C1** *Send.* If the channel is closed, the value stays with the sender. If receivers wait, the
//! value goes to the first of them. If there is room, it goes into the buffer. Otherwise the sender
//! waits, and its value stays in its slot.
//!
//! **C2** *Receive.* The receiver takes the oldest value of the buffer, and the value of the first
//! waiting sender moves into the buffer behind the others. Without a buffer it takes the value of
//! the first waiting sender. If there is no value, the channel is closed or the receiver waits.
//!
//! So if a receiver waits, the buffer is empty and no sender waits; and if a sender waits, the
//! buffer has no room (I29). Values leave in the order in which their sends completed or began to
//! wait, and no value overtakes another of the same sender.
//!
//! **C3** *Close.* From then on no value enters the channel. Waiting senders get their values back,
//! and waiting receivers get an error. Values in the buffer are still received. Dropping the last
//! handle of a side closes the channel; dropping the last receiver also drops the buffer at once.
//!
//! No user code runs under the lock: values are dropped and waiters are notified after the unlock.

use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::time::Instant;

use super::buffer::{Block, Buffer};
use super::error::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use crate::park::guarded::{Guarded, Locked};
use crate::park::queue::{Entry, How, Queue, Taken};
use crate::park::{self, ParkReason, Woken};
use crate::sched::block::wake::Waiter;

pub(crate) struct Channel<T> {
    pub(crate) state: Guarded<State<T>>,
    capacity: Option<usize>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct State<T> {
    buffer: Buffer<T>,
    is_closed: bool,
    pub(crate) sending: Queue,
    pub(crate) receiving: Queue,
}

/// The result of an attempt to send or receive without waiting.
#[must_use]
pub(crate) enum Attempt {
    /// The value was moved. The waiter, if there is one, is to be notified.
    Done(Option<Taken>),
    Closed,
    /// The operation would have to wait.
    Wait,
}

impl<T> State<T> {
    /// Sends by C1. On `Attempt::Done` the value was moved out of `slot`.
    ///
    /// # Safety
    /// The slot contains a value.
    #[inline]
    pub(crate) unsafe fn send(&mut self, slot: *const T) -> Attempt {
        if self.is_closed {
            return Attempt::Closed;
        }
        if let Some(receiver) = self.receiving.take(How::Done) {
            // SAFETY: the receiver's slot is empty and of the same type; its owner waits until we
            // notify it.
            unsafe { ptr::copy_nonoverlapping(slot, receiver.slot().cast(), 1) };
            return Attempt::Done(Some(receiver));
        }
        if !self.buffer.has_room() {
            return Attempt::Wait;
        }
        // SAFETY: there is room; the slot contains a value by the caller's promise.
        unsafe { self.buffer.push(slot) };
        Attempt::Done(None)
    }

    /// Receives by C2. On `Attempt::Done` a value was moved to `slot`.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, slot: *mut T) -> Attempt {
        // SAFETY: by the caller's promise.
        if unsafe { self.buffer.pop(slot) } {
            let sender = self.sending.take(How::Done);
            if let Some(sender) = &sender {
                // SAFETY: there is room, as one value has just left; the sender waits until we
                // notify it.
                unsafe { self.buffer.push(sender.slot().cast()) };
            }
            return Attempt::Done(sender);
        }
        if let Some(sender) = self.sending.take(How::Done) {
            // SAFETY: the value is ours now that its sender was taken from the queue; the sender
            // waits until we notify it.
            unsafe { ptr::copy_nonoverlapping(sender.slot().cast(), slot, 1) };
            return Attempt::Done(Some(sender));
        }
        if self.is_closed {
            Attempt::Closed
        } else {
            Attempt::Wait
        }
    }
}

impl<T> Channel<T> {
    /// A channel with one handle on each side. Without a capacity it is unbounded.
    pub(crate) fn new(capacity: Option<usize>) -> Self {
        Channel {
            state: Guarded::new(State {
                buffer: Buffer::new(capacity),
                is_closed: false,
                sending: Queue::new(),
                receiving: Queue::new(),
            }),
            capacity,
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
        }
    }

    pub(crate) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().buffer.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Locks the state, and adds a block if the buffer is a chain without room.
    #[inline]
    fn lock_to_send(&self) -> Locked<'_, State<T>> {
        self.with_room(self.state.lock())
    }

    #[inline]
    fn with_room<'a>(&'a self, state: Locked<'a, State<T>>) -> Locked<'a, State<T>> {
        if self.capacity.is_some() || state.is_closed || state.buffer.has_room() {
            return state;
        }
        self.lock_with_block(state)
    }

    #[cold]
    fn lock_with_block<'a>(&'a self, mut state: Locked<'a, State<T>>) -> Locked<'a, State<T>> {
        let mut left: Option<Box<Block<T>>> = None;
        while !(state.is_closed || state.buffer.has_room()) {
            drop(state);
            let block = left.take().unwrap_or_else(Block::new);
            state = self.state.lock();
            if let Buffer::Chain(chain) = &mut state.buffer {
                left = chain.grow(block);
            }
        }
        if let Some(block) = left {
            drop(state);
            drop(block);
            return self.lock_to_send();
        }
        state
    }

    pub(crate) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let value = ManuallyDrop::new(value);
        let mut state = self.lock_to_send();
        // SAFETY: the slot contains the value.
        let attempt = unsafe { state.send(&raw const *value) };
        match attempt {
            Attempt::Done(taken) => {
                state.finish([taken]);
                Ok(())
            }
            Attempt::Closed => {
                drop(state);
                Err(TrySendError::Closed(ManuallyDrop::into_inner(value)))
            }
            Attempt::Wait => {
                drop(state);
                Err(TrySendError::Full(ManuallyDrop::into_inner(value)))
            }
        }
    }

    /// Sends by C1, and waits until the deadline if it must. Asks for the deadline only then.
    #[inline]
    pub(crate) fn send(
        &self,
        value: T,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<(), SendTimeoutError<T>> {
        // `lock_charged` may unwind: until it has returned, the value must be dropped by unwinding.
        let mut state = self.with_room(self.state.lock_charged());
        let mut value = ManuallyDrop::new(value);
        let mut thread = None;
        let operation = loop {
            // SAFETY: the slot contains the value.
            match unsafe { state.send(&raw const *value) } {
                Attempt::Done(taken) => {
                    state.finish([taken]);
                    return Ok(());
                }
                Attempt::Closed => {
                    drop(state);
                    return Err(SendTimeoutError::Closed(ManuallyDrop::into_inner(value)));
                }
                Attempt::Wait => {}
            }
            if let Some(operation) = state.operation(&mut thread) {
                break operation;
            }
            drop(state);
            thread = Some(Waiter::caller());
            state = self.lock_to_send();
        };
        let entry = Entry::only(&operation, (&raw mut value).cast());
        // SAFETY: the entry stays on this stack until the operation is over: `wait` below returns
        // only then.
        unsafe { state.sending.push(&entry) };
        drop(state);
        // SAFETY: the entry was put into this queue.
        let withdraw = || unsafe { self.state.lock().sending.remove(&entry) };
        let ended = operation.wait(deadline(), ParkReason::Send, &withdraw);
        if ended == Ok(How::Done) {
            return Ok(());
        }
        let value = ManuallyDrop::into_inner(value);
        match ended {
            Ok(_) => Err(SendTimeoutError::Closed(value)),
            Err(Woken::ByCancel) => park::unwind_cancelled(),
            Err(_) => Err(SendTimeoutError::Timeout(value)),
        }
    }

    pub(crate) fn try_receive(&self) -> Result<T, TryRecvError> {
        let mut value = MaybeUninit::uninit();
        let mut state = self.state.lock();
        // SAFETY: the slot is empty.
        match unsafe { state.receive(value.as_mut_ptr()) } {
            Attempt::Done(taken) => {
                let surplus = state.buffer.surplus();
                state.finish([taken]);
                drop(surplus);
                // SAFETY: `receive` moved a value there.
                Ok(unsafe { value.assume_init() })
            }
            Attempt::Closed => Err(TryRecvError::Closed),
            Attempt::Wait => Err(TryRecvError::Empty),
        }
    }

    /// Receives by C2, and waits until the deadline if it must. Asks for the deadline only then.
    #[inline]
    pub(crate) fn receive(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<T, RecvTimeoutError> {
        let mut value = MaybeUninit::<T>::uninit();
        let mut state = self.state.lock_charged();
        let mut thread = None;
        let operation = loop {
            // SAFETY: the slot is empty.
            match unsafe { state.receive(value.as_mut_ptr()) } {
                Attempt::Done(taken) => {
                    let surplus = state.buffer.surplus();
                    state.finish([taken]);
                    drop(surplus);
                    // SAFETY: `receive` moved a value there.
                    return Ok(unsafe { value.assume_init() });
                }
                Attempt::Closed => return Err(RecvTimeoutError::Closed),
                Attempt::Wait => {}
            }
            if let Some(operation) = state.operation(&mut thread) {
                break operation;
            }
            drop(state);
            thread = Some(Waiter::caller());
            state = self.state.lock();
        };
        let entry = Entry::only(&operation, value.as_mut_ptr().cast());
        // SAFETY: the entry stays on this stack until the operation is over: `wait` below returns
        // only then.
        unsafe { state.receiving.push(&entry) };
        drop(state);
        // SAFETY: the entry was put into this queue.
        let withdraw = || unsafe { self.state.lock().receiving.remove(&entry) };
        match operation.wait(deadline(), ParkReason::Receive, &withdraw) {
            // SAFETY: the sender that notified this operation moved a value there.
            Ok(How::Done) => Ok(unsafe { value.assume_init() }),
            Ok(How::Over) => Err(RecvTimeoutError::Closed),
            Err(Woken::ByCancel) => park::unwind_cancelled(),
            Err(_) => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Closes the channel by C3. Returns false if it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        let closed = !mem::replace(&mut state.is_closed, true);
        self.state
            .notify_all(state, How::Over, |state| &mut state.sending);
        let state = self.state.lock();
        self.state
            .notify_all(state, How::Over, |state| &mut state.receiving);
        closed
    }

    pub(crate) fn add_sender(&self) {
        count_up(&self.senders);
    }

    pub(crate) fn add_receiver(&self) {
        count_up(&self.receivers);
    }

    pub(crate) fn drop_sender(&self) {
        if self.senders.fetch_sub(1, AcqRel) == 1 {
            self.close();
        }
    }

    pub(crate) fn drop_receiver(&self) {
        if self.receivers.fetch_sub(1, AcqRel) == 1 {
            self.close();
            let empty = Buffer::new(self.capacity.map(|_| 0));
            let left = mem::replace(&mut self.state.lock().buffer, empty);
            drop(left); // user code: not under the lock
        }
    }
}

fn count_up(handles: &AtomicUsize) {
    let before = handles.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assert!(
        before < isize::MAX as usize,
        "cannot clone a channel handle: {before} handles exist on this side, so they were leaked \
         with `mem::forget`; drop them instead"
    );
}

#[cfg(all(test, indent_loom))]
mod tests;
