//! The one benchmark shape that is rayon's: a parallel sum, on a pool of its own.

use std::process::ExitCode;
use std::time::Duration;

use indent_rivals::{Gap, Rival, WORKERS, mixed};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of rayon.
struct Rayon(ThreadPool);

impl Rival for Rayon {
    fn compute(&self, count: u64) -> u64 {
        let sum = || (0..count).into_par_iter().map(mixed);
        self.0.install(|| sum().reduce(|| 0, u64::wrapping_add))
    }

    fn spawn_join(&self, _count: u64) -> u64 {
        unreachable!("rayon has no fibers")
    }

    fn yields(&self, _fibers: u64, _yields: u64) -> u64 {
        unreachable!("rayon has no fibers")
    }

    fn chain(&self, _count: u64) {
        unreachable!("rayon has no fibers")
    }

    fn wake(&self, _rounds: u64, _gap: Gap) -> Duration {
        unreachable!("rayon has no fibers")
    }
}

fn main() -> ExitCode {
    let pool = ThreadPoolBuilder::new()
        .num_threads(WORKERS)
        .build()
        .expect("the pool starts");
    indent_rivals::main(&Rayon(pool))
}
