#![expect(unsafe_code, reason = "reads addresses as the kernel wrote them")]
//! Socket addresses, converted between the kernel's form and std's.
//!
//! There is room for the largest. What the kernel wrote is read by family and length. std's types
//! check their values, so a name that does not fit into them (a path of all 108 bytes, which no
//! program that uses std can bind) becomes the address without a name.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::ptr;

/// A socket address of any family.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

/// Offset of the name in an address of a Unix socket.
const NAME: usize = mem::offset_of!(libc::sockaddr_un, sun_path);

impl Address {
    /// Creates room for an address that the kernel is to write.
    pub(crate) fn room() -> Self {
        Address {
            // SAFETY: numbers, for which zero is a value: family zero, "unspecified".
            storage: unsafe { mem::zeroed() },
            length: mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
    }

    fn of<T>(value: T) -> Self {
        const { assert!(mem::size_of::<T>() <= mem::size_of::<libc::sockaddr_storage>()) };
        const { assert!(mem::align_of::<T>() <= mem::align_of::<libc::sockaddr_storage>()) };
        let mut address = Address::room();
        address.length = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: there is room, and the alignment is enough, as asserted.
        unsafe { ptr::from_mut(&mut address.storage).cast::<T>().write(value) };
        address
    }

    pub(crate) fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        (ptr::from_ref(&self.storage).cast(), self.length)
    }

    pub(crate) fn parts_mut(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        let length = ptr::from_mut(&mut self.length);
        (ptr::from_mut(&mut self.storage).cast(), length)
    }

    /// Sets the length that the kernel has written.
    pub(crate) fn set_length(&mut self, length: libc::socklen_t) {
        self.length = length;
    }

    pub(crate) fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }

    /// Converts to an Internet address; an error if it is none.
    pub(crate) fn to_inet(self) -> io::Result<SocketAddr> {
        let at = ptr::from_ref(&self.storage);
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family says that this is what is there; there is room for it.
                let v4 = unsafe { at.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the socket's address is not an Internet address",
            )),
        }
    }

    /// Converts to an address of a Unix socket; one without a name if there is none.
    pub(crate) fn to_unix(self) -> io::Result<UnixAddr> {
        let at = ptr::from_ref(&self.storage).cast::<libc::sockaddr_un>();
        // SAFETY: there is room for it, and any bytes are a value.
        let path = unsafe { at.read() }.sun_path.map(|byte| byte as u8);
        let length = (self.length as usize).saturating_sub(NAME).min(path.len());
        let named = match path[..length].split_first() {
            None => UnixAddr::from_pathname(""),
            Some((0, name)) => UnixAddr::from_abstract_name(name),
            Some(_) => {
                let end = path[..length].iter().position(|byte| *byte == 0);
                UnixAddr::from_pathname(OsStr::from_bytes(&path[..end.unwrap_or(length)]))
            }
        };
        named.or_else(|_| UnixAddr::from_pathname(""))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address(family {})", self.family())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Address::of(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Address::of(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}

impl From<&UnixAddr> for Address {
    fn from(address: &UnixAddr) -> Self {
        let mut un = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as libc::sa_family_t,
            sun_path: [0; 108],
        };
        let (start, name, end) = if let Some(path) = address.as_pathname() {
            (0, path.as_os_str().as_bytes(), 1) // and a zero after it
        } else if let Some(name) = address.as_abstract_name() {
            (1, name, 0) // a zero before it
        } else {
            (0, &[][..], 0)
        };
        for (to, from) in un.sun_path[start..].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let length = (NAME + start + name.len() + end).min(mem::size_of::<libc::sockaddr_un>());
        let mut address = Address::of(un);
        address.length = length as libc::socklen_t;
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internet_address_survives_the_way_to_the_kernel_and_back() {
        for text in [
            "127.0.0.1:80",
            "255.1.2.3:65535",
            "[::1]:1",
            "[fe80::1%7]:8080",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).to_inet().unwrap(), address);
        }
    }

    #[test]
    fn a_unix_address_survives_as_well_with_a_path_an_abstract_name_or_none() {
        let path = UnixAddr::from_pathname("/tmp/x").unwrap();
        let long = UnixAddr::from_pathname("y".repeat(107)).unwrap();
        let hidden = UnixAddr::from_abstract_name(b"a\0b").unwrap();
        let none = UnixAddr::from_pathname("").unwrap();
        for address in [&path, &long] {
            let back = Address::from(address).to_unix().unwrap();
            assert_eq!(back.as_pathname(), address.as_pathname());
        }
        let back = Address::from(&hidden).to_unix().unwrap();
        assert_eq!(back.as_abstract_name(), Some(&b"a\0b"[..]));
        assert!(none.is_unnamed());
        assert!(Address::from(&none).to_unix().unwrap().is_unnamed());
        let mut unnamed = Address::room();
        unnamed.length = 0;
        assert!(unnamed.to_unix().unwrap().is_unnamed());
    }

    #[test]
    fn a_path_that_std_cannot_hold_becomes_no_name() {
        let mut address = Address::from(&UnixAddr::from_pathname("z".repeat(107)).unwrap());
        let at = ptr::from_mut(&mut address.storage).cast::<u8>();
        // SAFETY: the last byte of the path lies within the address.
        let last = unsafe { at.add(NAME + 107) };
        // SAFETY: as above, and no other code has the address.
        unsafe { last.write(b'z') };
        assert!(address.to_unix().unwrap().is_unnamed());
    }
}
