//! Runs one measurement after the other: for each a runtime, a service, and the load generator.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime};
use indent::task::{Fiber, Mobility};

use crate::arguments::Demonstration;
use crate::crunch::Crunch;
use crate::draw;
use crate::load::Told;
use crate::report::{self, Progress};
use crate::service::Service;

/// Crunches in flight.
const CRUNCHES: [usize; 3] = [0, 8, 64];

/// One measurement and its results.
pub(crate) struct Row {
    pub(crate) preempt: bool,
    pub(crate) crunches: usize,
    /// Sorted, shortest first.
    pub(crate) pings: Vec<Ping>,
    pub(crate) crunched_per_second: f64,
    pub(crate) workers: usize,
    /// The most bound fibers, and the most threads that ran fibers, at any one check.
    pub(crate) bound: usize,
    pub(crate) threads: usize,
    /// Whether the load generator ran before all others, or the reason why not.
    pub(crate) fifo: Result<(), String>,
}

/// Time of a ping; a lower bound if the ping was not answered.
#[derive(Clone, Copy)]
pub(crate) struct Ping {
    pub(crate) time: Duration,
    pub(crate) is_answered: bool,
}

/// A time, or a lower bound.
pub(crate) struct Latency {
    pub(crate) time: Duration,
    pub(crate) is_at_least: bool,
}

impl Row {
    pub(crate) fn answered(&self) -> usize {
        self.pings.iter().filter(|ping| ping.is_answered).count()
    }

    /// Returns the time that this part of the pings, from 0 to 1, did not exceed.
    ///
    /// `None` if there were none. If one among them was not answered, the time would have been
    /// longer.
    pub(crate) fn latency(&self, part: f64) -> Option<Latency> {
        let rank = (self.pings.len() as f64 * part).ceil() as usize;
        let within = &self.pings[..rank.clamp(1, self.pings.len().max(1)).min(self.pings.len())];
        Some(Latency {
            time: within.last()?.time,
            is_at_least: within.iter().any(|ping| !ping.is_answered),
        })
    }
}

/// Runs all measurements and shows them.
pub(crate) fn demonstrate(wanted: &Demonstration) -> io::Result<()> {
    let crunch = Crunch::of(wanted.crunch);
    let mut progress = Progress::new(2 * CRUNCHES.len());
    let mut rows = Vec::new();
    for preempt in [true, false] {
        for crunches in CRUNCHES {
            progress.begin(preempt, crunches);
            let row = measure(wanted, crunch, preempt, crunches, &progress)?;
            if wanted.json {
                println!("{}", report::json(&row, wanted));
            }
            rows.push(row);
        }
    }
    progress.end();
    if !wanted.json {
        print!("{}", report::table(&rows, wanted));
    }
    if let Some(file) = &wanted.svg {
        let why = |error| io::Error::other(format!("cannot write {file}: {error}"));
        std::fs::write(file, draw::svg(&rows, wanted)).map_err(why)?;
    }
    Ok(())
}

fn measure(
    wanted: &Demonstration,
    crunch: Crunch,
    preempt: bool,
    crunches: usize,
    progress: &Progress,
) -> io::Result<Row> {
    let builder = Builder::new().preempt(preempt);
    let runtime = builder.build().map_err(io::Error::other)?;
    let idle = Duration::from_secs(60);
    let service = Service::start(runtime.handle(), "127.0.0.1:0", idle, crunch)?;
    let address = service.address()?.to_string();
    let load = Command::new(std::env::current_exe()?)
        .args(["load", &address])
        .args([wanted.seconds, wanted.rate].map(|number| number.to_string()))
        .arg(crunches.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let row = Row {
        preempt,
        crunches,
        pings: Vec::new(),
        crunched_per_second: 0.0,
        workers: runtime.metrics().workers.len(),
        bound: 0,
        threads: 0,
        fifo: Ok(()),
    };
    let row = collect(row, load, crunch, progress, &runtime);
    service.stop()?; // finishes requests in flight
    runtime.wait_idle();
    row
}

/// Counts the fibers that are bound to their threads.
fn bound(runtime: &Runtime) -> usize {
    let fibers = runtime.handle().fibers();
    let is_bound = |fiber: &&Fiber| fiber.binding().mobility() == Mobility::Bound;
    fibers.iter().filter(is_bound).count()
}

/// Reads the load generator's output until its end.
fn collect(
    mut row: Row,
    mut load: Child,
    crunch: Crunch,
    progress: &Progress,
    runtime: &Runtime,
) -> io::Result<Row> {
    let now = || (Instant::now(), crunch.done());
    let mut begun = now();
    let lines = BufReader::new(load.stdout.take().expect("it is a pipe")).lines();
    let heard = lines.map(|line| line?.parse()).try_for_each(|told| {
        match told? {
            Told::Fifo(fifo) => row.fifo = fifo,
            Told::Progress(part) => {
                progress.at(part);
                row.bound = row.bound.max(bound(runtime));
                row.threads = row.threads.max(runtime.metrics().carriers);
            }
            Told::Begins => begun = now(),
            Told::Ends => {
                let (time, done) = now();
                let seconds = (time - begun.0).as_secs_f64();
                row.crunched_per_second = (done - begun.1) / seconds.max(1e-3);
            }
            Told::Ping { time, is_answered } => row.pings.push(Ping {
                time: Duration::from_nanos(time),
                is_answered,
            }),
        }
        io::Result::Ok(())
    });
    if heard.is_err() {
        let _ended = load.kill();
    }
    let status = load.wait()?;
    heard?;
    if !status.success() {
        return Err(io::Error::other(format!("the load generator: {status}")));
    }
    row.pings.sort_by_key(|ping| ping.time);
    Ok(row)
}
