//! Host names to addresses.
//!
//! Name resolution blocks its thread in the C library, possibly for seconds, so it runs on the pool
//! for blocking calls. Addresses need no resolution and stay on the fiber. Std's trait does not
//! distinguish the two, and its implementors need not be `Send`; hence a trait of this crate.

use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::{iter, option, slice, vec};

use crate::blocking::blocking;

/// Values that name one or several addresses.
///
/// Corresponds to [`std::net::ToSocketAddrs`], and is implemented for the same types.
///
/// ```
/// use indent::net::ToSocketAddrs;
///
/// let local: Vec<_> = "localhost:80".to_socket_addrs()?.collect(); // resolved by the system
/// assert!(local.iter().all(|address| address.ip().is_loopback()));
/// let literal: Vec<_> = ("::1", 80).to_socket_addrs()?.collect(); // no resolution
/// assert_eq!(literal, ["[::1]:80".parse().unwrap()]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Pass a type that implements std's trait only as a slice: `&addresses.collect::<Vec<_>>()[..]`.
pub trait ToSocketAddrs {
    /// The iterator over the addresses.
    type Iter: Iterator<Item = SocketAddr>;

    /// Returns the addresses. Blocks, and cannot be cancelled, while a host name is resolved.
    ///
    /// ```
    /// use indent::net::ToSocketAddrs;
    ///
    /// let mut addresses = "127.0.0.1:80".to_socket_addrs()?;
    /// assert_eq!(addresses.next(), Some("127.0.0.1:80".parse().unwrap()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    fn to_socket_addrs(&self) -> io::Result<Self::Iter>;
}

/// Implements the trait for types that are one address.
macro_rules! one_address {
    ($($type:ty),*) => { $(
        impl ToSocketAddrs for $type {
            type Iter = option::IntoIter<SocketAddr>;

            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                net::ToSocketAddrs::to_socket_addrs(self)
            }
        }
    )* };
}

one_address!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl ToSocketAddrs for (&str, u16) {
    type Iter = vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        let (host, port) = *self;
        match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, port)].into_iter()),
            Err(_) => blocking(|| net::ToSocketAddrs::to_socket_addrs(&(host, port))),
        }
    }
}

impl ToSocketAddrs for (String, u16) {
    type Iter = vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (self.0.as_str(), self.1).to_socket_addrs()
    }
}

impl ToSocketAddrs for str {
    type Iter = vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        match self.parse() {
            Ok(address) => Ok(vec![address].into_iter()),
            Err(_) => blocking(|| net::ToSocketAddrs::to_socket_addrs(self)),
        }
    }
}

impl ToSocketAddrs for String {
    type Iter = vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        self.as_str().to_socket_addrs()
    }
}

impl<'a> ToSocketAddrs for &'a [SocketAddr] {
    type Iter = iter::Cloned<slice::Iter<'a, SocketAddr>>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        Ok(self.iter().cloned())
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    type Iter = T::Iter;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (**self).to_socket_addrs()
    }
}

/// Tries one address after the other; returns the first success, or the last error.
pub(super) fn first_of<A: ToSocketAddrs, R>(
    addresses: A,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    let mut failure = None;
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| no_address("there is no address to try")))
}

pub(super) fn no_address(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
