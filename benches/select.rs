//! Layer: `select`. One iteration = one message by a select of two, or one select that finds
//! nothing.
//!
//! - `select/ping`: a round trip as `chan/ping/1`, each side of it by a select of two.
//! - `select/ready`: one of two that are ready.
//! - `select/many/32`: one of 32 that is ready, by a builder that is used again.
//! - `select/default`: nothing is ready.
//!
//! Rivals: `select_pair` of `benches/rivals/run`.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::chan;
use indent::runtime::Builder;
use indent::select;
use indent::select::Select;

fn ping(n: u64) -> Duration {
    let (there, from_here) = chan::bounded::<u64>(1);
    let (back, from_there) = chan::bounded::<u64>(1);
    let (_tx, never) = chan::bounded::<u64>(1);
    let absent = never.clone();
    let other = indent::spawn(move || {
        loop {
            let value =
                select! { recv(&from_here) -> value => value, recv(&absent) -> value => value };
            match value {
                Ok(value) => back.send(value).unwrap(),
                Err(_) => return,
            }
        }
    });
    let start = Instant::now();
    for i in 0..n {
        there.send(i).unwrap();
        let value = select! { recv(&from_there) -> value => value, recv(&never) -> value => value };
        assert_eq!(value, Ok(i));
    }
    let time = start.elapsed();
    drop(there);
    other.join().unwrap();
    time
}

fn ready(n: u64) -> Duration {
    let channels = [chan::bounded(1), chan::bounded(1)];
    let start = Instant::now();
    for i in 0..n {
        channels[(i % 2) as usize].0.send(i).unwrap();
        let value = select! {
            recv(&channels[0].1) -> value => value,
            recv(&channels[1].1) -> value => value,
        };
        assert_eq!(value, Ok(i));
    }
    start.elapsed()
}

fn many(n: u64) -> Duration {
    let channels: Vec<_> = (0..32).map(|_| chan::bounded(1)).collect();
    let mut select = Select::new();
    let arms: Vec<_> = channels.iter().map(|(_, rx)| select.recv(rx)).collect();
    let start = Instant::now();
    for i in 0..n {
        let at = (i % 32) as usize;
        channels[at].0.send(i).unwrap();
        assert_eq!(select.select().complete(arms[at]), Ok(i));
    }
    start.elapsed()
}

fn nothing(n: u64) -> Duration {
    let channels = [chan::bounded::<u64>(1), chan::bounded(1)];
    let start = Instant::now();
    for _ in 0..n {
        let found = select! {
            recv(&channels[0].1) -> _value => true,
            recv(&channels[1].1) -> _value => true,
            default => false,
        };
        assert!(!found);
    }
    start.elapsed()
}

fn bench(criterion: &mut Criterion) {
    let one = Builder::new().workers(1).build().expect("a runtime");
    let mut case = |name: &str, times: fn(u64) -> Duration| {
        criterion.bench_function(name, |b| b.iter_custom(|n| one.block_on(|| times(n))));
    };
    case("select/ping", ping);
    case("select/ready", ready);
    case("select/many/32", many);
    case("select/default", nothing);
}

criterion_group!(benches, bench);
criterion_main!(benches);
