//! Runs more fibers in a span at once than the registry expects threads.
//!
//! `spans lines COUNT` writes a log into memory and looks for each fiber's span in its lines;
//! `spans registry COUNT` asks a registry without any layer for the current span. All fibers have
//! entered theirs before the first one continues.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indent::runtime::Runtime;
use indent::sync::Barrier;
use indent::{task, time};
use indent_exemptions::{crowd, number, report, run, thread};
use tracing::span::{EnteredSpan, Id};
use tracing::{Dispatch, Span, dispatcher, info, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;

const ROUNDS: usize = 3;

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let count = number(2);
    run(
        |builder| builder,
        |rt| match kind.as_str() {
            "lines" => lines(rt, count),
            "registry" => registry(rt, count),
            _ => panic!("not `lines` or `registry`: {kind:?}"),
        },
    );
}

/// Sleeps or only yields, so that fibers come back in another order than they left.
fn pause(number: usize, round: usize) {
    match (number + round) % 3 {
        0 => task::yield_now(),
        more => time::sleep(Duration::from_millis((more * (number % 5)) as u64)),
    }
}

#[inline(never)]
fn request(n: usize) -> EnteredSpan {
    info_span!("request", n).entered()
}

#[inline(never)]
fn step(round: usize) -> EnteredSpan {
    info_span!("step", round).entered()
}

#[inline(never)]
fn log_before(n: usize) {
    info!("before {n}");
}

#[inline(never)]
fn log_inside(n: usize, round: usize) {
    info!("in {n} {round}");
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

fn lines(rt: &Runtime, count: usize) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_level(false)
        .with_writer(log.clone());
    let subscriber = Dispatch::new(subscriber.finish());
    dispatcher::set_global_default(subscriber.clone()).expect("the only subscriber");
    let all_inside = Barrier::new(count);
    let of_fibers = crowd(rt, count, move |n| {
        let before = thread();
        let request = request(n);
        all_inside.wait();
        for round in 0..ROUNDS {
            log_before(n);
            pause(n, round);
            let _step = step(round);
            pause(n, round + 1);
            log_inside(n, round);
        }
        (thread() != before, request.id().expect("an id"))
    });
    let (moved, ids): (Vec<_>, Vec<_>) = of_fibers.into_iter().unzip();
    report_crowd(rt, &moved);
    let registry: &Registry = subscriber.downcast_ref().expect("a registry");
    let left = ids.iter().filter(|id| registry.span(id).is_some()).count();
    assert_eq!(left, 0, "spans that are not closed");

    let log = log.0.lock().unwrap();
    let text = str::from_utf8(&log).expect("text");
    let mut found: Vec<_> = text.lines().map(str::trim).collect();
    let steps = (0..count).flat_map(|n| (0..ROUNDS).map(move |round| (n, round)));
    let of_step = |(n, round)| {
        [
            format!("request{{n={n}}}: before {n}"),
            format!("request{{n={n}}}:step{{round={round}}}: in {n} {round}"),
        ]
    };
    let mut expected: Vec<_> = steps.flat_map(of_step).collect();
    found.sort_unstable();
    expected.sort_unstable();
    let mut pairs = found.iter().zip(&expected);
    let wrong = pairs.find(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "a line in the wrong span");
    assert_eq!(found.len(), expected.len());
    report("lines", found.len());
}

#[inline(never)]
fn current_id() -> Option<Id> {
    Span::current().id()
}

/// Returns the names of the current span and of those around it, from the registry itself.
#[inline(never)]
fn current(registry: &Dispatch) -> Vec<&'static str> {
    let registry: &Registry = registry.downcast_ref().expect("a registry");
    let current = dispatcher::get_default(Dispatch::current_span);
    let span = current.id().map(|id| registry.span(id).expect("it exists"));
    let scope = span.into_iter().flat_map(|span| span.scope());
    scope.map(|span| span.name()).collect()
}

fn registry(rt: &Runtime, count: usize) {
    let registry = Dispatch::new(Registry::default());
    dispatcher::set_global_default(registry.clone()).expect("the only subscriber");
    let all_inside = Barrier::new(count);
    let in_crowd = registry;
    let moved = crowd(rt, count, move |n| {
        let before = thread();
        assert!(current(&in_crowd).is_empty(), "another fiber's span");
        let inside = request(n);
        let id = inside.id().expect("an id");
        all_inside.wait();
        for round in 0..ROUNDS {
            pause(n, round);
            assert_eq!(current_id(), Some(id.clone()), "another's");
            let step = step(round);
            pause(n, round + 1);
            assert_eq!(current_id(), step.id(), "another's");
            assert_eq!(current(&in_crowd), ["step", "request"]);
            drop(step);
        }
        drop(inside);
        assert!(current(&in_crowd).is_empty(), "another fiber's span");
        thread() != before
    });
    report_crowd(rt, &moved);
}

fn report_crowd(rt: &Runtime, moved: &[bool]) {
    report("moved", moved.iter().filter(|moved| **moved).count());
    report("threads", rt.metrics().carriers);
}
