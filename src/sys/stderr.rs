#![expect(unsafe_code, reason = "system calls")]
//! Standard error, without a lock.

use std::io;

/// Writes to standard error without std's lock, so that a thread that holds it cannot block this.
pub(crate) fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(n) {
            Ok(0) => return,
            Ok(written) => rest = &rest[written..],
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
