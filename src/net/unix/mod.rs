//! Sockets of this machine: [`std::os::unix::net`] in all but what its waits block.
//!
//! Addresses are std's ([`SocketAddr`]): paths, abstract names, none.
//!
//! Two queues of Unix sockets cannot be waited for, as the kernel does not tell when there is room: that of
//! connections which a listener has not accepted so far, and, for whoever sends without being connected, that of
//! datagrams which the receiver has not read. There we look again after a pause, from 1 ms up to 100 ms.

mod datagram;
mod stream;

pub use std::os::unix::net::SocketAddr;

pub use datagram::UnixDatagram;
pub use stream::{Incoming, UnixListener, UnixStream};
