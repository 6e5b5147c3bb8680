//! A service that answers small requests while it computes large ones: the purpose of the runtime.
//!
//! ```text
//! cargo run --release --example mixed                 # the demonstration, less than a minute
//! cargo run --release --example mixed -- serve        # the service alone, until SIGTERM
//! cargo run --release --example mixed -- --help
//! ```
//!
//! One process serves HTTP, with a fiber for each connection. `/ping` is trivial; `/crunch` writes
//! and reads JSON, draws random numbers, matches a regular expression, hashes and sorts for 200 ms.
//! Both run on the same workers, and nothing in the code says which is which: no annotation, no
//! pool, no checkpoint. A second process, started by the first, sends pings by a schedule that does
//! not wait for answers, keeps some crunches in flight, and measures. That is done with 0, 8 and 64
//! crunches, with preemption and without.
//!
//! The files: `service` (connections and their end), `http` (the format of a request), `crunch`
//! (the work), `load` (the second process), `rows` (one measurement after the other), `report` and
//! `draw` (the output), `arguments`.

mod arguments;
mod crunch;
mod draw;
mod http;
mod load;
mod report;
mod rows;
mod service;
mod signal;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Command, Serve};
use crunch::Crunch;
use indent::runtime::Builder;
use service::Service;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(what) => {
            eprintln!("mixed: {what}; see --help");
            return ExitCode::from(2);
        }
    };
    let result = match command {
        Command::Help => io::stdout().write_all(arguments::HELP.as_bytes()),
        Command::Demonstrate(demonstration) => rows::demonstrate(&demonstration),
        Command::Serve(serve) => run_service(&serve),
        Command::Load(load) => load::run(&load),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mixed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal asks for an end; earlier requests still get their answers.
fn run_service(serve: &Serve) -> io::Result<()> {
    let asked_to_end = signal::termination()?;
    let crunch = Crunch::of(serve.crunch);
    let builder = Builder::new().preempt(serve.preempt);
    let runtime = builder.build().map_err(io::Error::other)?;
    let service =
        Service::start(runtime.handle(), &serve.address, serve.idle, crunch).map_err(|error| {
            io::Error::other(format!("cannot listen at {}: {error}", serve.address))
        })?;
    println!("listening on http://{}", service.address()?);

    asked_to_end.wait()?;
    service.stop()?;
    runtime.wait_idle();
    Ok(())
}
