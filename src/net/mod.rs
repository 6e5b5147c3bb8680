//! TCP, UDP and Unix sockets with the names and signatures of [`std::net`] and
//! [`std::os::unix::net`].
//!
//! Where std's calls block the thread, these suspend the calling fiber, not its thread; on a plain
//! thread they block the thread, as std's do. A program switches by changing its imports:
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
//! - A fiber that is asked to end, or is past its [time limit](crate::time::timeout), unwinds where
//!   it would have to wait. A read whose data has arrived returns it.
//! - `write` may write a part of the bytes where std's would have waited until all were written;
//!   `write_all` is the same as std's.
//! - Host names are resolved on a thread of [`runtime::blocking`](crate::runtime::blocking), which
//!   cannot be cancelled; addresses need no such thread. The trait is [`ToSocketAddrs`], for the
//!   same types as std's.
//! - A listener that lacks descriptors or memory pauses before it returns the error: see
//!   [`TcpListener::accept`].
//!
//! # Conversion from and to std
//!
//! Each type converts from std's type (`From`) and back (`into_std`, `From`, `OwnedFd`); std's type
//! then blocks the thread. Time limits, options, and `set_nonblocking` of streams and datagrams
//! belong to the socket: all its clones, of this crate and of std, share them.
//!
//! *Listeners* are an exception, as no call accepts a connection without waiting just once: a
//! listener of this crate is in non-blocking mode. Clones of std's type return
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock) meanwhile, also after this crate's listener is
//! closed; `into_std` ends that for all of them. A clone of this crate's type that is left after
//! another was converted still works, but it blocks its thread if another handle accepts a
//! connection that the kernel had reported to both.

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
