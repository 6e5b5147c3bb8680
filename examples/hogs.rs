//! A small service with one bad handler, and the runtime's report that names it.
//!
//! ```text
//! cargo run --release --example hogs
//! ```
//!
//! A generator sends requests, each to the handler of its path, on a fiber of its own. Three
//! handlers do a little work, wait for another service, and do a little more work. The fourth looks
//! the same from outside, but makes a report in an ordinary function that hashes and sorts for 80
//! ms. It never yields, and need not: the runtime preempts it, and the others are served on time.
//! The runtime reports the fiber as it happens, and in a table at the end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Overrun};
use indent::time::sleep;

const WORKERS: usize = 2;
const REQUESTS: usize = 1_200;
const EVERY: Duration = Duration::from_millis(2);
/// One request in `BAD` is for the bad handler.
const BAD: usize = 60;
const PATHS: [&str; 4] = ["/ping", "/user", "/search", "/report"];

/// Times of requests to each path.
type Latencies = Arc<[Mutex<Vec<Duration>>; 4]>;

fn main() {
    let seen: Arc<Mutex<Vec<Overrun>>> = Arc::default();
    let reports = seen.clone();
    let runtime = Builder::new()
        .workers(WORKERS)
        .on_overrun(move |overrun| reports.lock().expect("no panic").push(overrun.clone()))
        .build()
        .expect("a runtime");

    let latencies = Latencies::default();
    println!("{REQUESTS} requests, one every {EVERY:?}, on {WORKERS} workers\n");
    runtime.block_on(|| generate(&latencies));

    println!("path       requests      median        99 %       worst");
    for (path, latencies) in PATHS.iter().zip(&*latencies) {
        print_row(path, &mut latencies.lock().expect("no panic"));
    }
    println!("\nFibers that ran for too long:\n\n{}", runtime.overruns());
    drop(runtime); // the last reports arrive

    let seen = seen.lock().expect("no panic");
    if let Some(longest) = seen.iter().max_by_key(|overrun| overrun.ran) {
        println!("\nThe longest of {} reports:\n\n{longest}", seen.len());
    }
}

/// Sends requests and waits for the last of them.
fn generate(latencies: &Latencies) {
    let start = Instant::now();
    let mut requests = Vec::new();
    for i in 0..REQUESTS {
        let path = if i % BAD == BAD / 2 { 3 } else { i % 3 };
        let (latencies, arrived) = (latencies.clone(), Instant::now());
        requests.push(indent::spawn(move || {
            handle(PATHS[path]);
            let took = arrived.elapsed();
            latencies[path].lock().expect("no panic").push(took);
        }));
        sleep((start + EVERY * i as u32).saturating_duration_since(Instant::now()));
    }
    for request in requests {
        request.join().expect("no panic");
    }
}

fn handle(path: &str) {
    match path {
        "/ping" => ping(),
        "/user" => look_up_user(),
        "/search" => search(),
        _ => make_report(),
    }
}

fn ping() {
    work(Duration::from_micros(20));
}

fn look_up_user() {
    work(Duration::from_micros(50));
    sleep(Duration::from_millis(1)); // stands for a database
    work(Duration::from_micros(50));
}

fn search() {
    work(Duration::from_micros(200));
    sleep(Duration::from_millis(2)); // stands for an index
    work(Duration::from_micros(100));
}

/// Makes a report: the bad function. With ten lines, as in a test, it is fast enough.
#[inline(never)]
fn make_report() {
    let begun = Instant::now();
    let mut lines: Vec<u64> = Vec::new();
    while begun.elapsed() < Duration::from_millis(80) {
        for line in 0..2_000_u64 {
            let mut hasher = DefaultHasher::new();
            (line, lines.len()).hash(&mut hasher);
            lines.push(hasher.finish());
        }
        lines.sort_unstable();
        lines.truncate(20_000);
    }
    black_box(lines);
}

fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        black_box((0..100_u64).fold(1, |x: u64, i| x.wrapping_mul(i | 1) ^ black_box(i)));
    }
}

fn print_row(path: &str, latencies: &mut [Duration]) {
    latencies.sort_unstable();
    let at = |percent: usize| {
        let nth = latencies.len().saturating_sub(1) * percent / 100;
        let took = latencies.get(nth).copied().unwrap_or_default();
        format!("{:.2} ms", 1e3 * took.as_secs_f64())
    };
    let (median, most, worst) = (at(50), at(99), at(100));
    let n = latencies.len();
    println!("{path:<10}{n:>9}{median:>12}{most:>12}{worst:>12}");
}
