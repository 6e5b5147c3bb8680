//! Ordinary code on fibers: code whose authors did not have to know about the runtime.
//!
//! Each program is some fibers that use crates as services use them: lazily made values, databases,
//! interpreters, thread-locals, spans, locks, maps. It starts in the first moments of a process,
//! before the runtime has read the program's machine code, and ends with one line on standard
//! output. There are three ways to fail: a wrong result (a panic), a crash, and a hang, which a
//! watchdog ends with a dump of all fibers.
//!
//! ```text
//! cargo run -p indent-ordinary -- --list
//! cargo run -p indent-ordinary -- spans
//! cargo test -p indent-ordinary
//! ```
//!
//! | file | what fibers do | failure if fibers shared a thread |
//! |---|---|---|
//! | `once.rs` | race for a value whose initializer sleeps | a deadlock |
//! | `libraries.rs` | use SQLite, Lua and maps beside endless loops | they never end |
//! | `own.rs` | sleep inside `scoped_tls`, spans, borrowed thread-locals | each sees another's |
//! | `mutex.rs` | hold a `std::sync::Mutex` while they sleep | a hang |
//! | `server.rs` | answer pings and crunch JSON, maps and regexes | no ping is answered |
//! | `threads.rs` | wait for each other, more of them than there may be threads | a hang |
//! | `idle.rs` | nothing, until the first burst arrives | the first burst is late |

use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indent::runtime::{Builder, Handle, Runtime};

mod idle;
mod libraries;
mod mutex;
mod once;
mod own;
mod server;
mod threads;

/// A program, which runs in a process of its own.
struct Program {
    name: &'static str,
    run: fn(&Runtime),
    /// Changes from the default settings with two workers.
    settings: fn(Builder) -> Builder,
    /// If set, some of its fibers compute until the process ends, so it needs preemption.
    endless: bool,
}

/// Makes a program that ends by itself.
const fn ends(name: &'static str, run: fn(&Runtime)) -> Program {
    Program {
        name,
        run,
        settings: |builder| builder,
        endless: false,
    }
}

/// Makes a program with fibers that compute forever.
const fn endless(name: &'static str, run: fn(&Runtime)) -> Program {
    Program {
        endless: true,
        ..ends(name, run)
    }
}

impl Program {
    const fn with(self, settings: fn(Builder) -> Builder) -> Program {
        Program { settings, ..self }
    }
}

const PROGRAMS: &[Program] = &[
    ends("lazy-lock-2", |rt| once::lazy_lock(rt, 2)),
    ends("lazy-lock-64", |rt| once::lazy_lock(rt, 64)),
    ends("once-lock-2", |rt| once::once_lock(rt, 2)),
    ends("once-lock-64", |rt| once::once_lock(rt, 64)),
    ends("once-cell-lazy-2", |rt| once::once_cell_lazy(rt, 2)),
    ends("once-cell-lazy-64", |rt| once::once_cell_lazy(rt, 64)),
    ends("once-cell-2", |rt| once::once_cell(rt, 2)),
    ends("once-cell-64", |rt| once::once_cell(rt, 64)),
    ends("moka-2", |rt| once::moka(rt, 2)),
    ends("moka-64", |rt| once::moka(rt, 64)),
    endless("sqlite-beside-loops", libraries::sqlite),
    endless("lua-beside-loops", libraries::lua),
    endless("dashmap-beside-loops", libraries::dashmap),
    endless("chrono-beside-loops", libraries::chrono),
    endless("moka-beside-loops", libraries::moka),
    ends("scoped-tls", own::scoped_tls),
    ends("spans", own::spans),
    ends("ref-cell", own::ref_cell),
    ends("mutex-4", |rt| mutex::held_across_a_sleep(rt, 4)),
    ends("mutex-64", |rt| mutex::held_across_a_sleep(rt, 64)),
    endless("server-8", |rt| {
        server::pings_beside_endless_crunches(rt, 8)
    }),
    endless("server-64", |rt| {
        server::pings_beside_endless_crunches(rt, 64)
    }),
    ends("server-rounds", |rt| server::pings_beside_crunches(rt, 8)),
    ends("barrier", threads::barrier),
    ends("barrier-of-bound", threads::barrier_of_bound).with(threads::at_most_64),
    ends("parents-of-bound", threads::parents_of_bound).with(threads::at_most_64),
    ends("parents-beyond-soft", threads::parents_beyond_soft).with(threads::about_64),
    ends("idle", idle::first_burst),
];

/// More time than any program needs, also in a debug build beside busy processes.
const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if name == "--list" {
        PROGRAMS.iter().for_each(|program| {
            let kind = if program.endless { "endless" } else { "ends" };
            println!("{} {kind}", program.name);
        });
        return ExitCode::SUCCESS;
    }
    let Some(program) = PROGRAMS.iter().find(|program| program.name == name) else {
        eprintln!("no program {name:?}; `--list` prints their names");
        return ExitCode::from(2);
    };
    let builder = (program.settings)(Builder::new().workers(2));
    // Endless fibers are abandoned.
    let builder = builder.shutdown_timeout(Duration::from_millis(100));
    // Other fibers may wait for a fiber that panics, so a panic ends the process.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::exit(1);
    }));
    let (alive, over) = mpsc::channel();
    let (started, handle) = mpsc::channel();
    thread::spawn(move || watchdog(&over, &handle));

    let rt = builder.build().expect("a runtime");
    started.send(rt.handle().clone()).expect("the watchdog");
    (program.run)(&rt);
    drop(rt);
    drop::<mpsc::Sender<()>>(alive);
    println!("{name}: ok");
    ExitCode::SUCCESS
}

/// Ends the process with a dump if it hangs.
fn watchdog(over: &mpsc::Receiver<()>, handle: &mpsc::Receiver<Handle>) {
    if over.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        eprintln!("HANGS: not done after {LIMIT:?}");
        if let Ok(handle) = handle.try_recv() {
            eprintln!("{}\n{:?}", handle.dump(), handle.metrics());
        }
        std::process::exit(3);
    }
}
