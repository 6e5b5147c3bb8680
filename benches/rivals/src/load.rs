//! The load generator: one for all echo servers, and the same for each.
//!
//! One plain thread with an epoll of its own, under SCHED_FIFO where that is allowed, asks on many
//! connections and compares each answer with the question, byte by byte. A connection has one question
//! under way at a time. Two ways:
//!
//! - *closed loop*: a connection asks again as soon as it is answered; latency counts from the question.
//! - *open loop*: questions fall due at a fixed rate, in turn on all connections, whether the server keeps
//!   up or not; latency counts from when one was due. One that finds its connection busy waits for it.
//!
//! Questions that are not answered when the time and a [`PATIENCE`] are over count as *unanswered*, and
//! among the latencies as if the answer had come then: a server that does not answer does not look fast.
//!
//! It connects a few at a time and, if there are many, has the last of them answered before the next, so
//! that nobody waits in a queue of the kernel's that is full.
//!
//! Rejected: several threads. One asks more than two workers of any server here can answer, and where it
//! takes CPU from them it takes as much from each.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

mod options;
mod summary;
#[cfg(test)]
mod tests;

pub use options::{Mode, Options, Work};
pub use summary::Summary;

/// Connections that are made before the last of them has to answer.
const BATCH: usize = 64;
/// How long answers are waited for when all is asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// Events taken at once.
const EVENTS: usize = 256;
/// In place of a connection's number: the clock of the open loop.
const CLOCK: u64 = u64::MAX;

