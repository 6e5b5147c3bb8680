//! Containers, locks and words shared by threads, and nothing that knows of fibers.

pub(crate) mod bitmap;
pub(crate) mod few;
pub(crate) mod inbox;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod loom;
pub(crate) mod preempt_check;
pub(crate) mod preempt_request;
pub(crate) mod rng;
pub(crate) mod search;
