#![expect(
    unsafe_code,
    reason = "arms of different types in one list; a token knows the type"
)]
//! Selects whose arms are known at run time.
//!
//! Arms are stored as trait objects. The output of an arm is written to a place whose type is known
//! from the arm's token: a token is created with its arm, and contains the number of its select.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::arms::{RecvFrom, SendTo, at, finished, in_time, readable, select_by, writable};
use crate::chan::SendError;
use crate::chan::arms::SendArm;
use crate::io::Source;
use crate::park::select::{Arm, ArmRef, Fires, Patience};
use crate::task::JoinHandle;

/// A list of arms, built at run time, of which one fires at a time.
///
/// Each method that adds an arm returns a [`Token`]. [`select`](Select::select) blocks until an arm
/// fires and returns which one; [`complete`](Fired::complete) with the token returns the arm's
/// output. Then the list can be used again: receives stay; a send that was done is absent from then
/// on, and a send that was not done keeps its value.
///
/// ```
/// use indent::chan;
/// use indent::select::Select;
///
/// let channels: Vec<_> = (0..100).map(|_| chan::bounded(1)).collect();
/// channels[42].0.send("here").unwrap();
///
/// let mut select = Select::new();
/// let tokens: Vec<_> = channels.iter().map(|(_, rx)| select.recv(rx)).collect();
/// let fired = select.select();
/// assert_eq!(fired.index(), 42);
/// let token = tokens[fired.index()];
/// assert_eq!(fired.complete(token), Ok("here"));
/// ```
pub struct Select<'a> {
    number: u64,
    arms: Vec<Option<Box<dyn ErasedArm + 'a>>>,
}

/// Identifies an arm of one [`Select`], and the type of its output.
///
/// ```
/// use indent::select::{Select, Token};
///
/// let mut select = Select::new();
/// let token: Token<()> = select.at(std::time::Instant::now());
/// assert_eq!(token.index(), 0);
/// ```
pub struct Token<O> {
    select: u64,
    index: usize,
    _output: PhantomData<fn() -> O>,
}

impl<O> Token<O> {
    /// Zero-based index of the arm.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// let now = std::time::Instant::now();
    /// assert_eq!((select.at(now).index(), select.at(now).index()), (0, 1));
    /// ```
    pub fn index(self) -> usize {
        self.index
    }
}

impl<O> Clone for Token<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Token<O> {}

impl<O> fmt::Debug for Token<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.index)
    }
}

/// An arm without its type.
trait ErasedArm {
    fn arm(&self) -> ArmRef<'_>;

    /// # Safety
    /// `to` has room for the arm's output.
    unsafe fn finish(&mut self, to: *mut ());

    fn discard(&mut self);
}

impl<F: Fires> ErasedArm for F {
    fn arm(&self) -> ArmRef<'_> {
        Fires::arm(self)
    }

    unsafe fn finish(&mut self, to: *mut ()) {
        let output = Fires::finish(self);
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<F::Output>().write(output) };
    }

    fn discard(&mut self) {
        Fires::discard(self);
    }
}

/// A send that owns its value.
struct OwnedSendArm<'a, T> {
    sending: SendArm<'a, T>,
    /// From a box that `OwnedSendArm` owns; `sending` borrows it.
    value: NonNull<Option<T>>,
}

impl<T> Fires for OwnedSendArm<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn arm(&self) -> ArmRef<'_> {
        Fires::arm(&self.sending)
    }

    fn finish(&mut self) -> Self::Output {
        Fires::finish(&mut self.sending)
    }
}

impl<T> Drop for OwnedSendArm<'_, T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`; `sending` does not use it any more.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}

