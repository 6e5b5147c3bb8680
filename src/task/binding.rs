//! Whether a fiber may change threads, and what keeps it from doing so.

use std::time::Duration;

use indent_sysmon::frames::{self, Step};

pub use crate::sched::mobility::Mobility;

use crate::park;
use crate::sched::mobility;
use crate::task::Fiber;
use crate::time;

/// How long to wait until what is not known yet is asked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// What keeps a fiber on its thread; see [`Fiber::binding`].
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
    /// The innermost frame that binds, and why; unless it is known only that one does.
    frame: Option<frames::Binding>,
}

impl Binding {
    /// Whether the fiber may change threads.
    ///
    /// See [`Binding`] for an example.
    pub fn mobility(&self) -> Mobility {
        self.mobility
    }

    /// The function that touches what belongs to the thread.
    ///
    /// See [`Binding`] for an example.
    pub fn function(&self) -> Option<&str> {
        self.frame.as_ref()?.function()
    }

    /// The thread-local that it touches, if that is known by name.
    ///
    /// See [`Binding`] for an example.
    pub fn variable(&self) -> Option<&str> {
        self.frame.as_ref()?.variable()
    }

    /// The way from a frame of the fiber to what it may touch.
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
    /// Of the calling fiber: as it stands here. Blocks until that is known, at most until the
    /// program's code has been read. Of any other fiber: what was noted when it last parked or
    /// yielded, without reasons.
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
                mobility: mobility::noted(&self.0),
                frame: None,
            };
        }
        let (mobility, address) = loop {
            match mobility::of_caller() {
                (Mobility::Unjudged, _) if !frames::has_failed() => time::sleep(PAUSE),
                known => break known,
            }
        };
        let frame = address.and_then(|address| Some(frames::judge()?.explain(address)));
        Binding { mobility, frame }
    }
}
