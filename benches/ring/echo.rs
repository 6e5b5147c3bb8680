//! Messages that are received and sent back, over as many connections as there are.
//!
//! The server is what is measured. The client does as little as a client can: a ring of one issuer, deferred work,
//! registered files, one entry for each direction. On `two CPUs` it has one to itself; on `one CPU` it shares the
//! server's, so that neither interrupts the other, and what is left is what the kernel does for the server.
//!
//! Ways to serve. `all by ring`: SEND and RECV are entries both, so that a ring has the most to do: nothing gains more
//! from a feature than this. `call first`: what the runtime does. The message is sent by a call, the next is received by
//! one, and only if there is none an entry waits for it. `no try`: the same without that vain call.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering::Release};
use std::thread;
use std::time::Instant;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode};

use super::{Stretch, compare, cpu_time, pin, push, ring, sleep, take};

/// Connections that are served at once, and messages that are answered in one run.
const CONNECTIONS: usize = 64;
const ANSWERS: usize = 6_000;
/// Answers before anything is measured.
const WARM: usize = 500;
/// Room of a connection, and of a provided buffer.
const ROOM: usize = 4096;
/// Buffers that are provided, and the group they are in.
const BUFFERS: u16 = 256;
const GROUP: u16 = 0;
/// As in the driver: do not try before the socket says that it is worth it.
const POLL_FIRST: u16 = 1;
/// In the number of an entry: it is a SEND.
const IS_SEND: u64 = 1;

/// Who sends, and who receives.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    AllByRing,
    CallFirst,
    NoTry,
}

/// Where RECV puts a message.
#[derive(Clone, Copy, PartialEq)]
enum Receive {
    /// Into the caller's buffer.
    Direct,
    /// Into one of the ring's, from where it is copied to the caller's.
    Provided,
    /// The same, and the entry stays.
    Multishot,
}

#[derive(Clone, Copy)]
struct Kind {
    way: Way,
    receive: Receive,
    fixed: bool,
}

impl Kind {
    const fn new(way: Way, receive: Receive) -> Self {
        Kind {
            way,
            receive,
            fixed: false,
        }
    }

    const fn fixed(way: Way) -> Self {
        Kind {
            way,
            receive: Receive::Direct,
            fixed: true,
        }
    }
}

/// A page that the kernel takes buffers from.
#[repr(C, align(4096))]
struct Page([[u64; 2]; BUFFERS as usize]);

/// Buffers for whoever receives next.
struct Pool {
    page: *mut Page,
    buffers: Box<[[u8; ROOM]]>,
    tail: u16,
}

impl Pool {
    fn new(ring: &IoUring) -> Self {
        let page = Box::into_raw(Box::new(Page([[0; 2]; BUFFERS as usize])));
        let buffers = vec![[0; ROOM]; BUFFERS as usize].into_boxed_slice();
        let caller = ring.submitter();
        // SAFETY: the page is ours until `Drop`, after which the ring takes none of its buffers.
        unsafe { caller.register_buf_ring_with_flags(page as u64, BUFFERS, GROUP, 0) }
            .expect("a ring of buffers");
        let mut pool = Pool {
            page,
            buffers,
            tail: 0,
        };
        (0..BUFFERS).for_each(|number| pool.give_back(number));
        pool
    }

