//! UDP: std's sockets, with waits of our own.

use std::fmt;
use std::io;
use std::net::{self, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::ToSocketAddrs;
use super::lookup;
use super::shared;
use crate::base::socket::Take;
use crate::io::watched::Watched;

/// A UDP socket. [`std::net::UdpSocket`] in all but what its waits block.
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
pub struct UdpSocket(Watched<net::UdpSocket>);

impl UdpSocket {
    /// A socket with the first address that is to be had. A name is looked up on a thread that may block.
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        lookup::first_of(addr, net::UdpSocket::bind).map(UdpSocket::sole)
    }

    /// From now on `send` sends to this address, and only what comes from there is received. A name is
    /// looked up on a thread that may block.
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        lookup::first_of(addr, |address| self.std().connect(address))
    }

    /// Waits for a datagram, and says from whom it came. What does not fit into the buffer is lost.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Take)?;
        Ok((length, from.to_inet()?))
    }

    /// The same, without taking it: the next call gets the same datagram.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = shared::receive_from(&self.0, buf, Take::Peek)?;
        Ok((length, from.to_inet()?))
    }

    /// Sends a datagram to this address, the first if there are several. A name is looked up on a thread that
    /// may block.
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> io::Result<usize> {
        let first = addr.to_socket_addrs()?.next();
        let none = || lookup::no_address("there is no address to send to");
        let address = first.ok_or_else(none)?.into();
        shared::send_to(&self.0, buf, &address)
    }

    /// Waits for a datagram from the [connected](Self::connect) address. What does not fit into the buffer is
    /// lost.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Take)
    }

    /// The same, without taking it: the next call gets the same datagram.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        shared::receive(&self.0, buf, Take::Peek)
    }

    /// Sends a datagram to the [connected](Self::connect) address.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        shared::send_whole(&self.0, buf)
    }

    as_in_std! {
        /// Whom it is connected to.
        fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Its address.
        fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Whether it may send to broadcast addresses.
        fn set_broadcast(&self, broadcast: bool) -> io::Result<()>;
        /// What was set by [`set_broadcast`](Self::set_broadcast).
        fn broadcast(&self) -> io::Result<bool>;
        /// Whether its own multicast packets come back to it (IPv4).
        fn set_multicast_loop_v4(&self, multicast_loop_v4: bool) -> io::Result<()>;
        /// What was set by [`set_multicast_loop_v4`](Self::set_multicast_loop_v4).
        fn multicast_loop_v4(&self) -> io::Result<bool>;
        /// Over how many hops a multicast packet may go (IPv4).
        fn set_multicast_ttl_v4(&self, multicast_ttl_v4: u32) -> io::Result<()>;
        /// What was set by [`set_multicast_ttl_v4`](Self::set_multicast_ttl_v4).
        fn multicast_ttl_v4(&self) -> io::Result<u32>;
        /// Whether its own multicast packets come back to it (IPv6).
        fn set_multicast_loop_v6(&self, multicast_loop_v6: bool) -> io::Result<()>;
        /// What was set by [`set_multicast_loop_v6`](Self::set_multicast_loop_v6).
        fn multicast_loop_v6(&self) -> io::Result<bool>;
        /// Over how many hops a packet may go.
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;
        /// What was set by [`set_ttl`](Self::set_ttl).
        fn ttl(&self) -> io::Result<u32>;
        /// Joins a multicast group, on the interface with this address.
        fn join_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;
        /// Joins a multicast group, on the interface with this number.
        fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;
        /// Leaves a multicast group.
        fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;
        /// Leaves a multicast group.
        fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;
    }
}

transfers!(UdpSocket, net::UdpSocket);
