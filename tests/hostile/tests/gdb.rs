//! A debugger shows a fiber that is interrupted in a region like any other.
//!
//! The program `region-frames` is stopped where an interrupted fiber is about to leave its thread,
//! in the trampoline and in the functions that it calls. The stack above must show the interrupted
//! functions, the code that entered the region, and the code that runs fibers.

use std::process::{Command, Stdio};

#[path = "../../common/mod.rs"]
mod common;

/// Frames on the way up from the interrupted instruction, in order.
const EXPECTED: [&str; 3] = [
    "frames_inside_region",
    "frames_outside_region",
    "fiber_main",
];

/// Returns gdb's stacks at the first stop at a function, and after this many further instructions.
fn stacks_at(function: &str, instructions: u32) -> Option<String> {
    let script = [
        "set pagination off",
        "handle SIGURG nostop noprint pass",
        &format!("break {function}"),
        "run",
        "bt 60",
        &format!("stepi {instructions}"),
        "echo FURTHER\\n",
        "bt 60",
        "kill",
    ];
    let arguments = script.iter().flat_map(|line| ["-ex", line]);
    let output = Command::new("gdb")
        .args(["-nx", "-batch"])
        .args(arguments)
        .args(["--args", env!("CARGO_BIN_EXE_hostile")])
        .args(["region-frames", "--seconds", "20", "--quantum", "0.2"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = common::text(&output);
    // In some containers tracing is forbidden.
    let forbidden = text.contains("ptrace") || text.contains("Could not trace");
    (!forbidden).then_some(text)
}

/// Returns true if the names are in the text in this order.
fn in_order(text: &str) -> bool {
    let mut rest = text;
    EXPECTED.iter().all(|name| match rest.find(name) {
        Some(at) => {
            rest = &rest[at + name.len()..];
            true
        }
        None => false,
    })
}

fn shows_users_frames_at(function: &str) {
    if !cfg!(target_arch = "x86_64") {
        return common::skip("nobody is switched in place");
    }
    if common::sanitizer_forbids("gdb and a sanitizer get in each other's way") {
        return;
    }
    let Some(text) = stacks_at(function, 6) else {
        return common::skip("no gdb that may trace");
    };
    let (first, further) = text.split_once("FURTHER").unwrap_or((&text, ""));
    assert!(in_order(first), "at {function}: {text}");
    assert!(in_order(further), "after some instructions: {text}");
}

#[test]
fn gdb_shows_the_users_frames_from_the_trampoline() {
    shows_users_frames_at("indent_in_place_switch");
}

#[test]
fn gdb_shows_the_users_frames_from_what_the_trampoline_calls() {
    shows_users_frames_at("indent::sched::preempt::in_place::yield_in_place");
}
