//! All bodies in one program: `--list` prints their names.

use std::process::{Command, ExitCode};

use indent_bodies::body::Body;
use indent_bodies::{attacks, examples, run};

/// The group of bodies with this name.
fn group(name: &str) -> Option<Vec<Body>> {
    match name {
        "examples" => Some(examples::ALL.to_vec()),
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
    let all = || [examples::ALL.to_vec(), attacks::all()].concat();
    let right = if name == "--list" {
        all().iter().for_each(|body| println!("{}", body.name));
        true
    } else if name == "together" {
        run::together(examples::ALL)
    } else if let Some(bodies) = group(&name) {
        each_alone(&bodies)
    } else if let Some(body) = all().iter().find(|body| body.name == name) {
        run::alone(body.name, body.run, body.fibers, body.plain)
    } else {
        eprintln!("no body {name:?}; `--list` prints their names");
        return ExitCode::from(2);
    };
    ExitCode::from(if right { 0 } else { run::WRONG as u8 })
}
