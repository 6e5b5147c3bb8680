//! What layers above keep in a runtime, without the scheduler knowing what it is: pools of threads.
//!
//! There is one place per [`Kind`], filled with the first use and kept until the runtime is dropped.
//! A shutdown closes what is there; in between, the helper *tends* to it when asked (`watch.rs`): a
//! pool that the system has refused threads is not left alone with its queue.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::time::Duration;

use crate::sched::workers::shutdown::Patience;

/// A part of a runtime with threads of its own.
pub(crate) trait Service: Any + Send + Sync {
    /// Ends its threads, waiting as `patience` says; the number of those that did not end. What
    /// they touch stays valid all the same.
    fn close(&self, patience: Patience) -> usize;

    /// Does what could not be done when it was due; says after what time it wants to be called
    /// again, if there is need.
    fn tend(&self) -> Option<Duration>;
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Blocking,
    Compute,
}

pub(crate) struct Services {
    places: [OnceLock<Box<dyn Service>>; 2],
    closed: AtomicBool,
}

impl Services {
    pub(crate) fn new() -> Self {
        Services {
            places: [const { OnceLock::new() }; 2],
            closed: AtomicBool::new(false),
        }
    }

    /// The service of that kind, made if there is none. A kind has one type.
    pub(crate) fn get<S: Service>(&self, kind: Kind, make: impl FnOnce() -> S) -> &S {
        let service = self.places[kind as usize].get_or_init(|| Box::new(make()));
        // By a fiber that was abandoned: nothing is begun after the end. Whoever made it may not have
        // closed it yet; to close it twice does no harm.
        fence(SeqCst);
        if self.closed.load(SeqCst) {
            service.close(Patience::none());
        }
        downcast(&**service)
    }

    /// The service of that kind, if there is one.
    pub(crate) fn find<S: Service>(&self, kind: Kind) -> Option<&S> {
        self.places[kind as usize]
            .get()
            .map(|service| downcast(&**service))
    }

    fn each(&self) -> impl Iterator<Item = &dyn Service> {
        self.places.iter().filter_map(OnceLock::get).map(|s| &**s)
    }

    /// Closes all, each with a patience of its own; the number of threads that did not end.
    pub(crate) fn close(&self, patience: impl Fn() -> Patience) -> usize {
        self.closed.store(true, SeqCst);
        fence(SeqCst);
        self.each().map(|service| service.close(patience())).sum()
    }

    /// Tends to all; after what time this is to be done again, if at all.
    pub(crate) fn tend(&self) -> Option<Duration> {
        self.each().filter_map(Service::tend).min()
    }
}

fn downcast<S: Service>(service: &dyn Service) -> &S {
    let any: &dyn Any = service;
    any.downcast_ref().expect("a kind of service has one type")
}
