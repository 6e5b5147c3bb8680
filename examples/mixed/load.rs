//! The second process: sends pings and crunches, and measures. One thread with an epoll of its own,
//! no fibers.
//!
//! *Pings* are sent by a schedule made beforehand, at random times (as if by many independent
//! clients; an even beat could fall in step with some timer). A ping that is due takes a connection
//! that is idle; if there is none, it waits for one. Its time runs from the moment when it was
//! **due** to its answer, so that a slow ping before it does not shorten it. A ping that is not
//! answered at the end counts at least as long as it has waited.
//!
//! *Crunches* are kept in flight, each on a connection of its own, a new one after each answer. The
//! service counts how much of them is done: crunches that take turns all end late.
//!
//! *Phases*: warm up with pings alone, begin the crunches and let them settle, measure, wait a
//! little for the rest. Results go to standard output, line by line (`Told`).
//!
//! The thread asks for `SCHED_FIFO`, so as not to measure its own wait for a CPU, and reports
//! whether it was granted.

#![expect(unsafe_code, reason = "asks the kernel for a real-time priority")]

use std::collections::VecDeque;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::arguments::Load;

/// Number of connections for pings.
const PINGERS: usize = 64;
const WARM: Duration = Duration::from_millis(700);
const SETTLE: Duration = Duration::from_millis(800);
/// Time to wait for the remaining answers at the end.
const REST: Duration = Duration::from_millis(500);
/// Interval between reports of the progress.
const TELL: Duration = Duration::from_millis(100);
/// Number of the timer among the connections.
const TIMER: u64 = u64::MAX;

/// Messages from this process to the other, one per line.
pub(crate) enum Told {
    /// Whether this process runs before all others, or the reason why not.
    Fifo(Result<(), String>),
    /// Finished part of the measurement, from 0 to 1.
    Progress(f64),
    /// Time of a ping, in nanoseconds, and whether it was answered.
    Ping { time: u64, is_answered: bool },
    /// The measurement begins.
    Begins,
    /// The measurement ends.
    Ends,
}

impl Told {
    fn tell(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Told::Fifo(Ok(())) => writeln!(to, "fifo"),
            Told::Fifo(Err(why)) => writeln!(to, "nofifo {why}"),
            Told::Progress(part) => writeln!(to, "progress {part}"),
            Told::Ping { time, is_answered } => match is_answered {
                true => writeln!(to, "ping {time}"),
                false => writeln!(to, "noping {time}"),
            },
            Told::Begins => writeln!(to, "begins"),
            Told::Ends => writeln!(to, "ends"),
        }
    }
}

impl FromStr for Told {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Told> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let strange = || io::Error::other(format!("the load generator said {line:?}"));
        let ping = |is_answered| {
            let time = rest.parse().map_err(|_| strange())?;
            Ok(Told::Ping { time, is_answered })
        };
        match word {
            "fifo" => Ok(Told::Fifo(Ok(()))),
            "nofifo" => Ok(Told::Fifo(Err(rest.to_owned()))),
            "progress" => rest.parse().map(Told::Progress).map_err(|_| strange()),
            "ping" => ping(true),
            "noping" => ping(false),
            "begins" => Ok(Told::Begins),
            "ends" => Ok(Told::Ends),
            _ => Err(strange()),
        }
    }
}

/// Runs the whole load.
pub(crate) fn run(load: &Load) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    Told::Fifo(ask_for_fifo()).tell(&mut out)?;
    let mut generator = Generator::new(load)?;
    generator.run(&mut out)?;
    generator.tell_results(&mut out)?;
    out.flush()
}

fn ask_for_fifo() -> Result<(), String> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a value of the right type that lives through the call; 0 is the
    // calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

/// State of the load; times are since `start`.
struct Generator {
    start: Instant,
    ends: Duration,
    measured: std::ops::Range<Duration>,
    epoll: Epoll,
    timer: TimerFd,
    /// First the connections for pings, then those for crunches.
    connections: Vec<Connection>,
    schedule: Schedule,
    due: VecDeque<Duration>,
    idle: VecDeque<usize>,
    pings: Vec<(Duration, bool)>,
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    doing: Doing,
}

/// The activity that a connection waits for.
#[derive(Clone, Copy)]
enum Doing {
    Nothing,
    Ping { due: Duration },
    Crunch,
}