/// Raises the limit on descriptors to what is allowed; returns it.
pub fn raise_descriptors() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 0;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// What one connection sends as its `number`th message.
pub fn fill(message: &mut [u8], connection: usize, number: u64) {
    let mut word = (connection as u64) << 40 ^ number;
    for chunk in message.chunks_mut(8) {
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// One connection, and the question that is under way on it.
struct Connection {
    stream: TcpStream,
    question: Vec<u8>,
    /// Questions asked.
    asked: u64,
    /// Since when the one under way counts.
    since: Option<Instant>,
    /// What of it is sent, and what of the answer has come.
    sent: usize,
    heard: usize,
    /// When those fell due that wait for this connection.
    due: VecDeque<Instant>,
    watches_writes: bool,
}

/// What became of a step.
enum Step {
    Waits,
    Answered(Instant),
    Failed,
}

impl Connection {
    fn new(stream: TcpStream, size: usize) -> Self {
        Connection {
            stream,
            question: vec![0; size],
            asked: 0,
            since: None,
            sent: 0,
            heard: 0,
            due: VecDeque::new(),
            watches_writes: false,
        }
    }

    /// Makes the next question; it is sent by [`advance`](Self::advance).
    fn ask(&mut self, index: usize, since: Instant) {
        fill(&mut self.question, index, self.asked);
        self.asked += 1;
        self.since = Some(since);
        (self.sent, self.heard) = (0, 0);
    }

    /// Sends what can be sent.
    fn send(&mut self) -> Step {
        while self.sent < self.question.len() {
            match self.stream.write(&self.question[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Step::Failed,
            }
        }
        Step::Waits
    }

    /// Reads what has come, and compares it.
    fn hear(&mut self, buffer: &mut [u8]) -> Step {
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => return Step::Failed,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Step::Failed,
            };
            let expected = self.question.get(self.heard..self.heard + got);
            if expected != Some(&buffer[..got]) {
                return Step::Failed;
            }
            self.heard += got;
            if self.heard == self.question.len() {
                let since = self.since.take();
                return since.map_or(Step::Failed, Step::Answered);
            }
            if got < buffer.len() {
                return Step::Waits;
            }
        }
    }
}

/// A run.
pub struct Load {
    options: Options,
    set: Epoll,
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
    latencies: Vec<u32>,
    errors: u64,
    /// Connections with a question under way.
    waiting: usize,
    /// Latencies count from here on.
    counts_from: Instant,
    /// Nobody asks from here on.
    ends: Option<Instant>,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Load {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If there are too few descriptors, or the server does not take its connections.
    pub fn connect(options: Options) -> io::Result<Self> {
        raise_descriptors();
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let address = SocketAddr::from(([127, 0, 0, 1], options.port));
        let mut connections = Vec::with_capacity(options.connections);
        for index in 0..options.connections {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            if index % BATCH == BATCH - 1 && options.connections > BATCH {
                greet(&stream)?;
            }
            stream.set_nonblocking(true)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
            set.add(&stream, event)?;
            connections.push(Some(Connection::new(stream, options.size)));
        }
        let now = Instant::now();
        Ok(Load {
            buffer: vec![0; options.size.max(4096)],
            latencies: Vec::with_capacity(4 << 20),
            errors: 0,
            waiting: 0,
            counts_from: now,
            ends: None,
            options,
            set,
            connections,
        })
    }

    /// Asks, and counts what is answered.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the epoll.
    pub fn run(mut self) -> io::Result<Summary> {
        let start = Instant::now();
        let length = match self.options.work {
            Work::Seconds(length) => Some(length),
            Work::Messages(_) => None,
        };
        self.counts_from = match length {
            Some(_) => start + self.options.warm_up,
            None => start,
        };
        self.ends = length.map(|length| self.counts_from + length);
        match self.options.mode {
            Mode::Closed => self.closed()?,
            Mode::Open(rate) => self.open(start, rate)?,
        }
        let over = self.ends.unwrap_or(Instant::now()).min(Instant::now());
        let took = over.saturating_duration_since(self.counts_from);
        let unanswered = self.give_up();
        Ok(Summary::new(self.latencies, took, self.errors, unanswered))
    }

    /// Everybody asks, and again when answered.
    fn closed(&mut self) -> io::Result<()> {
        for index in 0..self.connections.len() {
            self.ask(index, Instant::now())?;
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        while !self.is_over() {
            let found = self.set.wait(&mut events, EpollTimeout::from(100u16))?;
            for event in &events[..found] {
                self.advance(event.data() as usize)?;
            }
        }
        Ok(())
    }

    /// Questions fall due at a fixed rate.
    fn open(&mut self, start: Instant, rate: f64) -> io::Result<()> {
        let clock = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK)?;
        self.set
            .add(&clock, EpollEvent::new(EpollFlags::EPOLLIN, CLOCK))?;
        let gap = Duration::from_secs_f64(1.0 / rate);
        clock.set(
            Expiration::Interval(TimeSpec::from_duration(gap)),
            TimerSetTimeFlags::empty(),
        )?;
        let (mut next, mut turn) = (start + gap, 0);
        let ends = self.ends.expect("an open loop ends at a time");
        let mut events = [EpollEvent::empty(); EVENTS];
        while !self.is_over() {
            let found = self.set.wait(&mut events, EpollTimeout::from(100u16))?;
            for event in &events[..found] {
                match event.data() {
                    CLOCK => drop(clock.wait()),
                    index => self.advance(index as usize)?,
                }
            }
            let now = Instant::now();
            while next <= now && next < ends {
                let index = turn % self.connections.len();
                match &mut self.connections[index] {
                    Some(connection) if connection.since.is_some() => {
                        connection.due.push_back(next);
                    }
                    Some(_) => self.ask(index, next)?,
                    None => self.errors += 1,
                }
                (next, turn) = (next + gap, turn + 1);
            }
        }
        Ok(())
    }

    /// Whether nobody waits for an answer any more, or has waited for long enough.
    fn is_over(&self) -> bool {
        let Some(ends) = self.ends else {
            return self.waiting == 0;
        };
        let now = Instant::now();
        match self.options.mode {
            Mode::Closed => now >= ends,
            Mode::Open(_) => now >= ends + PATIENCE || now >= ends && self.waiting == 0,
        }
    }

    fn ask(&mut self, index: usize, since: Instant) -> io::Result<()> {
        let Some(connection) = &mut self.connections[index] else {
            return Ok(());
        };
        connection.ask(index, since);
        self.waiting += 1;
        let step = connection.send();
        self.settle(index, step)
    }

    /// Something has happened to this connection.
    fn advance(&mut self, index: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[index] else {
            return Ok(());
        };
        let mut step = Step::Waits;
        if connection.sent < connection.question.len() && connection.since.is_some() {
            step = connection.send();
        }
        if matches!(step, Step::Waits) {
            step = connection.hear(&mut self.buffer);
        }
        self.settle(index, step)
    }

    fn settle(&mut self, index: usize, step: Step) -> io::Result<()> {
        match step {
            Step::Failed => {
                let failed = self.connections[index].take(); // which closes it, and so takes it out of the set
                self.waiting -= usize::from(failed.is_some_and(|c| c.since.is_some()));
                self.errors += 1;
                return Ok(());
            }
            Step::Answered(since) => {
                self.waiting -= 1;
                let now = Instant::now();
                if since >= self.counts_from && self.ends.is_none_or(|ends| now <= ends + PATIENCE)
                {
                    self.latencies.push(tenths(now - since));
                }
                if let Some(since) = self.next_question(index, now) {
                    return self.ask(index, since);
                }
            }
            Step::Waits => {}
        }
        self.watch_writes(index)
    }

    /// When this connection's next question counts from, if there is one.
    fn next_question(&mut self, index: usize, now: Instant) -> Option<Instant> {
        let connection = self.connections[index].as_mut()?;
        match (self.options.mode, self.options.work) {
            (Mode::Open(_), _) => connection.due.pop_front(),
            (Mode::Closed, Work::Messages(all)) => (connection.asked < all).then_some(now),
            (Mode::Closed, Work::Seconds(_)) => self.ends.is_none_or(|at| now < at).then_some(now),
        }
    }

    /// Has the kernel tell when there is room again, if there was none.
    fn watch_writes(&mut self, index: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[index] else {
            return Ok(());
        };
        let wants = connection.since.is_some() && connection.sent < connection.question.len();
        if wants != connection.watches_writes {
            connection.watches_writes = wants;
            let writes = if wants {
                EpollFlags::EPOLLOUT
            } else {
                EpollFlags::empty()
            };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | writes, index as u64);
            self.set.modify(&connection.stream, &mut event)?;
        }
        Ok(())
    }

    /// What nobody waits for any longer. In a closed loop that ends at a time, those under way are not
    /// late yet.
    fn give_up(&mut self) -> u64 {
        let (now, from) = (Instant::now(), self.counts_from);
        let of_open = matches!(self.options.mode, Mode::Open(_));
        let mut unanswered = 0;
        for connection in self.connections.iter_mut().flatten() {
            let waiting = connection.since.take();
            let all = waiting.into_iter().chain(connection.due.drain(..));
            for since in all.filter(|since| *since >= from) {
                if of_open || now - since >= PATIENCE {
                    self.latencies.push(tenths(now - since));
                    unanswered += 1;
                }
            }
        }
        unanswered
    }

    /// Has every connection answer once, and then none for so long: calls `tell` in between, before and
    /// after.
    ///
    /// # Errors
    ///
    /// If one does not answer what it was asked.
    pub fn idle(mut self, time: Duration, mut tell: impl FnMut(&str)) -> io::Result<()> {
        for moment in ["before", "after"] {
            for (index, place) in self.connections.iter_mut().enumerate() {
                let connection = place.as_mut().expect("nobody has closed it");
                connection.ask(index, Instant::now());
                connection.stream.set_nonblocking(false)?;
                connection.stream.write_all(&connection.question)?;
                let answer = &mut self.buffer[..connection.question.len()];
                connection.stream.read_exact(answer)?;
                if answer != connection.question {
                    return Err(io::Error::other("an answer is not what was asked"));
                }
            }
            tell(moment);
            if moment == "before" {
                std::thread::sleep(time);
            }
        }
        Ok(())
    }
}

/// Waits until the server has taken this connection, and so all before it.
fn greet(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(10 * PATIENCE))?;
    stream.write_all(b"?")?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    match &answer {
        b"?" => Ok(()),
        _ => Err(io::Error::other("this is no echo server")),
    }
}

/// In tenths of a microsecond, as all latencies are kept.
fn tenths(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / 100).unwrap_or(u32::MAX)
}
