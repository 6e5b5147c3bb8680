//! What the echo servers of all rivals have in common: the command line, the hogs, and what they say.
//!
//! A server implements [`Server`] and hands it to [`main`]; it is then called as
//!
//! ```text
//! PROGRAM [--hogs N] [--hogs-blocking] [--driver NAME]
//! ```
//!
//! It listens on a free port of 127.0.0.1 and prints `port=PORT`. Whoever connects gets back what it
//! sends, until it closes; each connection has a fiber (task, coroutine, thread) of its own and a buffer of
//! [`BUFFER`] bytes. Beside that run endless hogs, in the same runtime. For each line on stdin the server
//! prints one of ` NAME=VALUE`: what the hogs have done (`iterations`) by which time (`clock_ns`), and
//! counters of its own. When stdin ends it prints the last and exits.
//!
//! `--hogs-blocking` puts the hogs where the runtime wants what does not end: `spawn_blocking`. `--driver`
//! becomes `INDENT_IO`, which the others do not read.
//!
//! `go/echo/main.go` mirrors this file.

use std::io::{self, BufRead};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use crate::hog::{Hogs, Kind};

/// What a connection's buffer holds.
pub const BUFFER: usize = 1024;
/// Chooses how indent waits for descriptors.
const DRIVER: &str = "INDENT_IO";
const USAGE: &str = "usage: PROGRAM [--hogs N] [--hogs-blocking] [--driver NAME]";

/// A runtime that serves.
pub trait Server {
    /// A runtime of [`WORKERS`](crate::WORKERS).
    fn start() -> Self;

    /// Echoes whatever comes, without waiting for that.
    fn serve(&self, listener: TcpListener);

    /// Runs an endless loop; if `blocking`, where such things belong.
    fn hog(&self, body: impl FnOnce() + Send + 'static, blocking: bool);

    /// Counters of its own.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    hogs: usize,
    blocking: bool,
    driver: Option<String>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} has no value; {USAGE}"));
            match word.as_str() {
                "--hogs" => {
                    let text = value()?;
                    options.hogs = text
                        .parse()
                        .map_err(|_| format!("--hogs {text}: not a number; {USAGE}"))?;
                }
                "--hogs-blocking" => options.blocking = true,
                "--driver" => options.driver = Some(value()?),
                _ => return Err(format!("{word} means nothing; {USAGE}")),
            }
        }
        Ok(options)
    }
}

/// The whole program.
pub fn main<S: Server>() -> ExitCode {
    let done = Options::read(std::env::args().skip(1)).and_then(|options| {
        choose_driver(&options)?;
        run::<S>(&options).map_err(|error| format!("the server failed: {error}"))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program again if the environment does not name the driver yet.
fn choose_driver(options: &Options) -> Result<(), String> {
    let Some(driver) = &options.driver else {
        return Ok(());
    };
    if std::env::var(DRIVER).as_ref() == Ok(driver) {
        return Ok(());
    }
    let me =
        std::env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
    let error = Command::new(me)
        .args(std::env::args_os().skip(1))
        .env(DRIVER, driver)
        .exec();
    Err(format!("this program could not start itself: {error}"))
}

fn run<S: Server>(options: &Options) -> io::Result<()> {
    crate::load::raise_descriptors();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let server = S::start();
    let start = Instant::now();
    let hogs = Arc::new(Hogs::new(Kind::Arith, options.hogs));
    server.serve(listener);
    for index in 0..options.hogs {
        let hogs = hogs.clone();
        server.hog(move || hogs.run(index), options.blocking);
    }
    println!("port={port}");
    for line in io::stdin().lock().lines() {
        line?;
        say(&server, &hogs, start);
    }
    say(&server, &hogs, start);
    // Hogs do not end, and some runtimes would wait for them.
    std::process::exit(0);
}

fn say<S: Server>(server: &S, hogs: &Hogs, start: Instant) {
    let counted: String = server
        .counted()
        .iter()
        .map(|(name, value)| format!(" {name}={value}"))
        .collect();
    let (iterations, clock) = (hogs.iterations(), start.elapsed().as_nanos());
    println!("iterations={iterations} clock_ns={clock}{counted}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        Options::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_and_what_means_nothing_is_named() {
        let all = Options {
            hogs: 8,
            blocking: true,
            driver: Some("epoll".into()),
        };
        assert_eq!(read("--hogs 8 --hogs-blocking --driver epoll"), Ok(all));
        assert_eq!(read(""), Ok(Options::default()));
        for wrong in ["--hogs", "--hogs many", "8"] {
            assert!(read(wrong).unwrap_err().contains(USAGE), "{wrong}");
        }
    }
}
