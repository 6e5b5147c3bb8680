//! The command line of `load`.

use std::time::Duration;

const USAGE: &str = "usage: load --port PORT [--conns N] [--size BYTES] [--rate PER_SECOND] [--warm-up SECONDS] \
                     [--no-fifo] (--seconds S | --messages M | --idle S)";

/// When questions are asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// When the last one is answered.
    Closed,
    /// So many each second.
    Open(f64),
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// As much as the time allows.
    Seconds(Duration),
    /// So many on each connection.
    Messages(u64),
}

/// What is asked of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where it listens.
    pub port: u16,
    /// Connections.
    pub connections: usize,
    /// Bytes of a message.
    pub size: usize,
    /// When questions are asked.
    pub mode: Mode,
    /// How many.
    pub work: Work,
    /// How long nothing is counted at first, if the work ends at a time.
    pub warm_up: Duration,
    /// Instead of all that: the connections do nothing for so long.
    pub idle: Option<Duration>,
    /// Whether to run before all ordinary threads.
    pub fifo: bool,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    ///
    /// Says what is wrong, and how it should be.
    pub fn read(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let (mut port, mut work) = (None, None);
        let mut options = Options {
            port: 0,
            connections: 64,
            size: 64,
            mode: Mode::Closed,
            work: Work::Messages(0),
            warm_up: Duration::from_millis(500),
            idle: None,
            fifo: true,
        };
        while let Some(name) = words.next() {
            if name == "--no-fifo" {
                options.fifo = false;
                continue;
            }
            let value = words.next().unwrap_or_default();
            match name.as_str() {
                "--port" => port = Some(number(&name, &value)?),
                "--conns" => options.connections = number(&name, &value)?,
                "--size" => options.size = number(&name, &value)?,
                "--rate" => options.mode = Mode::Open(positive(&name, &value)?),
                "--warm-up" => options.warm_up = seconds(&name, &value)?,
                "--seconds" => work = Some(Work::Seconds(seconds(&name, &value)?)),
                "--messages" => work = Some(Work::Messages(number(&name, &value)?)),
                "--idle" => options.idle = Some(seconds(&name, &value)?),
                _ => return Err(format!("{name} means nothing; {USAGE}")),
            }
        }
        options.port = port.ok_or(format!("no port to ask at; {USAGE}"))?;
        options.work = match (work, options.idle) {
            (Some(work), None) => work,
            (None, Some(_)) => options.work,
            _ => return Err(format!("one of --seconds, --messages, --idle; {USAGE}")),
        };
        if matches!(
            (options.mode, work),
            (Mode::Open(_), Some(Work::Messages(_)))
        ) {
            return Err(format!("--rate goes with --seconds; {USAGE}"));
        }
        if options.connections == 0 || options.size == 0 {
            return Err(format!("nothing is asked of nobody; {USAGE}"));
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{name} {value}: not a number that fits; {USAGE}"))
}

fn positive(name: &str, value: &str) -> Result<f64, String> {
    let value: f64 = number(name, value)?;
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(format!("{name} {value}: not above zero; {USAGE}"))
    }
}

fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(name, value)?)
        .map_err(|_| format!("{name} {value}: no length of time; {USAGE}"))
}
