//! Watches a Tokio runtime: which task's poll blocks its worker thread, for how long, and where.
//!
//! ```text
//! cargo run --release -p indent-ecosystem --bin tokio_stalls
//! ```
//!
//! Three kinds of tasks sleep and work by turns. Two of them behave as tasks should. One poll in
//! ten of the third computes for 50 ms without an `.await`, and all other tasks of that thread
//! wait.
//!
//! The setup: `on_thread_start` enlists each worker thread, and [`Watched`] around a future names
//! the task whose poll runs. (Tokio's own hooks around polls, `on_before_task_poll` and
//! `on_after_task_poll`, would do without the wrapper; they need `--cfg tokio_unstable`.)

use std::cell::OnceCell;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use indent_sysmon::stalls::{Enlisted, Stall, Stalls};
use tokio::time::sleep;

/// A poll that takes longer is reported.
pub(crate) const LIMIT: Duration = Duration::from_millis(10);
/// Length of the planted stall.
const PLANTED: Duration = Duration::from_millis(50);

thread_local! {
    /// Entry of a worker thread.
    static ENLISTED: OnceCell<Enlisted> = const { OnceCell::new() };
}

/// A future with a name: each of its polls is a piece of work of this label.
struct Watched<F> {
    name: &'static str,
    future: Pin<Box<F>>, // a crate for pinned fields would save the box
}

impl<F> Watched<F> {
    fn new(name: &'static str, future: F) -> Self {
        let future = Box::pin(future);
        Watched { name, future }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        ENLISTED.with(|enlisted| {
            let _job = enlisted.get().map(|enlisted| enlisted.begin(self.name));
            self.future.as_mut().poll(context)
        })
    }
}

/// A good task: it waits for a time, and does little.
async fn answers_pings() {
    loop {
        sleep(Duration::from_millis(1)).await;
        black_box((0..1000u64).sum::<u64>());
    }
}

/// A good task that computes too, but yields the thread now and then.
async fn sorts_in_pieces() {
    loop {
        sleep(Duration::from_millis(5)).await;
        for _ in 0..20 {
            black_box((0..10_000u64).fold(0, |x, i| x ^ black_box(i)));
            tokio::task::yield_now().await;
        }
    }
}

/// The bad task: nine polls in ten are quick.
async fn resizes_images() {
    for image in 1.. {
        sleep(Duration::from_millis(10)).await;
        if image % 10 == 0 {
            resizes_a_large_one();
        }
    }
}

#[inline(never)]
fn resizes_a_large_one() {
    let began = Instant::now();
    while began.elapsed() < PLANTED {
        black_box((0..10_000u64).fold(0, |x, i| x ^ black_box(i)));
    }
    black_box(began); // no tail call: the frame stays
}

/// Runs all tasks for some time, and passes every report to `tell`.
pub(crate) fn demonstrate(
    time: Duration,
    tell: impl Fn(&Stall) + Send + Sync + 'static,
) -> std::io::Result<()> {
    let stalls = Arc::new(Stalls::start(LIMIT, tell)?);
    let watching = stalls.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .on_thread_start(move || {
            // Threads for blocking calls are enlisted too, and never begin a piece of work.
            let enlisted = watching.enlist().expect("room for this thread");
            ENLISTED.with(|own| own.set(enlisted).expect("a new thread"));
        })
        .build()?;
    for _ in 0..10 {
        runtime.spawn(Watched::new("pings", answers_pings()));
    }
    runtime.spawn(Watched::new("sorting", sorts_in_pieces()));
    runtime.spawn(Watched::new("images", resizes_images()));
    runtime.block_on(async { sleep(time).await });
    Ok(())
}

#[cfg_attr(
    test,
    allow(dead_code, reason = "the tests demonstrate, and look at what is told")
)]
fn main() -> std::io::Result<()> {
    demonstrate(Duration::from_secs(1), |stall| print!("{stall}"))
}
