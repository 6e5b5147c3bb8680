//! Pipes and sources: the same tests with each I/O driver (`tests/io/suite.rs`).

mod common;
mod sockets;

#[path = "io/suite.rs"]
mod epoll;
#[expect(clippy::duplicate_mod, reason = "once more, with the other driver")]
#[path = "io/suite.rs"]
mod uring;
