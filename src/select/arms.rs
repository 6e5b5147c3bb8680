//! The other kinds of arms of a select, and the functions that the macro calls.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::chan::arms::{BroadcastRecvArm, RecvArm, SendArm, WatchRecvArm};
use crate::chan::{BroadcastReceiver, OneshotReceiver, Receiver, Sender, WatchReceiver};
use crate::fiber::job;
use crate::io::{Enlisted, ReadinessWait, Source};
use crate::park::select::{self, Arm, ArmRef, Event, Fires, Patience, Registered};
use crate::sched::block::wake::Waiter;
use crate::task::JoinHandle;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// Receivers that can be an arm of a select.
///
/// They are `&Receiver`, `&mut` references to the other kinds of receivers, and an `Option` of
/// those, which is an absent arm if it is `None`.
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
    note = "pass a reference: `recv(&receiver)`, or `recv(option.as_ref())`; pass receivers of \
            one-shot, broadcast and watch channels by `&mut`, or `option.as_mut()`"
)]
pub trait RecvFrom: Sealed {
    /// The result of the receive.
    type Output;
    #[doc(hidden)]
    type Arm: Fires<Output = Self::Output>;
    #[doc(hidden)]
    fn into_arm(self) -> Self::Arm;
}

/// Senders that can be an arm of a select.
///
/// They are `&Sender`, and an `Option` of it, which is an absent arm if it is `None`.
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
pub trait SendTo<'a, T>: Sealed {
    #[doc(hidden)]
    fn into_arm(self, value: &'a mut Option<T>) -> SendArm<'a, T>;
}

impl<T> Sealed for &Receiver<T> {}
impl<'a, T> RecvFrom for &'a Receiver<T> {
    type Output = <RecvArm<'a, T> as Fires>::Output;
    type Arm = RecvArm<'a, T>;

    fn into_arm(self) -> RecvArm<'a, T> {
        RecvArm::new(Some(&self.0))
    }
}

impl<R: Sealed> Sealed for Option<R> {}
impl<'a, T> RecvFrom for Option<&'a Receiver<T>> {
    type Output = <RecvArm<'a, T> as Fires>::Output;
    type Arm = RecvArm<'a, T>;

    fn into_arm(self) -> RecvArm<'a, T> {
        RecvArm::new(self.map(|receiver| &*receiver.0))
    }
}

impl<T> Sealed for &mut OneshotReceiver<T> {}
impl<'a, T> RecvFrom for &'a mut OneshotReceiver<T> {
    type Output = <RecvArm<'a, T> as Fires>::Output;
    type Arm = RecvArm<'a, T>;

    fn into_arm(self) -> RecvArm<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T> RecvFrom for Option<&'a mut OneshotReceiver<T>> {
    type Output = <RecvArm<'a, T> as Fires>::Output;
    type Arm = RecvArm<'a, T>;

    fn into_arm(self) -> RecvArm<'a, T> {
        RecvArm::new(self.map(|receiver| &*receiver.0))
    }
}

impl<T> Sealed for &mut WatchReceiver<T> {}
impl<'a, T> RecvFrom for &'a mut WatchReceiver<T> {
    type Output = <WatchRecvArm<'a, T> as Fires>::Output;
    type Arm = WatchRecvArm<'a, T>;

    fn into_arm(self) -> WatchRecvArm<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T> RecvFrom for Option<&'a mut WatchReceiver<T>> {
    type Output = <WatchRecvArm<'a, T> as Fires>::Output;
    type Arm = WatchRecvArm<'a, T>;

    fn into_arm(self) -> WatchRecvArm<'a, T> {
        WatchRecvArm::new(self)
    }
}

impl<T> Sealed for &mut BroadcastReceiver<T> {}
impl<'a, T: Clone> RecvFrom for &'a mut BroadcastReceiver<T> {
    type Output = <BroadcastRecvArm<'a, T> as Fires>::Output;
    type Arm = BroadcastRecvArm<'a, T>;

    fn into_arm(self) -> BroadcastRecvArm<'a, T> {
        Some(self).into_arm()
    }
}

impl<'a, T: Clone> RecvFrom for Option<&'a mut BroadcastReceiver<T>> {
    type Output = <BroadcastRecvArm<'a, T> as Fires>::Output;
    type Arm = BroadcastRecvArm<'a, T>;

    fn into_arm(self) -> BroadcastRecvArm<'a, T> {
        BroadcastRecvArm::new(self)
    }
}

impl<T> Sealed for &Sender<T> {}
impl<'a, T> SendTo<'a, T> for &'a Sender<T> {
    fn into_arm(self, value: &'a mut Option<T>) -> SendArm<'a, T> {
        SendArm::new(Some(&self.0), value)
    }
}

impl<'a, T> SendTo<'a, T> for Option<&'a Sender<T>> {
    fn into_arm(self, value: &'a mut Option<T>) -> SendArm<'a, T> {
        SendArm::new(self.map(|sender| &*sender.0), value)
    }
}

/// Called by the macro.
#[doc(hidden)]
pub fn recv<R: RecvFrom>(receiver: R) -> R::Arm {
    receiver.into_arm()
}