impl<'a> Select<'a> {
    /// Creates a list without arms.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// assert!(select.try_select().is_none());
    /// ```
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Select {
            number: NUMBERS.fetch_add(1, Relaxed),
            arms: Vec::new(),
        }
    }

    fn add<F: Fires + 'a>(&mut self, arm: F) -> Token<F::Output> {
        self.arms.push(Some(Box::new(arm)));
        Token {
            select: self.number,
            index: self.arms.len() - 1,
            _output: PhantomData,
        }
    }

    /// Adds a receive.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (tx, rx) = chan::bounded(1);
    /// let mut select = Select::new();
    /// let token = select.recv(&rx);
    /// tx.send(1).unwrap();
    /// assert_eq!(select.select().complete(token), Ok(1));
    /// ```
    pub fn recv<R: RecvFrom>(&mut self, receiver: R) -> Token<R::Output>
    where
        R::Arm: 'a,
    {
        self.add(receiver.into_arm())
    }

    /// Adds a send. A value that is not sent stays in the select, and is dropped with it.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (tx, rx) = chan::bounded(1);
    /// let mut select = Select::new();
    /// let token = select.send(&tx, 1);
    /// assert!(select.select().complete(token).is_ok());
    /// assert!(select.try_select().is_none()); // it is sent once
    /// assert_eq!(rx.recv(), Ok(1));
    /// ```
    pub fn send<T: 'a, S: SendTo<'a, T>>(
        &mut self,
        sender: S,
        value: T,
    ) -> Token<Result<(), SendError<T>>> {
        let value = NonNull::from(Box::leak(Box::new(Some(value))));
        // SAFETY: the value is in a box that the drop of `OwnedSendArm` frees, after the borrow.
        let slot = unsafe { &mut *value.as_ptr() };
        let sending = sender.into_arm(slot);
        self.add(OwnedSendArm { sending, value })
    }

    /// Adds a send of the value in an `Option`. A value that is not sent stays there.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (tx, rx) = chan::bounded(0);
    /// let mut value = Some(1);
    /// let mut select = Select::new();
    /// select.send_from(&tx, &mut value);
    /// assert!(select.try_select().is_none()); // there is no receiver
    /// drop(select);
    /// assert_eq!(value, Some(1));
    /// # drop(rx);
    /// ```
    pub fn send_from<T: 'a, S: SendTo<'a, T>>(
        &mut self,
        sender: S,
        value: &'a mut Option<T>,
    ) -> Token<Result<(), SendError<T>>> {
        self.add(sender.into_arm(value))
    }

    /// Adds an arm that fires when the fiber has ended, so that a join does not block.
    ///
    /// ```
    /// use indent::select::Select;
    ///
    /// let fiber = indent::spawn(|| 5);
    /// let mut select = Select::new();
    /// let token = select.finished(&fiber);
    /// select.select().complete(token);
    /// drop(select);
    /// assert_eq!(fiber.join().unwrap(), 5);
    /// ```
    pub fn finished<T>(&mut self, handle: &'a JoinHandle<T>) -> Token<()> {
        self.add(finished(handle))
    }

    /// Adds an arm that fires when a read would not block: data, end of stream, or an error.
    ///
    /// ```
    /// use indent::{io, select::Select};
    /// use std::io::Write;
    ///
    /// let (reader, mut writer) = io::pipe()?;
    /// let source = io::Source::new(reader)?;
    /// let mut select = Select::new();
    /// let token = select.readable(&source);
    /// assert!(select.try_select().is_none());
    /// writer.write_all(b"!")?;
    /// select.select().complete(token)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn readable<T: AsFd>(&mut self, source: &'a Source<T>) -> Token<std::io::Result<()>> {
        self.add(readable(source))
    }

    /// Adds an arm that fires when a write would not block: room, or an error.
    ///
    /// ```
    /// use indent::{io, select::Select};
    ///
    /// let (_reader, writer) = io::pipe()?;
    /// let source = io::Source::new(writer)?;
    /// let mut select = Select::new();
    /// let token = select.writable(&source);
    /// select.select().complete(token)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn writable<T: AsFd>(&mut self, source: &'a Source<T>) -> Token<std::io::Result<()>> {
        self.add(writable(source))
    }

    /// Adds an arm that fires after this duration from now.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let mut select = indent::select::Select::new();
    /// let token = select.after(Duration::from_millis(1));
    /// select.select().complete(token);
    /// ```
    pub fn after(&mut self, time: Duration) -> Token<()> {
        self.add(in_time(time))
    }

    /// Adds an arm that fires at this time.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// let token = select.at(std::time::Instant::now());
    /// select.select().complete(token);
    /// ```
    pub fn at(&mut self, time: Instant) -> Token<()> {
        self.add(at(time))
    }

    /// Removes an arm, which is absent from then on. The other arms keep their indexes.
    ///
    /// # Panics
    /// If the token belongs to another `Select`.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// let token = select.at(std::time::Instant::now());
    /// select.remove(token);
    /// assert!(select.try_select().is_none());
    /// ```
    pub fn remove<O>(&mut self, token: Token<O>) {
        self.check(token);
        self.arms[token.index] = None;
    }

    /// Blocks until an arm fires.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (tx, rx) = chan::bounded::<u8>(1);
    /// drop(tx);
    /// let mut select = Select::new();
    /// let token = select.recv(&rx);
    /// assert!(select.select().complete(token).is_err());
    /// ```
    pub fn select(&mut self) -> Fired<'_, 'a> {
        let fired = self.select_with(Patience::Until(None));
        fired.expect("a select without a deadline ends when an arm fires")
    }

    /// Fires an arm if one can fire without blocking.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (_tx, rx) = chan::bounded::<u8>(1);
    /// let mut select = Select::new();
    /// select.recv(&rx);
    /// assert!(select.try_select().is_none());
    /// ```
    pub fn try_select(&mut self) -> Option<Fired<'_, 'a>> {
        self.select_with(Patience::Never)
    }

    /// Blocks until an arm fires, for at most `timeout`. Returns `None` when the time has passed.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    /// use std::time::Duration;
    ///
    /// let (_tx, rx) = chan::bounded::<u8>(1);
    /// let mut select = Select::new();
    /// select.recv(&rx);
    /// assert!(select.select_timeout(Duration::from_millis(1)).is_none());
    /// ```
    pub fn select_timeout(&mut self, timeout: Duration) -> Option<Fired<'_, 'a>> {
        self.select_with(Patience::Until(Instant::now().checked_add(timeout)))
    }

    /// Blocks until an arm fires, or until `deadline`. Returns `None` when the time has passed.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// assert!(select.select_deadline(std::time::Instant::now()).is_none());
    /// ```
    pub fn select_deadline(&mut self, deadline: Instant) -> Option<Fired<'_, 'a>> {
        self.select_with(Patience::Until(Some(deadline)))
    }

    fn select_with(&mut self, patience: Patience) -> Option<Fired<'_, 'a>> {
        let absent = ArmRef(Arm::Absent);
        let arms = self.arms.iter();
        let arms: Vec<_> = arms
            .map(|arm| arm.as_ref().map_or(absent, |arm| arm.arm()))
            .collect();
        let index = select_by(&arms, patience)?;
        drop(arms);
        Some(Fired {
            select: self,
            index,
        })
    }

    fn check<O>(&self, token: Token<O>) {
        assert!(
            token.select == self.number,
            "cannot use {token:?} with this Select: it belongs to another one; use the Select \
             that created it"
        );
    }
}

