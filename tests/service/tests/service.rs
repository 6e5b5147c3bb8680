//! An ordinary service with 10,000 connections, from the first second of its process.
//!
//! One run of the program of this package, built with optimization, serves all tests: a server and
//! its load in two processes (see `src/main.rs`). The tests check the output of both, and the
//! server's log. `INDENT_SERVICE_SECONDS` sets how long the load lasts.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

#[path = "../../common/mod.rs"]
mod common;

/// Number of connections; nearly all of them are idle at any moment.
const CONNECTIONS: u64 = 10_000;
/// Requests per second.
const RATE: u64 = 250;
/// Seconds of load; all connections are open after about 11.
const SECONDS: u64 = 25;
/// Number of last seconds that the first second is compared with.
const LATER: u64 = 5;
/// How much slower the first second may be, by the percentage of requests.
///
/// The factors allow for other users of the machine.
const TIMES: [(usize, f64); 2] = [(50, 3.), (90, 6.)];
/// Threads of the whole process in addition to the workers.
const THREADS: u64 = 32;

/// Results of the run.
struct Run {
    /// Time during which requests were sent.
    lasted: Duration,
    /// Metrics of the server, once a second.
    counts: Vec<Count>,
    /// Number of parks of bound fibers, and of fibers whose code had not been read.
    bound: u64,
    unjudged: u64,
    /// The report on these fibers.
    binding: String,
    /// Time at which all connections were open.
    opened: Duration,
    /// Latencies in microseconds, sorted, of the first second and of the last ones.
    first: Vec<u64>,
    later: Vec<u64>,
    requests: u64,
    failed: u64,
    log: String,
}

/// Metrics at one moment.
struct Count {
    at: Duration,
    numbers: HashMap<String, u64>,
}

impl Count {
    fn get(&self, name: &str) -> u64 {
        let number = self.numbers.get(name).copied();
        number.unwrap_or_else(|| panic!("the server prints no {name}"))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:4.1} s:", self.at.as_secs_f64())?;
        [
            "fibers", "parks", "carriers", "occupied", "spare", "threads",
        ]
        .iter()
        .try_for_each(|name| write!(f, " {name} {}", self.get(name)))
    }
}

/// A running server, killed when this is dropped.
struct Server {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Server {
    fn start(program: &Path, log: &Path) -> Server {
        let mut process = plain(program)
            .arg("serve")
            .arg(log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        Server {
            commands: process.stdin.take().expect("a pipe"),
            answers: BufReader::new(process.stdout.take().expect("a pipe")),
            process,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "the server has ended");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("the server reads commands");
        self.line()
    }

    fn count(&mut self, at: Duration) -> Count {
        let numbers = numbers(&self.command("count"));
        Count { at, numbers }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _known = self.process.wait();
    }
}

/// Parses a line of alternating names and numbers.
fn numbers(line: &str) -> HashMap<String, u64> {
    let words: Vec<_> = line.split(' ').collect();
    let pair = |pair: &[&str]| (pair[0].to_owned(), pair[1].parse().expect("a number"));
    words.chunks_exact(2).map(pair).collect()
}

/// Returns a command for a program with none of the runtime's settings.
fn plain(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("RUST_BACKTRACE", "0");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INDENT_")) {
        command.env_remove(name);
    }
    command
}

/// Builds the program with optimization, beside this test.
fn program() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("a directory above the temporary one");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "--release", "--bins"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", common::text(&output));
    target.join("release/service")
}

static RUN: LazyLock<Run> = LazyLock::new(|| {
    let program = program();
    let seconds = std::env::var("INDENT_SERVICE_SECONDS").map_or(SECONDS, |seconds| {
        seconds.parse().expect("INDENT_SERVICE_SECONDS is a number")
    });
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("service.log");
    let mut server = Server::start(&program, &log);
    let address = server.line();
    let start = Instant::now();
    let arguments = [CONNECTIONS, RATE, seconds].map(|number| number.to_string());
    let load = plain(&program)
        .args(["load", &address])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the load starts");
    let load = thread::spawn(|| load.wait_with_output());

    let mut counts = Vec::new();
    while !load.is_finished() {
        let count = server.count(start.elapsed());
        println!("{count}");
        counts.push(count);
        thread::sleep(Duration::from_secs(counts.len() as u64).saturating_sub(start.elapsed()));
    }
    let load = load.join().expect("no panic").expect("its output");
    counts.push(server.count(start.elapsed()));

    let bound = numbers(&server.command("binding"));
    let lines = std::iter::from_fn(|| Some(server.line()).filter(|line| !line.is_empty()));
    let binding = lines.collect::<Vec<_>>().join("\n");
    println!("{bound:?}\n{binding}");
    drop(server);
    eprint!("{}", String::from_utf8_lossy(&load.stderr));
    assert!(load.status.success(), "the load: {}", load.status);

    let mut run = Run {
        lasted: Duration::from_secs(seconds),
        counts,
        bound: bound["bound"],
        unjudged: bound["unjudged"],
        binding,
        opened: Duration::MAX,
        first: Vec::new(),
        later: Vec::new(),
        requests: 0,
        failed: 0,
        log: fs::read_to_string(&log).expect("the log"),
    };
    run.read_load(&String::from_utf8_lossy(&load.stdout));
    run
});

