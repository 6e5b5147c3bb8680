//! Lines for the user, written without taking any lock.
//!
//! A program may hold the lock of the standard output, replace the files behind the descriptors 1
//! and 2, or hang. So the framework writes its lines directly to a copy of standard error that it
//! takes at the start.

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

/// Takes the copy; call it before any program runs.
pub(crate) fn prepare() {
    out();
}

/// Writes the line in one call; a failed write is ignored.
pub(crate) fn say(line: &str) {
    raw(format!("{line}\n").as_bytes());
}

/// Writes prepared bytes: allocates nothing.
pub(crate) fn raw(bytes: &[u8]) {
    drop(out().write_all(bytes));
}
