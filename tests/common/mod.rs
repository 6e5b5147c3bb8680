//! What the tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::process::{Command, Output};

/// Says that the calling test cannot run here, past the harness's capture: `.ci/run` counts these.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test").to_owned();
    // The harness captures the `print!` family only; the descriptor itself is open.
    let line = format!("SKIPPED {name}: {why}\n");
    let mut stdout = std::fs::OpenOptions::new().write(true).open("/proc/self/fd/2");
    match &mut stdout {
        Ok(out) => drop(out.write_all(line.as_bytes())),
        Err(_) => eprint!("{line}"),
    }
}

/// Runs one ignored test of the calling binary in a process of its own: for what ends a process,
/// counts its threads or measures its memory.
pub fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let me = std::env::current_exe().expect("the path of this test binary");
    Command::new(me)
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .expect("a child process of this test binary")
}

/// The child's standard output and error, for messages.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n--- stdout\n{out}\n--- stderr\n{err}", output.status)
}

/// Threads of this process now.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc/self/task").count()
}
