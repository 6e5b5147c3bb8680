//! What can be an arm, beside sends and receives; and what the macro calls.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::chan::arms::{BroadcastReceiving, Receiving, Sending, Watching};
use crate::chan::{BroadcastReceiver, OneshotReceiver, Receiver, Sender, WatchReceiver};
use crate::fiber::job;
use crate::io::{Enlisted, ReadinessWait, Source};
use crate::park::select::{self, Arm, ArmRef, Event, Fires, Patience, Registered};
use crate::sched::wake::Waiter;
use crate::task::JoinHandle;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// What can be received from in a select: `&Receiver`, `&mut` to the receivers of the other kinds of channels, or an
/// `Option` of those, which is absent if it is `None`.
///
/// ```
/// use indent::{chan, select};
///
/// let (_tx, rx) = chan::bounded::<u8>(1);
/// let absent: Option<&chan::Receiver<u8>> = None;
/// let fired = select! {
///     recv(&rx) -> _value => "rx",
///     recv(absent) -> _value => "absent",
///     default => "nothing",
/// };
/// assert_eq!(fired, "nothing");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received from in a select",
    note = "pass a reference: `recv(&receiver)`, or `recv(option.as_ref())`; receivers of one-shot, broadcast and watch \
            channels by `&mut`, or `option.as_mut()`"
)]
pub trait Receive: Sealed {
    /// What is received.
    type Output;
    #[doc(hidden)]
    type Arm: Fires<Output = Self::Output>;
    #[doc(hidden)]
    fn into_arm(self) -> Self::Arm;
}

/// What can be sent to in a select: `&Sender`, or an `Option` of it, which is absent if it is `None`.
///
/// ```
/// use indent::{chan, select};
///
/// let (tx, rx) = chan::bounded(1);
/// select! {
///     send(&tx, 5) -> sent => sent.unwrap(),
/// }
/// assert_eq!(rx.recv(), Ok(5));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent to in a select",
    note = "pass a reference: `send(&sender, value)`, or `send(option.as_ref(), value)`"
)]
pub trait Offer<'a, T>: Sealed {
    #[doc(hidden)]
    fn into_arm(self, value: &'a mut Option<T>) -> Sending<'a, T>;
}

impl<T> Sealed for &Receiver<T> {}
impl<'a, T> Receive for &'a Receiver<T> {
    type Output = <Receiving<'a, T> as Fires>::Output;
    type Arm = Receiving<'a, T>;

    fn into_arm(self) -> Receiving<'a, T> {
        Receiving::new(Some(&self.0))
    }
}

impl<R: Sealed> Sealed for Option<R> {}
impl<'a, T> Receive for Option<&'a Receiver<T>> {
    type Output = <Receiving<'a, T> as Fires>::Output;
    type Arm = Receiving<'a, T>;

    fn into_arm(self) -> Receiving<'a, T> {
        Receiving::new(self.map(|receiver| &*receiver.0))
    }
}

impl<T> Sealed for &mut OneshotReceiver<T> {}
impl<'a, T> Receive for &'a mut OneshotReceiver<T> {
    type Output = <Receiving<'a, T> as Fires>::Output;
    type Arm = Receiving<'a, T>;

    fn into_arm(self) -> Receiving<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T> Receive for Option<&'a mut OneshotReceiver<T>> {
    type Output = <Receiving<'a, T> as Fires>::Output;
    type Arm = Receiving<'a, T>;

    fn into_arm(self) -> Receiving<'a, T> {
        Receiving::new(self.map(|receiver| &*receiver.0))
    }
}

impl<T> Sealed for &mut WatchReceiver<T> {}
impl<'a, T> Receive for &'a mut WatchReceiver<T> {
    type Output = <Watching<'a, T> as Fires>::Output;
    type Arm = Watching<'a, T>;

    fn into_arm(self) -> Watching<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T> Receive for Option<&'a mut WatchReceiver<T>> {
    type Output = <Watching<'a, T> as Fires>::Output;
    type Arm = Watching<'a, T>;

    fn into_arm(self) -> Watching<'a, T> {
        Watching::new(self)
    }
}

impl<T> Sealed for &mut BroadcastReceiver<T> {}
impl<'a, T: Clone> Receive for &'a mut BroadcastReceiver<T> {
    type Output = <BroadcastReceiving<'a, T> as Fires>::Output;
    type Arm = BroadcastReceiving<'a, T>;

    fn into_arm(self) -> BroadcastReceiving<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T: Clone> Receive for Option<&'a mut BroadcastReceiver<T>> {
    type Output = <BroadcastReceiving<'a, T> as Fires>::Output;
    type Arm = BroadcastReceiving<'a, T>;

    fn into_arm(self) -> BroadcastReceiving<'a, T> {
        BroadcastReceiving::new(self)
    }
}

impl<T> Sealed for &Sender<T> {}
impl<'a, T> Offer<'a, T> for &'a Sender<T> {
    fn into_arm(self, value: &'a mut Option<T>) -> Sending<'a, T> {
        Sending::new(Some(&self.0), value)
    }
}

impl<'a, T> Offer<'a, T> for Option<&'a Sender<T>> {
    fn into_arm(self, value: &'a mut Option<T>) -> Sending<'a, T> {
        Sending::new(self.map(|sender| &*sender.0), value)
    }
}

