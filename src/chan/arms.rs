#![expect(
    unsafe_code,
    reason = "slots that others read and write; see park/queue.rs"
)]
//! Arms of a select that send to or receive from a channel.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::broadcast::{self, BroadcastReceiver};
use super::core::{Attempt, Channel};
use super::error::{BroadcastError, RecvError, SendError, TryRecvError, TrySendError};
use super::notify::ChangeArm;
use super::watch::{self, Ref, WatchReceiver};
use crate::park::queue::{Entry, How, Taken};
use crate::park::select::{Arm, ArmRef, Fires, Queued};
use crate::util::loom::RawLock;

/// An arm of a select that receives; absent without a channel.
///
/// It has no destructor, so its borrows end with its last use. If it has fired, the select calls
/// `finish`, which takes the received value out.
pub struct RecvArm<'a, T> {
    channel: Option<&'a Channel<T>>,
    value: UnsafeCell<MaybeUninit<T>>,
    how: Cell<Option<How>>,
}

impl<'a, T> RecvArm<'a, T> {
    pub(crate) fn new(channel: Option<&'a Channel<T>>) -> Self {
        RecvArm {
            channel,
            value: UnsafeCell::new(MaybeUninit::uninit()),
            how: Cell::new(None),
        }
    }

    fn channel(&self) -> &Channel<T> {
        self.channel.expect("an arm that is not absent")
    }
}

impl<T> Fires for RecvArm<'_, T> {
    type Output = Result<T, RecvError>;

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(match self.channel {
            Some(_) => Arm::Queued(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) -> Result<T, RecvError> {
        match self.how.take().expect("it has fired") {
            // SAFETY: a value was moved there when `how` was set, and is moved out once, as `how`
            // was taken.
            How::Done => Ok(unsafe { self.value.get_mut().assume_init_read() }),
            How::Over => Err(RecvError),
        }
    }
}

// SAFETY: lock, `attempt`, `enlist` and `remove` belong to one channel and its queue of receivers,
// and the slot is for a value of that channel.
unsafe impl<T> Queued for RecvArm<'_, T> {
    fn try_now(&self) -> bool {
        match self.channel().try_receive() {
            Ok(value) => {
                // SAFETY: the slot is ours alone, as there is no entry yet.
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

impl<T> fmt::Debug for RecvArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiving")
    }
}

/// An arm of a select that sends the value of an `Option`; absent without a value or a channel.
///
/// The value stays in the `Option` if another arm fires.
pub struct SendArm<'a, T> {
    channel: Option<&'a Channel<T>>,
    value: &'a UnsafeCell<Option<T>>,
    /// Where in `value` the sent value is, once an entry points to it. From then on no reference is
    /// made to it.
    slot: Cell<*mut T>,
    how: Cell<Option<How>>,
}

impl<'a, T> SendArm<'a, T> {
    pub(crate) fn new(channel: Option<&'a Channel<T>>, value: &'a mut Option<T>) -> Self {
        let value = ptr::from_mut(value).cast::<UnsafeCell<Option<T>>>();
        SendArm {
            channel,
            // SAFETY: `UnsafeCell<X>` has the layout of `X`, and the `Option` is borrowed mutably
            // for `'a`.
            value: unsafe { &*value },
            slot: Cell::new(ptr::null_mut()),
            how: Cell::new(None),
        }
    }

    fn channel(&self) -> &Channel<T> {
        self.channel.expect("an arm that is not absent")
    }

    /// # Safety
    /// Either no entry of this arm is in a queue, or the lock is held; and there is no other such
    /// reference.
    #[expect(
        clippy::mut_from_ref,
        reason = "by the caller's promise it is the only one"
    )]
    unsafe fn value(&self) -> &mut Option<T> {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// Notes that the value was moved away.
    fn forget(&self) {
        // SAFETY: the value there is no longer ours, so it is overwritten without a drop; no other
        // thread uses the slot after the move.
        unsafe { self.value.get().write(None) };
        self.how.set(Some(How::Done));
    }
}

impl<T> Fires for SendArm<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn arm(&self) -> ArmRef<'_> {
        // SAFETY: no entry is in a queue while arms are collected.
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

// SAFETY: lock, `attempt`, `enlist` and `remove` belong to one channel and its queue of senders,
// and the slot contains a value for that channel.
unsafe impl<T> Queued for SendArm<'_, T> {
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
        // SAFETY: the slot contains the value, which has not been sent.
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

impl<T> fmt::Debug for SendArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sending")
    }
}

/// An arm of a select that receives the next broadcast value; absent without a receiver.
#[doc(hidden)]
pub struct BroadcastRecvArm<'a, T>(Option<BroadcastRecv<'a, T>>);

struct BroadcastRecv<'a, T> {
    changed: ChangeArm<'a, broadcast::State<T>>,
    shared: &'a broadcast::Shared<T>,
    next: &'a mut u64,
}

impl<'a, T> BroadcastRecvArm<'a, T> {
    pub(crate) fn new(receiver: Option<&'a mut BroadcastReceiver<T>>) -> Self {
        BroadcastRecvArm(receiver.map(|receiver| BroadcastRecv {
            changed: ChangeArm::new(&receiver.shared.state, receiver.next),
            shared: &receiver.shared,
            next: &mut receiver.next,
        }))
    }

    fn read(&mut self) -> Result<Arc<T>, BroadcastError> {
        let this = self.0.as_mut().expect("an arm that is not absent");
        let read = this.shared.read(this.next);
        this.changed.set_position(*this.next);
        read
    }
}

impl<T: Clone> Fires for BroadcastRecvArm<'_, T> {
    type Output = Result<T, BroadcastError>;

    fn arm(&self) -> ArmRef<'_> {
        ChangeArm::arm(self.0.as_ref().map(|this| &this.changed))
    }

    fn finish(&mut self) -> Self::Output {
        self.read().map(Arc::unwrap_or_clone)
    }

    fn discard(&mut self) {
        drop(self.read()); // this clones no value
    }
}

impl<T> fmt::Debug for BroadcastRecvArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BroadcastReceiving")
    }
}

/// An arm of a select that receives a changed value of a watch channel; absent without a receiver.
#[doc(hidden)]
pub struct WatchRecvArm<'a, T>(Option<WatchRecv<'a, T>>);

struct WatchRecv<'a, T> {
    changed: ChangeArm<'a, watch::State<T>>,
    shared: &'a watch::Shared<T>,
    seen: &'a mut u64,
}

impl<'a, T> WatchRecvArm<'a, T> {
    pub(crate) fn new(receiver: Option<&'a mut WatchReceiver<T>>) -> Self {
        WatchRecvArm(receiver.map(|receiver| WatchRecv {
            changed: ChangeArm::new(&receiver.shared.state, receiver.seen),
            shared: &receiver.shared,
            seen: &mut receiver.seen,
        }))
    }
}

impl<T> Fires for WatchRecvArm<'_, T> {
    type Output = Result<Ref<T>, RecvError>;

    fn arm(&self) -> ArmRef<'_> {
        ChangeArm::arm(self.0.as_ref().map(|this| &this.changed))
    }

    fn finish(&mut self) -> Self::Output {
        let this = self.0.as_mut().expect("an arm that is not absent");
        let read = this.shared.read(this.seen);
        this.changed.set_position(*this.seen);
        read.map_err(|_| RecvError)
    }
}

impl<T> fmt::Debug for WatchRecvArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}
