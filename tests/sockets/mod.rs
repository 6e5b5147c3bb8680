//! Helpers for tests of sockets.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of it"
)]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use indent::net::TcpListener;
use indent::park::ParkReason;
use indent::runtime::{Builder, Io, Runtime};
use indent::task::{self, Phase};

/// The I/O driver that a module is named after, if it can be used here.
pub fn builder(module: &str) -> Builder {
    let name = module.rsplit("::").next();
    let io = match name {
        Some("epoll") => Io::Epoll,
        Some("uring") => Io::Uring,
        other => panic!("no I/O driver is called {other:?}"),
    };
    let builder = Builder::new().io(io);
    if io == Io::Uring
        && let Err(error) = builder.clone().build()
    {
        crate::common::skip(&error.to_string());
        return Builder::new();
    }
    builder
}

/// A runtime with that I/O driver.
pub fn start(module: &str, workers: usize) -> Runtime {
    builder(module).workers(workers).build().unwrap()
}

/// Runs the body on this thread and on a fiber.
pub fn everywhere(module: &str, body: fn()) {
    crate::common::within(60, || {
        body();
        start(module, 2).block_on(body);
    });
}

/// An echo server with a fiber for each connection.
pub fn serve_echoes(rt: &Runtime) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(rt.spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            drop(indent::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..n]).unwrap();
                }
            }));
        }
    }));
    address
}

/// A path that does not exist, in a folder of its own, which is removed with it.
pub struct FreshPath(PathBuf);

/// Creates a path that does not exist.
pub fn fresh_path() -> FreshPath {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let folder = std::env::temp_dir().join(format!("indent-net-{process}-{number}"));
    std::fs::create_dir(&folder).expect("a new folder");
    FreshPath(folder.join("socket"))
}

impl Deref for FreshPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for FreshPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for FreshPath {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(
            self.0.parent().expect("its folder"),
        ));
    }
}

/// Bytes that differ from place to place.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_mul(31) >> 3) as u8 ^ i as u8 ^ seed;
    (0..length).map(byte).collect()
}

/// Waits until this many fibers wait for descriptors.
pub fn wait_for_waiters(rt: &Runtime, expected: usize) {
    super::common::wait_for("fibers that wait for descriptors", || {
        let fibers = rt.handle().fibers();
        let waits = |fiber: &&task::Fiber| {
            fiber.phase() == Phase::Parked && fiber.park_reason() == ParkReason::Io
        };
        fibers.iter().filter(waits).count() >= expected
    });
}

/// Makes this process unable to open a descriptor with this number or a higher one.
#[expect(unsafe_code, reason = "limits descriptors by a system call")]
pub fn limit_descriptors(most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to `limit`.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: reads from `limit`.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!((known, set), (0, 0));
}
