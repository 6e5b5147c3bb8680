//! Connections that are taken and closed at once.
//!
//! `waiting`: all of them are there before the first is taken. `coming`: the client connects on the other CPU
//! meanwhile, one after the other, and is slower than who takes them. A connection's address is asked for, as the
//! runtime tells it: by the entry itself, or where the kernel does not tell it (multishot), by a call.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};

use super::{Stretch, compare, pin, push, ring, sleep, take};

/// Connections of one run; no more than a listener has room for.
const CONNECTIONS: usize = 2_000;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// An entry for each.
    OneByOne,
    /// The same, and nothing is tried before the listener says that it is worth it.
    PollFirst,
    /// What the runtime does: a call, and an entry if there is none.
    CallFirst,
    /// The same, with an entry that polls first.
    CallThenPoll,
    /// One entry for all.
    Multishot,
    /// The same, and nobody asks who it is.
    Nameless,
}

/// When they come.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Waiting,
    Coming,
}

/// Connects so many times; leaves nothing behind.
fn connect(server: SocketAddr) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(server).expect("a connection");
        let (fd, value) = (stream.as_raw_fd(), (&raw const at_once).cast());
        let size = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: reads the option, of this size.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }
}

/// Has an ACCEPT wait before it tries (Linux 6.10); the crate has no word for it.
fn poll_first(entry: &mut Entry) {
    const POLL_FIRST: u16 = 4;
    let halves = std::ptr::from_mut(entry).cast::<u16>();
    // SAFETY: an entry is the kernel's: operation and flags, a byte each, then `ioprio`.
    let ioprio = unsafe { halves.add(1) };
    // SAFETY: inside of the entry, which is borrowed, and aligned.
    unsafe { *ioprio |= POLL_FIRST };
}

struct Server {
    way: Way,
    ring: IoUring,
    listener: TcpListener,
    /// Where the kernel writes who it is.
    name: Box<(libc::sockaddr_storage, libc::socklen_t)>,
    taken: usize,
}

impl Server {
    fn entry(&mut self) -> Entry {
        let fd = Fd(self.listener.as_raw_fd());
        match self.way {
            Way::OneByOne | Way::CallFirst | Way::PollFirst | Way::CallThenPoll => {
                self.name.1 = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                let name = (&raw mut self.name.0).cast();
                let entry = opcode::Accept::new(fd, name, &raw mut self.name.1);
                let mut entry = entry.flags(libc::SOCK_CLOEXEC).build();
                if matches!(self.way, Way::PollFirst | Way::CallThenPoll) {
                    poll_first(&mut entry);
                }
                entry
            }
            Way::Multishot | Way::Nameless => opcode::AcceptMulti::new(fd)
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        }
    }

    fn begin(&mut self) {
        let entry = self.entry();
        // SAFETY: there is room for a name until the ring goes, and one entry that writes to it.
        unsafe { push(&mut self.ring, &entry) };
    }

    /// A connection is here: closes it.
    fn took(&mut self, fd: i32) {
        assert!(fd >= 0, "{}", io::Error::from_raw_os_error(-fd));
        // SAFETY: just accepted, and nobody else's.
        let connection = unsafe { OwnedFd::from_raw_fd(fd) };
        if self.way == Way::Multishot {
            let (name, size) = &mut *self.name;
            *size = size_of_val(name) as libc::socklen_t;
            // SAFETY: writes no more than the size says. Fails for who has gone already.
            unsafe { libc::getpeername(fd, (&raw mut *name).cast(), size) };
        }
        drop(connection);
        self.taken += 1;
    }

    fn calls(&self) -> bool {
        matches!(self.way, Way::CallFirst | Way::CallThenPoll)
    }

    /// Takes by calls whoever is there.
    fn call(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            drop(stream);
            self.taken += 1;
        }
    }

    fn serve(mut self) -> [f64; 2] {
        let stretch = Stretch::begin();
        if self.calls() {
            self.call();
        }
        self.begin();
        while self.taken < CONNECTIONS {
            sleep(&self.ring);
            for entry in take(&mut self.ring) {
                self.took(entry.result());
                if self.taken == CONNECTIONS {
                    break;
                }
                if self.calls() {
                    self.call();
                }
                if !cqueue::more(entry.flags()) {
                    self.begin();
                }
            }
        }
        stretch.end(CONNECTIONS)
    }
}

fn run(way: Way, when: When) -> [f64; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    listener.set_nonblocking(true).expect("as ours are");
    // SAFETY: takes numbers only.
    let room = unsafe { libc::listen(listener.as_raw_fd(), CONNECTIONS as i32) };
    assert_eq!(room, 0, "for more than std asks for");
    let address = listener.local_addr().expect("an address");
    let client = thread::spawn(move || {
        pin(1);
        connect(address);
    });
    let join = || client.join().expect("no panic");
    let server = Server {
        way,
        ring: ring(),
        listener,
        // SAFETY: zeros are an address of no family.
        name: Box::new(unsafe { std::mem::zeroed() }),
        taken: 0,
    };
    if when == When::Coming {
        let figures = server.serve();
        join();
        return figures;
    }
    join();
    server.serve()
}

pub(crate) fn tables() {
    for (title, when) in [
        ("accept/waiting/2,000", When::Waiting),
        ("accept/coming/2,000", When::Coming),
    ] {
        compare(
            title,
            ["accepts/s", "CPU ns an accept"],
            &[
                ("call first, then ACCEPT", &|| run(Way::CallFirst, when)),
                ("again", &|| run(Way::CallFirst, when)),
                ("call, then ACCEPT that polls first", &|| {
                    run(Way::CallThenPoll, when)
                }),
                ("ACCEPT, one by one", &|| run(Way::OneByOne, when)),
                ("ACCEPT that polls first", &|| run(Way::PollFirst, when)),
                ("multishot ACCEPT, getpeername", &|| {
                    run(Way::Multishot, when)
                }),
                ("multishot ACCEPT", &|| run(Way::Nameless, when)),
            ],
        );
    }
}
