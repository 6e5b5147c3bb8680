//! The heartbeat on indent.

use std::process::ExitCode;

use indent_rivals::indent_heart::Indent;
use indent_rivals::{allocator, beat};

allocator!();

fn main() -> ExitCode {
    beat::main::<Indent>()
}
