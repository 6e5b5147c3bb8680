//! Sockets beyond std's API: the same tests with each I/O driver (`tests/net/suite.rs`).

mod common;
mod sockets;

#[path = "net/suite.rs"]
mod epoll;
#[expect(clippy::duplicate_mod, reason = "once more, with the other driver")]
#[path = "net/suite.rs"]
mod uring;

#[path = "net/random.rs"]
mod random;
