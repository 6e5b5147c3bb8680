//! A variable of the program that stays with the thread, because the program names it.
//!
//! Each thread gets a number when it starts. A fiber reads it after every pause: it must be the
//! number of the fiber's present thread. A variable beside it belongs to the fiber.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use indent::{task, time};
use indent_exemptions::{crowd, number, report, run, thread};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    static OWN: Cell<usize> = const { Cell::new(0) };
    static USES: Cell<usize> = const { Cell::new(0) };
}

/// The threads, by their numbers from 1 on.
static THREADS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Returns the calling thread's number, and the kernel's number for it.
#[inline(never)]
fn here() -> (usize, u32) {
    USES.set(USES.get() + 1);
    (NUMBER.get(), thread())
}

/// Counts how often fibers have asked on the calling thread.
#[inline(never)]
fn uses() -> usize {
    USES.get()
}

/// Sets the fiber's own number and returns the one before.
#[inline(never)]
fn replace_own(number: usize) -> usize {
    OWN.replace(number)
}

fn main() {
    let count = number(1);
    let settings = |builder: indent::runtime::Builder| {
        builder
            .per_thread(concat!(module_path!(), "::NUMBER"))
            .per_thread(concat!(module_path!(), "::USES"))
            .on_thread_start(|| {
                let mut threads = THREADS.lock().unwrap();
                threads.push(thread());
                NUMBER.set(threads.len());
            })
            .on_thread_stop(|| {
                // After all fibers, checks the thread's own values: this one was never exchanged.
                let (number, thread) = here();
                assert_eq!(THREADS.lock().unwrap()[number - 1], thread);
            })
    };
    run(settings, |rt| {
        rt.wait_until_surveyed(None);
        let seen = crowd(rt, count, |n| {
            let mut seen = BTreeSet::new();
            let mut most = 0;
            for turn in 0..10 {
                assert_eq!(
                    replace_own(n + turn + 1),
                    if turn == 0 { 0 } else { n + turn }
                );
                match (n + turn) % 3 {
                    0 => task::yield_now(),
                    1 => time::sleep(Duration::from_millis(1)),
                    _ => (),
                }
                let (number, thread) = here();
                assert_eq!(
                    THREADS.lock().unwrap()[number - 1],
                    thread,
                    "another thread's"
                );
                seen.insert(number);
                most = most.max(uses());
            }
            (seen.len() > 1, most)
        });
        report("moved", seen.iter().filter(|(moved, _)| *moved).count());
        // May exceed ten: other fibers' uses are counted with this one's.
        report(
            "uses",
            seen.iter().map(|(_, uses)| *uses).max().unwrap_or(0),
        );
        report("threads", rt.metrics().carriers);
    });
}
