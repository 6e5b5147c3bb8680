//! Runtimes and pools that keep a context for each thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use rayon::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::body::{Me, Outcome, ensure};
use crate::step::{again, step};

/// Contexts that are entered one in the other; runtimes differ in their number of workers.
pub(crate) fn tokio_enter(me: &Me) -> Outcome {
    static RUNTIMES: LazyLock<Vec<Runtime>> = LazyLock::new(|| {
        let of = |workers| Builder::new_multi_thread().worker_threads(workers).build();
        let all = (1..=3).map(|workers| of(workers).expect("a runtime"));
        all.collect()
    });
    let entered = || Handle::try_current().map_or(0, |handle| handle.metrics().num_workers());
    for i in 0..10 {
        ensure!(entered() == 0, "inside runtime {}", entered());
        let outer = (me.n as usize + i) % 3;
        let inner = (outer + 1) % 3;
        let guard = RUNTIMES[outer].enter();
        step();
        ensure!(entered() == outer + 1, "{} for {}", entered(), outer + 1);
        {
            let _guard = RUNTIMES[inner].enter();
            step();
            ensure!(entered() == inner + 1, "{} for {}", entered(), inner + 1);
        }
        step();
        ensure!(entered() == outer + 1, "{} for {}", entered(), outer + 1);
        drop(guard);
        step();
    }
    Ok(me.n)
}

fn current_thread() -> Result<Runtime, String> {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| error.to_string())
}

/// A runtime for each fiber, with tasks and timers.
pub(crate) fn tokio_current_thread(me: &Me) -> Outcome {
    let runtime = current_thread()?;
    let sum = runtime.block_on(async {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(2);
        let n = me.n;
        let task = tokio::spawn(async move {
            for i in 0..5 {
                step();
                tokio::time::sleep(Duration::from_millis(1)).await;
                if sender.send(n * i).await.is_err() {
                    return 0;
                }
            }
            n
        });
        let mut sum = 0;
        while let Some(number) = receiver.recv().await {
            step();
            sum += number;
            tokio::task::yield_now().await;
        }
        sum + task.await.unwrap_or(u64::MAX / 2)
    });
    ensure!(sum == 11 * me.n, "{sum} instead of {}", 11 * me.n);
    step();
    ensure!(Handle::try_current().is_err(), "still inside");
    Ok(sum)
}

tokio::task_local!(static NUMBER: u64);

/// Tasks that may not leave their thread.
pub(crate) fn tokio_local_set(me: &Me) -> Outcome {
    let runtime = current_thread()?;
    let set = tokio::task::LocalSet::new();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let sum = set.block_on(&runtime, async move {
        let tasks: Vec<_> = (0..5)
            .map(|i| {
                let count = counted.clone();
                let own = NUMBER.scope(i, async move {
                    step();
                    count.set(count.get() + 1);
                    tokio::task::yield_now().await;
                    step();
                    NUMBER.with(|number| *number)
                });
                tokio::task::spawn_local(own)
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap_or(1000);
            step();
        }
        sum
    });
    ensure!((sum, count.get()) == (10, 5), "{sum} of {}", count.get());
    Ok(me.n + sum)
}

/// Iterators and joins on the pool of all, and a pool that is waited for.
pub(crate) fn rayon(me: &Me) -> Outcome {
    static POOL: LazyLock<rayon::ThreadPool> = LazyLock::new(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        pool.expect("a pool")
    });
    let numbers: Vec<u64> = (0..500).map(|i| i * me.n).collect();
    let expected: u64 = numbers.iter().sum();
    for _ in 0..3 {
        let sum: u64 = again(|| numbers.par_iter().sum());
        step();
        ensure!(sum == expected, "{sum} instead of {expected}");
        let (left, right) = numbers.split_at(250);
        let (left, right) = rayon::join(
            || left.iter().sum::<u64>(),
            || {
                step();
                right.iter().sum::<u64>()
            },
        );
        ensure!(left + right == expected, "{left} + {right}");
        step();
        let largest = POOL.install(|| numbers.par_iter().copied().max());
        ensure!(largest == Some(499 * me.n), "{largest:?}");
    }
    Ok(expected)
}

scoped_tls::scoped_thread_local!(static SCOPED: u64);

pub(crate) fn scoped_tls(me: &Me) -> Outcome {
    for i in 0..5 {
        ensure!(!SCOPED.is_set(), "inside another's scope");
        let outer = me.n * 100 + i;
        let right = SCOPED.set(&outer, || {
            step();
            let inner = outer + 50;
            let right = SCOPED.set(&inner, || {
                step();
                SCOPED.with(|found| *found == inner)
            });
            step();
            right && SCOPED.with(|found| *found == outer)
        });
        ensure!(right, "another's value");
        step();
    }
    Ok(me.n)
}
