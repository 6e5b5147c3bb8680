//! Unix datagrams, with waits that suspend the fiber.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::io::registered::Registered;
use crate::net::shared;
use crate::sys::socket::{self, Take};

/// A socket for datagrams on this machine.
///
/// Corresponds to [`std::os::unix::net::UnixDatagram`]; its waits suspend the fiber, not the
/// thread.
///
/// ```
/// use indent::net::UnixDatagram;
///
/// let (here, there) = UnixDatagram::pair()?;
/// let receiver = indent::spawn(move || {
///     let mut buffer = [0; 64];
///     there.recv(&mut buffer).map(|length| buffer[..length].to_vec())
/// });
/// here.send(b"news")?;
/// assert_eq!(receiver.join().unwrap()?, b"news");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixDatagram(Registered<net::UnixDatagram>);

impl UnixDatagram {
    /// Binds a socket to a path, which must not exist.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let path = std::env::temp_dir().join(format!("indent-datagrams-{}", std::process::id()));
    /// let socket = UnixDatagram::bind(&path)?;
    /// assert_eq!(socket.local_addr()?.as_pathname(), Some(&*path));
    /// std::fs::remove_file(path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixDatagram> {
        net::UnixDatagram::bind(path).map(UnixDatagram::unshared)
    }

    /// Binds a socket to an address.
    ///
    /// ```
    /// use indent::net::unix::{SocketAddr, UnixDatagram};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// let name = format!("bound of {}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let socket = UnixDatagram::bind_addr(&address)?;
    /// UnixDatagram::unbound()?.send_to_addr(b"hello", &address)?;
    /// assert_eq!(socket.recv(&mut [0; 8])?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixDatagram> {
        net::UnixDatagram::bind_addr(socket_addr).map(UnixDatagram::unshared)
    }

    /// Creates a socket without a name: it can send, and receive if it is connected.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// assert!(UnixDatagram::unbound()?.local_addr()?.is_unnamed());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn unbound() -> io::Result<UnixDatagram> {
        net::UnixDatagram::unbound().map(UnixDatagram::unshared)
    }

    /// Creates two sockets that are connected to each other.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"hello")?;
    /// assert_eq!(other.recv(&mut [0; 8])?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = net::UnixDatagram::pair()?;
        Ok((Self::unshared(one), Self::unshared(other)))
    }

    /// Sets the path that `send` sends to.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let error = UnixDatagram::unbound()?.connect("/no/such/socket").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.std().connect(path)
    }

    /// Receives a datagram, and returns the address of its sender.
    ///
    /// Blocks until there is one. What does not fit into the buffer is discarded.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"hello")?;
    /// let (length, from) = other.recv_from(&mut [0; 8])?;
    /// assert_eq!((length, from.is_unnamed()), (5, true));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Take)?;
        Ok((length, from.to_unix()?))
    }

    /// Receives a datagram.
    ///
    /// Blocks until there is one. What does not fit into the buffer is discarded.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"hello")?;
    /// assert_eq!(other.recv(&mut [0; 2])?, 2); // the rest is discarded
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Take)
    }

    /// Sends a datagram to this path.
    ///
    /// Blocks, with [pauses](crate::net::unix), as long as there is no room.
    ///
    /// ```
    /// use indent::net::UnixDatagram;
    /// use std::io::ErrorKind;
    ///
    /// let socket = UnixDatagram::unbound()?;
    /// let error = socket.send_to(b"?", "/no/such/socket").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        // By reference: a path that owns what it names may remove it when it is dropped.
        self.send_to_addr(buf, &SocketAddr::from_pathname(path.as_ref())?)
    }

    /// Sends a datagram to this address.
    ///
    /// Blocks, with [pauses](crate::net::unix), as long as there is no room.
    ///
    /// ```
    /// use indent::net::unix::{SocketAddr, UnixDatagram};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// let name = format!("addressed of {}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let error = UnixDatagram::unbound()?.send_to_addr(b"?", &address).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_to_addr(&self, buf: &[u8], socket_addr: &SocketAddr) -> io::Result<usize> {
        let address = socket_addr.into();
        let attempt = |socket: &net::UnixDatagram| socket::send_to(socket.as_fd(), buf, &address);
        self.0.run_with_backoff(shared::to_write, attempt)
    }

    /// Sends a datagram to the [connected](Self::connect) socket.
    ///
    /// ```
    /// # use indent::net::UnixDatagram;
    /// let (one, other) = UnixDatagram::pair()?;
    /// assert_eq!(one.send(b"hello")?, 5);
    /// assert_eq!(other.recv(&mut [0; 8])?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        shared::send_whole(&self.0, buf)
    }

    as_in_std! {
        /// Sets the address that `send` sends to.
        ///
        /// ```
        /// # use indent::net::unix::{SocketAddr, UnixDatagram};
        /// # use std::os::linux::net::SocketAddrExt;
        /// # let name = format!("connected of {}", std::process::id());
        /// # let address = SocketAddr::from_abstract_name(name)?;
        /// let (here, there) = (UnixDatagram::unbound()?, UnixDatagram::bind_addr(&address)?);
        /// here.connect_addr(&address)?;
        /// here.send(b"hello")?;
        /// assert_eq!(there.recv(&mut [0; 8])?, 5);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn connect_addr(&self, socket_addr: &SocketAddr) -> io::Result<()>;
        /// Returns the address of the other side.
        ///
        /// ```
        /// # use indent::net::UnixDatagram;
        /// let (one, _other) = UnixDatagram::pair()?;
        /// assert!(one.peer_addr()?.is_unnamed());
        /// assert!(UnixDatagram::unbound()?.peer_addr().is_err()); // there is none
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Returns the local address.
        ///
        /// ```
        /// # use indent::net::UnixDatagram;
        /// assert!(UnixDatagram::unbound()?.local_addr()?.is_unnamed());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Closes one direction or both, for all clones.
        ///
        /// ```
        /// # use indent::net::{Shutdown, UnixDatagram};
        /// let (one, _other) = UnixDatagram::pair()?;
        /// one.shutdown(Shutdown::Both)?;
        /// assert_eq!(one.send(b"?").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    }
}

transfers!(
    UnixDatagram,
    net::UnixDatagram,
    r#"use indent::net::UnixDatagram;

let (socket, _other) = UnixDatagram::pair()?;"#,
    "socket.recv(&mut [0])"
);
