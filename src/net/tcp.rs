//! TCP: std's sockets, with waits that suspend the fiber.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::iter::FusedIterator;
use std::net::{self, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::TcpStreamExt;
use std::time::Duration;

use super::ToSocketAddrs;
use super::listener::Listening;
use super::lookup;
use super::shared;
use crate::io::registered::{Patience, Registered};
use crate::io::registration::Interest;
use crate::sys::address::Address;
use crate::sys::socket::{self, Take};

/// A TCP connection.
///
/// Corresponds to [`std::net::TcpStream`]; its waits suspend the fiber, not the thread. Several
/// fibers may use one at once, by reference or through clones: for instance, one that reads and one
/// that writes.
///
/// ```
/// use indent::net::{Shutdown, TcpListener, TcpStream};
/// use std::io::{Read, Write};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let server = indent::spawn(move || -> std::io::Result<String> {
///     let (mut stream, _from) = listener.accept()?;
///     let mut question = String::new();
///     stream.read_to_string(&mut question)?; // until the other side has shut down
///     stream.write_all(b"42")?;
///     Ok(question)
/// });
///
/// let mut stream = TcpStream::connect(address)?;
/// stream.write_all(b"6 times 7?")?;
/// stream.shutdown(Shutdown::Write)?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!((answer.as_str(), server.join().unwrap()?.as_str()), ("42", "6 times 7?"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpStream(Registered<net::TcpStream>);

impl TcpStream {
    /// Connects to the first address that answers.
    ///
    /// A host name is resolved on a thread that may block.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(("localhost", listener.local_addr()?.port()))?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<TcpStream> {
        lookup::first_of(addr, |address| connect(address, Patience::Forever))
    }

    /// Connects to one address, within a time limit.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if there is no connection after `timeout`;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `timeout` is zero.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    ///
    /// let listener = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0"))?;
    /// TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(60))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot connect within a timeout of zero; use a longer one",
            ));
        }
        let late = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "connecting timed out")
            }
            _ => error,
        };
        connect(*addr, Patience::of(timeout)).map_err(late)
    }

    /// Reads without consuming: the next read returns the same bytes.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    /// use std::io::{Read, Write};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?)?;
    /// let (mut server, _) = listener.accept()?;
    /// client.write_all(b"x")?;
    /// let mut byte = [0];
    /// assert_eq!((server.peek(&mut byte)?, byte), (1, *b"x"));
    /// assert_eq!((server.read(&mut byte)?, byte), (1, *b"x"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Peek)
    }

    as_in_std! {
        /// Returns the address of the other side.
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Returns the local address.
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// let (_accepted, from) = listener.accept()?;
        /// assert_eq!(stream.local_addr()?, from);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Closes one direction of the connection or both, for all clones.
        ///
        /// Reads of this side return 0 once the read direction is closed, reads of the other side
        /// once the write direction is.
        ///
        /// ```
        /// # use indent::net::{Shutdown, TcpListener, TcpStream};
        /// # use std::io::Read;
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// let (mut accepted, _) = listener.accept()?;
        /// stream.shutdown(Shutdown::Write)?;
        /// assert_eq!(accepted.read(&mut [0])?, 0);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
        /// Sets whether small writes are sent at once, instead of gathered (`TCP_NODELAY`).
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// stream.set_nodelay(true)?;
        /// assert!(stream.nodelay()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_nodelay(&self, nodelay: bool) -> io::Result<()>;
        /// Returns what [`set_nodelay`](Self::set_nodelay) has set.
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// assert!(!stream.nodelay()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn nodelay(&self) -> io::Result<bool>;
        /// Sets how many hops a packet may take (`IP_TTL`).
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// stream.set_ttl(64)?;
        /// assert_eq!(stream.ttl()?, 64);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;
        /// Returns what [`set_ttl`](Self::set_ttl) has set.
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// assert!(stream.ttl()? > 0);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn ttl(&self) -> io::Result<u32>;
        /// Sets whether received data is acknowledged at once (`TCP_QUICKACK`).
        ///
        /// Otherwise the acknowledgement is sent with the next data. The kernel resets this now and
        /// then.
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// stream.set_quickack(true)?;
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_quickack(&self, quickack: bool) -> io::Result<()>;
        /// Returns the current state of [`set_quickack`](Self::set_quickack).
        ///
        /// ```
        /// # use indent::net::{TcpListener, TcpStream};
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// # let stream = TcpStream::connect(listener.local_addr()?)?;
        /// stream.set_quickack(false)?;
        /// assert!(!stream.quickack()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn quickack(&self) -> io::Result<bool>;
    }
}

transfers!(
    TcpStream,
    net::TcpStream,
    r#"use indent::net::{TcpListener, TcpStream};
# use std::io::Read;

let listener = TcpListener::bind("127.0.0.1:0")?;
let socket = TcpStream::connect(listener.local_addr()?)?;"#,
    "(&socket).read(&mut [0])"
);
streams!(TcpStream, shared::read_tcp);

/// Connects in non-blocking mode, and returns the socket in blocking mode, like std's.
fn connect(address: SocketAddr, patience: Patience) -> io::Result<TcpStream> {
    let address = address.into();
    let socket = shared::unconnected(&address)?;
    let attempt = |socket: &OwnedFd| socket::connect(socket.as_fd(), &address);
    socket.run(Interest::Write, |_| patience, attempt)?;
    let stream = TcpStream(socket.map(net::TcpStream::from));
    stream.std().set_nonblocking(false)?;
    Ok(stream)
}