    /// The kernel may write to it from now on.
    fn give_back(&mut self, number: u16) {
        let first = self.page.cast::<BufRingEntry>();
        // SAFETY: a page has this many entries.
        let place = unsafe { first.add((self.tail % BUFFERS) as usize) };
        // SAFETY: the kernel reads an entry only when the tail is behind it, and we alone write.
        let entry = unsafe { &mut *place };
        entry.set_addr(self.buffers[number as usize].as_mut_ptr() as u64);
        entry.set_len(ROOM as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry of the page.
        let tail = unsafe { BufRingEntry::tail(first) };
        // SAFETY: aligned, and written by us alone, as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by a box; every connection is closed, so nothing is received any more.
        drop(unsafe { Box::from_raw(self.page) });
    }
}

/// A connection, and the buffer of whoever serves it.
struct Guest {
    stream: TcpStream,
    buffer: Box<[u8; ROOM]>,
    is_sending: bool,
}

impl Guest {
    /// A call that does not wait.
    fn send(&self, count: usize) {
        let (fd, flags) = (
            self.stream.as_raw_fd(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        );
        // SAFETY: reads no more than the buffer holds.
        let sent = unsafe { libc::send(fd, self.buffer.as_ptr().cast(), count, flags) };
        assert_eq!(sent, count as isize, "{}", io::Error::last_os_error());
    }

    /// The same; `None` if there is nothing.
    fn receive(&mut self) -> Option<usize> {
        let (fd, buffer) = (self.stream.as_raw_fd(), self.buffer.as_mut_ptr());
        // SAFETY: writes no more than the buffer holds.
        let count = unsafe { libc::recv(fd, buffer.cast(), ROOM, libc::MSG_DONTWAIT) };
        usize::try_from(count).ok()
    }
}

struct Server {
    kind: Kind,
    ring: IoUring,
    pool: Option<Pool>,
    guests: Vec<Guest>,
    open: usize,
    answers: usize,
    warm: Option<Stretch>,
    /// Since then.
    sleeps: usize,
    figures: [f64; 3],
}

impl Server {
    fn new(kind: Kind, listener: &TcpListener) -> Self {
        let accept = || {
            let stream = listener.accept().expect("a connection").0;
            stream.set_nodelay(true).expect("an option");
            Guest {
                stream,
                buffer: Box::new([0; ROOM]),
                is_sending: false,
            }
        };
        let guests: Vec<_> = (0..CONNECTIONS).map(|_| accept()).collect();
        let ring = ring();
        if kind.fixed {
            let files: Vec<_> = guests
                .iter()
                .map(|guest| guest.stream.as_raw_fd())
                .collect();
            ring.submitter().register_files(&files).expect("a table");
        }
        Server {
            kind,
            pool: (kind.receive != Receive::Direct).then(|| Pool::new(&ring)),
            ring,
            open: guests.len(),
            guests,
            answers: 0,
            warm: None,
            sleeps: 0,
            figures: [0.0; 3],
        }
    }

    fn receive_entry(&mut self, number: usize) -> Entry {
        let guest = &mut self.guests[number];
        let fd = Fd(guest.stream.as_raw_fd());
        match self.kind.receive {
            Receive::Direct if self.kind.fixed => {
                opcode::Recv::new(Fixed(number as u32), guest.buffer.as_mut_ptr(), ROOM as u32)
                    .ioprio(POLL_FIRST)
                    .build()
            }
            Receive::Direct => opcode::Recv::new(fd, guest.buffer.as_mut_ptr(), ROOM as u32)
                .ioprio(POLL_FIRST)
                .build(),
            Receive::Provided => opcode::Recv::new(fd, std::ptr::null_mut(), ROOM as u32)
                .ioprio(POLL_FIRST)
                .buf_group(GROUP)
                .build()
                .flags(Flags::BUFFER_SELECT),
            Receive::Multishot => opcode::RecvMulti::new(fd, GROUP).build(),
        }
    }

    /// Has the next message of a connection received.
    fn receive(&mut self, number: usize) {
        let entry = self.receive_entry(number).user_data((number as u64) << 1);
        // SAFETY: buffers of guests and of the pool stay until all connections are closed.
        unsafe { push(&mut self.ring, &entry) };
    }

