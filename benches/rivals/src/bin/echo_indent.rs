//! The echo server on indent: everything in fibers.

use std::io::{Read, Write};
use std::process::ExitCode;

use indent::net::{TcpListener, TcpStream};
use indent::{Runtime, runtime};
use indent_rivals::echo::{self, BUFFER, Server};
use indent_rivals::{WORKERS, allocator};

allocator!();

struct Indent(Runtime);

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; BUFFER];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
}

impl Server for Indent {
    fn start() -> Self {
        let builder = runtime::Builder::new().workers(WORKERS);
        let runtime = builder.build().expect("the runtime starts");
        runtime.handle().bind_everything(indent_rivals::is_bound());
        Indent(runtime)
    }

    fn serve(&self, listener: std::net::TcpListener) {
        let listener = TcpListener::from(listener);
        drop(self.0.spawn(move || {
            for stream in listener.incoming().flatten() {
                drop(indent::spawn(move || echo(stream)));
            }
        }));
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static, blocking: bool) {
        if blocking {
            drop(self.0.handle().spawn_blocking(body));
        } else {
            drop(self.0.spawn(body));
        }
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        let metrics = self.0.metrics();
        let sum = |of: fn(&runtime::WorkerMetrics) -> u64| metrics.workers.iter().map(of).sum();
        vec![
            ("freezes", metrics.freezes_total),
            ("sleeps", sum(|worker| worker.sleeps_total)),
            ("dispatches", sum(|worker| worker.dispatches_total)),
            ("moves", sum(|worker| worker.carrier_moves_total)),
            ("alive", metrics.fibers_alive),
        ]
    }
}

fn main() -> ExitCode {
    echo::main::<Indent>()
}
