//! Unix sockets, with the names and signatures of [`std::os::unix::net`].
//!
//! Their waits suspend the fiber, not the thread. Addresses are std's ([`SocketAddr`]): paths,
//! abstract names, or none.
//!
//! Two queues cannot be waited for, as the kernel does not report when there is room in them: the
//! connections that a listener has not accepted, and, for a sender that is not connected, the
//! datagrams that the receiver has not read. There an operation tries again after pauses that grow
//! from 1 ms to 100 ms.

mod datagram;
mod stream;

pub use std::os::unix::net::SocketAddr;

pub use datagram::UnixDatagram;
pub use stream::{Incoming, UnixListener, UnixStream};
