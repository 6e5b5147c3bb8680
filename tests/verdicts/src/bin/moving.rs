//! Runs a crowd of fibers with all lawful bodies while workers change carriers; ends with failure if
//! any of them found a wrong value, panicked, or changed threads when it must not.
//!
//! ```text
//! cargo run --release -p indent-verdicts --bin moving -- [seconds] [seed] [--trust] [--without-alone]
//! ```
//!
//! `--trust` lets every fiber move, whatever its frames say: then this must fail. `--without-alone`
//! leaves out the bodies that may not share a thread.

use std::process::ExitCode;
use std::time::Duration;

use indent::runtime::Builder;
use indent_verdicts::noted::{self, Verdict};
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
    if flag("--trust") && !noted::trust_everything(runtime.handle()) {
        println!("this runtime has no way to trust everything");
        return ExitCode::from(2);
    }
    let mut bodies = bodies::all();
    bodies.retain(|body| body.lawful);
    if flag("--without-alone") {
        bodies.retain(|body| body.expected.strictest() < Verdict::Alone);
    }
    println!("{seconds} s, seed {seed}");
    let time = Duration::from_secs(seconds);
    let outcome = crowd::run(&runtime, WORKERS, bodies, time, seed);
    println!("{}", outcome.summary);
    outcome
        .complaints
        .iter()
        .for_each(|line| println!("{line}"));
    if outcome.complaints.is_empty() {
        return ExitCode::SUCCESS;
    }
    // What is left may never end, so nobody waits for it.
    std::process::exit(1);
}
