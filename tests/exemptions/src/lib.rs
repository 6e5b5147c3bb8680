//! Crates whose thread-locals stay with the thread, on fibers that have their own.
//!
//! A fiber has its own thread-locals, except for a few that `src/fiber/locals.rs` lists with a
//! reason each, those of C code, and those that the program names. Each program in `src/bin` uses
//! one of the crates that the list is about as a service does, on more fibers than the crate
//! expects threads. It panics if a value is wrong, and prints its counts and measurements, one
//! `name number` per line; `tests/programs.rs` runs the programs and compares.
//!
//! So that fibers share threads and change them, none is bound, whatever its frames show
//! (`trust_everything`): no program keeps the address of a thread-local, or state of a C library's
//! thread, while it is parked. With `--judged` the runtime decides, as it does for users.
//!
//! ```text
//! cargo run --release -p indent-exemptions --bin spans -- lines 20000
//! cargo test -p indent-exemptions --test programs
//! ```
//!
//! | program | what it uses | what happens if each fiber has its own |
//! |---|---|---|
//! | `spans` | tracing with the registry (sharded-slab) | a panic: too many threads |
//! | `swap` | arc-swap | every `store` visits a node for each fiber |
//! | `seeds` | fastrand, `HashMap` | costs memory only; in both cases two fibers must differ |
//! | `named` | a variable of the program itself | it does not belong to the thread |
//! | `alloc-*` | an allocator each | memory is kept once for each fiber |

#![expect(unsafe_code, reason = "lets fibers move that count as bound")]

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{panic, process, thread};

use indent::runtime::{Builder, Handle, Runtime};

pub mod allocating;

/// More time than any program needs, also in a debug build beside busy processes.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs a program on a runtime with two workers, whose settings it may change.
///
/// A fiber that panics ends the process immediately, because other fibers may wait for it. A
/// program that hangs is ended with a dump of its fibers.
pub fn run(settings: impl FnOnce(Builder) -> Builder, program: impl FnOnce(&Runtime)) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::exit(1);
    }));
    let (running, over) = mpsc::channel::<()>();
    let (started, handle) = mpsc::channel();
    let watchdog = thread::spawn(move || watch(&over, &handle));
    let builder = settings(Builder::new().workers(2));
    let rt = builder.build().expect("a runtime");
    if !std::env::args().any(|argument| argument == "--judged") {
        // SAFETY: what fibers of these programs hold while they are parked does not belong to the
        // thread: numbers of spans, places on the heap and memory. Thread-locals are used in
        // functions that are not inlined and have returned by then, so no frame has an address of
        // one.
        unsafe { rt.handle().trust_everything(true) };
    }
    started.send(rt.handle().clone()).expect("the watchdog");
    program(&rt);
    drop(rt);
    drop(running);
    watchdog.join().expect("the watchdog ends quietly");
}

/// Ends the process if the program does not end in time.
fn watch(over: &mpsc::Receiver<()>, handle: &mpsc::Receiver<Handle>) {
    if over.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        eprintln!("HANGS: not done after {LIMIT:?}");
        if let Ok(handle) = handle.try_recv() {
            let dump = handle.dump();
            dump.lines().take(40).for_each(|line| eprintln!("{line}"));
            eprintln!("{:?}", handle.metrics());
        }
        process::exit(3);
    }
}

/// Runs many fibers at once, each with its number, and returns their results in that order.
pub fn crowd<T, F>(rt: &Runtime, count: usize, body: F) -> Vec<T>
where
    T: Send + 'static,
    F: Fn(usize) -> T + Send + Sync + 'static,
{
    let body = Arc::new(body);
    let start = |number| {
        let body = body.clone();
        rt.spawn(move || body(number))
    };
    let fibers: Vec<_> = (0..count).map(start).collect();
    let join = |fiber: indent::JoinHandle<T>| fiber.join().expect("a result");
    fibers.into_iter().map(join).collect()
}

/// Prints a number that the tests compare.
pub fn report(name: &str, number: impl std::fmt::Display) {
    println!("{name} {number}");
}

/// Returns the argument at this place, a number.
///
/// # Panics
///
/// If there is no such argument.
pub fn number(place: usize) -> usize {
    let argument = std::env::args().nth(place);
    let number = argument.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("argument {place} is a number"))
}

/// Returns the number by which the kernel knows the calling thread.
///
/// It reads a file, because `gettid` is foreign code, which binds its caller.
#[inline(never)]
pub fn thread() -> u32 {
    let path = std::fs::read_link("/proc/thread-self").expect("a mounted /proc");
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    number.expect("a number")
}
