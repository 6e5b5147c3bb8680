#![expect(unsafe_code, reason = "values move by pointer from stack to stack")]
//! A channel: a buffer, those who wait to send, those who wait to receive; and how values move.
//!
//! All is decided under one lock (`park/queue.rs`). A value lies in the sender's *slot*, then in the buffer or in
//! the receiver's slot, and nowhere else: it is moved by a copy of its bytes under the lock, and whose it is
//! follows from what the operation returned.
//!
//! **C1** *Send*: closed, the value stays. Somebody waits to receive: it goes to the first of them. There is room:
//! into the buffer. Else the sender waits, and its value stays in its slot. **C2** *Receive*: the oldest value of
//! the buffer, and the value of the first who waits to send moves up behind the others; or, if there is no buffer,
//! the value of the first who waits. Nothing there: closed, or the receiver waits. So if somebody waits to receive
//! the buffer is empty and nobody waits to send, and if somebody waits to send there is no room (I29); values leave
//! in the order in which their sends began to wait or were done, and none overtakes another of the same
//! sender.
//!
//! **C3** *Close*: from here on nothing comes in. Those who wait to send get their values back, those who wait
//! to receive learn it; what is in the buffer is still received. The last handle of a side closes; without receivers
//! the buffer is dropped at once.
//!
//! Nothing of the user's runs under the lock: values are dropped, and waiters called, after it.

use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::time::Instant;

use super::buffer::{Block, Buffer};
use super::error::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use crate::park::guarded::{Guarded, Locked};
use crate::park::queue::{Entry, How, Queue, Taken};
use crate::park::{self, ParkReason, Woken};
use crate::sched::wake::Waiter;

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

/// What became of an attempt.
#[must_use]
pub(crate) enum Attempt {
    /// It is done, and this one is to be called.
    Done(Option<Taken>),
    Closed,
    /// It would have to wait.
    Wait,
}

impl<T> State<T> {
    /// C1. The value is moved out of `slot` if it is done.
    ///
    /// # Safety
    /// A value is in the slot.
    #[inline]
    pub(crate) unsafe fn send(&mut self, slot: *const T) -> Attempt {
        if self.is_closed {
            return Attempt::Closed;
        }
        if let Some(receiver) = self.receiving.take(How::Done) {
            // SAFETY: an empty slot of the same type, whose owner waits for our call.
            unsafe { ptr::copy_nonoverlapping(slot, receiver.slot().cast(), 1) };
            return Attempt::Done(Some(receiver));
        }
        if !self.buffer.has_room() {
            return Attempt::Wait;
        }
        // SAFETY: there is room; the value by the caller's promise.
        unsafe { self.buffer.push(slot) };
        Attempt::Done(None)
    }

    /// C2. A value is moved to `slot` if it is done.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, slot: *mut T) -> Attempt {
        // SAFETY: by the caller's promise.
        if unsafe { self.buffer.pop(slot) } {
            let sender = self.sending.take(How::Done);
            if let Some(sender) = &sender {
                // SAFETY: there is room, as one has just left; the sender waits for our call.
                unsafe { self.buffer.push(sender.slot().cast()) };
            }
            return Attempt::Done(sender);
        }
        if let Some(sender) = self.sending.take(How::Done) {
            // SAFETY: a value that is ours now; its sender waits for our call.
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
    /// Without a capacity it is unbounded. One handle on each side.
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

    /// The lock, and a block for the next value if the buffer is a chain that has none left.
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
        // SAFETY: the value is there.
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

    /// Waits until then, if it has to; the deadline is asked for only if so.
    #[inline]
    pub(crate) fn send(
        &self,
        value: T,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<(), SendTimeoutError<T>> {
        // This may unwind: the value is not forgotten before.
        let mut state = self.with_room(self.state.lock_charged());
        let mut value = ManuallyDrop::new(value);
        let mut thread = None;
        let operation = loop {
            // SAFETY: the value is there.
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
        // SAFETY: it stays here until the operation is over: see below.
        unsafe { state.sending.push(&entry) };
        drop(state);
        // SAFETY: it was put into this queue.
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
                // SAFETY: moved there.
                Ok(unsafe { value.assume_init() })
            }
            Attempt::Closed => Err(TryRecvError::Closed),
            Attempt::Wait => Err(TryRecvError::Empty),
        }
    }

    /// As for `send`.
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
                    // SAFETY: moved there.
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
        // SAFETY: it stays here until the operation is over: see below.
        unsafe { state.receiving.push(&entry) };
        drop(state);
        // SAFETY: it was put into this queue.
        let withdraw = || unsafe { self.state.lock().receiving.remove(&entry) };
        match operation.wait(deadline(), ParkReason::Receive, &withdraw) {
            // SAFETY: moved there by whoever has called.
            Ok(How::Done) => Ok(unsafe { value.assume_init() }),
            Ok(How::Over) => Err(RecvTimeoutError::Closed),
            Err(Woken::ByCancel) => park::unwind_cancelled(),
            Err(_) => Err(RecvTimeoutError::Timeout),
        }
    }

    /// C3. False if it was closed before.
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
            drop(left); // without the lock
        }
    }
}

fn count_up(handles: &AtomicUsize) {
    let before = handles.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assert!(
        before < isize::MAX as usize,
        "a channel has {before} handles on one side: they were forgotten, not dropped"
    );
}

#[cfg(all(test, indent_loom))]
mod tests;
