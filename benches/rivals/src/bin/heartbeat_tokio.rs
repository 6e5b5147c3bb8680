//! The heartbeat on tokio, with the hogs in tasks: nobody else is served.

use std::process::ExitCode;

use indent_rivals::tokio_heart::Tokio;
use indent_rivals::{allocator, beat};

allocator!();

fn main() -> ExitCode {
    beat::main::<Tokio<false>>()
}
