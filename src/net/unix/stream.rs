//! Unix streams and their listeners, with waits that suspend the fiber.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::iter::FusedIterator;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::io::registered::{Patience, Registered};
use crate::net::listener::Listening;
use crate::net::shared;
use crate::sys::address::Address;
use crate::sys::socket;

/// A connection on this machine.
///
/// Corresponds to [`std::os::unix::net::UnixStream`]; its waits suspend the fiber, not the thread.
///
/// ```
/// use indent::net::UnixStream;
/// use std::io::{Read, Write};
///
/// let (mut here, mut there) = UnixStream::pair()?;
/// let answer = indent::spawn(move || {
///     let mut word = [0; 4];
///     there.read_exact(&mut word)?;
///     there.write_all(b"pong")
/// });
/// here.write_all(b"ping")?;
/// let mut text = String::new();
/// here.read_to_string(&mut text)?;
/// assert_eq!(text, "pong");
/// answer.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixStream(Registered<net::UnixStream>);

impl UnixStream {
    /// Connects to the listener with this path.
    ///
    /// ```
    /// # use indent::net::UnixStream;
    /// let error = UnixStream::connect("/no/such/socket").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<UnixStream> {
        // By reference: a path that owns what it names may remove it when it is dropped.
        Self::connect_addr(&SocketAddr::from_pathname(path.as_ref())?)
    }

    /// Connects to the listener with this address.
    ///
    /// ```
    /// use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// let name = format!("connected streams of {}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let _stream = UnixStream::connect_addr(&address)?;
    /// listener.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect_addr(socket_addr: &SocketAddr) -> io::Result<UnixStream> {
        let address = socket_addr.into();
        let socket = shared::unconnected(&address)?;
        let attempt = |socket: &OwnedFd| socket::connect(socket.as_fd(), &address);
        socket.run_with_backoff(|_| Patience::Forever, attempt)?;
        let stream = UnixStream(socket.map(net::UnixStream::from));
        stream.std().set_nonblocking(false)?;
        Ok(stream)
    }

    /// Creates two streams that are connected to each other.
    ///
    /// ```
    /// # use indent::net::UnixStream;
    /// use std::io::{Read, Write};
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"x")?;
    /// assert_eq!(other.read(&mut [0; 8])?, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = net::UnixStream::pair()?;
        Ok((Self::unshared(one), Self::unshared(other)))
    }

    as_in_std! {
        /// Returns the address of the other side.
        ///
        /// ```
        /// # use indent::net::UnixStream;
        /// let (one, _other) = UnixStream::pair()?;
        /// assert!(one.peer_addr()?.is_unnamed());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Returns the local address.
        ///
        /// ```
        /// # use indent::net::UnixStream;
        /// let (one, _other) = UnixStream::pair()?;
        /// assert!(one.local_addr()?.is_unnamed());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Closes one direction of the connection or both, for all clones.
        ///
        /// Reads of this side return 0 once the read direction is closed, reads of the other side
        /// once the write direction is.
        ///
        /// ```
        /// # use indent::net::{Shutdown, UnixStream};
        /// # use std::io::Read;
        /// let (one, mut other) = UnixStream::pair()?;
        /// one.shutdown(Shutdown::Write)?;
        /// assert_eq!(other.read(&mut [0; 8])?, 0);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    }
}

transfers!(
    UnixStream,
    net::UnixStream,
    r#"use indent::net::UnixStream;
# use std::io::Read;

let (socket, _other) = UnixStream::pair()?;"#,
    "(&socket).read(&mut [0])"
);
streams!(UnixStream, shared::read);

/// Accepts connections on this machine.
///
/// Corresponds to [`std::os::unix::net::UnixListener`]; its waits suspend the fiber, not the
/// thread. As long as it exists, clones of std's type [do not
/// wait](crate::net#conversion-from-and-to-std).
///
/// ```
/// use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
/// use std::os::linux::net::SocketAddrExt;
///
/// let name = format!("an example of {}", std::process::id());
/// let address = SocketAddr::from_abstract_name(name)?;
/// let listener = UnixListener::bind_addr(&address)?;
/// let guest = indent::spawn(move || UnixStream::connect_addr(&address).map(drop));
/// let (_stream, from) = listener.accept()?;
/// assert!(from.is_unnamed());
/// guest.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixListener(Listening<net::UnixListener>);

