//! Asks much of an echo server, whichever, and says how it answered: see [`indent_rivals::load`].
//!
//! Prints one line of JSON; with `--idle`, instead, when the connections begin to idle and when they
//! have answered again.

use std::io;
use std::process::ExitCode;

use indent_rivals::fifo;
use indent_rivals::load::{Load, Options};

fn run(options: Options) -> io::Result<()> {
    if options.fifo {
        fifo::claim(); // says so if not
    }
    let idle = options.idle;
    let load = Load::connect(options)?;
    if let Some(time) = idle {
        return load.idle(time, |moment| println!("{moment}"));
    }
    println!("{}", load.run()?);
    Ok(())
}

fn main() -> ExitCode {
    let done = Options::read(std::env::args().skip(1))
        .and_then(|options| run(options).map_err(|error| format!("the load failed: {error}")));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
