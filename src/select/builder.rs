#![expect(
    unsafe_code,
    reason = "arms of different types in one list; a token knows the type"
)]
//! Selects whose arms are known when the program runs.
//!
//! Arms are kept by trait object. What an arm gives is written to a place whose type the arm's token
//! knows: tokens are made with their arm, and carry the number of their select.

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

/// A list of arms, of which one fires at a time.
///
/// Each arm that is added gives a [`Token`]. [`select`](Select::select) waits and says which one has fired;
/// [`complete`](Fired::complete) with the token gives what came of it. Then it can be used again: receives stay
/// arms; a send that was done is absent from then on, one that was not keeps its value.
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
    arms: Vec<Option<Box<dyn Erased + 'a>>>,
}

/// Names an arm of one [`Select`], and what it gives.
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
    /// The how manieth arm it is, from zero.
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
trait Erased {
    fn arm(&self) -> ArmRef<'_>;

    /// # Safety
    /// There is room for what it gives.
    unsafe fn finish(&mut self, to: *mut ());

    fn discard(&mut self);
}

impl<F: Fires> Erased for F {
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

/// A send that has its value with it.
struct Own<'a, T> {
    sending: SendArm<'a, T>,
    /// From a box, which is this one's; `sending` borrows it.
    value: NonNull<Option<T>>,
}

impl<T> Fires for Own<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn arm(&self) -> ArmRef<'_> {
        Fires::arm(&self.sending)
    }

    fn finish(&mut self) -> Self::Output {
        Fires::finish(&mut self.sending)
    }
}

impl<T> Drop for Own<'_, T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`; `sending` does not use it any more.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}

impl<'a> Select<'a> {
    /// Without arms; it would wait for ever.
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

    /// Adds a send. If it does not fire the value stays with the select, and is dropped with it.
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
        // SAFETY: of a box that is freed by the drop of `Own`, after the borrow.
        let slot = unsafe { &mut *value.as_ptr() };
        let sending = sender.into_arm(slot);
        self.add(Own { sending, value })
    }

    /// Adds a send of what is in the `Option`. If it does not fire it is still there.
    ///
    /// ```
    /// use indent::{chan, select::Select};
    ///
    /// let (tx, rx) = chan::bounded(0);
    /// let mut value = Some(1);
    /// let mut select = Select::new();
    /// select.send_from(&tx, &mut value);
    /// assert!(select.try_select().is_none()); // nobody receives
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

    /// Adds the end of a fiber: a join will not block then.
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

    /// Adds that there is something to read, or an end or an error to be told.
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

    /// Adds that there is room to write, or an error to be told.
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

    /// Adds a point in time: so long from now.
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

    /// Adds a point in time.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// let token = select.at(std::time::Instant::now());
    /// select.select().complete(token);
    /// ```
    pub fn at(&mut self, time: Instant) -> Token<()> {
        self.add(at(time))
    }

    /// Takes an arm out: it is absent from then on. The numbers of the others stay.
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

    /// Waits until an arm fires.
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
        let fired = self.by(Patience::Until(None));
        fired.expect("without a deadline an arm fires")
    }

    /// Fires an arm if that needs no wait.
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
        self.by(Patience::Never)
    }

    /// Waits for at most this long.
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
        self.by(Patience::Until(Instant::now().checked_add(timeout)))
    }

    /// Waits until this time at most.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// assert!(select.select_deadline(std::time::Instant::now()).is_none());
    /// ```
    pub fn select_deadline(&mut self, deadline: Instant) -> Option<Fired<'_, 'a>> {
        self.by(Patience::Until(Some(deadline)))
    }

    fn by(&mut self, patience: Patience) -> Option<Fired<'_, 'a>> {
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
            "{token:?} belongs to another Select: use the one that gave it"
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

/// An arm has fired. Dropping this drops what came of it.
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
#[must_use = "it holds what came of the arm"]
pub struct Fired<'s, 'a> {
    select: &'s mut Select<'a>,
    index: usize,
}

impl Fired<'_, '_> {
    /// Which arm, by its number.
    ///
    /// ```
    /// let mut select = indent::select::Select::new();
    /// select.at(std::time::Instant::now());
    /// assert_eq!(select.select().index(), 0);
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether it is this arm.
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

    /// What came of the arm, whose token this must be.
    ///
    /// ```should_panic
    /// let mut select = indent::select::Select::new();
    /// let never = select.after(std::time::Duration::MAX);
    /// let now = select.at(std::time::Instant::now());
    /// select.select().complete(never); // panics: it was the other
    /// ```
    #[track_caller]
    pub fn complete<O>(self, token: Token<O>) -> O {
        assert!(
            self.is(token),
            "arm {} has fired, and {token:?} is another: compare with `is` or `index` first",
            self.index
        );
        let mut output = MaybeUninit::<O>::uninit();
        let mut this = ManuallyDrop::new(self); // the user's code may unwind: it is finished once
        let index = this.index;
        let arm = this.select.arms[index].as_mut();
        let arm = arm.expect("an arm that has fired is there");
        // SAFETY: the token was made with this arm, so `O` is what it gives.
        unsafe { arm.finish(output.as_mut_ptr().cast()) };
        // SAFETY: just written.
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
