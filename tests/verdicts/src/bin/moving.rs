//! Runs thousands of fibers with all lawful bodies while workers change carriers.
//!
//! It ends with failure if any fiber found a wrong value, panicked, or changed threads when it must
//! not.
//!
//! ```text
//! cargo run --release -p indent-verdicts --bin moving -- [seconds] [seed] \
//!     [--trust] [--without-bound] [--warm]
//! ```
//!
//! `--warm` runs every body once before, so that its frames are known. `--trust` lets every fiber
//! move, whatever its frames show: then this must fail. `--without-bound` leaves out the bodies
//! that are bound in some profile.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use indent::runtime::Builder;
use indent_verdicts::noted;
use indent_verdicts::{bodies, crowd};

const WORKERS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let mut numbers = arguments.iter().filter_map(|text| text.parse().ok());
    let seconds = numbers.next().unwrap_or(5);
    let seed = numbers.next().unwrap_or(u64::from(std::process::id()));
    bodies::install_sinks();
    let runtime = Builder::new().workers(WORKERS).build().expect("a runtime");
    if flag("--trust") {
        noted::trust_everything(runtime.handle());
    }
    let mut bodies = bodies::all();
    bodies.retain(|body| body.lawful);
    if flag("--without-bound") {
        bodies.retain(|body| !body.expected.may_be_bound());
    }
    say(&format!("{seconds} s, seed {seed}"));
    if flag("--warm") {
        crowd::warm_up(&runtime, &bodies);
    }
    let time = Duration::from_secs(seconds);
    let outcome = crowd::run(&runtime, WORKERS, bodies, time, seed);
    say(&outcome.summary);
    outcome.complaints.iter().for_each(|line| say(line));
    if outcome.complaints.is_empty() {
        return ExitCode::SUCCESS;
    }
    // The remaining fibers may never end, so the program does not wait for them.
    std::process::exit(1);
}

/// Prints a line without the lock of the standard output, which a fiber that hangs may hold.
fn say(line: &str) {
    let descriptor = std::io::stdout().as_fd().try_clone_to_owned();
    let mut out = File::from(descriptor.expect("a descriptor"));
    writeln!(out, "{line}").expect("somebody to listen");
}