/// Called by the macro.
#[doc(hidden)]
pub fn send<'a, T, S: SendTo<'a, T>>(sender: S, value: &'a mut Option<T>) -> SendArm<'a, T> {
    sender.into_arm(value)
}

/// An arm of a select that fires when a fiber has ended; absent without a handle.
#[doc(hidden)]
pub struct FinishedArm<'a, T>(Option<&'a JoinHandle<T>>);

impl<T> fmt::Debug for FinishedArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Finishing")
    }
}

/// Called by the macro.
#[doc(hidden)]
pub fn finished<'a, T>(handle: impl Into<Option<&'a JoinHandle<T>>>) -> FinishedArm<'a, T> {
    FinishedArm(handle.into())
}

/// Called by the macro.
#[doc(hidden)]
pub fn join_arm<T>(handle: &JoinHandle<T>) -> FinishedArm<'_, T> {
    FinishedArm(Some(handle))
}

impl<T> Fires for FinishedArm<'_, T> {
    type Output = ();

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(match self.0 {
            Some(_) => Arm::Event(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) {}
}

impl<T> Event for FinishedArm<'_, T> {
    fn is_ready(&self) -> bool {
        self.0.is_none_or(JoinHandle::is_over)
    }

    fn register(&self, waiter: &Waiter) -> Registered {
        match self.0.map(|handle| handle.enlist(waiter)) {
            Some(job::Registered::Waits) => Registered::WillNotify,
            Some(job::Registered::Occupied) => Registered::CheckAgain,
            Some(job::Registered::Done) | None => Registered::Ready,
        }
    }

    fn withdraw(&self, waiter: &Waiter) -> bool {
        self.0.is_none_or(|handle| handle.withdraw(waiter))
    }
}

/// An arm of a select that fires at a time; absent if that time never comes.
#[doc(hidden)]
#[derive(Debug)]
pub struct TimerArm(Option<Instant>);

/// Called by the macro.
#[doc(hidden)]
pub fn at(time: Instant) -> TimerArm {
    TimerArm(Some(time))
}

/// Called by the macro. A time that no `Instant` can represent never comes.
#[doc(hidden)]
pub fn in_time(time: Duration) -> TimerArm {
    TimerArm(Instant::now().checked_add(time))
}

impl Fires for TimerArm {
    type Output = ();

    fn arm(&self) -> ArmRef<'_> {
        ArmRef(self.0.map_or(Arm::Absent, Arm::At))
    }

    fn finish(&mut self) {}
}

/// An arm of a select that fires when a descriptor is ready; absent without a source.
#[doc(hidden)]
pub struct ReadinessArm<'a> {
    watch: Option<ReadinessWait<'a>>,
    failed: Cell<Option<io::Error>>,
}

impl fmt::Debug for ReadinessArm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptor")
    }
}

/// Called by the macro.
#[doc(hidden)]
pub fn readable<'a, T: AsFd + 'a>(source: impl Into<Option<&'a Source<T>>>) -> ReadinessArm<'a> {
    ReadinessArm::new(source.into().map(|source| source.readiness_wait(false)))
}

/// Called by the macro.
#[doc(hidden)]
pub fn writable<'a, T: AsFd + 'a>(source: impl Into<Option<&'a Source<T>>>) -> ReadinessArm<'a> {
    ReadinessArm::new(source.into().map(|source| source.readiness_wait(true)))
}

impl<'a> ReadinessArm<'a> {
    fn new(watch: Option<ReadinessWait<'a>>) -> Self {
        ReadinessArm {
            watch,
            failed: Cell::new(None),
        }
    }

    fn watch(&self) -> &ReadinessWait<'a> {
        self.watch.as_ref().expect("an arm that is not absent")
    }

    /// Whether the arm fires. An error fires the arm, which returns it.
    fn fires_on(&self, ready: io::Result<bool>) -> bool {
        ready.unwrap_or_else(|error| {
            self.failed.set(Some(error));
            true
        })
    }
}

impl Fires for ReadinessArm<'_> {
    type Output = io::Result<()>;

    fn arm(&self) -> ArmRef<'_> {
        self.failed.set(None); // left by a select in which another arm has fired
        ArmRef(match self.watch {
            Some(_) => Arm::Event(self),
            None => Arm::Absent,
        })
    }

    fn finish(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Event for ReadinessArm<'_> {
    fn is_ready(&self) -> bool {
        self.fires_on(self.watch().is_ready())
    }

    fn register(&self, waiter: &Waiter) -> Registered {
        match self.watch().enlist(waiter) {
            Ok(Enlisted::Listed) => Registered::WillNotify,
            Ok(Enlisted::NotListed) => Registered::CheckAgain,
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

/// Called by the macro: returns the number of the arm that fires.
#[doc(hidden)]
pub fn wait(arms: &[ArmRef<'_>]) -> usize {
    select_by(arms, Patience::Until(None)).expect("without a deadline an arm fires")
}

/// Called by the macro: as `wait`, or `usize::MAX` for the `default` arm.
#[doc(hidden)]
pub fn now_or_never(arms: &[ArmRef<'_>]) -> usize {
    select_by(arms, Patience::Never).unwrap_or(usize::MAX)
}

pub(crate) fn select_by(arms: &[ArmRef<'_>], patience: Patience) -> Option<usize> {
    select::select(arms, patience)
}
