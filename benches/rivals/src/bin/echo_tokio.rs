//! The echo server on tokio: everything in tasks, hogs on the threads of `spawn_blocking` if asked.

use std::process::ExitCode;

use indent_rivals::echo::{self, BUFFER, Server};
use indent_rivals::{WORKERS, allocator};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

allocator!();

struct Tokio(Runtime);

async fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; BUFFER];
    while let Ok(got @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..got]).await.is_err() {
            break;
        }
    }
}

impl Server for Tokio {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .enable_all()
            .build();
        Tokio(runtime.expect("the runtime starts"))
    }

    fn serve(&self, listener: std::net::TcpListener) {
        listener.set_nonblocking(true).expect("a socket");
        drop(self.0.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a runtime with a driver");
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    drop(tokio::spawn(echo(stream)));
                }
            }
        }));
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static, blocking: bool) {
        if blocking {
            drop(self.0.spawn_blocking(body));
        } else {
            drop(self.0.spawn(async move { body() }));
        }
    }
}

fn main() -> ExitCode {
    echo::main::<Tokio>()
}
