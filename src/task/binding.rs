//! Whether a fiber may change threads, and what keeps it from doing so.

use std::time::Duration;

use indent_sysmon::frames::{self, Step};

pub use crate::sched::mobility::verdict::Mobility;

use crate::park;
use crate::sched::mobility::bound::Cause;
use crate::sched::mobility::verdict;
use crate::task::Fiber;
use crate::time;

/// How long to wait before asking again for a verdict that is still missing.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether a fiber is movable, and what binds it to its thread; see [`Fiber::binding`].
///
/// ```
/// use std::cell::RefCell;
///
/// use indent::task::{self, Mobility};
///
/// thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
///
/// indent::runtime::block_on(|| {
///     BUFFER.with_borrow_mut(|_buffer| {
///         let binding = task::current().unwrap().binding();
///         assert_eq!(binding.mobility(), Mobility::Bound);
///     });
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Binding {
    mobility: Mobility,
    /// The innermost frame that binds, and why; `None` if only the verdict is known.
    frame: Option<frames::Binding>,
    /// Where the address of a thread-local was found.
    found: Option<Found>,
}

/// A place where the address of a thread-local was found.
#[derive(Clone, Debug)]
struct Found {
    /// The thread-local that contains the address; `None`: a register.
    variable: Option<String>,
}

impl Binding {
    /// Whether the fiber may change threads.
    ///
    /// See [`Binding`] for an example.
    pub fn mobility(&self) -> Mobility {
        self.mobility
    }

    /// The function that uses something of the thread.
    ///
    /// See [`Binding`] for an example.
    pub fn function(&self) -> Option<&str> {
        self.frame.as_ref()?.function()
    }

    /// The thread-local that it uses, if its name is known.
    ///
    /// See [`Binding`] for an example.
    pub fn variable(&self) -> Option<&str> {
        match &self.found {
            Some(found) => found.variable.as_deref(),
            None => self.frame.as_ref()?.variable(),
        }
    }

    /// Whether the address of a thread-local was found where no frame shows that one is kept: in
    /// the frame of [`function`](Self::function), or in the thread-local
    /// [`variable`](Self::variable).
    ///
    /// ```
    /// indent::runtime::block_on(|| {
    ///     let binding = indent::task::current().unwrap().binding();
    ///     assert!(!binding.has_address());
    /// });
    /// ```
    pub fn has_address(&self) -> bool {
        self.found.is_some()
    }

    /// The calls from a frame of the fiber to the use: functions, and how each leads to the next.
    ///
    /// See [`Binding`] for an example.
    pub fn path(&self) -> impl Iterator<Item = (&str, &str)> {
        let path = self.frame.as_ref().map_or(&[][..], |frame| frame.path());
        path.iter().map(|step: &Step| (step.function(), step.how()))
    }
}

impl Fiber {
    /// Whether the fiber may change threads, and what keeps it from doing so.
    ///
    /// For the calling fiber, the answer holds for this moment. The call blocks until it is known,
    /// at most until the program's code has been read. For any other fiber, it is the verdict of
    /// its last park or yield, without reasons.
    ///
    /// ```
    /// use indent::task::{self, Mobility};
    ///
    /// indent::runtime::block_on(|| {
    ///     let binding = task::current().unwrap().binding();
    ///     if binding.mobility() != Mobility::Movable {
    ///         println!("{:?} touches {:?}", binding.function(), binding.variable());
    ///     }
    /// });
    /// ```
    pub fn binding(&self) -> Binding {
        let own = park::current_fiber().is_some_and(|fiber| fiber.id() == self.id());
        if !own {
            return Binding {
                mobility: verdict::noted(&self.0),
                frame: None,
                found: None,
            };
        }
        let (mobility, cause) = loop {
            match verdict::of_caller() {
                (Mobility::Unjudged, _) if !frames::has_failed() => time::sleep(PAUSE),
                known => break known,
            }
        };
        let (mut frame, mut found) = (None, None);
        match cause {
            Some(Cause::Frame(address)) => {
                frame = frames::judge().map(|judge| judge.explain(address));
            }
            Some(Cause::InRegister) => found = Some(Found { variable: None }),
            Some(Cause::InLocal(offset)) => {
                let variable = verdict::local_around(offset);
                found = Some(Found { variable });
            }
            _ => {}
        }
        Binding {
            mobility,
            frame,
            found,
        }
    }
}