    /// Has what was received sent back.
    fn send(&mut self, number: usize, count: usize) {
        let guest = &mut self.guests[number];
        assert!(!guest.is_sending, "one message at a time");
        guest.is_sending = true;
        let (fd, bytes) = (Fd(guest.stream.as_raw_fd()), guest.buffer.as_ptr());
        let entry = if self.kind.fixed {
            opcode::Send::new(Fixed(number as u32), bytes, count as u32)
        } else {
            opcode::Send::new(fd, bytes, count as u32)
        };
        let entry = entry.flags(libc::MSG_NOSIGNAL).build();
        let entry = entry.user_data((number as u64) << 1 | IS_SEND);
        // SAFETY: as in `receive`.
        unsafe { push(&mut self.ring, &entry) };
    }

    fn answered(&mut self) {
        self.answers += 1;
        match (&self.warm, self.answers) {
            (None, WARM) => {
                self.warm = Some(Stretch::begin());
                self.sleeps = 0;
            }
            (Some(stretch), ANSWERS) => {
                let count = ANSWERS - WARM;
                let [rate, cpu] = stretch.end(count);
                self.figures = [rate, cpu, count as f64 / self.sleeps.max(1) as f64];
            }
            _ => {}
        }
    }

    /// A message is in the caller's buffer.
    fn answer(&mut self, number: usize, mut count: usize) {
        if self.kind.way == Way::AllByRing {
            return self.send(number, count);
        }
        loop {
            self.guests[number].send(count);
            self.answered();
            if self.kind.receive == Receive::Multishot {
                return;
            }
            if self.kind.way == Way::NoTry {
                return self.receive(number);
            }
            match self.guests[number].receive() {
                None => return self.receive(number),
                Some(0) => return self.open -= 1,
                Some(next) => count = next,
            }
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry) {
        let number = (entry.user_data() >> 1) as usize;
        let result = entry.result();
        if entry.user_data() & IS_SEND != 0 {
            assert!(result > 0, "sent");
            self.guests[number].is_sending = false;
            self.answered();
            if self.kind.receive != Receive::Multishot {
                self.receive(number);
            }
            return;
        }
        let is_over = self.kind.receive == Receive::Multishot && !cqueue::more(entry.flags());
        if let (Some(pool), Some(buffer)) = (&mut self.pool, cqueue::buffer_select(entry.flags())) {
            let count = usize::try_from(result).unwrap_or(0);
            let bytes = &pool.buffers[buffer as usize][..count];
            self.guests[number].buffer[..count].copy_from_slice(bytes);
            pool.give_back(buffer);
        }
        match usize::try_from(result) {
            Ok(0) => return self.open -= 1,
            Ok(count) => self.answer(number, count),
            Err(_) => assert_eq!(result, -libc::ENOBUFS, "received"),
        }
        if is_over {
            self.receive(number);
        }
    }

    fn serve(mut self) -> [f64; 3] {
        (0..CONNECTIONS).for_each(|number| self.receive(number));
        while self.open > 0 {
            self.sleeps += 1;
            sleep(&self.ring);
            loop {
                let mut taken = 0;
                for entry in take(&mut self.ring) {
                    self.complete(&entry);
                    taken += 1;
                }
                if taken < super::BATCH {
                    break;
                }
            }
        }
        self.figures
    }
}

/// Sends messages of this size and waits for each to come back.
fn ask(server: SocketAddr, size: usize, cpu: usize) {
    pin(cpu);
    let connect = || {
        let stream = TcpStream::connect(server).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream
    };
    let streams: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    let files: Vec<_> = streams.iter().map(AsRawFd::as_raw_fd).collect();
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let mut ring = builder.build(super::ENTRIES).expect("a ring");
    ring.submitter().register_files(&files).expect("a table");
    let message = vec![7_u8; size];
    let mut buffers = vec![vec![0_u8; size]; CONNECTIONS];
    let mut ask = |ring: &mut IoUring, number: usize| {
        let fd = Fixed(number as u32);
        let send = opcode::Send::new(fd, message.as_ptr(), size as u32).build();
        let receive = opcode::Recv::new(fd, buffers[number].as_mut_ptr(), size as u32)
            .flags(libc::MSG_WAITALL)
            .ioprio(POLL_FIRST)
            .build();
        let entries = [send.flags(Flags::SKIP_SUCCESS), receive];
        for entry in entries {
            // SAFETY: all buffers stay until each message was answered.
            unsafe { push(ring, &entry.user_data(number as u64)) };
        }
    };
    (0..CONNECTIONS).for_each(|number| ask(&mut ring, number));
    let (mut asked, mut answered) = (CONNECTIONS, 0);
    while answered < ANSWERS {
        sleep(&ring);
        for entry in take(&mut ring) {
            assert_eq!(entry.result(), size as i32, "an answer");
            answered += 1;
            if asked < ANSWERS {
                asked += 1;
                ask(&mut ring, entry.user_data() as usize);
            }
        }
    }
}

fn run(kind: Kind, size: usize, cpu: usize) -> [f64; 3] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let client = thread::spawn(move || ask(address, size, cpu));
    let figures = Server::new(kind, &listener).serve();
    client.join().expect("no panic");
    figures
}

/// What it costs to put a descriptor into the table of a ring and to take it out again.
fn registration() {
    const TIMES: u32 = 10_000;
    let (ring, socket) = (
        ring(),
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("one"),
    );
    let caller = ring.submitter();
    caller.register_files_sparse(64).expect("a table");
    let (start, cpu) = (Instant::now(), cpu_time());
    for _ in 0..TIMES {
        caller
            .register_files_update(5, &[socket.as_raw_fd()])
            .expect("put in");
        caller.register_files_update(5, &[-1]).expect("taken out");
    }
    let (time, cpu) = (start.elapsed() / TIMES, (cpu_time() - cpu) / TIMES);
    println!("into the table of files and out again: {time:?}, CPU {cpu:?}");
}

pub(crate) fn tables() {
    let units = ["answers/s", "CPU ns an answer", "answers a sleep"];
    let plain = Kind::new(Way::AllByRing, Receive::Direct);
    let provided = Kind::new(Way::AllByRing, Receive::Provided);
    let multishot = Kind::new(Way::AllByRing, Receive::Multishot);
    let fixed = Kind::fixed(Way::AllByRing);
    for (title, size, cpu) in [
        ("echo/all by ring/64 B/two CPUs", 64, 1),
        ("echo/all by ring/64 B/one CPU", 64, 0),
        ("echo/all by ring/4 KiB/one CPU", 4096, 0),
    ] {
        compare(
            title,
            units,
            &[
                ("RECV, SEND", &|| run(plain, size, cpu)),
                ("again", &|| run(plain, size, cpu)),
                ("registered files", &|| run(fixed, size, cpu)),
                ("provided buffers, copied", &|| run(provided, size, cpu)),
                ("multishot RECV, copied", &|| run(multishot, size, cpu)),
            ],
        );
    }
    let ours = Kind::new(Way::CallFirst, Receive::Direct);
    let no_try = Kind::new(Way::NoTry, Receive::Direct);
    let fixed = Kind::fixed(Way::CallFirst);
    let provided = Kind::new(Way::CallFirst, Receive::Provided);
    let multishot = Kind::new(Way::CallFirst, Receive::Multishot);
    for (title, cpu) in [
        ("echo/call first/64 B/two CPUs", 1),
        ("echo/call first/64 B/one CPU", 0),
    ] {
        compare(
            title,
            units,
            &[
                ("send, recv in vain, RECV", &|| run(ours, 64, cpu)),
                ("again", &|| run(ours, 64, cpu)),
                ("registered files", &|| run(fixed, 64, cpu)),
                ("provided buffers, copied", &|| run(provided, 64, cpu)),
                ("multishot RECV, copied, no try", &|| {
                    run(multishot, 64, cpu)
                }),
                ("no try: send, RECV", &|| run(no_try, 64, cpu)),
                ("no try, no call: SEND, RECV", &|| run(plain, 64, cpu)),
            ],
        );
    }
    registration();
}
