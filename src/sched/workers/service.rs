//! What layers above keep in a runtime, unknown to the scheduler: pools of threads.
//!
//! There is one place per [`Kind`], filled with the first use and kept until the runtime is
//! dropped. A shutdown closes the services that are there. In between, the helper *tends* to them
//! when asked (`background/helper.rs`): a pool that the system has refused threads is not left
//! alone with its queue.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::time::Duration;

use crate::sched::workers::shutdown::Patience;

/// A part of a runtime with threads of its own.
pub(crate) trait Service: Any + Send + Sync {
    /// Ends its threads, waiting as `patience` says; returns the number of those that did not end.
    ///
    /// What those threads touch stays valid.
    fn close(&self, patience: Patience) -> usize;

    /// Does what could not be done when it was due.
    ///
    /// Returns after what time it has to be called again, if at all.
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

    /// The service of that kind. Makes one if there is none. A kind has one type.
    pub(crate) fn get<S: Service>(&self, kind: Kind, make: impl FnOnce() -> S) -> &S {
        let service = self.places[kind as usize].get_or_init(|| Box::new(make()));
        // For a fiber that was abandoned: nothing is begun after the end. The thread that made the
        // service may not have closed it yet; closing it twice does no harm.
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

    /// Closes all services, each with its own patience; returns the number of threads that did not
    /// end.
    pub(crate) fn close(&self, patience: impl Fn() -> Patience) -> usize {
        self.closed.store(true, SeqCst);
        fence(SeqCst);
        self.each().map(|service| service.close(patience())).sum()
    }

    /// Tends to all services; returns after what time this has to be done again, if at all.
    pub(crate) fn tend(&self) -> Option<Duration> {
        self.each().filter_map(Service::tend).min()
    }
}

fn downcast<S: Service>(service: &dyn Service) -> &S {
    let any: &dyn Any = service;
    any.downcast_ref().expect("a kind of service has one type")
}
