//! Unix streams and their listeners.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::iter::FusedIterator;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::base::address::Address;
use crate::base::socket;
use crate::io::registered::{Patience, Registered};
use crate::net::listener::Listening;
use crate::net::shared;

/// A connection on this machine. [`std::os::unix::net::UnixStream`] in all but what its waits block.
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
    /// let error = UnixStream::connect("/there/is/nobody").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<UnixStream> {
        // By reference: what is at the path may go with whoever holds the path.
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

    /// Two streams that are connected to each other.
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
        /// Whom it is connected to.
        ///
        /// ```
        /// # use indent::net::UnixStream;
        /// let (one, _other) = UnixStream::pair()?;
        /// assert!(one.peer_addr()?.is_unnamed());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// The address on this side.
        ///
        /// ```
        /// # use indent::net::UnixStream;
        /// let (one, _other) = UnixStream::pair()?;
        /// assert!(one.local_addr()?.is_unnamed());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Ends one direction of the connection or both, for all clones. Whoever waits to read is told that this
        /// is the end.
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

/// Waits for connections on this machine. [`std::os::unix::net::UnixListener`] in all but what its waits block;
/// and while it is ours, a clone of std's [does not wait](crate::net#in-company-with-std).
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
    /// Listens at this path, where nothing may be so far.
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

    /// Listens at this address.
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

    /// Waits for the next connection. What happens if there is no descriptor for it is said at
    /// [`TcpListener::accept`](crate::net::TcpListener::accept).
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

    /// One connection after the other, for ever; errors are handed out and do not end it.
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

    /// Another handle of the same listener; each connection goes to one of them.
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

    /// The listener as std knows it: whoever waits there blocks the thread, as long as
    /// [`set_nonblocking`](Self::set_nonblocking) has not said otherwise.
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

    /// Whether [`accept`](Self::accept), of this and of clones of ours, returns
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
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
        /// Where it listens.
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
        /// The error that is waiting to be told, which is then told.
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

/// The connections of a [`UnixListener`]; see [`incoming`](UnixListener::incoming).
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
#[must_use = "an iterator does nothing until somebody asks it"]
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
