#![expect(
    unsafe_code,
    reason = "slots that others read and write; see park/queue.rs"
)]
//! Sends and receives as arms of a select; and news.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::broadcast::{self, BroadcastReceiver};
use super::core::{Attempt, Channel};
use super::error::{BroadcastError, RecvError, SendError, TryRecvError, TrySendError};
use super::told::News;
use super::watch::{self, Seen, WatchReceiver};
use crate::park::queue::{Entry, How, Taken};
use crate::park::select::{Arm, ArmRef, Fires, Queued};
use crate::util::loom::RawLock;

/// To receive from a channel, if there is one.
///
/// Nothing of it needs to be dropped, so what it borrows is free after its last use: whoever selects calls
/// `finish` if it has fired.
pub struct Receiving<'a, T> {
    channel: Option<&'a Channel<T>>,
    value: UnsafeCell<MaybeUninit<T>>,
    how: Cell<Option<How>>,
}

impl<'a, T> Receiving<'a, T> {
    pub(crate) fn new(channel: Option<&'a Channel<T>>) -> Self {
        Receiving {
            channel,
            value: UnsafeCell::new(MaybeUninit::uninit()),
            how: Cell::new(None),
        }
    }

    fn channel(&self) -> &Channel<T> {
        self.channel.expect("an arm that is not absent")
    }
}

impl<T> Fires for Receiving<'_, T> {
    type Output = Result<T, RecvError>;

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(match self.channel {
            Some(_) => Arm::Queued(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) -> Result<T, RecvError> {
        match self.how.take().expect("it has fired") {
            // SAFETY: a value was moved there, and is moved out once: `how` was taken.
            How::Done => Ok(unsafe { self.value.get_mut().assume_init_read() }),
            How::Over => Err(RecvError),
        }
    }
}

// SAFETY: all of one channel: its lock, its queue of receivers, a slot for its values.
unsafe impl<T> Queued for Receiving<'_, T> {
    fn try_now(&self) -> bool {
        match self.channel().try_receive() {
            Ok(value) => {
                // SAFETY: nobody else has the slot: there is no entry.
                unsafe { &mut *self.value.get() }.write(value);
                self.how.set(Some(How::Done));
            }
            Err(TryRecvError::Closed) => self.how.set(Some(How::Over)),
            Err(TryRecvError::Empty) => return false,
        }
        true
    }

    fn lock(&self) -> &RawLock {
        self.channel().state.raw()
    }

    unsafe fn attempt(&self) -> Option<Option<Taken>> {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: the slot is empty.
        match unsafe { state.receive(self.value.get().cast()) } {
            Attempt::Done(taken) => {
                self.how.set(Some(How::Done));
                Some(taken)
            }
            Attempt::Closed => {
                self.how.set(Some(How::Over));
                Some(None)
            }
            Attempt::Wait => None,
        }
    }

    fn slot(&self) -> *mut () {
        self.value.get().cast()
    }

    unsafe fn enlist(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: by the caller's promise.
        unsafe { state.receiving.push(entry) };
    }

    unsafe fn remove(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: by the caller's promise.
        let _or_taken = unsafe { state.receiving.remove(entry) };
    }

    fn won(&self, how: How) {
        self.how.set(Some(how));
    }
}

impl<T> fmt::Debug for Receiving<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiving")
    }
}

/// To send what is in an `Option`, if there is something and a channel. It stays there if another arm wins.
pub struct Sending<'a, T> {
    channel: Option<&'a Channel<T>>,
    value: &'a UnsafeCell<Option<T>>,
    /// Where in there the value is, once others may know: from then on no reference is made to it.
    slot: Cell<*mut T>,
    how: Cell<Option<How>>,
}

impl<'a, T> Sending<'a, T> {
    pub(crate) fn new(channel: Option<&'a Channel<T>>, value: &'a mut Option<T>) -> Self {
        let value = ptr::from_mut(value).cast::<UnsafeCell<Option<T>>>();
        Sending {
            channel,
            // SAFETY: the same layout, and borrowed mutably for as long.
            value: unsafe { &*value },
            slot: Cell::new(ptr::null_mut()),
            how: Cell::new(None),
        }
    }

    fn channel(&self) -> &Channel<T> {
        self.channel.expect("an arm that is not absent")
    }

    /// # Safety
    /// No entry is in a queue, or the lock is held, and there is no other such reference.
    #[expect(
        clippy::mut_from_ref,
        reason = "by the caller's promise it is the only one"
    )]
    unsafe fn value(&self) -> &mut Option<T> {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// The value was moved away.
    fn forget(&self) {
        // SAFETY: what is there is not ours any more; nobody else looks.
        unsafe { self.value.get().write(None) };
        self.how.set(Some(How::Done));
    }
}