impl Default for Select<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Select")
            .field("arms", &self.arms.len())
            .finish_non_exhaustive()
    }
}

/// The arm that has fired. Dropping this drops the arm's output.
///
/// ```
/// use indent::{chan, select::Select};
///
/// let (tx, rx) = chan::bounded(1);
/// tx.send(1).unwrap();
/// let mut select = Select::new();
/// let token = select.recv(&rx);
/// let fired = select.select();
/// assert!(fired.is(token));
/// assert_eq!(fired.complete(token), Ok(1));
/// ```
#[must_use = "it holds the output of the arm"]
pub struct Fired<'s, 'a> {
    select: &'s mut Select<'a>,
    index: usize,
}

impl Fired<'_, '_> {
    /// Zero-based index of the arm that has fired.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// select.at(std::time::Instant::now());
    /// assert_eq!(select.select().index(), 0);
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the arm with this token has fired.
    ///
    /// # Panics
    /// If the token belongs to another `Select`.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// let token = select.at(std::time::Instant::now());
    /// assert!(select.select().is(token));
    /// ```
    pub fn is<O>(&self, token: Token<O>) -> bool {
        self.select.check(token);
        token.index == self.index
    }

    /// Returns the output of the arm that has fired, given its token.
    ///
    /// # Panics
    /// If the token belongs to another arm or another `Select`.
    ///
    /// ```should_panic
    /// let mut select = indent::select::Select::new();
    /// let never = select.after(std::time::Duration::MAX);
    /// let now = select.at(std::time::Instant::now());
    /// select.select().complete(never); // panics: the other arm has fired
    /// ```
    #[track_caller]
    pub fn complete<O>(self, token: Token<O>) -> O {
        assert!(
            self.is(token),
            "cannot complete {token:?}: arm {} has fired; compare with `is` or `index` first",
            self.index
        );
        let mut output = MaybeUninit::<O>::uninit();
        // The arm's code may unwind: without a drop of `self` the arm is finished only once.
        let mut this = ManuallyDrop::new(self);
        let index = this.index;
        let arm = this.select.arms[index].as_mut();
        let arm = arm.expect("an arm that has fired was not removed");
        // SAFETY: the token was created with this arm, so `O` is the type of its output.
        unsafe { arm.finish(output.as_mut_ptr().cast()) };
        // SAFETY: `finish` has just written it.
        unsafe { output.assume_init() }
    }
}

impl Drop for Fired<'_, '_> {
    fn drop(&mut self) {
        if let Some(arm) = &mut self.select.arms[self.index] {
            arm.discard();
        }
    }
}

impl fmt::Debug for Fired<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fired({})", self.index)
    }
}
