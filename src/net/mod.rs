//! TCP, UDP and Unix sockets, with the names and signatures of [`std::net`] and [`std::os::unix::net`].
//!
//! Where std's calls block the thread, these block the calling fiber and nobody else; on a plain thread
//! they block the thread, as std's do. A program moves over by changing its imports:
//!
//! ```
//! use indent::net::{TcpListener, TcpStream};
//! use std::io::{Read, Write};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! indent::spawn(move || {
//!     for stream in listener.incoming().flatten() {
//!         indent::spawn(move || std::io::copy(&mut &stream, &mut &stream)); // an echo
//!     }
//! });
//!
//! let mut stream = TcpStream::connect(address)?;
//! stream.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! stream.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What differs from std
//!
//! - A fiber that was asked to end, or is past its [time limit](crate::time::timeout), unwinds where it would
//!   have to wait. A read that finds its data there returns it.
//! - `write` may take a part of the bytes where std's would have waited until all were taken;
//!   `write_all` does the same as ever.
//! - Names are looked up on a thread of [`runtime::blocking`](crate::runtime::blocking); that cannot be cancelled. What is
//!   an address already is not looked up. For this, there is a trait of our own, [`ToSocketAddrs`], for the same
//!   types as std's.
//! - A listener that lacks descriptors or memory pauses before it says so: see [`TcpListener::accept`].
//!
//! # In company with std
//!
//! Each type is made from std's (`From`), and gives it back (`into_std`, `From`, `OwnedFd`); it then blocks
//! as std's does. Time limits of sockets, `set_nonblocking` of streams and datagrams and all options are
//! the socket's own: clones, ours and std's, in whichever order they were made, have them in common.
//!
//! *Listeners* are the exception, as no call tells the kernel not to wait for this one connection: while
//! ours, they are in non-blocking mode. A clone of std's says
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock) meanwhile, also after ours is closed; `into_std` ends that for all of
//! them. A clone of ours that is left after another went to std works, but if a connection it was told of is
//! taken by somebody else, it waits on its thread.

#[macro_use]
mod shared;

pub mod unix;

mod listener;
mod lookup;
mod tcp;
mod udp;

pub use std::net::{
    AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6,
};

pub use lookup::ToSocketAddrs;
pub use tcp::{Incoming, TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};
