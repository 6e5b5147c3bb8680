//! UDP: std's sockets, with waits that suspend the fiber.

use std::fmt;
use std::io;
use std::net::{self, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::ToSocketAddrs;
use super::lookup;
use super::shared;
use crate::io::registered::Registered;
use crate::sys::socket::Take;

/// A UDP socket.
///
/// Corresponds to [`std::net::UdpSocket`]; its waits suspend the fiber, not the thread.
///
/// ```
/// use indent::net::UdpSocket;
///
/// let here = UdpSocket::bind("127.0.0.1:0")?;
/// let there = UdpSocket::bind("127.0.0.1:0")?;
/// there.connect(here.local_addr()?)?;
/// let echo = indent::spawn(move || {
///     let mut buffer = [0; 64];
///     let (length, from) = here.recv_from(&mut buffer)?;
///     here.send_to(&buffer[..length], from)
/// });
/// there.send(b"ping")?;
/// let mut buffer = [0; 64];
/// assert_eq!(there.recv(&mut buffer)?, 4);
/// assert_eq!(&buffer[..4], b"ping");
/// assert_eq!(echo.join().unwrap()?, 4);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UdpSocket(Registered<net::UdpSocket>);

impl UdpSocket {
    /// Binds a socket to the first address that is available.
    ///
    /// A host name is resolved on a thread that may block.
    ///
    /// ```
    /// use indent::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0); // the system has chosen one
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        lookup::first_of(addr, net::UdpSocket::bind).map(UdpSocket::unshared)
    }

    /// Sets the address that `send` sends to, and receives only what comes from there.
    ///
    /// A host name is resolved on a thread that may block.
    ///
    /// ```
    /// use indent::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// one.connect(other.local_addr()?)?;
    /// one.send(b"hello")?;
    /// assert_eq!(other.recv_from(&mut [0; 8])?, (5, one.local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        lookup::first_of(addr, |address| self.std().connect(address))
    }

    /// Receives a datagram, and returns the address of its sender.
    ///
    /// Blocks until there is one. What does not fit into the buffer is discarded.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// one.send(b"hello")?;
    /// let mut buffer = [0; 64];
    /// let (length, from) = other.recv_from(&mut buffer)?;
    /// assert_eq!((&buffer[..length], from), (&b"hello"[..], one.local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Take)?;
        Ok((length, from.to_inet()?))
    }

    /// As [`recv_from`](Self::recv_from), but the next call returns the same datagram.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// one.send(b"hello")?;
    /// assert_eq!(other.peek_from(&mut [0; 8])?, (5, one.local_addr()?));
    /// assert_eq!(other.recv(&mut [0; 8])?, 5); // it is still there
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Peek)?;
        Ok((length, from.to_inet()?))
    }

    /// Sends a datagram to this address, the first if there are several.
    ///
    /// A host name is resolved on a thread that may block.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// assert_eq!(one.send_to(b"hello", other.local_addr()?)?, 5);
    /// assert_eq!(other.recv(&mut [0; 8])?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> io::Result<usize> {
        let first = addr.to_socket_addrs()?.next();
        let none = || lookup::no_address("there is no address to send to");
        let address = first.ok_or_else(none)?.into();
        shared::send_to(&self.0, buf, &address)
    }

    /// Receives a datagram from the [connected](Self::connect) address.
    ///
    /// Blocks until there is one. What does not fit into the buffer is discarded.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// one.send(b"hello")?;
    /// let mut buffer = [0; 2];
    /// assert_eq!((other.recv(&mut buffer)?, &buffer), (2, b"he")); // the rest is discarded
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Take)
    }

    /// As [`recv`](Self::recv), but the next call returns the same datagram.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// one.send(b"hello")?;
    /// assert_eq!(other.peek(&mut [0; 8])?, 5);
    /// assert_eq!(other.recv(&mut [0; 8])?, 5); // it is still there
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Peek)
    }

    /// Sends a datagram to the [connected](Self::connect) address.
    ///
    /// ```
    /// # use indent::net::UdpSocket;
    /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// # one.connect(other.local_addr()?)?;
    /// # other.connect(one.local_addr()?)?;
    /// assert_eq!(one.send(b"hello")?, 5);
    /// assert_eq!(one.send(b"")?, 0); // also a datagram
    /// assert_eq!(other.recv(&mut [0; 8])?, 5);
    /// assert_eq!(other.recv(&mut [0; 8])?, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        shared::send_whole(&self.0, buf)
    }

    as_in_std! {
        /// Returns the address of the other side.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
        /// # one.connect(other.local_addr()?)?;
        /// # other.connect(one.local_addr()?)?;
        /// assert_eq!(one.peer_addr()?, other.local_addr()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Returns the local address.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// assert!(socket.local_addr()?.ip().is_loopback());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Sets whether it may send to broadcast addresses.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// socket.set_broadcast(true)?;
        /// assert!(socket.broadcast()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_broadcast(&self, broadcast: bool) -> io::Result<()>;
        /// Returns what [`set_broadcast`](Self::set_broadcast) has set.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// assert!(!socket.broadcast()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn broadcast(&self) -> io::Result<bool>;
        /// Sets whether its own multicast packets come back to it (IPv4).
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// socket.set_multicast_loop_v4(false)?;
        /// assert!(!socket.multicast_loop_v4()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_multicast_loop_v4(&self, multicast_loop_v4: bool) -> io::Result<()>;
        /// Returns what [`set_multicast_loop_v4`](Self::set_multicast_loop_v4) has set.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// assert!(socket.multicast_loop_v4()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn multicast_loop_v4(&self) -> io::Result<bool>;
        /// Sets how many hops a multicast packet may take (IPv4).
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// socket.set_multicast_ttl_v4(8)?;
        /// assert_eq!(socket.multicast_ttl_v4()?, 8);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_multicast_ttl_v4(&self, multicast_ttl_v4: u32) -> io::Result<()>;
        /// Returns what [`set_multicast_ttl_v4`](Self::set_multicast_ttl_v4) has set.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// assert_eq!(socket.multicast_ttl_v4()?, 1);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn multicast_ttl_v4(&self) -> io::Result<u32>;
        /// Sets whether its own multicast packets come back to it (IPv6).
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let Ok(socket) = UdpSocket::bind("[::1]:0") else {
        /// #     return Ok(()); // there is no IPv6 here
        /// # };
        /// socket.set_multicast_loop_v6(false)?;
        /// assert!(!socket.multicast_loop_v6()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_multicast_loop_v6(&self, multicast_loop_v6: bool) -> io::Result<()>;
        /// Returns what [`set_multicast_loop_v6`](Self::set_multicast_loop_v6) has set.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let Ok(socket) = UdpSocket::bind("[::1]:0") else {
        /// #     return Ok(()); // there is no IPv6 here
        /// # };
        /// assert!(socket.multicast_loop_v6()?);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn multicast_loop_v6(&self) -> io::Result<bool>;
        /// Sets how many hops a packet may take (`IP_TTL`).
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// socket.set_ttl(64)?;
        /// assert_eq!(socket.ttl()?, 64);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;
        /// Returns what [`set_ttl`](Self::set_ttl) has set.
        ///
        /// ```
        /// # use indent::net::UdpSocket;
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// assert!(socket.ttl()? > 0);
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn ttl(&self) -> io::Result<u32>;
        /// Joins a multicast group, on the interface with this address.
        ///
        /// ```
        /// # use indent::net::{Ipv4Addr, UdpSocket};
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// let (group, interface) = (Ipv4Addr::new(224, 0, 0, 123), Ipv4Addr::LOCALHOST);
        /// if socket.join_multicast_v4(&group, &interface).is_ok() {
        ///     socket.leave_multicast_v4(&group, &interface)?;
        /// }
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn join_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;
        /// Joins a multicast group, on the interface with this index.
        ///
        /// ```
        /// # use indent::net::{Ipv6Addr, UdpSocket};
        /// # let Ok(socket) = UdpSocket::bind("[::1]:0") else {
        /// #     return Ok(()); // there is no IPv6 here
        /// # };
        /// let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x123);
        /// if socket.join_multicast_v6(&group, 1).is_ok() {
        ///     socket.leave_multicast_v6(&group, 1)?;
        /// }
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;
        /// Leaves a multicast group.
        ///
        /// ```
        /// # use indent::net::{Ipv4Addr, UdpSocket};
        /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// let (group, interface) = (Ipv4Addr::new(224, 0, 0, 123), Ipv4Addr::LOCALHOST);
        /// assert!(socket.leave_multicast_v4(&group, &interface).is_err()); // it is in none
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;
        /// Leaves a multicast group.
        ///
        /// ```
        /// # use indent::net::{Ipv6Addr, UdpSocket};
        /// # let Ok(socket) = UdpSocket::bind("[::1]:0") else {
        /// #     return Ok(()); // there is no IPv6 here
        /// # };
        /// let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x123);
        /// assert!(socket.leave_multicast_v6(&group, 1).is_err()); // it is in none
        /// # Ok::<(), std::io::Error>(())
        /// ```
        fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;
    }
}

transfers!(
    UdpSocket,
    net::UdpSocket,
    r#"use indent::net::UdpSocket;

let socket = UdpSocket::bind("127.0.0.1:0")?;"#,
    "socket.recv_from(&mut [0])"
);
