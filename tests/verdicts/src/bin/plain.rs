//! A program that computes and parks, and uses nothing but std's numbers and vectors.
//!
//! ```text
//! cargo run --release -p indent-verdicts --bin plain [-- --statistics]
//! ```

use indent::runtime::Builder;
use indent_verdicts::statistics;

const FIBERS: u64 = 2000;

fn main() {
    statistics::begin();
    let runtime = Builder::new().build().expect("a runtime");
    let fibers: Vec<_> = (0..FIBERS)
        .map(|n| runtime.spawn(move || primes(n)))
        .collect();
    let found: usize = fibers
        .into_iter()
        .map(|fiber| fiber.join().expect("no fiber panics"))
        .sum();
    println!("{found} primes below {FIBERS}, counted once for each number");
    statistics::print();
}

/// Counts the primes below `n`, with a pause now and then.
fn primes(n: u64) -> usize {
    let mut found: Vec<u64> = Vec::new();
    for candidate in 2..n {
        if candidate % 500 == 0 {
            statistics::pause();
        }
        let mut small = found.iter().take_while(|p| **p * **p <= candidate);
        if small.all(|p| candidate % p != 0) {
            found.push(candidate);
        }
    }
    statistics::pause();
    found.len()
}