impl UnixListener {
    /// Listens on a path, which must not exist.
    ///
    /// ```
    /// # use indent::net::{UnixListener, UnixStream};
    /// let path = std::env::temp_dir().join(format!("indent-listener-{}", std::process::id()));
    /// let listener = UnixListener::bind(&path)?;
    /// let _guest = UnixStream::connect(&path)?;
    /// listener.accept()?;
    /// std::fs::remove_file(path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixListener> {
        Ok(UnixListener(Listening::unshared(net::UnixListener::bind(
            path,
        )?)))
    }

    /// Listens on an address.
    ///
    /// ```
    /// use indent::net::unix::{SocketAddr, UnixListener};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// let name = format!("listening of {}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// assert_eq!(listener.local_addr()?.as_abstract_name(), address.as_abstract_name());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixListener> {
        let listener = net::UnixListener::bind_addr(socket_addr)?;
        Ok(UnixListener(Listening::unshared(listener)))
    }

    /// Waits for the next connection.
    ///
    /// [`TcpListener::accept`](crate::net::TcpListener::accept) says what happens if there is no
    /// descriptor for it.
    ///
    /// ```
    /// # use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
    /// # use std::os::linux::net::SocketAddrExt;
    /// # let name = format!("accepting of {}", std::process::id());
    /// # let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let _guest = UnixStream::connect_addr(&address)?;
    /// let (_stream, from) = listener.accept()?;
    /// assert!(from.is_unnamed());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let make = |fd, from: Address| Ok((net::UnixStream::from(fd), from.to_unix()?));
        let (stream, from) = self.0.accept(net::UnixListener::accept, make)?;
        Ok((UnixStream::unshared(stream), from))
    }

    /// Returns an endless iterator over connections; errors are items and do not end it.
    ///
    /// ```
    /// # use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
    /// # use std::os::linux::net::SocketAddrExt;
    /// # let name = format!("incoming of {}", std::process::id());
    /// # let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let _guests = [(); 2].map(|()| UnixStream::connect_addr(&address));
    /// for stream in listener.incoming().take(2) {
    ///     let _stream = stream?;
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Creates another handle of the same listener; each connection goes to one of them.
    ///
    /// ```
    /// # use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
    /// # use std::os::linux::net::SocketAddrExt;
    /// # let name = format!("clones of {}", std::process::id());
    /// # let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let clone = listener.try_clone()?;
    /// let _guest = UnixStream::connect_addr(&address)?;
    /// clone.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_clone(&self) -> io::Result<UnixListener> {
        Ok(UnixListener(
            self.0.clone_as(self.shared_handle().try_clone()?),
        ))
    }

    /// Converts the listener into std's type, on which waits block the thread.
    ///
    /// It is in non-blocking mode if [`set_nonblocking`](Self::set_nonblocking) has set it so.
    ///
    /// ```
    /// # use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
    /// # use std::os::linux::net::SocketAddrExt;
    /// # let name = format!("into std of {}", std::process::id());
    /// # let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let _guest = UnixStream::connect_addr(&address)?;
    /// let listener: std::os::unix::net::UnixListener = listener.into_std();
    /// listener.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_std(self) -> net::UnixListener {
        self.0.into_std()
    }

    /// Sets whether [`accept`](Self::accept) fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    ///
    /// That holds for all clones of this crate's type.
    ///
    /// ```
    /// # use indent::net::unix::{SocketAddr, UnixListener};
    /// # use std::os::linux::net::SocketAddrExt;
    /// # let name = format!("not waiting of {}", std::process::id());
    /// # let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
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
        /// # use indent::net::unix::{SocketAddr, UnixListener};
        /// # use std::os::linux::net::SocketAddrExt;
        /// # let name = format!("named of {}", std::process::id());
        /// # let address = SocketAddr::from_abstract_name(name)?;
        /// let listener = UnixListener::bind_addr(&address)?;
        /// assert!(listener.local_addr()?.as_abstract_name().is_some());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Returns and clears the pending error (`SO_ERROR`).
        ///
        /// ```
        /// # use indent::net::unix::{SocketAddr, UnixListener};
        /// # use std::os::linux::net::SocketAddrExt;
        /// # let name = format!("errors of {}", std::process::id());
        /// # let address = SocketAddr::from_abstract_name(name)?;
        /// let listener = UnixListener::bind_addr(&address)?;
        /// assert!(listener.take_error()?.is_none());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }

    fn std(&self) -> &net::UnixListener {
        self.0.get()
    }

    fn shared_handle(&self) -> &net::UnixListener {
        self.0.share()
    }
}

impl From<net::UnixListener> for UnixListener {
    fn from(listener: net::UnixListener) -> Self {
        UnixListener(Listening::new(listener))
    }
}

std_conversions!(UnixListener, net::UnixListener);

impl<'a> IntoIterator for &'a UnixListener {
    type Item = io::Result<UnixStream>;
    type IntoIter = Incoming<'a>;

    fn into_iter(self) -> Incoming<'a> {
        self.incoming()
    }
}

/// An iterator over the connections of a [`UnixListener`]; see
/// [`incoming`](UnixListener::incoming).
///
/// ```
/// use indent::net::unix::{SocketAddr, UnixListener, UnixStream};
/// use std::os::linux::net::SocketAddrExt;
///
/// let name = format!("another example of {}", std::process::id());
/// let address = SocketAddr::from_abstract_name(name)?;
/// let listener = UnixListener::bind_addr(&address)?;
/// let _guests = [(); 3].map(|()| UnixStream::connect_addr(&address));
/// assert!(listener.incoming().take(3).all(|stream| stream.is_ok()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "iterators are lazy and do nothing unless consumed"]
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a UnixListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<UnixStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl FusedIterator for Incoming<'_> {}
