//! A fiber that waits for a descriptor is notified at once, whatever the last polling thread does.
//!
//! This holds with each I/O driver, with one difference: a request in an io_uring ring is completed
//! by the thread that submitted it. While that thread computes or is frozen, the kernel interrupts
//! it for the completion. While it sleeps in a system call of its own, that call may end early
//! (`EINTR`). While nothing can wake it (`vfork`), the request waits for it. With epoll nothing
//! depends on that thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indent::io::pipe;
use indent::runtime::Runtime;
use indent::task;

mod common;
mod sockets;
#[allow(unsafe_code, reason = "system calls of a thread that is stuck")]
mod stuck;

use common::{wait_for, within};
use sockets::{start, wait_for_waiters};

const CONNECTIONS: usize = 64;
const STUCK: Duration = Duration::from_secs(1);

const EPOLL: &str = "epoll";
const URING: &str = "uring";

/// Starts an echo server with a fiber for each connection.
fn echo(rt: &Runtime, connections: usize) -> Vec<TcpStream> {
    let address = sockets::serve_echoes(rt);
    let clients = (0..connections).map(|_| TcpStream::connect(address).unwrap());
    let clients: Vec<_> = clients.collect();
    wait_for_waiters(rt, connections + 1);
    clients
}

/// Sends to all connections and reads all answers, in rounds, until `stop` is set.
///
/// Returns how long the longest round took, and the number of rounds.
fn rounds(mut clients: Vec<TcpStream>, stop: &AtomicBool) -> (Duration, usize) {
    let (mut longest, mut rounds) = (Duration::ZERO, 0);
    while !stop.load(SeqCst) {
        let begun = Instant::now();
        for (i, client) in clients.iter_mut().enumerate() {
            client.write_all(&[i as u8; 64]).unwrap();
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 64];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [i as u8; 64]);
        }
        longest = longest.max(begun.elapsed());
        rounds += 1;
    }
    (longest, rounds)
}

/// Echoes while a fiber on each worker is stuck: no round takes longer than `most`.
///
/// Such tests run one after the other: they measure which thread waits for which, not how many
/// share a CPU.
fn echoes_go_on_beside(stuck: fn(), driver: &str, most: Duration) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    within(60, || {
        for workers in [1, 2] {
            let rt = start(driver, workers);
            common::wait_for_the_survey(); // earlier, no fiber leaves a stuck carrier
            let clients = echo(&rt, CONNECTIONS);
            let stop = Arc::new(AtomicBool::new(false));
            let stops = stop.clone();
            let load = std::thread::spawn(move || rounds(clients, &stops));
            let fibers: Vec<_> = (0..workers).map(|_| rt.spawn(stuck)).collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            stop.store(true, SeqCst);
            let (longest, rounds) = load.join().unwrap();
            assert!(longest < most, "{longest:?}, the longest of {rounds}");
            assert!(rounds > 3 || most > STUCK, "{rounds}");
            println!("{driver}, {workers} workers: {longest:?}, the longest of {rounds}");
        }
    });
}

/// The longest round if no stuck fiber delays it.
///
/// A round that waited for a stuck fiber would take all of that fiber's time. Where many threads
/// share a CPU, half of that time proves nothing.
const PROMPT: Duration = Duration::from_millis(900);

#[test]
fn echoes_go_on_beside_a_fiber_that_waits_for_a_vfork() {
    echoes_go_on_beside(|| stuck::in_vfork(STUCK), EPOLL, PROMPT);
}

#[test]
fn with_a_ring_echoes_wait_at_most_for_a_fiber_in_vfork() {
    echoes_go_on_beside(|| stuck::in_vfork(STUCK), URING, 5 * STUCK);
}

#[test]
fn echoes_go_on_beside_a_fiber_in_an_epoll_of_its_own_and_do_not_disturb_it() {
    let waits = || assert_eq!(stuck::in_epoll(STUCK).unwrap(), 0);
    echoes_go_on_beside(waits, EPOLL, PROMPT);
}

#[test]
fn with_a_ring_echoes_go_on_beside_a_fiber_in_an_epoll_which_may_end_early() {
    let waits = || {
        let begun = Instant::now();
        while begun.elapsed() < STUCK {
            let end = stuck::in_epoll(STUCK - begun.elapsed().min(STUCK));
            assert!(end.map_or_else(|e| e.kind() == ErrorKind::Interrupted, |n| n == 0));
        }
    };
    echoes_go_on_beside(waits, URING, PROMPT);
}

#[test]
fn echoes_go_on_beside_fibers_that_compute() {
    let computes = || {
        let begun = Instant::now();
        while begun.elapsed() < STUCK {
            std::hint::black_box((0..1000).sum::<u64>());
        }
    };
    echoes_go_on_beside(computes, EPOLL, PROMPT);
    echoes_go_on_beside(computes, URING, PROMPT);
}

#[test]
fn a_reader_goes_on_while_the_only_worker_computes() {
    reads_beside_a_hog(EPOLL);
    reads_beside_a_hog(URING);
}

fn reads_beside_a_hog(driver: &str) {
    within(60, || {
        let rt = start(driver, 1);
        let (mut reader, writer) = pipe().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let read = rt.spawn(move || {
            reader.read_exact(&mut [0]).unwrap();
            stops.store(true, SeqCst);
        });
        wait_for_waiters(&rt, 1);
        let hog = rt.spawn(move || {
            while !stop.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(Duration::from_millis(50)); // until its dispatch counts as long
        (&writer).write_all(&[1]).unwrap();
        read.join().unwrap();
        hog.join().unwrap();
    });
}

#[test]
fn a_reader_is_notified_although_its_worker_has_retired() {
    reads_after_its_worker_retired(EPOLL);
    reads_after_its_worker_retired(URING);
}

fn reads_after_its_worker_retired(driver: &str) {
    within(60, || {
        let rt = start(driver, 4);
        let pipes: Vec<_> = (0..16).map(|_| pipe().unwrap()).collect();
        let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let readers: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(i, mut reader)| {
                let body = move || (0..2).for_each(|_| reader.read_exact(&mut [0]).unwrap());
                rt.block_on(|| task::Builder::new().worker(i % 4).spawn(body))
            })
            .collect();
        wait_for_waiters(&rt, readers.len());
        rt.handle().resize(1);
        wait_for("one worker", || rt.metrics().workers_in_service == 1);
        for _ in 0..2 {
            wait_for_waiters(&rt, readers.len());
            for mut writer in &writers {
                writer.write_all(&[1]).unwrap();
            }
        }
        readers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}
