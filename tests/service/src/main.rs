//! An ordinary service and its load: code whose author did not have to know about the runtime.
//!
//! The service is HTTP/1.1 with a fiber for each connection. A handler reads JSON into a map,
//! matches a regular expression, draws random numbers, locks a table and sleeps, all inside an
//! entered span of `tracing`. The load is a second process: it opens many connections, of which
//! nearly all are idle at any moment, and sends requests over random ones.
//!
//! ```text
//! cargo test -p indent-service -- --nocapture
//! service serve LOG                              # prints its address; reads commands from stdin
//! service load ADDRESS CONNECTIONS RATE SECONDS  # prints one line for each request
//! ```

use std::io;
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

mod handler;
mod http;
mod load;
mod server;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = raise_file_limit().and_then(|()| match arguments[..] {
        ["serve", log] => server::serve(log.as_ref()),
        ["load", address, connections, rate, seconds] => {
            load::run(address, connections, rate, seconds)
        }
        _ => Err(io::Error::other(
            "expected `serve LOG` or `load ADDRESS CONNECTIONS RATE SECONDS`",
        )),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Raises the limit on open files to what the system allows.
fn raise_file_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
