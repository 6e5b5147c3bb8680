//! SIGTERM and SIGINT as an event to wait for.
//!
//! The handler writes a byte into a socket, and the waiting thread reads it: the usual technique
//! for a signal handler, where very few calls are allowed.

#![expect(unsafe_code, reason = "a signal handler is registered")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Reports when the process is asked to end.
pub(crate) struct Termination(UnixStream);

impl Termination {
    /// Blocks the calling thread until the process is asked to end.
    pub(crate) fn wait(mut self) -> io::Result<()> {
        self.0.read_exact(&mut [0])
    }
}

/// Installs handlers: from here on the signals do not end the process by themselves.
pub(crate) fn termination() -> io::Result<Termination> {
    let (reader, writer) = UnixStream::pair()?;
    // A handler must not block; if the socket is full, a byte is already waiting.
    writer.set_nonblocking(true)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let writer = writer.try_clone()?;
        let notify = move || drop((&writer).write(b"!"));
        // SAFETY: what the closure does is allowed in a handler: it calls `send` and looks at
        // errno, which is restored for it, and neither allocates, locks nor panics.
        unsafe { signal_hook_registry::register(signal, notify) }?;
    }
    Ok(Termination(reader))
}
