//! The order in which waiters get permits and locks: fibers on one worker against a model queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime};
use indent::sync::{OwnedSemaphorePermit, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore};
use indent::task;
use proptest::prelude::*;

/// Yields after which no fiber can run any more, unless one was preempted: each needs one or two.
const YIELDS: usize = 8;
/// How long a preempted fiber may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn one_worker() -> Runtime {
    Builder::new().workers(1).build().unwrap()
}

fn settle() {
    (0..YIELDS).for_each(|_| task::yield_now());
}

#[derive(Clone, Debug)]
enum Step {
    /// A new fiber requests this many permits; for a lock, to read (0) or to write.
    Come(usize),
    /// The holder with this number, modulo their count, releases.
    Leave(usize),
    /// Adds this many permits.
    Add(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4usize).prop_map(Step::Come),
        3 => (0..8usize).prop_map(Step::Leave),
        1 => (0..3usize).prop_map(Step::Add),
    ];
    proptest::collection::vec(step, 0..24)
}

/// Runs the steps, and compares the holders after each with those of `expected`.
fn compare<G: Send + 'static>(
    steps: &[Step],
    come: impl Fn(usize) -> G + Clone + Send + 'static,
    add: impl Fn(usize),
    mut expected: impl FnMut(&Step, Option<(usize, usize)>) -> Vec<(usize, usize)>,
) {
    let have = Arc::new(Mutex::new(Vec::<((usize, usize), G)>::new()));
    let mut crowd = Vec::new();
    for step in steps {
        let mut left = None;
        match *step {
            Step::Come(wish) => {
                let (have, come, number) = (have.clone(), come.clone(), crowd.len());
                crowd.push(indent::spawn(move || {
                    let got = come(wish);
                    have.lock().unwrap().push(((number, wish), got));
                }));
            }
            Step::Leave(which) => {
                let mut have = have.lock().unwrap();
                if !have.is_empty() {
                    let at = which % have.len();
                    let (who, guard) = have.remove(at);
                    left = Some(who);
                    drop(have);
                    drop(guard);
                }
            }
            Step::Add(more) => add(more),
        }
        let mut expected = expected(step, left);
        expected.sort_unstable();
        let started = Instant::now();
        loop {
            settle();
            // The scheduler decides in which order several new holders run.
            let mut now: Vec<_> = have.lock().unwrap().iter().map(|(who, _)| *who).collect();
            now.sort_unstable();
            if now == expected {
                break;
            }
            // More holders than expected is an error; fewer may be due to a preempted fiber.
            let too_many = now.iter().any(|who| !expected.contains(who));
            assert!(
                !too_many && started.elapsed() < PATIENCE,
                "{now:?} instead of {expected:?} after {step:?} of {steps:?}"
            );
        }
    }
    // All waiters are served in the end.
    let started = Instant::now();
    while !crowd.iter().all(|fiber| fiber.is_finished()) && started.elapsed() < PATIENCE {
        add(4);
        let guards = std::mem::take(&mut *have.lock().unwrap());
        drop(guards);
        settle();
    }
    crowd.into_iter().for_each(|fiber| fiber.join().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn permits_are_granted_first_come_first_served(start in 0..4usize, steps in steps()) {
        let rt = one_worker();
        rt.block_on(move || {
            let semaphore = Arc::new(Semaphore::new(start));
            let theirs = semaphore.clone();
            let come = move |wish| -> OwnedSemaphorePermit {
                theirs.clone().acquire_many_owned(wish).unwrap()
            };
            let (mut permits, mut came) = (start, 0);
            let (mut queue, mut have) = (VecDeque::new(), Vec::new());
            let expected = |step: &Step, left: Option<(usize, usize)>| {
                if let Step::Come(wish) = *step {
                    queue.push_back((came, wish));
                    came += 1;
                }
                if let Step::Add(more) = *step {
                    permits += more;
                }
                if let Some(left) = left {
                    permits += left.1;
                    have.retain(|who| *who != left);
                }
                while queue.front().is_some_and(|first: &(usize, usize)| first.1 <= permits) {
                    let first = queue.pop_front().unwrap();
                    permits -= first.1;
                    have.push(first);
                }
                have.clone()
            };
            compare(&steps, come, |more| semaphore.add_permits(more), expected);
        });
    }

    #[test]
    fn readers_and_writers_are_admitted_first_come_first_served(steps in steps()) {
        #[expect(dead_code, reason = "kept until it is dropped")]
        enum Guard {
            Read(RwLockReadGuard<'static, ()>),
            Write(RwLockWriteGuard<'static, ()>),
        }
        let rt = one_worker();
        rt.block_on(move || {
            let lock: &'static RwLock<()> = Box::leak(Box::new(RwLock::new(())));
            let come = |wish| match wish {
                0 | 1 => Guard::Read(lock.read().unwrap()),
                _ => Guard::Write(lock.write().unwrap()),
            };
            let writes = |who: &(usize, usize)| who.1 > 1;
            let mut came = 0;
            let (mut queue, mut have) = (VecDeque::new(), Vec::new());
            let expected = |step: &Step, left: Option<(usize, usize)>| {
                if let Step::Come(wish) = *step {
                    queue.push_back((came, wish));
                    came += 1;
                }
                have.retain(|who| Some(*who) != left);
                while let Some(first) = queue.front().copied() {
                    let free = if writes(&first) { have.is_empty() } else { !have.iter().any(writes) };
                    if !free {
                        break;
                    }
                    queue.pop_front();
                    have.push(first);
                }
                have.clone()
            };
            compare(&steps, come, |_| (), expected);
        });
    }
}
