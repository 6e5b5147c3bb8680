//! Calls of the system: time, files, sockets, the environment.
//!
//! Errors arrive by `errno`, which std reads in the call that failed; nothing of it is left when
//! that returns.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Instant, SystemTime};

use super::{MOVABLE, each, table};
use crate::Probe;

table! {
    instant_held: MOVABLE;
    environment_read: MOVABLE;
    file_read: MOVABLE;
    file_open: each("MMMB?");
    missing_file: MOVABLE;
    directory_listed: each("MMMMB");
    socket_listens: MOVABLE;
    process_id: MOVABLE;
}

fn instant_held(probe: &Probe) -> bool {
    let (start, wall) = (Instant::now(), SystemTime::now());
    probe.park();
    start <= Instant::now() && wall.elapsed().is_ok_and(|e| e.as_secs() < 3600)
}

fn environment_read(probe: &Probe) -> bool {
    let before = std::env::var("PATH").ok();
    probe.park();
    before == std::env::var("PATH").ok()
}

fn file_read(probe: &Probe) -> bool {
    let before = fs::read("/dev/null");
    probe.park();
    before.is_ok_and(|bytes| bytes.is_empty())
}

fn file_open(probe: &Probe) -> bool {
    let Ok(mut file) = File::open("/proc/self/exe") else {
        return false;
    };
    let mut magic = [0; 4];
    let begun = file.read_exact(&mut magic);
    probe.park();
    begun.is_ok() && magic == *b"\x7fELF" && file.stream_position().is_ok_and(|at| at == 4)
}

fn missing_file(probe: &Probe) -> bool {
    let error = fs::read_to_string("/no/such/file").err();
    probe.park();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn directory_listed(probe: &Probe) -> bool {
    let Ok(mut entries) = fs::read_dir("/") else {
        return false;
    };
    let first = entries.next();
    probe.park();
    first.is_some() && entries.count() > 1 && Path::new("/").is_dir()
}

fn socket_listens(probe: &Probe) -> bool {
    let Ok(listener) = TcpListener::bind(("127.0.0.1", 0)) else {
        return false;
    };
    probe.park();
    listener
        .local_addr()
        .is_ok_and(|address| address.port() > 0)
}

fn process_id(probe: &Probe) -> bool {
    let before = std::process::id();
    probe.park();
    before == std::process::id()
}
