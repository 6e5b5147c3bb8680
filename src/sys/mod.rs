//! The kernel and the processor: one file a facility, as small safe functions where possible.

pub(crate) mod address;
pub(crate) mod affinity;
pub(crate) mod alarm;
pub(crate) mod arch;
pub(crate) mod descriptor;
pub(crate) mod errno;
pub(crate) mod eventfd;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod membarrier;
pub(crate) mod memory;
pub(crate) mod parker;
pub(crate) mod program;
pub(crate) mod redirect;
pub(crate) mod request;
pub(crate) mod signal;
pub(crate) mod signal_names;
pub(crate) mod socket;
pub(crate) mod stderr;
pub(crate) mod thread;
