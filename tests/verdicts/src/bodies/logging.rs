//! Logs and traces.
//!
//! `log` keeps its logger in a static. `tracing` first looks for a subscriber of the thread, in a
//! thread-local that is borrowed while the subscriber runs. A function that emits an event or makes
//! a span is harmless, for the borrow is over when it returns; the thread-local itself is not, for
//! `set_default` saves and restores it.
//!
//! A subscriber keeps an *entered* span in a thread-local until it is left. Where fibers have
//! thread-locals of their own, the span goes with the fiber. Where they have not, the call of the
//! subscriber through a pointer binds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{NoSubscriber, set_default};
use tracing::{Event, Metadata, Subscriber, info, info_span};

use super::{MOVABLE, OWN, each, table};
use crate::Probe;

table! {
    logged: MOVABLE;
    event_emitted: each("MMMBM");
    event_with_fields: each("MMMBM");
    span_made: each("M???M");
    span_entered: OWN;
    span_in_scope: OWN;
    default_subscriber_set: each("BOOOO");
}

fn logged(probe: &Probe) -> bool {
    let before = LINES.load(Relaxed);
    log::info!("seed {}", probe.seed);
    probe.park();
    log::warn!(target: "elsewhere", "{:?}", Some(probe.seed));
    LINES.load(Relaxed) >= before + 2
}

fn event_emitted(probe: &Probe) -> bool {
    info!("before");
    probe.park();
    info!("after");
    true
}

fn event_with_fields(probe: &Probe) -> bool {
    info!(seed = probe.seed, text = %"shown", list = ?[1, 2], "before");
    probe.park();
    info!(target: "elsewhere", seed = probe.seed, "after");
    true
}

fn span_made(probe: &Probe) -> bool {
    let span = info_span!("request", seed = probe.seed);
    probe.park();
    span.record("seed", 1);
    span.is_disabled() == span.id().is_none()
}

fn span_entered(probe: &Probe) -> bool {
    let span = info_span!("request", seed = probe.seed);
    let _entered = span.enter();
    probe.park();
    info!("inside");
    true
}

fn span_in_scope(probe: &Probe) -> bool {
    let span = info_span!("request", seed = probe.seed);
    span.in_scope(|| {
        probe.park();
        true
    })
}

fn default_subscriber_set(probe: &Probe) -> bool {
    let mine = set_default(NoSubscriber::default());
    let before = SPANS.load(Relaxed);
    probe.park();
    drop(mine);
    SPANS.load(Relaxed) >= before
}

static LINES: AtomicU64 = AtomicU64::new(0);
static SPANS: AtomicU64 = AtomicU64::new(0);

/// A subscriber and logger that formats and drops.
struct Sink;

impl log::Log for Sink {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let length = record.args().to_string().len() as u64;
        LINES.fetch_add(length.min(1), Relaxed);
    }

    fn flush(&self) {}
}

impl Subscriber for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1 + SPANS.fetch_add(1, Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Installs a logger and a subscriber that keep nothing, once for the whole process.
pub fn install_sinks() {
    if log::set_logger(&Sink).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
    let _ = tracing::subscriber::set_global_default(Sink);
}
