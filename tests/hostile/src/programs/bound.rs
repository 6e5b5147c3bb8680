//! Fibers that wait for each other without the runtime's knowledge; one may not leave its thread.
//!
//! The bound one parks while it holds the address of a thread-local: no other fiber runs on its
//! thread meanwhile (S12). If another fiber did, and waited there for the bound one, by spinning or
//! on a mutex, neither would ever continue.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason, Unparker};
use indent::task::JoinHandle;

use super::Program;
use crate::noise::compute_for;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "spin-on-sibling",
        "spins until a fiber of the same worker sets a flag",
        spin_on_sibling,
    )
    .needs_preemption(),
    Program::new(
        "spin-on-bound",
        "the same, and the other one may not leave its thread",
        |stage| {
            spin_on_bound(stage, 1);
        },
    )
    .needs_preemption(),
    Program::new("spin-on-bound-200", "200 of these at a time", |stage| {
        spin_on_bound(stage, 200)
    })
    .needs_preemption(),
    Program::new(
        "bound-mutex",
        "a mutex held over a park while siblings lock it",
        |stage| {
            bound_mutex(stage, 1);
        },
    )
    .needs_preemption(),
    Program::new("bound-mutex-200", "200 of these at a time", |stage| {
        bound_mutex(stage, 200)
    })
    .needs_preemption(),
];

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// Spins until the setter, which waits for the spinner's worker, sets the flag.
fn spin_on_sibling(stage: &'static Stage) {
    let spinner = |i: usize| {
        stage.spawn("spinner", Some(i % 2), move || {
            for turn in 0.. {
                if turn > 0 && stage.over() {
                    return;
                }
                let flag: &'static AtomicBool = Box::leak(Box::default());
                let setter = stage.spawn("setter", Some(i % 2), || flag.store(true, Release));
                spin_until(flag);
                stage.join([setter]);
                stage.round();
            }
        })
    };
    let spinners: Vec<_> = stage.runtime.block_on(|| (0..6).map(spinner).collect());
    stage.join(spinners);
}

fn spin_until(flag: &AtomicBool) {
    while !flag.load(Acquire) {
        std::hint::spin_loop();
    }
}

/// State that a setter and its spinner share.
#[derive(Default)]
struct Flags {
    parked: AtomicBool,
    asked: AtomicBool,
    set: AtomicBool,
}

/// Parks until it is asked, and sets the flag.
fn setter(stage: &'static Stage, worker: usize, flags: &'static Flags) -> JoinHandle<()> {
    stage.spawn("setter", Some(worker), move || {
        HERE.with(|here| {
            let here = black_box(here); // else code may reach it by its offset, and be movable
            here.set(here.get() + 1);
            flags.parked.store(true, Release);
            while !flags.asked.load(Acquire) {
                park::park();
            }
            flags.set.store(true, Release);
            here.set(here.get() - 1);
        });
    })
}

fn spinner(
    stage: &'static Stage,
    worker: usize,
    flags: &'static Flags,
    setter: Unparker,
) -> JoinHandle<()> {
    stage.spawn("spinner", Some(worker), move || {
        flags.asked.store(true, Release);
        setter.unpark();
        spin_until(&flags.set);
        stage.round();
    })
}

fn spin_on_bound(stage: &'static Stage, pairs: usize) {
    let new = |_| &*Box::leak(Box::<Flags>::default());
    let latest = Mutex::new(new(0));
    let start = || {
        let flags = new(0);
        *latest.lock().expect("no panic inside") = flags;
        setter(stage, 0, flags)
    };
    let release = || {
        latest
            .lock()
            .expect("no panic inside")
            .asked
            .store(true, Release)
    };
    stage.until_known_bound(start, release);
    for turn in 0.. {
        if turn > 0 && stage.over() {
            return;
        }
        let flags: Vec<&'static Flags> = (0..pairs).map(new).collect();
        let all = || flags.iter().copied().enumerate();
        let setters: Vec<_> = stage.runtime.block_on(|| {
            all()
                .map(|(i, flags)| setter(stage, i % 2, flags))
                .collect()
        });
        while !flags.iter().all(|flags| flags.parked.load(Acquire)) {
            thread::sleep(Duration::from_millis(1));
        }
        let unparkers: Vec<_> = setters.iter().map(JoinHandle::unparker).collect();
        let start = |((i, flags), unparker)| spinner(stage, i % 2, flags, unparker);
        let spinners: Vec<_> = stage
            .runtime
            .block_on(|| all().zip(unparkers).map(start).collect());
        stage.join(spinners);
        stage.join(setters);
    }
}

/// A mutex, the number of times it was held, and whether it is held.
#[derive(Default)]
struct Held {
    count: Mutex<u64>,
    turns: AtomicU64,
    held: AtomicBool,
}

/// Holds the mutex over a park of some milliseconds, or until it is unparked.
fn holder(stage: &'static Stage, worker: usize, mutex: &'static Held) -> JoinHandle<()> {
    stage.spawn("holder", Some(worker), move || {
        HERE.with(|here| {
            let here = black_box(here); // as in `setter`
            here.set(here.get() + 1);
            let mut count = mutex.count.lock().expect("no panic inside");
            let before = *count;
            mutex.held.store(true, Release);
            let soon = Instant::now() + Duration::from_millis(5);
            park::park_until(Some(soon), ParkReason::Park);
            *count = before + 1;
            mutex.turns.fetch_add(1, Relaxed);
            drop(count);
            here.set(here.get() - 1);
        });
    })
}

fn sibling(stage: &'static Stage, worker: usize, mutex: &'static Held) -> JoinHandle<()> {
    stage.spawn("sibling", Some(worker), move || {
        // Starts once the mutex is held, without a call into the runtime.
        while !mutex.held.load(Acquire) {
            compute_for(Duration::from_micros(20));
        }
        let mut count = mutex.count.lock().expect("no panic inside");
        let before = *count;
        compute_for(Duration::from_micros(50));
        *count = before + 1;
        mutex.turns.fetch_add(1, Relaxed);
        stage.round();
    })
}

fn bound_mutex(stage: &'static Stage, pairs: usize) {
    stage.until_known_bound(|| holder(stage, 0, Box::leak(Box::default())), || ());
    let new = |_| &*Box::leak(Box::<Held>::default());
    let mutexes: Vec<&'static Held> = (0..pairs).map(new).collect();
    for turn in 0.. {
        if turn > 0 && stage.over() {
            break;
        }
        mutexes
            .iter()
            .for_each(|mutex| mutex.held.store(false, Release));
        let pair = |(i, mutex): (usize, &&'static Held)| {
            [holder(stage, i % 2, mutex), sibling(stage, i % 2, mutex)]
        };
        let fibers: Vec<_> = stage
            .runtime
            .block_on(|| mutexes.iter().enumerate().flat_map(pair).collect());
        stage.join(fibers);
    }
    for mutex in mutexes {
        let count = *mutex.count.lock().expect("no panic inside");
        stage.same("turns with a mutex", count, mutex.turns.load(Relaxed));
    }
}
