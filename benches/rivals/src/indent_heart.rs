//! The heartbeat on indent: everything in fibers.

use std::sync::Arc;

use indent::{Runtime, park, runtime};

use crate::WORKERS;
use crate::beat::{Bell, Heart, Wake};

/// A runtime of indent.
#[derive(Debug)]
pub struct Indent(pub Runtime);

impl Heart for Indent {
    const NAME: &'static str = "indent";

    fn start() -> Self {
        let builder = runtime::Builder::new().workers(WORKERS);
        Indent(builder.build().expect("the runtime starts"))
    }

    fn beat(&self, bell: Arc<Bell>) -> Wake {
        let beating = self.0.spawn(move || {
            while !bell.is_over() {
                park::park();
                bell.answer();
            }
        });
        let unparker = beating.unparker();
        Arc::new(move || unparker.unpark())
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static) {
        drop(self.0.spawn(body));
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        let metrics = self.0.metrics();
        vec![
            ("overruns", metrics.overruns_total),
            ("freezes", metrics.freezes_total),
            ("detaches", metrics.detaches_total),
            ("retries", metrics.preemptions_postponed_total),
        ]
    }

    fn end(self) {
        self.0.wait_idle();
    }
}
