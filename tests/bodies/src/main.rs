//! All bodies in one program: `--list` prints their names.

use std::process::{Command, ExitCode};

use indent_bodies::body::Body;
use indent_bodies::{attacks, examples, run};

/// Runs each body of a group in a process of its own.
///
/// One that crashes or hangs is one row.
fn each_alone(bodies: &[Body], flags: &[&str]) -> bool {
    let program = std::env::current_exe().expect("the path of this program");
    let mut right = true;
    for body in bodies {
        let run = Command::new(&program)
            .arg(body.name)
            .args(std::env::args().skip(2))
            .args(flags)
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

/// Runs each example twice, the second time with `--trust-pointers`.
///
/// In this program calls through pointers bind all fibers, so the first run tests nothing else.
/// Where thread-locals belong to threads, pointers alone bind some of them.
fn each_example() -> bool {
    let own_locals = !cfg!(target_feature = "crt-static");
    let bound = each_alone(examples::ALL, &[]);
    let moving = !own_locals || each_alone(examples::ALL, &["--trust-pointers"]);
    bound && moving
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    attacks::prepare();
    let all = || [examples::ALL.to_vec(), attacks::all()].concat();
    let right = if name == "--list" {
        all().iter().for_each(|body| println!("{}", body.name));
        true
    } else if name == "together" {
        run::together(examples::ALL)
    } else if name == "examples" {
        each_example()
    } else if name == "attacks" {
        each_alone(&attacks::all(), &[])
    } else if let Some(body) = all().iter().find(|body| body.name == name) {
        run::alone(body.name, body.run, body.fibers, body.plain)
    } else {
        eprintln!("no body {name:?}; `--list` prints their names");
        return ExitCode::from(2);
    };
    ExitCode::from(if right { 0 } else { run::WRONG as u8 })
}
