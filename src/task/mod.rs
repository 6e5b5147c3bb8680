//! Spawning fibers, and what a fiber can do with itself.
//!
//! A *fiber* is what this runtime runs: a closure with a stack of its own, scheduled like a
//! goroutine. The module has the name under which Tokio users look for it; types, fields and
//! messages say `fiber`.

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
use crate::sched::block::suspend;

/// Starts a fiber that runs the closure.
///
/// The fiber runs on the runtime of the calling fiber. From a plain thread it runs on the default
/// runtime, which the first such call starts. This never blocks. If the runtime is shutting down,
/// the closure is dropped and the join returns an error
/// ([`is_cancelled`](crate::JoinError::is_cancelled)). It corresponds to [`std::thread::spawn`] and
/// `tokio::spawn`.
///
/// # Panics
/// If the default runtime cannot be started, and in the child of a [fork](crate::runtime#fork).
///
/// # Examples
///
/// ```
/// let answer = indent::spawn(|| 6 * 7);
/// assert_eq!(answer.join().unwrap(), 42);
/// ```
///
/// The closure must be `Send` and must not borrow:
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

/// Yields to other fibers; on a plain thread, to other threads.
///
/// A fiber that was cancelled unwinds. It corresponds to [`std::thread::yield_now`].
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
    if !suspend::yield_now() {
        std::thread::yield_now();
    }
}

/// Marks a point in a long computation where the fiber may yield or unwind.
///
/// It unwinds if the fiber was cancelled. It yields if the fiber has run for its quantum while
/// others wait, or if its budget is used up. Otherwise it costs a few instructions.
///
/// A fiber that passes a checkpoint at least every millisecond is preempted nowhere else, so it
/// occupies no thread while others run.
///
/// ```
/// let sum = indent::spawn(|| {
///     (0..1_000u64).inspect(|_| indent::task::checkpoint()).sum::<u64>()
/// });
/// assert_eq!(sum.join().unwrap(), 499_500);
/// ```
pub fn checkpoint() {
    suspend::unwind_if_cancelled();
    suspend::checkpoint();
}

/// Returns the id of the calling fiber, unique in the process; `None` on a plain thread.
///
/// ```
/// assert_eq!(indent::task::id(), None);
/// assert!(indent::spawn(|| indent::task::id().is_some()).join().unwrap());
/// ```
pub fn id() -> Option<u64> {
    park::current_fiber().map(|fiber| fiber.id())
}

/// Returns a reference to the calling fiber; `None` on a plain thread.
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

/// A reference to a fiber that shows its state.
///
/// Each method reads the state at that moment, also of a fiber that runs. It corresponds to
/// [`std::thread::Thread`].
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
    /// The id of the fiber, unique in the process.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// The name that the fiber was given, if any.
    pub fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// The source location of the spawn.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location()
    }

    /// The phase of its life: unstarted, runnable (or running), parked or done.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// Why the fiber is parked, or was parked last.
    pub fn park_reason(&self) -> ParkReason {
        self.0.reason()
    }

    /// Whether the fiber was cancelled: its blocking calls unwind.
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

/// Pins the calling fiber to its thread while the guard lives.
///
/// On a plain thread this does nothing. It corresponds to Go's `runtime.LockOSThread`.
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
            // As with the count of an `Arc`: so many forgotten guards would soon overflow it.
            std::process::abort();
        }
    }
    PinGuard {
        fiber,
        _not_send: PhantomData,
    }
}

/// Pins its fiber to its thread until it is dropped; see [`pin`].
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
