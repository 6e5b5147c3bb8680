//! The one benchmark shape that is rayon's: a parallel sum, on a pool of its own.

use std::process::ExitCode;

use indent_rivals::{Rival, WORKERS, mixed};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of rayon.
struct Rayon(ThreadPool);

impl Rival for Rayon {
    fn compute(&self, count: u64) -> u64 {
        let sum = || (0..count).into_par_iter().map(mixed);
        self.0.install(|| sum().reduce(|| 0, u64::wrapping_add))
    }
}

fn main() -> ExitCode {
    let pool = ThreadPoolBuilder::new()
        .num_threads(WORKERS)
        .build()
        .expect("the pool starts");
    indent_rivals::main(&Rayon(pool))
}
