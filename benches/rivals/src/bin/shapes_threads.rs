//! The benchmark shapes on plain threads, which have channels and a mutex too.
//!
//! Called as `shapes_threads LIBRARY SHAPE [OPS]`, where the library is that of the channels: `std`,
//! `crossbeam` or `flume`.

use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use indent_rivals::{Begin, LOCKING_FIBERS, MPSC_CAPACITY, PRODUCERS, Rival};

/// Both ends of a channel of a library.
trait Channels {
    /// The end that sends, and is cloned for each thread that does.
    type Sender: Clone + Send;
    /// The end that receives.
    type Receiver: Send;

    /// A channel with this capacity.
    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver);

    /// Waits until there is room, and panics if nobody receives any more.
    fn send(tx: &Self::Sender, number: u64);

    /// Waits until there is something; nothing, if nobody sends any more.
    fn receive(rx: &Self::Receiver) -> Option<u64>;

    /// The same, from the first of two channels that has something.
    ///
    /// # Panics
    ///
    /// Panics where there is no such thing; `run` does not ask then.
    fn select(_of: [&Self::Receiver; 2]) -> Option<u64> {
        panic!("no select");
    }
}

/// The standard library.
struct Std;

impl Channels for Std {
    type Sender = mpsc::SyncSender<u64>;
    type Receiver = mpsc::Receiver<u64>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        mpsc::sync_channel(capacity)
    }

    fn send(tx: &Self::Sender, number: u64) {
        tx.send(number).expect("somebody receives");
    }

    fn receive(rx: &Self::Receiver) -> Option<u64> {
        rx.recv().ok()
    }
}

/// The crate crossbeam-channel.
struct Crossbeam;

impl Channels for Crossbeam {
    type Sender = crossbeam_channel::Sender<u64>;
    type Receiver = crossbeam_channel::Receiver<u64>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        crossbeam_channel::bounded(capacity)
    }

    fn send(tx: &Self::Sender, number: u64) {
        tx.send(number).expect("somebody receives");
    }

    fn receive(rx: &Self::Receiver) -> Option<u64> {
        rx.recv().ok()
    }

    fn select([one, other]: [&Self::Receiver; 2]) -> Option<u64> {
        crossbeam_channel::select! {
            recv(one) -> number => number.ok(),
            recv(other) -> number => number.ok(),
        }
    }
}

/// The crate flume.
struct Flume;

impl Channels for Flume {
    type Sender = flume::Sender<u64>;
    type Receiver = flume::Receiver<u64>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        flume::bounded(capacity)
    }

    fn send(tx: &Self::Sender, number: u64) {
        tx.send(number).expect("somebody receives");
    }

    fn receive(rx: &Self::Receiver) -> Option<u64> {
        rx.recv().ok()
    }

    fn select([one, other]: [&Self::Receiver; 2]) -> Option<u64> {
        flume::Selector::new()
            .recv(one, Result::ok)
            .recv(other, Result::ok)
            .wait()
    }
}

/// Two threads exchange `count` numbers, the second of which receives by `receive`.
fn pair<C: Channels>(count: u64, receive: impl Fn(&C::Receiver) -> Option<u64> + Send) -> Duration {
    let (there, from_here) = C::bounded(1);
    let (back, from_there) = C::bounded(1);
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Some(number) = receive(&from_here) {
                C::send(&back, number);
            }
        });
        let start = Instant::now();
        for number in 0..count {
            C::send(&there, number);
            assert_eq!(C::receive(&from_there), Some(number));
        }
        drop(there);
        start.elapsed()
    })
}

/// Plain threads with the channels of a library.
struct Threads<C>(C);

impl<C: Channels> Rival for Threads<C> {
    fn chan_pair(&self, count: u64, _begin: Begin) -> Duration {
        pair::<C>(count, C::receive)
    }

    fn select_pair(&self, count: u64) -> Duration {
        let (_open, never) = C::bounded(1);
        pair::<C>(count, move |rx| C::select([rx, &never]))
    }

    fn chan_mpsc(&self, each: u64) -> u64 {
        let (tx, rx) = C::bounded(MPSC_CAPACITY);
        thread::scope(|scope| {
            for _ in 0..PRODUCERS {
                let tx = tx.clone();
                scope.spawn(move || (0..each).for_each(|number| C::send(&tx, number)));
            }
            drop(tx);
            std::iter::from_fn(|| C::receive(&rx)).sum()
        })
    }

    fn mutex(&self, each: u64) -> u64 {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..LOCKING_FIBERS {
                scope.spawn(|| {
                    (0..each).for_each(|_| *mutex.lock().expect("no thread panics") += 1);
                });
            }
        });
        mutex.into_inner().expect("no thread panics")
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("std") => indent_rivals::main_with(&Threads(Std), args),
        Some("crossbeam") => indent_rivals::main_with(&Threads(Crossbeam), args),
        Some("flume") => indent_rivals::main_with(&Threads(Flume), args),
        _ => {
            eprintln!("usage: shapes_threads std|crossbeam|flume SHAPE [OPS]");
            ExitCode::from(2)
        }
    }
}
