//! State of a thread that a fiber holds while it sleeps: each fiber must find its own.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indent::runtime::Runtime;
use indent::sync::Barrier;
use indent::task::yield_now;
use indent::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

const FIBERS: u64 = 400;
const ROUNDS: u64 = 4;

/// Barrier at which each fiber waits while it holds its state, until all do.
static ALL_INSIDE: Barrier = Barrier::new(FIBERS as usize);

/// Runs many fibers at once, each with its number.
fn crowd(rt: &Runtime, body: impl Fn(u64) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let start = |n| {
        let body = body.clone();
        rt.spawn(move || body(n))
    };
    let fibers: Vec<_> = (0..FIBERS).map(start).collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

/// Sleeps or only yields, so that fibers come back in another order than they left.
fn pause(n: u64, round: u64) {
    match (n + round) % 3 {
        0 => yield_now(),
        more => sleep(Duration::from_millis(more * (n % 5))),
    }
}

scoped_tls::scoped_thread_local!(static NUMBER: u64);

/// Checks scopes that lend a value from the stack to a thread-local and restore the previous one.
pub(crate) fn scoped_tls(rt: &Runtime) {
    let own = |expected: u64| NUMBER.with(|number| assert_eq!(*number, expected));
    crowd(rt, move |n| {
        assert!(!NUMBER.is_set(), "another fiber's scope");
        NUMBER.set(&n, || {
            ALL_INSIDE.wait();
            for round in 0..ROUNDS {
                pause(n, round);
                own(n);
                let inner = n * 1000 + round;
                NUMBER.set(&inner, || {
                    pause(n, round + 1);
                    own(inner);
                });
                own(n);
            }
        });
        assert!(!NUMBER.is_set(), "another fiber's scope");
    });
}

thread_local! {
    static BUFFER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Checks a buffer that is kept for reuse and borrowed while it is filled.
pub(crate) fn ref_cell(rt: &Runtime) {
    crowd(rt, |n| {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            ALL_INSIDE.wait();
            for round in 0..ROUNDS {
                buffer.push(n * 1000 + round);
                pause(n, round);
            }
            let expected: Vec<_> = (0..ROUNDS).map(|round| n * 1000 + round).collect();
            assert_eq!(*buffer, expected);
        });
    });
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

/// Checks spans that are entered for a request and its steps, and left in the opposite order.
pub(crate) fn spans(rt: &Runtime) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_level(false)
        .with_writer(log.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).expect("the only subscriber");
    crowd(rt, |n| {
        let _request = tracing::info_span!("request", n).entered();
        ALL_INSIDE.wait();
        for round in 0..ROUNDS {
            tracing::info!("before {n}");
            pause(n, round);
            let _step = tracing::info_span!("step", round).entered();
            pause(n, round + 1);
            tracing::info!("in {n} {round}");
        }
    });
    let log = log.0.lock().unwrap();
    let mut found: Vec<_> = str::from_utf8(&log)
        .unwrap()
        .lines()
        .map(str::trim)
        .collect();
    let mut expected: Vec<_> = (0..FIBERS)
        .flat_map(|n| (0..ROUNDS).map(move |round| (n, round)))
        .flat_map(|(n, round)| {
            [
                format!("request{{n={n}}}: before {n}"),
                format!("request{{n={n}}}:step{{round={round}}}: in {n} {round}"),
            ]
        })
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    let wrong = found
        .iter()
        .zip(&expected)
        .find(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "a line in the wrong span");
    assert_eq!(found.len(), expected.len());
}
