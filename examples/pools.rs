//! Calls that block and computations, beside fibers that they do not delay.
//!
//! A thousand fibers call a function that blocks for 50 ms: the pool takes them in two rounds, with
//! no more threads than allowed, and then ends the threads. Then 64 fibers compute at once: no more
//! at a time than there are CPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::runtime::{self, Builder};
use indent::time;

const CALLS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(50);
const COMPUTATIONS: usize = 64;

/// Number of calls inside now, and the most there have been.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        self.most
            .fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let result = f();
        self.now.fetch_sub(1, SeqCst);
        result
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Builder::new()
        .blocking_keep_alive(Duration::from_millis(200))
        .build()?;
    let handle = rt.handle().clone();
    rt.block_on(move || {
        let blocked = Arc::new(Inside::default());
        let start = Instant::now();
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let blocked = blocked.clone();
                indent::spawn(move || {
                    runtime::blocking(|| blocked.during(|| std::thread::sleep(PAUSE)));
                })
            })
            .collect();
        // Meanwhile a fiber that sleeps for a millisecond is not delayed.
        let mut latest = Duration::ZERO;
        while blocked.now.load(SeqCst) > 0 || !calls.iter().all(|call| call.is_finished()) {
            let due = Instant::now() + Duration::from_millis(1);
            time::sleep_until(due);
            latest = latest.max(due.elapsed());
        }
        calls
            .into_iter()
            .for_each(|call| call.join().expect("no panic"));
        let took = start.elapsed();
        println!("{CALLS} calls that block for {PAUSE:?} took {took:.0?}");
        println!(
            "  calls at the same time      {:>8}",
            blocked.most.load(SeqCst)
        );
        println!("  a sleep beside them, late by {latest:>7.1?} at most");
        time::sleep(Duration::from_millis(600));
        let metrics = handle.metrics();
        let left = metrics.blocking_threads_active + metrics.blocking_threads_idle;
        println!("  threads left afterwards     {left:>8}");

        let computing = Arc::new(Inside::default());
        let calls: Vec<_> = (0..COMPUTATIONS as u64)
            .map(|i| {
                let computing = computing.clone();
                indent::spawn(move || {
                    runtime::compute(|| {
                        computing.during(|| {
                            (0..2_000_000u64).fold(i, |a, b| a.wrapping_mul(31).wrapping_add(b))
                        })
                    })
                })
            })
            .collect();
        let mixed = calls.into_iter().map(|call| call.join().expect("no panic"));
        println!(
            "{COMPUTATIONS} computations (result {:016x})",
            mixed.fold(0, u64::wrapping_add)
        );
        println!(
            "  at the same time            {:>8}",
            computing.most.load(SeqCst)
        );
        println!("  CPUs                        {:>8}", metrics.cpus_allowed);
    });
    Ok(())
}
