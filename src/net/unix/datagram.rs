//! Unix datagrams.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::base::socket::{self, Take};
use crate::io::watched::Watched;
use crate::net::shared;

/// A socket for datagrams on this machine. [`std::os::unix::net::UnixDatagram`] in all but what its waits block.
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
pub struct UnixDatagram(Watched<net::UnixDatagram>);

impl UnixDatagram {
    /// A socket with this path, where nothing may be so far.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixDatagram> {
        net::UnixDatagram::bind(path).map(UnixDatagram::sole)
    }

    /// A socket with this address.
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixDatagram> {
        net::UnixDatagram::bind_addr(socket_addr).map(UnixDatagram::sole)
    }

    /// A socket without a name: it can send, and receive if it is connected.
    pub fn unbound() -> io::Result<UnixDatagram> {
        net::UnixDatagram::unbound().map(UnixDatagram::sole)
    }

    /// Two sockets that are connected to each other.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = net::UnixDatagram::pair()?;
        Ok((Self::sole(one), Self::sole(other)))
    }

    /// From now on `send` sends to this path.
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.std().connect(path)
    }

    /// Waits for a datagram, and says from whom it came. What does not fit into the buffer is lost.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Take)?;
        Ok((length, from.to_unix()?))
    }

    /// Waits for a datagram. What does not fit into the buffer is lost.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Take)
    }

    /// Sends a datagram to this path, and [looks again](crate::net::unix) for as long as there is no room.
    ///
    /// ```
    /// use indent::net::UnixDatagram;
    /// use std::io::ErrorKind;
    ///
    /// let socket = UnixDatagram::unbound()?;
    /// let error = socket.send_to(b"?", "/there/is/nobody").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        // By reference: what is at the path may go with whoever holds the path.
        self.send_to_addr(buf, &SocketAddr::from_pathname(path.as_ref())?)
    }

    /// Sends a datagram to this address, and [looks again](crate::net::unix) for as long as there is no room.
    pub fn send_to_addr(&self, buf: &[u8], socket_addr: &SocketAddr) -> io::Result<usize> {
        let address = socket_addr.into();
        let attempt = |socket: &net::UnixDatagram| socket::send_to(socket.as_fd(), buf, &address);
        self.0.run_guessing(shared::to_write, attempt)
    }

    /// Sends a datagram to the [connected](Self::connect) socket.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        shared::send_whole(&self.0, buf)
    }

    as_in_std! {
        /// From now on `send` sends to this address.
        fn connect_addr(&self, socket_addr: &SocketAddr) -> io::Result<()>;
        /// Whom it is connected to.
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Its address.
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Ends one direction or both, for all clones.
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    }
}

transfers!(UnixDatagram, net::UnixDatagram);
