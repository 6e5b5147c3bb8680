//! Which fibers may change threads, and what binds the others.

pub(crate) mod bound;
pub(crate) mod survey;
pub(crate) mod verdict;
