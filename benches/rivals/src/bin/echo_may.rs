//! The echo server on may's coroutines.
//!
//! All settings of may but the number of workers are left as they are.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::process::ExitCode;

use indent_rivals::echo::{self, BUFFER, Server};
use indent_rivals::{WORKERS, allocator};
use may::go;
use may::net::{TcpListener, TcpStream};

allocator!();

/// The process-wide scheduler of may.
struct May;

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; BUFFER];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
}

impl Server for May {
    fn start() -> Self {
        may::config().set_workers(WORKERS);
        May
    }

    fn serve(&self, listener: std::net::TcpListener) {
        let raw = listener.into_raw_fd();
        #[expect(unsafe_code, reason = "may takes descriptors in no other way")]
        // SAFETY: it was given up by its owner just now.
        let listener = unsafe { TcpListener::from_raw_fd(raw) };
        drop(go!(move || {
            while let Ok((stream, _)) = listener.accept() {
                drop(go!(move || echo(stream)));
            }
        }));
    }

    /// There is no other place for them.
    fn hog(&self, body: impl FnOnce() + Send + 'static, _blocking: bool) {
        drop(go!(body));
    }
}

fn main() -> ExitCode {
    echo::main::<May>()
}
