//! The heartbeat on tokio, for two programs: with the hogs in tasks, where they keep the workers for
//! ever, and on the threads of `spawn_blocking`, where its documentation wants them.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::WORKERS;
use crate::beat::{Bell, Heart, Wake};

/// A runtime of tokio, with its hogs on the threads of `spawn_blocking` or not.
#[derive(Debug)]
pub struct Tokio<const BLOCKING: bool>(Runtime);

impl<const BLOCKING: bool> Heart for Tokio<BLOCKING> {
    const NAME: &'static str = if BLOCKING { "tokio_blocking" } else { "tokio" };

    fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).build();
        Tokio(runtime.expect("the runtime starts"))
    }

    fn beat(&self, bell: Arc<Bell>) -> Wake {
        let notify = Arc::new(Notify::new());
        let rung = notify.clone();
        drop(self.0.spawn(async move {
            while !bell.is_over() {
                rung.notified().await;
                bell.answer();
            }
        }));
        Arc::new(move || notify.notify_one())
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static) {
        if BLOCKING {
            drop(self.0.spawn_blocking(body));
        } else {
            drop(self.0.spawn(async move { body() }));
        }
    }

    fn end(self) {
        self.0.shutdown_timeout(Duration::from_secs(5));
    }
}