/// Accepts TCP connections.
///
/// Corresponds to [`std::net::TcpListener`]; its waits suspend the fiber, not the thread. As long
/// as it exists, clones of std's type [do not wait](crate::net#conversion-from-and-to-std).
///
/// ```
/// use indent::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let guest = indent::spawn(move || TcpStream::connect(address)?.local_addr());
/// let (_stream, from) = listener.accept()?;
/// assert_eq!(from, guest.join().unwrap()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpListener(Listening<net::TcpListener>);

impl TcpListener {
    /// Listens on the first address that is available.
    ///
    /// A host name is resolved on a thread that may block.
    ///
    /// ```
    /// use indent::net::{SocketAddr, TcpListener};
    ///
    /// let addresses = ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse::<SocketAddr>().unwrap());
    /// let listener = TcpListener::bind(&addresses[..])?;
    /// assert_ne!(listener.local_addr()?.port(), 0); // the system has chosen one
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<TcpListener> {
        let listener = lookup::first_of(addr, net::TcpListener::bind)?;
        Ok(TcpListener(Listening::unshared(listener)))
    }

    /// Waits for the next connection.
    ///
    /// If there is a connection, but no descriptor or memory for it (`EMFILE`, `ENFILE`, `ENOBUFS`,
    /// `ENOMEM`), this pauses for 1 ms, and twice as long after each such failure in a row, up to
    /// 100 ms, and tries once more before it returns the error: a loop that goes on after errors
    /// does not spin. In non-blocking mode it returns the error at once.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let guest = TcpStream::connect(listener.local_addr()?)?;
    /// let (_stream, from) = listener.accept()?;
    /// assert_eq!(from, guest.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let make = |fd, from: Address| Ok((net::TcpStream::from(fd), from.to_inet()?));
        let (stream, from) = self.0.accept(net::TcpListener::accept, make)?;
        let stream = match self.0.is_tcp() {
            true => TcpStream::unshared(stream),
            // The listener was made from a descriptor.
            false => TcpStream::from(stream),
        };
        Ok((stream, from))
    }

    /// Returns an endless iterator over connections; errors are items and do not end it.
    ///
    /// The example of [`net`](crate::net) is a server that uses it.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let guests = indent::spawn(move || [(); 2].map(|()| TcpStream::connect(address).is_ok()));
    /// for stream in listener.incoming().take(2) {
    ///     let _stream = stream?;
    /// }
    /// assert_eq!(guests.join().unwrap(), [true; 2]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Creates another handle of the same listener; each connection goes to one of them.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let clone = listener.try_clone()?;
    /// let _guest = TcpStream::connect(listener.local_addr()?)?;
    /// clone.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener(
            self.0.clone_as(self.shared_handle().try_clone()?),
        ))
    }

    /// Converts the listener into std's type, on which waits block the thread.
    ///
    /// It is in non-blocking mode if [`set_nonblocking`](Self::set_nonblocking) has set it so.
    ///
    /// ```
    /// use indent::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let _guest = TcpStream::connect(listener.local_addr()?)?;
    /// let listener: std::net::TcpListener = listener.into_std();
    /// listener.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_std(self) -> net::TcpListener {
        self.0.into_std()
    }

    /// Sets whether [`accept`](Self::accept) fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    ///
    /// That holds for all clones of this crate's type.
    ///
    /// ```
    /// use indent::net::TcpListener;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// listener.set_nonblocking(true)?;
    /// assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    as_in_std! {
        /// Returns the address it listens on.
        ///
        /// ```
        /// # use indent::net::TcpListener;
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// assert!(listener.local_addr()?.ip().is_loopback());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Sets how many hops a packet may take (`IP_TTL`).
        ///
        /// ```
        /// # use indent::net::TcpListener;
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// listener.set_ttl(64)?;
        /// assert_eq!(listener.ttl()?, 64);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;
        /// Returns what [`set_ttl`](Self::set_ttl) has set.
        ///
        /// ```
        /// # use indent::net::TcpListener;
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// assert!(listener.ttl()? > 0);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn ttl(&self) -> io::Result<u32>;
        /// Returns and clears the pending error (`SO_ERROR`).
        ///
        /// ```
        /// # use indent::net::TcpListener;
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// assert!(listener.take_error()?.is_none());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }

    fn std(&self) -> &net::TcpListener {
        self.0.get()
    }

    fn shared_handle(&self) -> &net::TcpListener {
        self.0.share()
    }
}

impl From<net::TcpListener> for TcpListener {
    fn from(listener: net::TcpListener) -> Self {
        TcpListener(Listening::new(listener))
    }
}

std_conversions!(TcpListener, net::TcpListener);

/// An iterator over the connections of a [`TcpListener`]; see [`incoming`](TcpListener::incoming).
///
/// ```
/// use indent::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let _guests = [(); 3].map(|()| TcpStream::connect(listener.local_addr().unwrap()));
/// assert!(listener.incoming().take(3).all(|stream| stream.is_ok()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "iterators are lazy and do nothing unless consumed"]
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}
