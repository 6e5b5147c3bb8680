//! The echo server on plain threads: one for each connection, and each hog.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;

use indent_rivals::allocator;
use indent_rivals::echo::{self, BUFFER, Server};

allocator!();

/// What the thread of a connection needs, and no more: there may be ten thousand.
const STACK: usize = 64 << 10;

struct Threads;

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; BUFFER];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
}

impl Server for Threads {
    fn start() -> Self {
        Threads
    }

    fn serve(&self, listener: TcpListener) {
        drop(thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let builder = thread::Builder::new().stack_size(STACK);
                if let Err(error) = builder.spawn(move || echo(stream)) {
                    eprintln!("no thread for a connection, which is closed: {error}");
                }
            }
        }));
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static, _blocking: bool) {
        drop(thread::spawn(body));
    }
}

fn main() -> ExitCode {
    echo::main::<Threads>()
}
