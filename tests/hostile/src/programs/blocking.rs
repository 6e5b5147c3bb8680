#![expect(unsafe_code, reason = "makes a FIFO")]
//! Calls that sleep in the kernel: their worker continues elsewhere, and they return unharmed.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::ToSocketAddrs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::Program;
use crate::noise::{compute_for, stir};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "thread-sleep",
        "std::thread::sleep, far more of it than workers",
        thread_sleep,
    )
    .pure(),
    Program::new("fifo", "reads what a sibling has yet to write", fifo).needs_preemption(),
    Program::new(
        "flock",
        "a file's lock, held by whoever is interrupted",
        flock,
    ),
    Program::new("getaddrinfo", "names looked up by libc", getaddrinfo).pure(),
];

/// Makes an empty directory for this program.
fn scratch(stage: &Stage) -> PathBuf {
    let name = format!("indent-hostile-{}-{}", stage.name, std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

fn thread_sleep(stage: &'static Stage) {
    const NAP: Duration = Duration::from_millis(10);
    stage.crew(8, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            let (start, here) = (Instant::now(), thread::current().id());
            thread::sleep(NAP);
            stage.same("slept long enough", start.elapsed() >= NAP, true);
            stage.same("the thread", thread::current().id(), here);
            if (turn + i) % 3 == 0 {
                pure(|| compute_for(Duration::from_millis(1)));
            }
        }
    });
}

/// Runs two fibers of one worker; opening waits for the other side, and so does every read.
fn fifo(stage: &'static Stage) {
    let directory = scratch(stage);
    let pair = |i: usize| {
        let path = directory.join(i.to_string());
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a text that ends with a zero.
        let status = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
        assert_eq!(status, 0, "a FIFO");
        let from = path.clone();
        let reader = move || {
            let mut file = File::open(from).expect("a FIFO");
            let mut number = [0; 8];
            for n in 0_u64.. {
                if file.read_exact(&mut number).is_err() {
                    return; // the writer has ended
                }
                stage.same("a number", u64::from_le_bytes(number), stir(n));
            }
        };
        let writer = move || {
            let mut file = File::options().write(true).open(path).expect("a FIFO");
            for n in 0_u64.. {
                if n > 100 && stage.over() {
                    return;
                }
                file.write_all(&stir(n).to_le_bytes()).expect("a reader");
                compute_for(Duration::from_micros(if n % 50 == 0 { 2000 } else { 20 }));
            }
        };
        let worker = Some(i % 2);
        [
            stage.spawn("reader", worker, reader),
            stage.spawn("writer", worker, writer),
        ]
    };
    let fibers: Vec<_> = stage.runtime.block_on(|| (0..4).flat_map(pair).collect());
    stage.join(fibers);
    fs::remove_dir_all(directory).expect("our directory");
}

/// Increments a number in a file from all fibers.
fn flock(stage: &'static Stage) {
    let directory = scratch(stage);
    let path = directory.join("number");
    fs::write(&path, "0").expect("a file");
    let turns: &'static AtomicU64 = Box::leak(Box::default());
    let same = path.clone();
    stage.crew(6, move |_| {
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(&same)
            .expect("a file");
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            file.lock().expect("a lock");
            let mut text = String::new();
            file.rewind().expect("a file");
            file.read_to_string(&mut text).expect("text");
            let number: u64 = text.parse().expect("a number");
            compute_for(Duration::from_millis(1));
            file.rewind().expect("a file");
            write!(file, "{}", number + 1).expect("room");
            file.unlock().expect("our lock");
            turns.fetch_add(1, Relaxed);
        }
    });
    let number = fs::read_to_string(&path).expect("a file").parse().ok();
    stage.same("the number in the file", number, Some(turns.load(Relaxed)));
    fs::remove_dir_all(directory).expect("our directory");
}

fn getaddrinfo(stage: &'static Stage) {
    let look_up = || {
        let mut found: Vec<_> = ("localhost", 80)
            .to_socket_addrs()
            .map(Iterator::collect)
            .unwrap_or_default();
        found.sort_unstable();
        found.dedup();
        found
    };
    let expected = look_up();
    stage.crew(6, move |_| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            stage.same("the addresses", look_up(), expected.clone());
            if turn % 8 == 0 {
                pure(|| compute_for(Duration::from_millis(1)));
            }
        }
    });
}
