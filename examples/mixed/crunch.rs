//! The large request: some CPU time of ordinary Rust.
//!
//! A round generates random orders, writes them as JSON, reads them again, finds customers in their
//! notes with a regular expression, and adds up the debts of each in a hash map. It knows nothing
//! of fibers. The number of rounds that make up the wanted CPU time is measured once, at the start,
//! on this machine.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use regex::Regex;
use serde_json::{Value, json};

/// Orders in a round.
const ORDERS: usize = 50;
/// Rounds that are timed together, and the number of measurements, of which the median counts.
const BATCH: u32 = 50;
const BATCHES: usize = 15;

/// Number of rounds so far.
///
/// Requests that take turns all end late, but work is done from the beginning.
static DONE: AtomicU64 = AtomicU64::new(0);

static CUSTOMER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"customer-(\d+)").expect("it is one"));

/// Amount of work of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crunch {
    rounds: u32,
}

impl Crunch {
    /// Measures how many rounds take this CPU time here, on a thread like those of the service.
    pub(crate) fn of(time: Duration) -> Crunch {
        round(); // the first user of a regular expression gets a faster one
        let measured = std::thread::spawn(move || Crunch::measured(time));
        measured.join().expect("a round does not panic")
    }

    fn measured(time: Duration) -> Crunch {
        let mut batches = [(); BATCHES].map(|()| {
            let before = cpu_time();
            for _ in 0..BATCH {
                black_box(round());
            }
            cpu_time() - before
        });
        batches.sort();
        let one = batches[BATCHES / 2].as_secs_f64() / f64::from(BATCH);
        let rounds = (time.as_secs_f64() / one).round();
        Crunch {
            rounds: (rounds as u32).max(1),
        }
    }

    /// Computes a result that has no use, but has to be computed.
    pub(crate) fn run(self) -> u64 {
        (0..self.rounds).fold(0, |sum, _| {
            DONE.fetch_add(1, Relaxed);
            sum ^ round()
        })
    }

    /// Returns how many requests' worth of work the whole process has done so far.
    pub(crate) fn done(self) -> f64 {
        DONE.load(Relaxed) as f64 / f64::from(self.rounds)
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every thread has a CPU clock")
        .into()
}

fn round() -> u64 {
    let orders: Vec<_> = (0..ORDERS).map(|_| order()).collect();
    let text = serde_json::to_string(&orders).expect("it is plain data");
    let orders: Vec<Value> = serde_json::from_str(&text).expect("we have just written it");
    let mut totals = HashMap::new();
    for order in &orders {
        let note = order["note"].as_str().expect("every order has a note");
        let customer = CUSTOMER.captures(note).expect("a note names a customer");
        let owes = order["amount"].as_u64().zip(order["price"].as_u64());
        let (amount, price) = owes.expect("they are numbers");
        *totals.entry(customer[1].to_owned()).or_insert(0) += amount * price;
    }
    let mut totals: Vec<_> = totals.into_iter().collect();
    totals.sort();
    let (customer, total) = totals.last().expect("there are orders");
    total.rotate_left(customer.len() as u32)
}

fn order() -> Value {
    let customer: u8 = rand::random();
    json!({
        "amount": rand::random::<u16>(),
        "price": rand::random::<u16>(),
        "note": format!("for customer-{customer}, with care"),
    })
}
