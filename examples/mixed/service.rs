//! The service: a fiber that accepts, and one for each connection, written as if every call
//! blocked.
//!
//! *Time.* A connection is closed when a whole request has not arrived within some time after the
//! previous answer: silently if nothing arrived, with 408 if a part did. A connection whose client
//! does not read an answer for as long is closed as well.
//!
//! *The end* (`stop`). Connections made so far are accepted, later ones are not. Idle connections
//! are closed; the others get their answer, which says that it is the last. Requests of which a
//! part is still to come have a few seconds for that. A connection's fiber first marks it idle and
//! then checks whether this is the end; `stop` first sets the end and then checks which connections
//! are idle. So at least one of the two sees the other's change. What had arrived before the
//! connection was closed is still read, and answered if it is whole.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{self, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indent::JoinHandle;
use indent::net::{Shutdown, TcpListener, TcpStream};
use indent::runtime::Handle;

use crate::crunch::Crunch;
use crate::http::{self, Method, Request, Status};

/// How long requests may take to arrive once the service is to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes read of a refused request, so that the refusal is not lost with the connection.
const MOST_IGNORED: u64 = 1024 * 1024;
const IGNORING: Duration = Duration::from_secs(1);

/// A running service.
pub(crate) struct Service {
    listener: TcpListener,
    desk: Arc<Desk>,
    acceptor: JoinHandle<()>,
}

impl Service {
    pub(crate) fn start(
        runtime: &Handle,
        address: &str,
        idle: Duration,
        crunch: Crunch,
    ) -> io::Result<Service> {
        let listener = TcpListener::bind(address)?;
        let desk = Arc::new(Desk {
            runtime: runtime.clone(),
            idle,
            crunch,
            is_ending: AtomicBool::new(false),
            guests: Mutex::default(),
            one_left: Condvar::new(),
        });
        let (door, behind) = (listener.try_clone()?, desk.clone());
        let acceptor = runtime.spawn(move || behind.accept_all(&door));
        Ok(Service {
            listener,
            desk,
            acceptor,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Ends the service; returns when all requests are answered.
    ///
    /// It blocks the calling thread, which must be a plain one.
    pub(crate) fn stop(self) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        while let Ok((stream, _)) = self.listener.accept() {
            self.desk.welcome(stream);
        }
        self.desk.is_ending.store(true, SeqCst);
        // `shutdown` ends a listener too, and wakes fibers that wait in `accept`; but std has it
        // for streams only.
        let door = net::TcpStream::from(OwnedFd::from(self.listener));
        door.shutdown(Shutdown::Both)?;
        drop(door);
        self.acceptor.join().map_err(io::Error::other)?;

        self.desk.hang_up(|guest| guest.is_idle.load(SeqCst));
        self.desk.wait_until_empty(PATIENCE);
        self.desk.hang_up(|_| true);
        self.desk.wait_until_empty(Duration::MAX);
        Ok(())
    }
}

/// State that all connections share.
struct Desk {
    runtime: Handle,
    idle: Duration,
    crunch: Crunch,
    is_ending: AtomicBool,
    /// Connections by the order in which they came.
    guests: Mutex<BTreeMap<u64, Arc<Guest>>>,
    one_left: Condvar,
}

/// A connection.
struct Guest {
    stream: TcpStream,
    /// Set while it is not in the middle of a request.
    is_idle: AtomicBool,
}

impl Desk {
    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => self.welcome(stream),
                Err(_) if self.is_ending.load(SeqCst) => return,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return, // the service ends
                Err(error) => eprintln!("mixed: accept: {error}"), // it has paused if necessary
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: TcpStream) {
        let guest = Arc::new(Guest {
            stream,
            is_idle: AtomicBool::new(false),
        });
        let number = {
            let mut guests = self.guests();
            let number = guests.last_key_value().map_or(0, |(last, _)| last + 1);
            guests.insert(number, guest.clone());
            number
        };
        let desk = self.clone();
        let fiber = self.runtime.spawn(move || {
            let _leaves = Leaves {
                desk: &desk,
                number,
            };
            let mut connection = Connection {
                desk: &desk,
                guest: &guest,
                input: Vec::new(),
                output: Vec::new(),
            };
            // An error means that the client has gone.
            let _gone = connection.serve();
        });
        drop(fiber); // detached
    }

    fn guests(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Guest>>> {
        self.guests
            .lock()
            .expect("no panic while the list is locked")
    }

    /// Ends reading on the connections that `concerns` selects, after what has arrived.
    fn hang_up(&self, concerns: impl Fn(&Guest) -> bool) {
        for guest in self.guests().values().filter(|guest| concerns(guest)) {
            let _gone = guest.stream.shutdown(Shutdown::Read);
        }
    }

    fn wait_until_empty(&self, most: Duration) {
        let _guests = self
            .one_left
            .wait_timeout_while(self.guests(), most, |guests| !guests.is_empty())
            .expect("no panic while the list is locked");
    }
}

/// Takes a connection off the list, however it ends.
struct Leaves<'a> {
    desk: &'a Desk,
    number: u64,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let guest = self.desk.guests().remove(&self.number);
        self.desk.one_left.notify_all();
        drop(guest);
    }
}

