//! Other libraries with threads, contexts and garbage collection of their own, called from fibers.

use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::Duration;

use crossbeam_epoch::{Atomic, Owned, Shared};
use indent::park::{self, Unparker};
use indent::runtime::Builder;

use super::Program;
use crate::noise::{compute_for, mix, stir};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("epoch", "crossbeam's guards, kept while interrupted", epoch),
    Program::new(
        "rayon",
        "rayon::join on a thread that is none of rayon's",
        rayon,
    ),
    Program::new(
        "thread-scope",
        "threads that borrow from a fiber's stack",
        thread_scope,
    ),
    Program::new("tokio", "a tokio runtime's block_on inside a fiber", tokio),
    Program::new(
        "two-runtimes",
        "two at once, whose fibers wake each other",
        two_runtimes,
    )
    .pure(),
];

const FIBERS: usize = 6;

/// Pushes to and pops from one list in all fibers.
///
/// Nodes are freed when no guard may see them.
///
/// The sum of the popped values shows whether any was lost or came twice.
fn epoch(stage: &'static Stage) {
    struct Node {
        value: u64,
        next: Atomic<Node>,
    }
    let head: &'static Atomic<Node> = Box::leak(Box::new(Atomic::null()));
    let sums: &'static [AtomicU64; 2] = Box::leak(Box::default());
    let push = |value| {
        let guard = crossbeam_epoch::pin();
        let mut node = Owned::new(Node {
            value,
            next: Atomic::null(),
        });
        loop {
            let first = head.load(Relaxed, &guard);
            node.next.store(first, Relaxed);
            match head.compare_exchange(first, node, Release, Relaxed, &guard) {
                Ok(_) => break,
                Err(error) => node = error.new,
            }
        }
        sums[0].fetch_add(value, Relaxed);
    };
    let pop = |slowly: bool| {
        let guard = crossbeam_epoch::pin();
        loop {
            let first = head.load(Acquire, &guard);
            if slowly {
                compute_for(Duration::from_millis(2));
            }
            let Some((value, next)) = look(first, |node: &Node| {
                (node.value, node.next.load(Relaxed, &guard))
            }) else {
                return false;
            };
            if head
                .compare_exchange(first, next, Relaxed, Relaxed, &guard)
                .is_ok()
            {
                sums[1].fetch_add(value, Relaxed);
                retire(&guard, first);
                return true;
            }
        }
    };
    stage.crew(FIBERS, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            (0..50).for_each(|n| push(stir(n + turn) >> 20));
            let popped = (0..50).filter(|n| pop(*n == 7 && i < 2)).count();
            std::hint::black_box(popped); // other fibers may have taken this one's
            stage.round();
        }
    });
    while pop(false) {}
    let [pushed, popped] = [0, 1].map(|i| sums[i].load(Relaxed));
    stage.same("what was popped", popped, pushed);
}

/// Returns the contents of a node that a guard protects.
#[expect(unsafe_code, reason = "reads a node")]
fn look<T, R>(node: Shared<'_, T>, f: impl FnOnce(&T) -> R) -> Option<R> {
    // SAFETY: the caller's guard existed before the node was read from the list, and only `retire`
    // frees nodes.
    unsafe { node.as_ref() }.map(f)
}

#[expect(unsafe_code, reason = "frees a node")]
fn retire<T>(guard: &crossbeam_epoch::Guard, node: Shared<'_, T>) {
    // SAFETY: the caller has taken the node off the list, so no other fiber can newly see it.
    unsafe { guard.defer_destroy(node) };
}

fn halves(from: u64, to: u64) -> u64 {
    if to - from < 500 {
        return (from..to).fold(0, |sum: u64, i| sum.wrapping_add(stir(i)));
    }
    let middle = from.midpoint(to);
    let (left, right) = rayon::join(|| halves(from, middle), || halves(middle, to));
    left.wrapping_add(right)
}

fn rayon(stage: &'static Stage) {
    stage.repeat(FIBERS, |seed| halves(seed, seed + 40_000));
}

fn thread_scope(stage: &'static Stage) {
    stage.repeat(FIBERS, |seed| {
        let numbers: Vec<u64> = (0..4_000).map(|i| stir(seed + i)).collect();
        thread::scope(|scope| {
            let parts = numbers.chunks(2_000);
            let threads: Vec<_> = parts
                .map(|part| scope.spawn(|| part.iter().fold(1, |sum, &n| mix(sum, n))))
                .collect();
            let own = numbers.iter().fold(2, |sum, &n| mix(sum, n));
            threads.into_iter().fold(own, |sum, thread| {
                mix(sum, thread.join().expect("a thread"))
            })
        })
    });
}

/// Runs tokio, whose context is a thread-local while it blocks.
fn tokio(stage: &'static Stage) {
    stage.repeat(4, |seed| {
        let one = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let several = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build();
        [one, several].into_iter().fold(seed, |sum, runtime| {
            let runtime = runtime.expect("a runtime");
            let task = async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                compute_for(Duration::from_millis(2));
                tokio::task::yield_now().await;
                stir(sum)
            };
            runtime.block_on(async {
                let (one, other) = (tokio::spawn(task), tokio::spawn(task_of(sum)));
                mix(one.await.expect("a task"), other.await.expect("a task"))
            })
        })
    });
}

async fn task_of(seed: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(1)).await;
    stir(seed + 1)
}

/// Runs fibers of two runtimes that compute; in addition two fibers, one of each, take turns.
fn two_runtimes(stage: &'static Stage) {
    let other = Builder::new().workers(2).build().expect("a second runtime");
    let hog = |seed: u64| (0..100_000).fold(seed, mix);
    let expected = hog(stage.seed);
    let compute = move || {
        while !stage.over() {
            let got = pure(|| hog(stage.seed));
            stage.same("a result", got, expected);
        }
    };
    let game: &'static Game = Box::leak(Box::default());
    let mut fibers = vec![
        stage.spawn("ping", None, move || game.play(stage, 0)),
        other.spawn(move || game.play(stage, 1)),
    ];
    fibers.extend((0..3).map(|_| other.spawn(compute)));
    fibers.extend((0..3).map(|_| stage.runtime.spawn(compute)));
    stage.join(fibers);
    let report = other.shutdown_timeout(Duration::from_secs(20));
    stage.same(
        "the second runtime",
        report.to_string(),
        "every fiber ended".to_owned(),
    );
}

/// A game of two players; even turns are the first one's.
#[derive(Default)]
struct Game {
    turn: AtomicU64,
    players: [OnceLock<Unparker>; 2],
}

/// Value of the turn after which no more follow.
const OVER: u64 = u64::MAX;

impl Game {
    fn play(&self, stage: &Stage, own: usize) {
        self.players[own].get_or_init(park::unparker);
        let partner = loop {
            match self.players[1 - own].get() {
                Some(partner) => break partner,
                None => indent::task::yield_now(),
            }
        };
        loop {
            let turn = self.turn.load(Acquire);
            if turn == OVER {
                return;
            }
            if turn % 2 != own as u64 {
                park::park();
                continue;
            }
            pure(|| compute_for(Duration::from_micros(100)));
            let next = if stage.over() { OVER } else { turn + 1 };
            self.turn.store(next, Release);
            partner.unpark();
            stage.round();
        }
    }
}