/// For the macro.
#[doc(hidden)]
pub fn recv<R: Receive>(receiver: R) -> R::Arm {
    receiver.into_arm()
}

/// For the macro.
#[doc(hidden)]
pub fn send<'a, T, S: Offer<'a, T>>(sender: S, value: &'a mut Option<T>) -> Sending<'a, T> {
    sender.into_arm(value)
}

/// The end of a fiber, if there is one.
#[doc(hidden)]
pub struct Finishing<'a, T>(Option<&'a JoinHandle<T>>);

impl<T> fmt::Debug for Finishing<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Finishing")
    }
}

/// For the macro.
#[doc(hidden)]
pub fn finished<'a, T>(handle: impl Into<Option<&'a JoinHandle<T>>>) -> Finishing<'a, T> {
    Finishing(handle.into())
}

/// For the macro.
#[doc(hidden)]
pub fn join_arm<T>(handle: &JoinHandle<T>) -> Finishing<'_, T> {
    Finishing(Some(handle))
}

impl<T> Fires for Finishing<'_, T> {
    type Output = ();

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(match self.0 {
            Some(_) => Arm::Event(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) {}
}

impl<T> Event for Finishing<'_, T> {
    fn is_ready(&self) -> bool {
        self.0.is_none_or(JoinHandle::is_over)
    }

    fn register(&self, waiter: &Waiter) -> Registered {
        match self.0.map(|handle| handle.enlist(waiter)) {
            Some(job::Registered::Waits) => Registered::Calls,
            Some(job::Registered::Occupied) => Registered::AskAgain,
            Some(job::Registered::Done) | None => Registered::Ready,
        }
    }

    fn withdraw(&self, waiter: &Waiter) -> bool {
        self.0.is_none_or(|handle| handle.withdraw(waiter))
    }
}

/// A point in time.
#[doc(hidden)]
#[derive(Debug)]
pub struct Then(Option<Instant>);

/// For the macro.
#[doc(hidden)]
pub fn at(time: Instant) -> Then {
    Then(Some(time))
}

/// For the macro. A time too far away to be named never comes.
#[doc(hidden)]
pub fn in_time(time: Duration) -> Then {
    Then(Instant::now().checked_add(time))
}

impl Fires for Then {
    type Output = ();

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(self.0.map_or(Arm::Absent, Arm::At))
    }

    fn finish(&mut self) {}
}

/// A descriptor that is to become ready, if there is one.
#[doc(hidden)]
pub struct Descriptor<'a> {
    watch: Option<ReadinessWait<'a>>,
    failed: Cell<Option<io::Error>>,
}

impl fmt::Debug for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptor")
    }
}

/// For the macro.
#[doc(hidden)]
pub fn readable<'a, T: AsFd + 'a>(source: impl Into<Option<&'a Source<T>>>) -> Descriptor<'a> {
    Descriptor::new(source.into().map(|source| source.readiness_wait(false)))
}

/// For the macro.
#[doc(hidden)]
pub fn writable<'a, T: AsFd + 'a>(source: impl Into<Option<&'a Source<T>>>) -> Descriptor<'a> {
    Descriptor::new(source.into().map(|source| source.readiness_wait(true)))
}

impl<'a> Descriptor<'a> {
    fn new(watch: Option<ReadinessWait<'a>>) -> Self {
        Descriptor {
            watch,
            failed: Cell::new(None),
        }
    }

    fn watch(&self) -> &ReadinessWait<'a> {
        self.watch.as_ref().expect("an arm that is not absent")
    }

    /// An error is something to be told, too.
    fn told(&self, ready: io::Result<bool>) -> bool {
        ready.unwrap_or_else(|error| {
            self.failed.set(Some(error));
            true
        })
    }
}

impl Fires for Descriptor<'_> {
    type Output = io::Result<()>;

    fn arm(&self) -> ArmRef<'_> {
        self.failed.set(None); // of a time when another arm has won
        ArmRef(match self.watch {
            Some(_) => Arm::Event(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Event for Descriptor<'_> {
    fn is_ready(&self) -> bool {
        self.told(self.watch().is_ready())
    }

    fn register(&self, waiter: &Waiter) -> Registered {
        match self.watch().enlist(waiter) {
            Ok(Enlisted::Listed) => Registered::Calls,
            Ok(Enlisted::NotListed) => Registered::AskAgain,
            Ok(Enlisted::Ready) => Registered::Ready,
            Err(error) => {
                self.failed.set(Some(error));
                Registered::Ready
            }
        }
    }

    fn withdraw(&self, waiter: &Waiter) -> bool {
        self.watch().withdraw(waiter)
    }
}

/// For the macro: the number of the arm that fires.
#[doc(hidden)]
pub fn wait(arms: &[ArmRef<'_>]) -> usize {
    select_by(arms, Patience::Until(None)).expect("without a deadline an arm fires")
}

/// For the macro: as `wait`, or `usize::MAX` if that is `default`.
#[doc(hidden)]
pub fn now_or_never(arms: &[ArmRef<'_>]) -> usize {
    select_by(arms, Patience::Never).unwrap_or(usize::MAX)
}

pub(crate) fn select_by(arms: &[ArmRef<'_>], patience: Patience) -> Option<usize> {
    select::select(arms, patience)
}
