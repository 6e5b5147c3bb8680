//! L0: what everything else stands on, and nothing that knows of fibers.

pub(crate) mod address;
pub(crate) mod affinity;
pub(crate) mod alarm;
pub(crate) mod arch;
pub(crate) mod bitmap;
pub(crate) mod descriptor;
pub(crate) mod few;
pub(crate) mod fork;
pub(crate) mod inbox;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod loom;
pub(crate) mod os;
pub(crate) mod preempt_check;
pub(crate) mod preempt_request;
pub(crate) mod program;
pub(crate) mod redirect;
pub(crate) mod request;
pub(crate) mod rng;
pub(crate) mod search;
pub(crate) mod signal;
pub(crate) mod signal_names;
pub(crate) mod socket;