/// A connection as its fiber sees it.
struct Connection<'a> {
    desk: &'a Desk,
    guest: &'a Guest,
    /// Read, but not yet parsed.
    input: Vec<u8>,
    /// Answered, but not yet sent.
    output: Vec<u8>,
}

/// Reason why reading returned nothing.
enum Silence {
    /// The client has closed its side, or nothing came in time.
    End,
    Late,
}

impl Connection<'_> {
    /// Serves until the last answer is sent, or the client has gone.
    fn serve(&mut self) -> io::Result<()> {
        self.guest.stream.set_nodelay(true)?;
        self.guest.stream.set_write_timeout(Some(self.desk.idle))?;
        loop {
            let deadline = Instant::now() + self.desk.idle;
            let request = match self.receive(deadline)? {
                Ok(request) => request,
                Err(None) => return Ok(()),
                Err(Some(status)) => return self.refuse(status),
            };
            if !self.answer(&request)? {
                self.send()?;
                return self.close();
            }
        }
    }

    /// Returns the next request, head and body, the status to refuse it with, or nothing.
    fn receive(&mut self, deadline: Instant) -> io::Result<Result<Request, Option<Status>>> {
        let missed = |silence, begun| match silence {
            Silence::Late if begun => Some(http::TIMEOUT),
            _ => None,
        };
        let request = loop {
            match http::parse(&self.input) {
                Ok(Some(request)) => break request,
                Err(status) => return Ok(Err(Some(status))),
                Ok(None) => {}
            }
            self.send()?; // a client may send the rest of the next request only after the answer
            if let Err(silence) = self.read(deadline)? {
                return Ok(Err(missed(silence, !self.input.is_empty())));
            }
        };
        let length = request.head + request.body;
        if request.expects_continue && self.input.len() < length {
            self.output
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.send()?;
        }
        while self.input.len() < length {
            if let Err(silence) = self.read(deadline)? {
                return Ok(Err(missed(silence, true)));
            }
        }
        self.input.drain(..length); // the body is not used
        Ok(Ok(request))
    }

    /// Waits for more bytes.
    fn read(&mut self, deadline: Instant) -> io::Result<Result<(), Silence>> {
        let time = deadline.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Ok(Err(Silence::Late));
        }
        let mut stream = &self.guest.stream;
        stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
        let is_idle = self.input.is_empty();
        self.guest.is_idle.store(is_idle, SeqCst);
        if is_idle && self.desk.is_ending.load(SeqCst) {
            // As if the client had closed now: what has arrived counts.
            stream.shutdown(Shutdown::Read)?;
        }
        let mut buffer = [0; 4096];
        let result = stream.read(&mut buffer);
        self.guest.is_idle.store(false, SeqCst);
        match result {
            Ok(0) => Ok(Err(Silence::End)),
            Ok(length) => {
                self.input.extend_from_slice(&buffer[..length]);
                Ok(Ok(()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Err(Silence::Late)),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Ok(())),
            Err(error) => Err(error),
        }
    }

    /// Answers a request; returns true if another may follow.
    fn answer(&mut self, request: &Request) -> io::Result<bool> {
        let (status, body) = match (request.path.as_str(), request.method) {
            ("/ping" | "/crunch", Method::Other) => {
                (http::NOT_ALLOWED, "only GET and HEAD\n".into())
            }
            ("/ping", _) => (http::OK, "pong\n".to_owned()),
            ("/crunch", _) => {
                self.send()?; // earlier answers must not wait for this one
                let result = self.desk.crunch.run();
                (http::OK, format!("{result:016x}\n"))
            }
            _ => (http::NOT_FOUND, "there are /ping and /crunch\n".into()),
        };
        let goes_on = request.keep_alive && !self.desk.is_ending.load(SeqCst);
        let connection = match (goes_on, request.is_old) {
            (false, _) => Some("close"),
            (true, true) => Some("keep-alive"),
            (true, false) => None,
        };
        let is_head = request.method == Method::Head;
        http::write_answer(&mut self.output, status, &body, connection, is_head);
        Ok(goes_on)
    }

    fn refuse(&mut self, status: Status) -> io::Result<()> {
        let body = format!("{}\n", status.1);
        http::write_answer(&mut self.output, status, &body, Some("close"), false);
        self.send()?;
        self.close()
    }

    fn send(&mut self) -> io::Result<()> {
        (&self.guest.stream).write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// Ends the answers, and lets the client close first.
    ///
    /// Otherwise unread data from the client would end the connection before it reads the last
    /// answer.
    fn close(&self) -> io::Result<()> {
        self.guest.stream.shutdown(Shutdown::Write)?;
        self.guest.stream.set_read_timeout(Some(IGNORING))?;
        let mut rest = Read::take(&self.guest.stream, MOST_IGNORED);
        io::copy(&mut rest, &mut io::sink()).map(drop)
    }
}