impl<T> Fires for Sending<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn arm(&self) -> ArmRef<'_> {
        // SAFETY: no entry is in a queue when arms are gathered.
        let has_value = unsafe { self.value() }.is_some();
        ArmRef(match self.channel {
            Some(_) if has_value => Arm::Queued(self),
            _ => Arm::Absent,
        })
    }

    fn finish(&mut self) -> Result<(), SendError<T>> {
        match self.how.take().expect("it has fired") {
            How::Done => Ok(()),
            How::Over => {
                // SAFETY: the select is over, so no entry is in a queue.
                let value = unsafe { self.value() }.take();
                Err(SendError(value.expect("it was not sent")))
            }
        }
    }
}

// SAFETY: all of one channel: its lock, its queue of senders, a slot with a value for it.
unsafe impl<T> Queued for Sending<'_, T> {
    fn try_now(&self) -> bool {
        // SAFETY: no entry is in a queue yet.
        let slot = unsafe { self.value() };
        let value = slot.take().expect("an arm that is not absent");
        match self.channel().try_send(value) {
            Ok(()) => self.how.set(Some(How::Done)),
            Err(TrySendError::Closed(value)) => {
                *slot = Some(value);
                self.how.set(Some(How::Over));
            }
            Err(TrySendError::Full(value)) => {
                *slot = Some(value);
                return false;
            }
        }
        true
    }

    fn lock(&self) -> &RawLock {
        self.channel().state.raw()
    }

    unsafe fn attempt(&self) -> Option<Option<Taken>> {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: the value is there.
        match unsafe { state.send(self.slot.get()) } {
            Attempt::Done(taken) => {
                self.forget();
                Some(taken)
            }
            Attempt::Closed => {
                self.how.set(Some(How::Over));
                Some(None)
            }
            Attempt::Wait => None,
        }
    }

    fn slot(&self) -> *mut () {
        // SAFETY: no entry is in a queue yet.
        let value = unsafe { self.value() }.as_mut();
        let value = ptr::from_mut(value.expect("an arm that is not absent"));
        self.slot.set(value);
        value.cast()
    }

    unsafe fn enlist(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: by the caller's promise.
        unsafe { state.sending.push(entry) };
    }

    unsafe fn remove(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let state = unsafe { self.channel().state.inside() };
        // SAFETY: by the caller's promise.
        let _or_taken = unsafe { state.sending.remove(entry) };
    }

    fn won(&self, how: How) {
        match how {
            How::Done => self.forget(),
            How::Over => self.how.set(Some(how)),
        }
    }
}

impl<T> fmt::Debug for Sending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sending")
    }
}

/// To receive the next value, if there is a receiver, as an arm of a select.
#[doc(hidden)]
pub struct BroadcastReceiving<'a, T>(Option<BroadcastReceive<'a, T>>);

struct BroadcastReceive<'a, T> {
    news: News<'a, broadcast::State<T>>,
    shared: &'a broadcast::Shared<T>,
    next: &'a mut u64,
}

impl<'a, T> BroadcastReceiving<'a, T> {
    pub(crate) fn new(receiver: Option<&'a mut BroadcastReceiver<T>>) -> Self {
        BroadcastReceiving(receiver.map(|receiver| BroadcastReceive {
            news: News::new(&receiver.shared.state, receiver.next),
            shared: &receiver.shared,
            next: &mut receiver.next,
        }))
    }

    fn look(&mut self) -> Result<Arc<T>, BroadcastError> {
        let this = self.0.as_mut().expect("an arm that is not absent");
        let looked = this.shared.look(this.next);
        this.news.set_position(*this.next);
        looked
    }
}

impl<T: Clone> Fires for BroadcastReceiving<'_, T> {
    type Output = Result<T, BroadcastError>;

    fn arm(&self) -> ArmRef<'_> {
        News::arm(self.0.as_ref().map(|this| &this.news))
    }

    fn finish(&mut self) -> Self::Output {
        self.look().map(Arc::unwrap_or_clone)
    }

    fn discard(&mut self) {
        drop(self.look()); // which clones nothing
    }
}

impl<T> fmt::Debug for BroadcastReceiving<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BroadcastReceiving")
    }
}

/// To receive the next value, if there is a receiver, as an arm of a select.
#[doc(hidden)]
pub struct Watching<'a, T>(Option<Watches<'a, T>>);

struct Watches<'a, T> {
    news: News<'a, watch::State<T>>,
    shared: &'a watch::Shared<T>,
    seen: &'a mut u64,
}

impl<'a, T> Watching<'a, T> {
    pub(crate) fn new(receiver: Option<&'a mut WatchReceiver<T>>) -> Self {
        Watching(receiver.map(|receiver| Watches {
            news: News::new(&receiver.shared.state, receiver.seen),
            shared: &receiver.shared,
            seen: &mut receiver.seen,
        }))
    }
}

impl<T> Fires for Watching<'_, T> {
    type Output = Result<Seen<T>, RecvError>;

    fn arm(&self) -> ArmRef<'_> {
        News::arm(self.0.as_ref().map(|this| &this.news))
    }

    fn finish(&mut self) -> Self::Output {
        let this = self.0.as_mut().expect("an arm that is not absent");
        let looked = this.shared.look(this.seen);
        this.news.set_position(*this.seen);
        looked.map_err(|_| RecvError)
    }
}

impl<T> fmt::Debug for Watching<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}
