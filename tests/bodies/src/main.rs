//! Crates' own examples on fibers, with a switch at every step.
//!
//! Each *body* is a small function written as an example of a crate is, or one that tries to keep
//! something of its thread over a switch. It calls `step` between its steps, which yields, parks or
//! sleeps. Many fibers run the same body at once, several times, with a quantum of 0.2 ms; then
//! plain threads do. A body checks itself, and what it returns must be the same on fibers and on
//! threads.
//!
//! ```text
//! cargo run -p indent-bodies -- --list
//! cargo run -p indent-bodies -- regex            # one body
//! cargo run -p indent-bodies -- examples         # each in a process of its own
//! cargo run -p indent-bodies -- attacks
//! cargo run -p indent-bodies -- together         # all examples mixed in one process
//! ```
//!
//! One line for each body, with tabs: its name, how often it ran on fibers and threads, how
//! many of these runs were wrong, how many switches of fibers there were, how many of them were
//! parks (the others yields), at how many parks the fiber was bound, after how many switches it was
//! on another thread; then what binds, or what was wrong. With `--trust` every fiber may move: this
//! shows which bodies rely on being bound.

use std::process::{Command, ExitCode};

mod attacks;
mod body;
mod examples;
mod run;
mod step;

use body::Body;

/// The group of bodies with this name.
fn group(name: &str) -> Option<Vec<Body>> {
    match name {
        "examples" => Some(examples::all()),
        "attacks" => Some(attacks::all()),
        _ => None,
    }
}

/// Runs each body of a group in a process of its own: one that crashes or hangs is one row.
fn each_alone(bodies: &[Body]) -> bool {
    let program = std::env::current_exe().expect("the path of this program");
    let mut right = true;
    for body in bodies {
        let run = Command::new(&program)
            .arg(body.name)
            .args(std::env::args().skip(2))
            .status();
        let status = run.expect("a process of this program");
        match status.code() {
            Some(0) => continue,
            Some(run::WRONG) => {}
            _ => println!("{}\t-\t1\t-\t-\t-\t-\tended by {status}", body.name),
        }
        right = false;
    }
    right
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    attacks::prepare();
    let all = || [examples::all(), attacks::all()].concat();
    let right = if name == "--list" {
        all().iter().for_each(|body| println!("{}", body.name));
        true
    } else if name == "together" {
        run::together(&examples::all())
    } else if let Some(bodies) = group(&name) {
        each_alone(&bodies)
    } else if let Some(body) = all().iter().find(|body| body.name == name) {
        run::alone(body)
    } else {
        eprintln!("no body {name:?}; `--list` prints their names");
        return ExitCode::from(2);
    };
    ExitCode::from(if right { 0 } else { run::WRONG as u8 })
}
