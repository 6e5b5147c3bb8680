//! Fibers move and find everything as they left it; without the verdicts they would not.
//!
//! Both tests run the program `moving` (see there). The first one runs it after the program's code
//! has been read: until then unknown frames count as bound (S5), and few fibers move. The second
//! one switches the verdicts off: the same bodies must then find wrong values, panic, crash or
//! hang, or the first test shows nothing.

use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "../../common/mod.rs"]
mod common;

/// Variable with the time that the crowd runs, in seconds.
const SECONDS: &str = "INDENT_MOVING_SECONDS";
/// Variable with the seed of its random numbers.
const SEED: &str = "INDENT_TEST_SEED";
/// Additional time before the program counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

fn seconds() -> u64 {
    let Ok(text) = std::env::var(SECONDS) else {
        return 5;
    };
    let number = text.parse();
    number.unwrap_or_else(|_| panic!("{SECONDS}={text}: a number, please"))
}

fn seed() -> String {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let now = now.map_or(1, |time| time.as_nanos() as u64);
    std::env::var(SEED).unwrap_or_else(|_| now.to_string())
}

/// Runs the program; returns `None` if it hung and was killed.
fn run(seconds: u64, flags: &[&str]) -> Option<Output> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_moving"))
        .args([&seconds.to_string(), &seed()])
        .args(flags)
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::piped())
        .stderr(Stdio::null()) // thousands of expected backtraces
        .spawn()
        .expect("the program");
    let until = Instant::now() + Duration::from_secs(seconds) + PATIENCE;
    let ended: Option<ExitStatus> = loop {
        match child.try_wait().expect("a child to wait for") {
            Some(status) => break Some(status),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if ended.is_none() {
        child.kill().expect("a child to end");
    }
    let output = child.wait_with_output().expect("its output");
    println!("{}", common::text(&output));
    ended.map(|_| output)
}

#[test]
fn stress_fibers_that_move_find_their_values_right() {
    let output = run(seconds(), &["--warm"]).expect("it ends");
    assert!(output.status.success(), "see above");
    let text = common::text(&output);
    assert!(!text.contains(" 0 changed threads"), "nobody ever moved");
}

#[test]
fn stress_the_same_fibers_fail_when_everything_is_trusted() {
    let output = run(seconds(), &["--trust"]);
    assert!(
        output.is_none_or(|output| !output.status.success()),
        "nothing went wrong though everything could: the other test shows nothing"
    );
}
