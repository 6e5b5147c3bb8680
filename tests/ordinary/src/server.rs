//! A server that answers pings while other connections make it compute.
//!
//! A fiber for each connection reads lines. It answers `ping N` immediately with `pong N`. It
//! answers `crunch N` after it has counted words with the crates of a service: JSON in a map, a
//! hash map with random keys, random numbers and a regex.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use indent::net::{TcpListener, TcpStream};
use indent::runtime::Runtime;
use regex::Regex;
use serde_json::{Map, Value, json};

/// Connections that ping, and the pings of each.
const PINGERS: usize = 4;
const PINGS: usize = 50;
/// Parts of a limited crunch.
const PARTS: usize = 20;

/// Checks that every ping is answered while crunches run that do not end before.
pub(crate) fn pings_beside_endless_crunches(rt: &Runtime, crunches: usize) {
    serve(rt, crunches, usize::MAX);
}

/// Checks that every ping and every crunch is answered.
pub(crate) fn pings_beside_crunches(rt: &Runtime, crunches: usize) {
    serve(rt, crunches, PARTS);
}

/// Serves clients on plain threads; the crunches may stop when all pings have been answered.
fn serve(rt: &Runtime, crunches: usize, parts: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    drop(rt.spawn(move || {
        for stream in listener.incoming() {
            let (stream, stopped) = (stream.unwrap(), stopped.clone());
            drop(indent::spawn(move || connection(&stream, &stopped)));
        }
    }));
    thread::scope(|scope| {
        let crunch = || scope.spawn(|| ask(address, [format!("crunch {parts}")]));
        let crunching: Vec<_> = (0..crunches).map(|_| crunch()).collect();
        let ping = |n| (0..PINGS).map(move |i| format!("ping {}", n * PINGS + i));
        let pinging: Vec<_> = (0..PINGERS)
            .map(|n| scope.spawn(move || ask(address, ping(n))))
            .collect();
        for (n, answers) in pinging.into_iter().enumerate() {
            let pong: Vec<_> = ping(n).map(|ping| ping.replace("ping", "pong")).collect();
            assert_eq!(answers.join().unwrap(), pong);
        }
        stop.store(true, SeqCst);
        for answers in crunching {
            assert_eq!(answers.join().unwrap(), ["right"]);
        }
    });
}

/// Sends lines one after the other and returns the answer to each.
fn ask(address: SocketAddr, questions: impl IntoIterator<Item = String>) -> Vec<String> {
    let stream = std::net::TcpStream::connect(address).unwrap();
    let mut answers = BufReader::new(&stream).lines();
    let ask = |question: String| {
        (&stream).write_all((question + "\n").as_bytes()).unwrap();
        answers.next().unwrap().unwrap()
    };
    questions.into_iter().map(ask).collect()
}

/// Runs the server's side of a connection.
fn connection(stream: &TcpStream, stop: &AtomicBool) {
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let answer = match line.split_once(' ') {
            Some(("ping", number)) => format!("pong {number}\n"),
            Some(("crunch", parts)) => crunch(parts.parse().unwrap(), stop),
            _ => panic!("{line:?} is no request"),
        };
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// Computes this many parts, or until it may stop if there is no limit; never blocks.
fn crunch(parts: usize, stop: &AtomicBool) -> String {
    let mut part = 0;
    while part < parts && (parts != usize::MAX || !stop.load(SeqCst)) {
        let right = words() == 100;
        if !right {
            return "wrong\n".to_owned();
        }
        part += 1;
    }
    "right\n".to_owned()
}

/// Counts the words in a generated text, written as JSON and read again.
fn words() -> u64 {
    let regex = Regex::new(r"\b[a-z]+\d\b").unwrap();
    let text: Vec<_> = (0..100)
        .map(|_| format!("word{}", rand::random_range(0..10)))
        .collect();
    let written = json!({ "text": text.join(" "), "length": 100 }).to_string();
    let read: Map<String, Value> = serde_json::from_str(&written).unwrap();
    let mut counts = HashMap::new();
    for word in regex.find_iter(read["text"].as_str().unwrap()) {
        *counts.entry(word.as_str()).or_insert(0) += 1;
    }
    counts.values().sum()
}
