//! Layer: `net`. The effect on 64 echo connections of a fiber that keeps its thread in the kernel.
//!
//! One fiber repeats a call that blocks its thread for a second; a plain thread sends 64 bytes to
//! one connection after the other and waits for each answer. Printed: median, 99th percentile and
//! maximum, for no such fiber, one that waits as `vfork` does, one that sleeps in an epoll of its
//! own, and one that computes. `INDENT_IO` selects the driver.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::net::TcpListener;
use indent::runtime::{Builder, Runtime};

#[path = "../tests/stuck/mod.rs"]
#[allow(unsafe_code, reason = "system calls of a thread that is stuck")]
mod stuck;

const CONNECTIONS: usize = 64;
const STUCK: Duration = Duration::from_secs(1);
/// Duration of each case.
const TIME: Duration = Duration::from_secs(3);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_micros(500);

static DISTURBED: AtomicUsize = AtomicUsize::new(0);

fn sleeps_in_epoll() {
    if stuck::in_epoll(STUCK).is_err() {
        DISTURBED.fetch_add(1, SeqCst);
    }
}

fn computes() {
    let begun = Instant::now();
    while begun.elapsed() < STUCK {
        std::hint::black_box((0..10_000).sum::<u64>());
    }
}

fn main() {
    let cases: [(&str, fn()); 4] = [
        ("nobody", || ()),
        ("vfork", || stuck::in_vfork(STUCK)),
        ("own epoll", sleeps_in_epoll),
        ("computes", computes),
    ];
    for (name, call) in cases {
        let rt = Builder::new().workers(2).build().expect("a runtime");
        let clients = connect(&rt);
        std::thread::sleep(Duration::from_millis(500)); // until the survey has ended
        let stop = Arc::new(AtomicBool::new(name == "nobody"));
        let stops = stop.clone();
        let fiber = rt.spawn(move || {
            while !stops.load(SeqCst) {
                call();
            }
        });
        let mut times = ask(clients);
        stop.store(true, SeqCst);
        fiber.join().expect("no panic");
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "{name:10} {:6} requests: p50 {:?}, p99 {:?}, max {:?}; calls ended early: {}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            DISTURBED.swap(0, SeqCst)
        );
    }
}

fn connect(rt: &Runtime) -> Vec<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    drop(rt.spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            drop(indent::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            }));
        }
    }));
    let connect = |_| TcpStream::connect(address).expect("a connection");
    (0..CONNECTIONS).map(connect).collect()
}

fn ask(mut clients: Vec<TcpStream>) -> Vec<Duration> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    for i in (0..CONNECTIONS).cycle() {
        if begun.elapsed() >= TIME {
            break;
        }
        let sent = Instant::now();
        clients[i].write_all(&[1; 64]).expect("sent");
        clients[i].read_exact(&mut [0; 64]).expect("an answer");
        times.push(sent.elapsed());
        std::thread::sleep(PAUSE);
    }
    times
}
