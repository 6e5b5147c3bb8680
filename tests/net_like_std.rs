#![expect(unsafe_code, reason = "raw descriptors and an option std does not set")]
//! Sockets behave as std's do.
//!
//! There is one body of tests for std's types on threads, for this crate's types on threads, and
//! for this crate's types on fibers, with each I/O driver. It compiles for all of them, which shows
//! that names and signatures agree.

use std::io;
use std::net;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net as unix_std;
use std::sync::Arc;
use std::time::Duration;

use indent::net::{UdpSocket, UnixDatagram};

mod common;
mod sockets;

use sockets::{fresh_path, pattern};

const MS: Duration = Duration::from_millis(1);
/// More than the kernel buffers for a connection.
const MUCH: usize = 12 << 20;

/// Sets `SO_RCVTIMEO`, also for sockets for which std has no method.
fn set_read_limit(fd: BorrowedFd<'_>, limit: Duration) {
    let value = libc::timeval {
        tv_sec: limit.as_secs() as i64,
        tv_usec: i64::from(limit.subsec_micros()),
    };
    let size = std::mem::size_of_val(&value) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: the call reads `size` bytes of `value`.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, size) };
    assert_eq!(set, 0);
}

macro_rules! promises {
    ($place:ident, $($net:ident)::+, $($unix:ident)::+, $spawn:path, $run:expr) => {
mod $place {
    use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
    use std::os::fd::{AsFd, AsRawFd, IntoRawFd, FromRawFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::time::Instant;

    use $($net)::+::{TcpListener, TcpStream, UdpSocket};
    use $($unix)::+::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};
    use $spawn as spawn;

    use super::{MS, MUCH, fresh_path, pattern, set_read_limit};
    #[allow(unused_imports, reason = "for the driver of fibers")]
    use super::sockets;
    use crate::common::within;

    /// Runs the body on the kind of thread or fiber that this module tests.
    fn run(body: fn()) {
        let run: fn(fn()) = $run;
        within(120, || run(body));
    }

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
        (client, server)
    }

    fn unused_address() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    }

    fn echoes(address: &str) {
        let listener = match TcpListener::bind(address) {
            Err(error) if address.starts_with('[') => {
                return crate::common::skip(&format!("no IPv6 here: {error}"));
            }
            listener => listener.unwrap(),
        };
        let address = listener.local_addr().unwrap();
        let server = spawn(move || {
            for stream in listener.incoming().take(3) {
                let stream = stream.unwrap();
                let (mut from, mut to) = (&stream, &stream);
                io::copy(&mut from, &mut to).unwrap();
            }
        });
        for i in 0..3 {
            let mut stream = TcpStream::connect(address).unwrap();
            let text = pattern(1000 + i, i as u8);
            stream.write_all(&text).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, text);
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        }
        server.join().unwrap();
    }

    #[test]
    fn an_echo_comes_back_after_a_half_close() {
        run(|| echoes("127.0.0.1:0"));
        run(|| echoes("[::1]:0"));
    }

    #[test]
    fn a_connection_that_is_dropped_with_unread_data_is_reset() {
        run(|| {
            let (mut client, server) = tcp_pair();
            client.write_all(b"never read").unwrap();
            server.peek(&mut [0]).unwrap();
            drop(server);
            let error = client.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            let error = (0..100).find_map(|_| client.write(b"x").err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            assert!(client.take_error().unwrap().is_none());
        });
    }

    #[test]
    fn much_goes_both_ways_at_once_through_clones_and_slow_readers() {
        run(|| {
            let (one, other) = tcp_pair();
            let sides = [(one, 1, 2), (other, 2, 1)];
            let fibers = sides.map(|(stream, mine, theirs)| {
                let clone = stream.try_clone().unwrap();
                let writer = spawn(move || {
                    let mut stream = clone;
                    stream.write_all(&pattern(MUCH, mine)).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                let reader = spawn(move || {
                    let (mut all, mut part) = (Vec::new(), vec![0; 40_000]);
                    loop {
                        match (&stream).read(&mut part).unwrap() {
                            0 => break,
                            n => all.extend_from_slice(&part[..n]),
                        }
                        if all.len() < 200_000 {
                            std::thread::yield_now();
                        }
                    }
                    assert!(all == pattern(MUCH, theirs), "{} bytes", all.len());
                });
                (writer, reader)
            });
            for (writer, reader) in fibers {
                writer.join().unwrap();
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn what_was_peeked_at_is_read_again() {
        run(|| {
            let (mut client, mut server) = tcp_pair();
            client.write_all(b"abc").unwrap();
            let mut buffer = [0; 2];
            assert_eq!((server.peek(&mut buffer).unwrap(), &buffer), (2, b"ab"));
            assert_eq!((server.peek(&mut buffer).unwrap(), &buffer), (2, b"ab"));
            assert_eq!((server.read(&mut buffer).unwrap(), &buffer), (2, b"ab"));
            assert_eq!(server.read(&mut buffer).unwrap(), 1);
            drop(client);
            assert_eq!(server.peek(&mut buffer).unwrap(), 0);
        });
    }

    #[test]
    fn a_read_timeout_ends_a_read_and_no_data_is_lost() {
        run(|| {
            let (mut client, mut server) = tcp_pair();
            let zero = server.set_read_timeout(Some(MS * 0)).unwrap_err();
            assert_eq!(zero.kind(), ErrorKind::InvalidInput);
            assert_eq!(server.read_timeout().unwrap(), None);
            server.set_read_timeout(Some(20 * MS)).unwrap();
            assert!(server.read_timeout().unwrap().unwrap() >= 20 * MS);
            let start = std::time::Instant::now();
            let error = server.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(start.elapsed() >= 15 * MS, "{:?}", start.elapsed());
            client.write_all(b"late").unwrap();
            let mut late = [0; 4];
            server.set_read_timeout(Some(60_000 * MS)).unwrap();
            server.read_exact(&mut late).unwrap();
            assert_eq!(&late, b"late");
            // A timeout belongs to the socket, not to the handle.
            let clone = server.try_clone().unwrap();
            clone.set_read_timeout(Some(5 * MS)).unwrap();
            assert_eq!(server.read(&mut late).unwrap_err().kind(), ErrorKind::WouldBlock);
            server.set_read_timeout(None).unwrap();
            assert_eq!(clone.read_timeout().unwrap(), None);
        });
    }

    #[test]
    fn a_write_timeout_ends_a_write_that_is_not_read() {
        run(|| {
            let (mut client, _server) = tcp_pair();
            let zero = client.set_write_timeout(Some(MS * 0)).unwrap_err();
            assert_eq!(zero.kind(), ErrorKind::InvalidInput);
            client.set_write_timeout(Some(10 * MS)).unwrap();
            assert!(client.write_timeout().unwrap().unwrap() >= 10 * MS);
            let block = pattern(1 << 20, 0);
            let error = (0..100).find_map(|_| client.write(&block).err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        });
    }

    #[test]
    fn several_buffers_are_written_and_filled_in_order() {
        fn transfer(mut from: impl Write, mut to: impl Read) {
            let parts: Vec<_> = (0..1500).map(|i| pattern(1 + i % 3, i as u8)).collect();
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            // More than the kernel takes in one call, so some are left.
            let written = from.write_vectored(&slices).unwrap();
            assert!(written > 0 && written <= 3000);
            let (mut first, mut second) = ([0; 5], vec![0; written - 5]);
            let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            assert_eq!(to.read_vectored(&mut buffers).unwrap(), written);
            assert_eq!([&first[..], &second].concat(), parts.concat()[..written]);
            from.flush().unwrap();
        }
        run(|| {
            let (client, server) = tcp_pair();
            transfer(&client, &server);
            transfer(server, client);
            let (one, other) = UnixStream::pair().unwrap();
            transfer(&one, &other);
            transfer(one, other);
        });
    }

    #[test]
    fn a_nonblocking_socket_returns_would_block() {
        run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let clone = listener.try_clone().unwrap();
            for listener in [&listener, &clone] {
                assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            clone.set_nonblocking(false).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let clone = server.try_clone().unwrap();
            clone.set_nonblocking(true).unwrap();
            assert_eq!(server.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            let block = pattern(1 << 20, 0);
            let error = (0..100).find_map(|_| server.write(&block).err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            clone.set_nonblocking(false).unwrap();
            client.write_all(b"x").unwrap();
            assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
        });
    }

    #[test]
    fn options_are_kept() {
        run(|| {
            let (client, server) = tcp_pair();
            client.set_nodelay(true).unwrap();
            server.set_ttl(42).unwrap();
            assert!(client.nodelay().unwrap() && !server.nodelay().unwrap());
            assert_eq!(server.ttl().unwrap(), 42);
            assert!(format!("{client:?}").starts_with("TcpStream { addr: 127.0.0.1:"));
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_ttl(41).unwrap();
            assert_eq!(listener.ttl().unwrap(), 41);
            assert!(listener.take_error().unwrap().is_none());
            assert!(format!("{listener:?}").starts_with("TcpListener { addr: 127.0.0.1:"));
        });
    }

    #[test]
    fn the_first_address_that_answers_is_taken() {
        run(|| {
            let (deaf, listener) = (unused_address(), TcpListener::bind("127.0.0.1:0").unwrap());
            let alive = listener.local_addr().unwrap();
            let stream = TcpStream::connect(&[deaf, alive][..]).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), alive);
            let error = TcpStream::connect(&[deaf, deaf][..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let error = TcpStream::connect(&[][..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = TcpListener::bind(alive).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            for name in ["localhost:1", "127.0.0.1:1", "[::1]:1"] {
                assert!(TcpStream::connect(name).is_err(), "{name} has no listener");
            }
            let error = TcpStream::connect("no port").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
    }

    #[test]
    fn connecting_within_a_time_succeeds_fails_or_takes_too_long() {
        run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let alive = listener.local_addr().unwrap();
            let mut stream = TcpStream::connect_timeout(&alive, 60_000 * MS).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(b"x").unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 1, "and it waits as usual");
            let zero = TcpStream::connect_timeout(&alive, MS * 0).unwrap_err();
            assert_eq!(zero.kind(), ErrorKind::InvalidInput);
            let refused = TcpStream::connect_timeout(&unused_address(), 60_000 * MS).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            // Fill the queue of connections that wait to be accepted: further ones get no answer.
            let mut waiting = Vec::new();
            let error = loop {
                match TcpStream::connect_timeout(&alive, 30 * MS) {
                    Ok(stream) => waiting.push(stream),
                    Err(error) => break error,
                }
                if waiting.len() > 4_200 {
                    return crate::common::skip("the queue of connections has no end");
                }
            };
            assert_eq!(error.kind(), ErrorKind::TimedOut, "after {}", waiting.len());
        });
    }

    #[test]
    fn datagrams_arrive_one_by_one_with_their_sender() {
        run(|| {
            let one = UdpSocket::bind("127.0.0.1:0").unwrap();
            let other = UdpSocket::bind("127.0.0.1:0").unwrap();
            let (one_at, other_at) = (one.local_addr().unwrap(), other.local_addr().unwrap());
            assert_eq!(one.send_to(b"first", other_at).unwrap(), 5);
            assert_eq!(one.send_to(b"second", ("127.0.0.1", other_at.port())).unwrap(), 6);
            let none = one.send_to(b"", &[][..]).unwrap_err();
            assert_eq!(none.kind(), ErrorKind::InvalidInput);
            let mut buffer = [0; 4];
            assert_eq!(other.peek_from(&mut buffer).unwrap(), (4, one_at));
            assert_eq!(other.recv_from(&mut buffer).unwrap(), (4, one_at));
            assert_eq!(&buffer, b"firs");
            let mut buffer = [0; 64];
            assert_eq!(other.recv_from(&mut buffer).unwrap(), (6, one_at));
            other.connect(one_at).unwrap();
            assert_eq!(other.peer_addr().unwrap(), one_at);
            other.send(b"back").unwrap();
            let clone = one.try_clone().unwrap();
            assert_eq!(clone.peek(&mut buffer).unwrap(), 4);
            assert_eq!(clone.recv(&mut buffer).unwrap(), 4);
            one.set_read_timeout(Some(5 * MS)).unwrap();
            assert_eq!(clone.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            one.set_nonblocking(true).unwrap();
            assert_eq!(clone.recv_from(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        });
    }

    #[test]
    fn a_datagram_to_a_closed_port_is_refused() {
        run(|| {
            let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(gone).unwrap();
            socket.send(b"anybody?").unwrap();
            let error = socket.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    }

    #[test]
    fn options_of_datagrams_are_kept() {
        run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_broadcast(true).unwrap();
            socket.set_ttl(7).unwrap();
            socket.set_multicast_loop_v4(false).unwrap();
            socket.set_multicast_ttl_v4(3).unwrap();
            assert!(socket.broadcast().unwrap() && !socket.multicast_loop_v4().unwrap());
            assert_eq!((socket.ttl().unwrap(), socket.multicast_ttl_v4().unwrap()), (7, 3));
            let (group, any) = (Ipv4Addr::new(224, 0, 0, 123), Ipv4Addr::UNSPECIFIED);
            let local = Ipv4Addr::LOCALHOST;
            let joined = socket.join_multicast_v4(&group, &local);
            assert_eq!(joined.is_ok(), socket.leave_multicast_v4(&group, &local).is_ok());
            assert!(socket.leave_multicast_v4(&group, &any).is_err(), "it is in no group");
            assert!(socket.take_error().unwrap().is_none());
            if let Ok(socket) = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
                socket.set_multicast_loop_v6(false).unwrap();
                assert!(!socket.multicast_loop_v6().unwrap());
                let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x123);
                assert!(socket.leave_multicast_v6(&group, 0).is_err());
                drop(socket.join_multicast_v6(&group, 0)); // not available everywhere
            }
            socket.set_write_timeout(Some(20 * MS)).unwrap();
            assert!(socket.write_timeout().unwrap().unwrap() >= 20 * MS);
            assert_eq!(socket.read_timeout().unwrap(), None);
        });
    }

    #[test]
    fn unix_streams_have_paths_abstract_names_or_none() {
        run(|| {
            let path = fresh_path();
            let hidden = format!("{} hidden", path.display());
            let hidden = UnixAddr::from_abstract_name(hidden).unwrap();
            let open = UnixListener::bind(&path).unwrap();
            assert_eq!(open.local_addr().unwrap().as_pathname(), Some(&*path));
            let guest = spawn(move || UnixStream::connect(path).unwrap().peer_addr().unwrap());
            let (mut stream, from) = open.accept().unwrap();
            assert!(from.is_unnamed() && stream.peer_addr().unwrap().is_unnamed());
            assert!(guest.join().unwrap().as_pathname().is_some());
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);

            let listener = UnixListener::bind_addr(&hidden).unwrap();
            let name = hidden.as_abstract_name().unwrap().to_owned();
            assert_eq!(listener.local_addr().unwrap().as_abstract_name(), Some(&name[..]));
            let clone = listener.try_clone().unwrap();
            let server = spawn(move || {
                for stream in (&clone).into_iter().take(2) {
                    let stream = stream.unwrap();
                    io::copy(&mut &stream, &mut &stream).unwrap();
                }
            });
            for _ in 0..2 {
                let mut stream = UnixStream::connect_addr(&hidden).unwrap();
                stream.write_all(b"abc").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                assert_eq!(text, "abc");
            }
            server.join().unwrap();
            listener.set_nonblocking(true).unwrap();
            assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(listener.take_error().unwrap().is_none());
            let error = UnixStream::connect(fresh_path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            let error = UnixStream::connect("a\0b").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
    }

    #[test]
    fn a_unix_pair_waits_ends_and_times_out() {
        run(|| {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            one.set_read_timeout(Some(5 * MS)).unwrap();
            assert_eq!(one.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            one.set_write_timeout(Some(5 * MS)).unwrap();
            let block = pattern(1 << 20, 0);
            let error = (0..100).find_map(|_| one.write(&block).err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            drop(one.try_clone().unwrap());
            drop(one);
            let mut rest = Vec::new();
            assert!(other.read_to_end(&mut rest).unwrap() > 0);
            assert_eq!(other.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert!(other.local_addr().unwrap().is_unnamed());
            assert!(other.take_error().unwrap().is_none());
        });
    }

    #[test]
    fn unix_datagrams_know_their_sender_if_it_has_a_name() {
        run(|| {
            let (path, sender) = (fresh_path(), fresh_path());
            let socket = UnixDatagram::bind(&path).unwrap();
            let unnamed = UnixDatagram::unbound().unwrap();
            let named = UnixDatagram::bind(&sender).unwrap();
            let hidden = format!("{} datagrams", path.display());
            let hidden = UnixAddr::from_abstract_name(hidden).unwrap();
            let abstracted = UnixDatagram::bind_addr(&hidden).unwrap();
            let target = UnixAddr::from_pathname(&path).unwrap();
            unnamed.send_to(b"a", &path).unwrap();
            named.send_to_addr(b"bb", &target).unwrap();
            abstracted.connect_addr(&target).unwrap();
            abstracted.send(b"ccc").unwrap();
            let mut buffer = [0; 8];
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((length, from.is_unnamed()), (1, true));
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((length, from.as_pathname()), (2, Some(&*sender)));
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((length, from.as_abstract_name()), (3, hidden.as_abstract_name()));
            unnamed.connect(&path).unwrap();
            assert_eq!(unnamed.peer_addr().unwrap().as_pathname(), Some(&*path));
            assert!(unnamed.local_addr().unwrap().is_unnamed());
            unnamed.shutdown(Shutdown::Both).unwrap();
            assert_eq!(unnamed.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    }

    #[test]
    fn senders_of_unix_datagrams_wait_for_a_receiver_that_is_behind() {
        run(|| {
            let path = fresh_path();
            let socket = UnixDatagram::bind(&path).unwrap();
            let connected = UnixDatagram::unbound().unwrap();
            connected.connect(&path).unwrap();
            let (one, other) = UnixDatagram::pair().unwrap();
            let senders = [
                spawn(move || {
                    let stranger = UnixDatagram::unbound().unwrap();
                    (0..200u8).for_each(|i| assert_eq!(stranger.send_to(&[i], &path).unwrap(), 1));
                }),
                spawn(move || (0..200u8).for_each(|i| assert_eq!(connected.send(&[i]).unwrap(), 1))),
                spawn(move || (0..200u8).for_each(|i| assert_eq!(one.send(&[i; 4000]).unwrap(), 4000))),
            ];
            let mut sum = 0;
            for _ in 0..400 {
                let mut byte = [0];
                assert_eq!(socket.recv(&mut byte).unwrap(), 1);
                sum += u32::from(byte[0]);
            }
            for i in 0..200 {
                let mut buffer = [0; 5000];
                assert_eq!((other.recv(&mut buffer).unwrap(), buffer[3999]), (4000, i));
            }
            assert_eq!(sum, 2 * (0..200).sum::<u32>());
            senders.into_iter().for_each(|sender| sender.join().unwrap());
        });
    }

    #[test]
    fn a_listener_whose_descriptor_has_a_time_limit_gives_up_after_it() {
        run(|| {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            let unix = UnixListener::bind(fresh_path()).unwrap();
            set_read_limit(tcp.as_fd(), 5 * MS);
            set_read_limit(unix.as_fd(), 5 * MS);
            let begun = Instant::now();
            assert_eq!(tcp.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(unix.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(begun.elapsed() >= 10 * MS, "{:?}", begun.elapsed());
            let guest = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
            let stream = tcp.accept().unwrap().0;
            assert!(stream.read_timeout().unwrap().is_some(), "it is handed down");
            drop(guest);
        });
    }

    #[test]
    fn descriptors_go_out_and_come_in() {
        fn unchanged<T>(socket: T) -> T
        where
            T: AsFd + AsRawFd + IntoRawFd + FromRawFd + From<OwnedFd> + Into<OwnedFd>,
        {
            let number = socket.as_raw_fd();
            assert_eq!(socket.as_fd().as_raw_fd(), number);
            let fd: OwnedFd = socket.into();
            assert_eq!(fd.as_raw_fd(), number);
            let raw = T::from(fd).into_raw_fd();
            assert_eq!(raw, number);
            // SAFETY: the descriptor was just taken out of its owner.
            unsafe { T::from_raw_fd(raw) }
        }
        run(|| {
            let (mut client, server) = tcp_pair();
            let mut server = unchanged(server);
            client.write_all(b"x").unwrap();
            assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
            let listener = unchanged(TcpListener::bind("127.0.0.1:0").unwrap());
            let address = listener.local_addr().unwrap();
            let guest = spawn(move || drop(TcpStream::connect(address).unwrap()));
            drop(listener.accept().unwrap());
            guest.join().unwrap();
            drop(unchanged(UdpSocket::bind("127.0.0.1:0").unwrap()));
            drop(unchanged(UnixStream::pair().unwrap().0));
            drop(unchanged(UnixDatagram::unbound().unwrap()));
            drop(unchanged(UnixListener::bind(fresh_path()).unwrap()));
        });
    }
}
    };
}

promises!(
    of_std_on_threads,
    std::net,
    std::os::unix::net,
    std::thread::spawn,
    |body| body()
);
promises!(
    of_ours_on_threads,
    indent::net,
    indent::net::unix,
    std::thread::spawn,
    |body| body()
);
promises!(
    of_ours_on_fibers,
    indent::net,
    indent::net::unix,
    indent::spawn,
    |body| indent::block_on(body)
);
promises!(
    of_ours_on_fibers_by_uring,
    indent::net,
    indent::net::unix,
    indent::spawn,
    |body| sockets::builder("uring").build().unwrap().block_on(body)
);

/// Moves a receiver from a fiber to a thread to std, and back to a fiber.
///
/// It waits in each place.
///
/// `send` sends three bytes to it.
fn waits_everywhere<O: Send + Sync + 'static, S: Send + From<O> + Into<O> + 'static>(
    ours: O,
    receive: fn(&O, &mut [u8]) -> io::Result<usize>,
    receive_std: fn(&S, &mut [u8]) -> io::Result<usize>,
    send: impl Fn() + Clone + Send + Sync + 'static,
) {
    let send_late = || {
        let send = send.clone();
        std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            send();
        })
    };
    for driver in ["epoll", "uring"] {
        let rt = sockets::builder(driver).workers(1).build().unwrap();
        // On a fiber, where the descriptor is registered.
        rt.block_on(|| {
            let late = indent::time::timeout(2 * MS, || receive(&ours, &mut [0; 8]).map(drop));
            assert!(late.is_err(), "it waits");
            let sender = send_late();
            assert_eq!(receive(&ours, &mut [0; 8]).unwrap(), 3);
            sender.join().unwrap();
        });
        let sender = send_late();
        assert_eq!(receive(&ours, &mut [0; 8]).unwrap(), 3, "on this thread");
        sender.join().unwrap();
    }
    let theirs = S::from(ours);
    let sender = send_late();
    assert_eq!(receive_std(&theirs, &mut [0; 8]).unwrap(), 3, "as std's");
    sender.join().unwrap();
    let ours: O = theirs.into();
    let sender = send_late();
    let received = indent::spawn(move || receive(&ours, &mut [0; 8]).unwrap());
    assert_eq!(received.join().unwrap(), 3, "on a fiber again");
    sender.join().unwrap();
}

#[test]
fn datagrams_are_waited_for_on_fibers_on_threads_and_by_std() {
    common::within(60, || {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        let one = Arc::new(one);
        let send = move || assert_eq!(one.send(b"abc").unwrap(), 3);
        waits_everywhere(other, UdpSocket::recv, net::UdpSocket::recv, send);

        let (one, other) = UnixDatagram::pair().unwrap();
        let one = Arc::new(one);
        let send = move || assert_eq!(one.send(b"abc").unwrap(), 3);
        waits_everywhere(
            other,
            UnixDatagram::recv,
            unix_std::UnixDatagram::recv,
            send,
        );
    });
}
