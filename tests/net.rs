//! Sockets of ours where std has nothing to compare: the same tests with each driver (`tests/net/suite.rs`).

mod common;
mod sockets;

#[path = "net/suite.rs"]
mod epoll;
#[expect(clippy::duplicate_mod, reason = "once more, with the other driver")]
#[path = "net/suite.rs"]
mod uring;

#[path = "net/random.rs"]
mod random;
