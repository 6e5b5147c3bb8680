//! The heartbeat on tokio, with the hogs on the threads of `spawn_blocking`.

use std::process::ExitCode;

use indent_rivals::tokio_heart::Tokio;
use indent_rivals::{allocator, beat};

allocator!();

fn main() -> ExitCode {
    beat::main::<Tokio<true>>()
}
