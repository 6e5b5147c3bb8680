//! The command line.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

pub(crate) const HELP: &str = "\
A service that answers small requests while it computes large ones, and a measurement of that.

mixed [options]          measures /ping beside 0, 8 and 64 /crunch, with preemption and without
  --seconds N            how long each of the six measurements takes, besides warming up (4)
  --rate N               pings a second, by a schedule that does not wait for answers (2000)
  --crunch-ms N          CPU time of one /crunch in milliseconds (200)
  --json                 a line of JSON for each row instead of the table
  --svg FILE             draws the latencies into this file

mixed serve [options]    the service alone, until SIGTERM or SIGINT; then requests in flight are finished
  --addr HOST:PORT       where to listen (127.0.0.1:8080; port 0: any free one)
  --idle-s N             connections that say nothing for so many seconds are closed (60)
  --crunch-ms N          as above
  --preempt on|off       whether crunches are interrupted for others (on)

  GET /ping              answers at once
  GET /crunch            answers after some CPU time

mixed --help             prints this
";

/// The task of the program.
pub(crate) enum Command {
    Help,
    Demonstrate(Demonstration),
    Serve(Serve),
    Load(Load),
}

/// All six measurements.
pub(crate) struct Demonstration {
    pub(crate) seconds: f64,
    pub(crate) rate: f64,
    pub(crate) crunch: Duration,
    pub(crate) json: bool,
    pub(crate) svg: Option<String>,
}

/// The service alone.
pub(crate) struct Serve {
    pub(crate) address: String,
    pub(crate) idle: Duration,
    pub(crate) crunch: Duration,
    pub(crate) preempt: bool,
}

/// The second process: one measurement. Not for users.
pub(crate) struct Load {
    pub(crate) address: String,
    pub(crate) seconds: f64,
    pub(crate) rate: f64,
    pub(crate) crunches: usize,
}

const CRUNCH: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(60);

/// Parses the command line; the error is a sentence without its end.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    match arguments.peek().map(String::as_str) {
        Some("serve") => serve(arguments.skip(1)),
        Some("load") => load(arguments.skip(1)),
        _ => demonstration(arguments),
    }
}

fn demonstration(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut wanted = Demonstration {
        seconds: 4.0,
        rate: 2_000.0,
        crunch: CRUNCH,
        json: false,
        svg: None,
    };
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--seconds" => wanted.seconds = number(&name, arguments.next(), 0.1, 3_600.0)?,
            "--rate" => wanted.rate = number(&name, arguments.next(), 1.0, 100_000.0)?,
            "--crunch-ms" => wanted.crunch = crunch(&name, arguments.next())?,
            "--json" => wanted.json = true,
            "--svg" => wanted.svg = Some(value(&name, arguments.next())?),
            _ => return Err(unknown(&name)),
        }
    }
    Ok(Command::Demonstrate(wanted))
}

fn serve(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut wanted = Serve {
        address: "127.0.0.1:8080".to_owned(),
        idle: IDLE,
        crunch: CRUNCH,
        preempt: true,
    };
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--addr" => wanted.address = value(&name, arguments.next())?,
            "--idle-s" => {
                let seconds = number(&name, arguments.next(), 0.001, 86_400.0)?;
                wanted.idle = Duration::from_secs_f64(seconds);
            }
            "--crunch-ms" => wanted.crunch = crunch(&name, arguments.next())?,
            "--preempt" => wanted.preempt = is_on(&name, arguments.next())?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(Command::Serve(wanted))
}

fn load(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut next = |name: &str| value(name, arguments.next());
    Ok(Command::Load(Load {
        address: next("the address")?,
        seconds: number("the seconds", Some(next("the seconds")?), 0.0, 3_600.0)?,
        rate: number("the rate", Some(next("the rate")?), 1.0, 100_000.0)?,
        crunches: number("the crunches", Some(next("the crunches")?), 0, 10_000)?,
    }))
}

fn unknown(name: &str) -> String {
    format!("{name}: there is no such argument here")
}

fn value(name: &str, value: Option<String>) -> Result<String, String> {
    value.ok_or_else(|| format!("{name} needs a value after it"))
}

/// Parses a number within limits; a NaN is in no range.
fn number<N>(name: &str, text: Option<String>, least: N, most: N) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + Copy,
{
    let text = value(name, text)?;
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("{name} {text}: allowed is {least} to {most}")),
    }
}

fn crunch(name: &str, text: Option<String>) -> Result<Duration, String> {
    let milliseconds = number(name, text, 0.1, 60_000.0)?;
    Ok(Duration::from_secs_f64(milliseconds / 1e3))
}

fn is_on(name: &str, text: Option<String>) -> Result<bool, String> {
    match value(name, text)?.as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        text => Err(format!("{name} {text}: allowed is on or off")),
    }
}
