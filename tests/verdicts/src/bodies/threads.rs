//! Thread identity: values that stand for the thread itself are bound.
//!
//! A `Thread` that was fetched before a move unparks the thread that was left; an id compares
//! unequal to itself. The handle of a thread that was started is not the starter's: it may go
//! anywhere.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use super::{MOVABLE, OWN, each, table};
use crate::Probe;

table! {
    thread_current_held: OWN;
    thread_id_compared: OWN;
    thread_name_copied: OWN;
    thread_scope_around_a_park: OWN;
    thread_spawned_and_joined: each("MMMBB");
    stdout_locked: OWN;
    stderr_locked: OWN;
    printed_nothing: each("MMMMB");
    written_to_a_sink: MOVABLE;
    thread_slept: MOVABLE;
}

fn thread_current_held(probe: &Probe) -> bool {
    let me = thread::current();
    probe.park();
    me.id() == thread::current().id()
}

fn thread_id_compared(probe: &Probe) -> bool {
    let me = thread::current().id();
    probe.park();
    me == thread::current().id()
}

fn thread_name_copied(probe: &Probe) -> bool {
    let name = thread::current().name().map(str::to_owned);
    probe.park();
    name.as_deref() == thread::current().name()
}

/// At its end the scope waits as the thread that began it.
fn thread_scope_around_a_park(probe: &Probe) -> bool {
    let seed = probe.seed;
    thread::scope(|scope| {
        scope.spawn(move || thread::sleep(Duration::from_nanos(seed % 1000)));
        probe.park();
        seed == probe.seed
    })
}

fn thread_spawned_and_joined(probe: &Probe) -> bool {
    let seed = probe.seed;
    let thread = thread::spawn(move || seed);
    probe.park();
    thread.join().is_ok_and(|back| back == seed)
}

/// Holds a lock that its thread may take again: moved, it would lock itself out.
fn stdout_locked(probe: &Probe) -> bool {
    let lock = io::stdout().lock();
    probe.park();
    let again = io::stdout().lock();
    drop((lock, again));
    true
}

fn stderr_locked(probe: &Probe) -> bool {
    let lock = io::stderr().lock();
    probe.park();
    let again = io::stderr().lock();
    drop((lock, again));
    true
}

/// Releases the lock of `print!` before it returns.
fn printed_nothing(probe: &Probe) -> bool {
    print!("");
    probe.park();
    eprint!("");
    true
}

fn written_to_a_sink(probe: &Probe) -> bool {
    let mut sink = io::sink();
    let before = writeln!(sink, "{}", probe.seed);
    probe.park();
    before.is_ok() && sink.flush().is_ok()
}

fn thread_slept(probe: &Probe) -> bool {
    thread::sleep(Duration::from_nanos(1));
    probe.park();
    true
}