impl Run {
    fn read_load(&mut self, printed: &str) {
        let later = self.lasted - Duration::from_secs(LATER);
        for line in printed.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |i: usize| words[i].parse::<u64>().expect("a number");
            match words[0] {
                "opened" => self.opened = Duration::from_micros(number(1)),
                "requests" => self.requests = number(1),
                "failed" => self.failed = number(1),
                "sample" => match Duration::from_micros(number(1)) {
                    at if at < Duration::from_secs(1) => self.first.push(number(2)),
                    at if at >= later => self.later.push(number(2)),
                    _ => {}
                },
                _ => {}
            }
        }
        self.first.sort_unstable();
        self.later.sort_unstable();
    }

    /// Returns the number of all parks at the end.
    fn parks(&self) -> u64 {
        self.counts.last().expect("a count").get("parks")
    }
}

/// Returns the highest latency among this share of the fastest requests.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
fn every_request_is_answered_and_logged_in_its_own_span() {
    let run = &*RUN;
    assert!(run.requests >= CONNECTIONS, "{} requests", run.requests);
    assert_eq!(run.failed, 0, "requests without the right answer");
    // Format after time and level: `request{id=1}:table{number=2}: module: message`.
    let mut found: Vec<_> = run
        .log
        .lines()
        .filter_map(|line| line.split_once(" INFO ").map(|(_, line)| line))
        .collect();
    let mut expected: Vec<_> = (0..run.requests)
        .flat_map(|id| {
            let span = format!("request{{id={id}}}");
            [
                format!("{span}: service::server: read for {id}"),
                format!("{span}: service::handler: counted for {id}"),
                format!(
                    "{span}:table{{number={}}}: service::handler: stored for {id}",
                    id % 4
                ),
                format!("{span}: service::server: answered {id}"),
            ]
        })
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    let mut pairs = found.iter().zip(&expected);
    let wrong = pairs.find(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "a line in the wrong span");
    assert_eq!(found.len(), expected.len(), "lines of the log");
}

#[test]
fn at_most_one_park_in_a_hundred_is_of_a_bound_fiber() {
    let run = &*RUN;
    let bound = run.bound + run.unjudged;
    let share = bound as f64 / run.parks() as f64;
    println!("{bound} of {} parks are bound: {share:.4}", run.parks());
    assert!(share <= 0.01, "{share:.3} of the parks\n{}", run.binding);
}

#[test]
fn a_process_with_idle_connections_has_few_threads() {
    let run = &*RUN;
    // The client keeps its connections at least as long as it sends requests.
    let all_open = run.opened..run.lasted;
    let counts = run.counts.iter();
    let idle: Vec<_> = counts
        .filter(|count| all_open.contains(&count.at))
        .collect();
    assert!(
        !idle.is_empty(),
        "the connections were not all open in time"
    );
    for count in idle {
        assert!(count.get("fibers") >= CONNECTIONS, "{count}");
        let most = count.get("workers") + THREADS;
        assert!(count.get("threads") <= most, "{count}\n{}", run.binding);
    }
}

#[test]
fn the_first_second_is_as_fast_as_later_ones() {
    let run = &*RUN;
    for (percent, most) in TIMES {
        let [first, later] = [&run.first, &run.later].map(|sorted| percentile(sorted, percent));
        println!("{percent} % of the requests: {first} µs in the first second, {later} µs later");
        let times = first as f64 / later as f64;
        assert!(times <= most, "{percent} %: {times:.1} times as slow");
    }
}