impl Generator {
    fn new(load: &Load) -> io::Result<Generator> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        let connect = |number| {
            let connection = Connection::open(&load.address)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
            epoll.add(&connection.stream, event)?;
            Ok(connection)
        };
        let connections: io::Result<Vec<_>> = (0..PINGERS + load.crunches).map(connect).collect();
        let begins = WARM + SETTLE;
        let measured = begins..begins + Duration::from_secs_f64(load.seconds);
        Ok(Generator {
            start: Instant::now(),
            ends: measured.end + REST,
            measured,
            epoll,
            timer,
            connections: connections?,
            schedule: Schedule::new(load.rate),
            due: VecDeque::new(),
            idle: (0..PINGERS).collect(),
            pings: Vec::new(),
        })
    }

    fn run(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut phases = self.phases().into_iter().peekable();
        let mut told = Duration::ZERO;
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let now = self.start.elapsed();
            if let Some((_, phase)) = phases.next_if(|(begins, _)| now >= *begins) {
                match phase {
                    Some(phase) => phase.tell(out)?,
                    None => self.begin_crunches()?,
                }
                out.flush()?;
            }
            if now >= self.ends || (now >= self.measured.end && self.is_all_answered()) {
                return Ok(());
            }
            self.send_due(now)?;
            if now >= told {
                told = now + TELL;
                Told::Progress(now.as_secs_f64() / self.ends.as_secs_f64()).tell(out)?;
                out.flush()?;
            }
            let next = phases.peek().map_or(told, |(begins, _)| told.min(*begins));
            self.wait(now, next, &mut events)?;
        }
    }

    /// Returns when each phase begins: the start of the crunches, and messages to the other
    /// process.
    fn phases(&self) -> [(Duration, Option<Told>); 3] {
        [
            (WARM, None),
            (self.measured.start, Some(Told::Begins)),
            (self.measured.end, Some(Told::Ends)),
        ]
    }

    /// Returns true if all measured pings are answered.
    fn is_all_answered(&self) -> bool {
        self.due.is_empty() && self.idle.len() == PINGERS
    }

    fn begin_crunches(&mut self) -> io::Result<()> {
        let mut crunchers = self.connections[PINGERS..].iter_mut();
        crunchers.try_for_each(Connection::send_crunch)
    }

    /// Sends what is due, as long as there are idle connections.
    fn send_due(&mut self, now: Duration) -> io::Result<()> {
        while self.schedule.next <= now && self.schedule.next < self.measured.end {
            self.due.push_back(self.schedule.next);
            self.schedule.advance();
        }
        while !self.due.is_empty() && !self.idle.is_empty() {
            let (due, number) = (self.due.pop_front(), self.idle.pop_front());
            let both = due.zip(number).expect("neither is empty");
            self.connections[both.1].send_ping(both.0)?;
        }
        Ok(())
    }

    /// Waits for answers, for the next ping that is due, or for the next phase.
    fn wait(
        &mut self,
        now: Duration,
        other: Duration,
        events: &mut [EpollEvent],
    ) -> io::Result<()> {
        let is_over = self.schedule.next >= self.measured.end;
        let next = if is_over {
            other
        } else {
            other.min(self.schedule.next)
        };
        let next = next.saturating_sub(now);
        let next = next.max(Duration::from_nanos(1)); // zero would disarm the timer
        let once = Expiration::OneShot(next.into());
        self.timer.set(once, TimerSetTimeFlags::empty())?;
        let count = match self.epoll.wait(events, EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            match event.data() {
                TIMER => {} // set anew each time, which clears its expiration
                number => self.receive(number as usize)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> io::Result<()> {
        let connection = &mut self.connections[number];
        if !connection.receive()? {
            return Ok(());
        }
        let now = self.start.elapsed();
        match std::mem::replace(&mut connection.doing, Doing::Nothing) {
            Doing::Nothing => return Err(io::Error::other("an answer to no question")),
            Doing::Ping { due } => {
                self.note_ping(due, now, true);
                self.idle.push_back(number);
            }
            Doing::Crunch => connection.send_crunch()?,
        }
        Ok(())
    }

    fn note_ping(&mut self, due: Duration, now: Duration, is_answered: bool) {
        if self.measured.contains(&due) {
            self.pings.push((now - due, is_answered));
        }
    }

    fn tell_results(&mut self, out: &mut impl Write) -> io::Result<()> {
        let now = self.start.elapsed();
        let in_flight = self.connections.iter().filter_map(|c| match c.doing {
            Doing::Ping { due } => Some(due),
            _ => None,
        });
        let waiting: Vec<_> = in_flight.chain(self.due.iter().copied()).collect();
        for due in waiting {
            self.note_ping(due, now, false);
        }
        for &(time, is_answered) in &self.pings {
            let time = time.as_nanos() as u64;
            Told::Ping { time, is_answered }.tell(out)?;
        }
        Ok(())
    }
}

impl Connection {
    fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            input: Vec::new(),
            doing: Doing::Nothing,
        })
    }

    fn send_ping(&mut self, due: Duration) -> io::Result<()> {
        self.doing = Doing::Ping { due };
        self.send("/ping")
    }

    fn send_crunch(&mut self) -> io::Result<()> {
        self.doing = Doing::Crunch;
        self.send("/crunch")
    }

    /// Sends a request; the socket has room, because nothing else is in flight on it.
    fn send(&mut self, target: &str) -> io::Result<()> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes())
    }

    /// Reads; returns true if the answer is complete.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the service has closed a connection")),
            Ok(length) => self.input.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let is_complete = is_complete_answer(&self.input)?;
        if is_complete {
            self.input.clear();
        }
        Ok(is_complete)
    }
}

fn is_complete_answer(input: &[u8]) -> io::Result<bool> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut answer = httparse::Response::new(&mut headers);
    let head = match answer.parse(input).map_err(io::Error::other)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(false),
    };
    if answer.code != Some(200) {
        return Err(io::Error::other(format!("answered with {:?}", answer.code)));
    }
    let length = answer
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    let length: usize = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
    Ok(input.len() == head + length)
}

/// Times at which pings are due: gaps of random length, the same ones in every run.
struct Schedule {
    next: Duration,
    mean: f64,
    random: u64,
}

impl Schedule {
    fn new(rate: f64) -> Schedule {
        let mut schedule = Schedule {
            next: Duration::ZERO,
            mean: 1.0 / rate,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        schedule.advance();
        schedule
    }

    fn advance(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let uniform = ((self.random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        self.next += Duration::from_secs_f64(-uniform.ln() * self.mean);
    }
}
