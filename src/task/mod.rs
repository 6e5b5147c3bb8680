//! Spawning fibers and what a fiber can do with itself.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

mod binding;
mod builder;
mod join;

pub use binding::{Binding, Mobility};
pub use builder::Builder;
pub use join::JoinHandle;

pub use crate::fiber::state::Phase;

use crate::fiber::Held;
use crate::fiber::reason::ParkReason;
use crate::fiber::record::UNTIL_THE_END;
use crate::park;
use crate::sched::block;

/// Starts a fiber on the runtime of the calling fiber; from a plain thread on the default runtime,
/// which the first call starts.
///
/// Never fails and never blocks. If the runtime is shutting down, the closure is dropped and the
/// handle says so. Only in the child of a [fork](crate::runtime#fork), where there is no runtime, it panics.
///
/// ```
/// let answer = indent::spawn(|| 6 * 7);
/// assert_eq!(answer.join().unwrap(), 42);
/// ```
///
/// What goes to another fiber must be `Send` and must not borrow:
///
/// ```compile_fail
/// let local = std::rc::Rc::new(1);
/// indent::spawn(move || *local);
/// ```
/// ```compile_fail
/// let text = String::from("on my stack");
/// indent::spawn(|| text.len());
/// ```
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(f)
}

/// Lets other fibers run; on a plain thread, other threads. A fiber that was asked to end unwinds.
///
/// ```
/// let fiber = indent::spawn(|| {
///     for _ in 0..3 {
///         indent::task::yield_now();
///     }
/// });
/// fiber.join().unwrap();
/// ```
pub fn yield_now() {
    if !block::yield_now() {
        std::thread::yield_now();
    }
}

/// A point where a long computation can be interrupted: unwinds if the fiber was asked to end,
/// yields if others wait and it has run long enough, or if its budget is used up; otherwise it costs a
/// few instructions.
///
/// A fiber that passes a checkpoint at least every millisecond is never stopped anywhere else, so it
/// does not cost a thread while others run.
///
/// ```
/// let sum = indent::spawn(|| {
///     (0..1_000u64).inspect(|_| indent::task::checkpoint()).sum::<u64>()
/// });
/// assert_eq!(sum.join().unwrap(), 499_500);
/// ```
pub fn checkpoint() {
    block::unwind_if_cancelled();
    block::checkpoint();
}

/// The id of the calling fiber, unique in the process; `None` on a plain thread.
///
/// ```
/// assert_eq!(indent::task::id(), None);
/// assert!(indent::spawn(|| indent::task::id().is_some()).join().unwrap());
/// ```
pub fn id() -> Option<u64> {
    park::current_fiber().map(|fiber| fiber.id())
}

/// What is known of the calling fiber; `None` on a plain thread.
///
/// ```
/// let fiber = indent::task::Builder::new().name("greeter").spawn(|| {
///     indent::task::current().unwrap().name().map(str::to_owned)
/// });
/// assert_eq!(fiber.join().unwrap().as_deref(), Some("greeter"));
/// ```
pub fn current() -> Option<Fiber> {
    park::current_fiber().map(|fiber| Fiber(fiber.hold()))
}

/// A fiber, seen from outside: a snapshot can be taken at any time, even of one that runs.
///
/// ```
/// use indent::park::{ParkReason, park};
/// use indent::task::{self, Phase};
///
/// let handle = task::Builder::new().name("sleeper").spawn(park);
/// let fiber = handle.fiber();
/// while fiber.phase() != Phase::Parked {
///     task::yield_now();
/// }
/// assert_eq!((fiber.id(), fiber.name()), (handle.id(), Some("sleeper")));
/// assert_eq!(fiber.location().file(), file!());
/// assert_eq!(fiber.park_reason(), ParkReason::Park);
/// assert!(!fiber.is_cancelled());
/// handle.unparker().unpark();
/// handle.join().unwrap();
/// assert_eq!(fiber.phase(), Phase::Done);
/// ```
#[derive(Clone)]
pub struct Fiber(pub(crate) Held);

impl Fiber {
    /// Unique in the process.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// The name it was given.
    pub fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// Where it was spawned.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location()
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// What it waits for, or waited for last.
    pub fn park_reason(&self) -> ParkReason {
        self.0.reason()
    }

    /// It was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.state.cancel_requested()
    }
}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("location", &format_args!("{}", self.location()))
            .field("phase", &self.phase())
            .finish()
    }
}

/// Keeps the calling fiber on its thread while the guard lives. On a plain thread it does nothing.
///
/// ```
/// indent::spawn(|| {
///     let _pinned = indent::task::pin();
///     indent::task::yield_now(); // comes back on the same thread
/// })
/// .join()
/// .unwrap();
/// ```
///
/// The guard stays with its fiber:
///
/// ```compile_fail
/// let guard = indent::task::pin();
/// indent::spawn(move || drop(guard));
/// ```
pub fn pin() -> PinGuard {
    let fiber = current();
    if let Some(fiber) = &fiber {
        let before = fiber
            .0
            .pins
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if before % UNTIL_THE_END > UNTIL_THE_END / 2 {
            // As with a counted reference: guards that were forgotten, and soon it would be unpinned.
            std::process::abort();
        }
    }
    PinGuard {
        fiber,
        _not_send: PhantomData,
    }
}

/// Keeps its fiber on its thread; see [`pin`].
///
/// ```
/// use indent::task::{self, PinGuard};
///
/// struct Borrowed<'a> {
///     of_this_thread: &'a str,
///     _stay: PinGuard,
/// }
///
/// let text = String::from("mine");
/// let borrowed = Borrowed { of_this_thread: &text, _stay: task::pin() };
/// task::yield_now();
/// assert_eq!(borrowed.of_this_thread, "mine");
/// ```
#[must_use = "the fiber is pinned only while the guard lives"]
#[derive(Debug)]
pub struct PinGuard {
    fiber: Option<Fiber>,
    _not_send: PhantomData<*mut ()>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        if let Some(fiber) = &self.fiber {
            fiber
                .0
                .pins
                .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
