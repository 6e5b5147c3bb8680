//! Lines for whoever runs the program, past every lock.
//!
//! A program may hold the lock of the standard output, replace what is behind the descriptors 1 and
//! 2, or hang: so what the framework has to say goes by plain writes to a copy of standard error
//! taken at the start.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;

static OUT: OnceLock<File> = OnceLock::new();

fn out() -> &'static File {
    OUT.get_or_init(|| {
        let copy = std::io::stderr().as_fd().try_clone_to_owned();
        File::from(copy.expect("a copy of standard error"))
    })
}

/// Takes the copy; before any program runs.
pub(crate) fn prepare() {
    out();
}

/// Writes the line in one call. Nobody listening is no reason to fail.
pub(crate) fn say(line: &str) {
    raw(format!("{line}\n").as_bytes());
}

/// Writes bytes that were made before: allocates nothing.
pub(crate) fn raw(bytes: &[u8]) {
    drop(out().write_all(bytes));
}
