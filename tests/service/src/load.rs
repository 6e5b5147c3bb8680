//! The load: many connections, nearly all of them idle, and requests at a steady rate.
//!
//! Plain threads send requests by a schedule that does not wait for answers of other threads. A
//! request uses a random connection, which is opened if it is not open yet. So the first requests
//! arrive when the service has just started. Other threads open the remaining connections from the
//! second [`OPEN_FROM`] on, and send a request on each. Every answer is checked.
//!
//! Prints `sample AT LATENCY` for each request of the schedule, `opened AT`, `requests COUNT` and
//! `failed COUNT`; times are in microseconds since the start. A latency begins at the scheduled
//! time. After a failed request its connection is opened again.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Threads that send by the schedule: more than there are requests in flight.
const SENDERS: u32 = 16;
/// Threads that open the remaining connections, when they begin, and how many they open per second.
const OPENERS: u32 = 8;
const OPEN_FROM: Duration = Duration::from_secs(1);
const OPENED_A_SECOND: u32 = 1000;
/// Pause between head and body of some requests: the service waits inside the span.
const PAUSE: Duration = Duration::from_millis(1);
/// A request without an answer after this time has failed.
const LATE: Duration = Duration::from_secs(20);

type Connection = BufReader<TcpStream>;

struct Load {
    address: SocketAddr,
    start: Instant,
    /// `None` if it is not open yet.
    connections: Vec<Mutex<Option<Connection>>>,
    requests: AtomicU64,
    failed: AtomicU64,
}

pub(crate) fn run(address: &str, connections: &str, rate: &str, seconds: &str) -> io::Result<()> {
    let invalid = |error| io::Error::new(ErrorKind::InvalidInput, error);
    let number = |text: &str| text.parse::<u32>().map_err(io::Error::other);
    let load = Load {
        address: address.parse().map_err(invalid)?,
        start: Instant::now(),
        connections: (0..number(connections)?)
            .map(|_| Mutex::default())
            .collect(),
        requests: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    };
    let (rate, seconds) = (number(rate)?, Duration::from_secs(number(seconds)?.into()));
    let samples = thread::scope(|scope| {
        let load = &load;
        let sender = |n| scope.spawn(move || load.send_by_schedule(n, rate, seconds));
        let senders: Vec<_> = (0..SENDERS).map(sender).collect();
        let opener = |n| scope.spawn(move || load.open(n));
        let openers: Vec<_> = (0..OPENERS).map(opener).collect();
        let mut samples = Vec::new();
        for sender in senders {
            samples.extend(sender.join().expect("a sender"));
        }
        let opened = openers
            .into_iter()
            .map(|opener| opener.join().expect("an opener"));
        println!("opened {}", opened.max().unwrap_or_default().as_micros());
        samples
    });
    let mut lines = String::new();
    for (at, latency) in samples {
        writeln!(lines, "sample {} {}", at.as_micros(), latency.as_micros()).expect("a string");
    }
    print!("{lines}");
    println!("requests {}", load.requests.load(Relaxed));
    println!("failed {}", load.failed.load(Relaxed));
    Ok(())
}

impl Load {
    /// Returns when each request was due, and after what time its answer had come.
    fn send_by_schedule(&self, n: u32, rate: u32, seconds: Duration) -> Vec<(Duration, Duration)> {
        let mut samples = Vec::new();
        for i in 0.. {
            let due = Duration::from_secs(1) * (i * SENDERS + n) / rate;
            if due >= seconds {
                break;
            }
            self.wait_until(due);
            loop {
                // A connection that another thread uses is not idle.
                let chosen = rand::random_range(0..self.connections.len());
                if let Ok(mut connection) = self.connections[chosen].try_lock() {
                    self.request_or_report(&mut connection);
                    break;
                }
            }
            samples.push((due, self.start.elapsed() - due));
        }
        samples
    }

    /// Opens a share of the connections, with a request. Returns when the last one was open.
    fn open(&self, n: u32) -> Duration {
        let share = (0..).zip(&self.connections).skip(n as usize);
        for (i, connection) in share.step_by(OPENERS as usize) {
            self.wait_until(OPEN_FROM + Duration::from_secs(1) * i / OPENED_A_SECOND);
            let mut connection = connection.lock().expect("no thread panics");
            if connection.is_none() {
                self.request_or_report(&mut connection);
            }
        }
        self.start.elapsed()
    }

    fn wait_until(&self, due: Duration) {
        thread::sleep(due.saturating_sub(self.start.elapsed()));
    }

    /// Sends a request, and reports the first one that fails.
    fn request_or_report(&self, connection: &mut Option<Connection>) {
        let Err(error) = self.request(connection) else {
            return;
        };
        *connection = None;
        if self.failed.fetch_add(1, Relaxed) == 0 {
            eprintln!("service: the first failed request: {error}");
        }
    }

    /// Sends a request and checks the answer.
    fn request(&self, connection: &mut Option<Connection>) -> io::Result<()> {
        let stream = match connection {
            Some(stream) => stream,
            None => connection.insert(self.connect()?),
        };
        let id = self.requests.fetch_add(1, Relaxed);
        let words: Vec<_> = (0..20)
            .map(|_| format!("word{}", rand::random_range(0..10)))
            .collect();
        let body = json!({ "id": id, "text": words.join(" ") }).to_string();
        let length = body.len();
        let head = format!(
            "POST /words/{id} HTTP/1.1\r\nHost: service\r\nContent-Length: {length}\r\n\r\n"
        );
        if id.is_multiple_of(2) {
            stream.get_mut().write_all(head.as_bytes())?;
            thread::sleep(PAUSE);
            stream.get_mut().write_all(body.as_bytes())?;
        } else {
            stream.get_mut().write_all((head + &body).as_bytes())?;
        }
        check(&read_answer(stream)?, id, &words)
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LATE))?;
        Ok(BufReader::with_capacity(1024, stream))
    }
}

/// Returns the body of an answer.
fn read_answer(stream: &mut Connection) -> io::Result<Vec<u8>> {
    let mut length = None;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(("Content-Length", value)) = line.split_once(": ") {
            length = value.trim_end().parse().ok();
        }
    }
    let mut body = vec![0; length.ok_or_else(|| io::Error::other("no length"))?];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Checks that the answer is for this request, with the right counts.
fn check(answer: &[u8], id: u64, words: &[String]) -> io::Result<()> {
    let answer: Value = serde_json::from_slice(answer)?;
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    if answer["id"] != json!(id) || answer["words"] != json!(counts) {
        let what = format!("request {id} for {words:?} got the answer {answer}");
        return Err(io::Error::other(what));
    }
    Ok(())
}
