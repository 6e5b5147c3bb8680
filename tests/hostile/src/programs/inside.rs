#![expect(unsafe_code, reason = "makes system calls that fail")]
//! Actions in a region besides computing: fail, panic, wait, spawn, nest, use no-preempt sections.
//!
//! In addition, a fiber's frames can be named after it was switched away.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason};
use indent::runtime::no_preempt;
use indent::{task, time};

use super::{Program, panics};
use crate::noise::{mix, stir};
use crate::region::{Hidden, region};
use crate::stage::{Kernel, Stage};

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "region-errno",
        "errno is as the failing call left it",
        |stage| {
            stage.repeat_in_region(FIBERS, failing);
        },
    )
    .regions()
    .seldom(), // optimized, it computes the address of errno itself
    Program::new("region-catches", "panics caught in a region", |stage| {
        stage.repeat_in_region(FIBERS, panics::caught);
    })
    .unwinds()
    .regions()
    .seldom(),
    Program::new("region-panics", "panics that leave a region", |stage| {
        stage.repeat(FIBERS, thrown);
    })
    .unwinds()
    .regions(),
    Program::new(
        "region-nested",
        "regions in regions, and after them",
        |stage| {
            stage.repeat(FIBERS, nested);
        },
    )
    .regions(),
    Program::new(
        "region-sections",
        "sections without preemption in a region",
        |stage| {
            SECTION.is(section);
            stage.repeat_in_region(FIBERS, sections);
        },
    )
    .regions(),
    Program::new(
        "region-waits",
        "yields, parks, sleeps and checkpoints in a region",
        |stage| {
            stage.repeat_in_region(FIBERS, waits);
        },
    )
    .regions()
    .seldom(), // it yields by itself
    Program::new("region-spawns", "spawns and joins in a region", |stage| {
        stage.compare(3, family, |seed| region(|| spawned(seed)));
    })
    .regions()
    .seldom(),
    Program::new(
        "region-frames",
        "frames have their names after a switch",
        frames,
    )
    .regions(),
];

const FIBERS: usize = 6;
/// A few hundred microseconds of computing, more without optimization.
const STEPS: u64 = 40_000;

/// Computes for a while.
#[inline(never)]
fn steps(seed: u64) -> u64 {
    (0..STEPS).fold(seed, |sum, i| mix(black_box(sum), i))
}

/// Makes calls that fail differently; in between there are no system calls.
fn failing(seed: u64) -> u64 {
    (0..8).fold(seed, |sum, i| {
        if (seed + i).is_multiple_of(2) {
            // SAFETY: no file has this descriptor.
            unsafe { libc::close(-1) };
        } else {
            // SAFETY: a text that ends with a zero.
            unsafe { libc::chdir(c"/no such directory".as_ptr()) };
        }
        let sum = steps(sum);
        let errno = std::io::Error::last_os_error().raw_os_error();
        mix(sum, errno.unwrap_or_default() as u64)
    })
}

fn thrown(seed: u64) -> u64 {
    (0..8).fold(seed, |sum, _| {
        let result = catch_unwind(|| {
            region(|| {
                let sum = steps(sum);
                if black_box(true) {
                    resume_unwind(Box::new(sum));
                }
            })
        });
        let payload = result.expect_err("a panic").downcast::<u64>();
        let unwinding = std::thread::panicking();
        mix(*payload.expect("a number"), u64::from(unwinding))
    })
}

fn nested(seed: u64) -> u64 {
    let sum = steps(seed);
    let sum = region(|| {
        let sum = steps(sum);
        let sum = region(|| steps(region(|| steps(sum))));
        steps(sum)
    });
    region(|| steps(steps(sum)))
}

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

static SECTION: Hidden<Kernel> = Hidden::new();

fn sections(seed: u64) -> u64 {
    (0..6).fold(seed, |sum, _| SECTION.get()(steps(sum)))
}

/// Uses a thread-local in a section, where it belongs to this fiber until the section's end.
///
/// A fiber that visibly calls this is bound to its thread.
fn section(sum: u64) -> u64 {
    no_preempt(|| {
        let before = HERE.replace(sum);
        let next = steps(sum);
        let own = HERE.replace(before);
        mix(next, u64::from(own == sum && before == 0))
    })
}

fn waits(seed: u64) -> u64 {
    (0..8).fold(seed, |sum, i| {
        let sum = steps(sum);
        match i % 4 {
            0 => task::yield_now(),
            1 => time::sleep(Duration::from_micros(300)),
            2 => {
                let soon = Instant::now() + Duration::from_micros(500);
                park::park_until(Some(soon), ParkReason::Park);
            }
            _ => task::checkpoint(),
        }
        sum
    })
}

/// Sums the work of four children and the fiber's own.
fn family(seed: u64) -> u64 {
    (0..4).fold(steps(seed), |sum, i| mix(sum, steps(seed + i)))
}

fn spawned(seed: u64) -> u64 {
    let child = |i| task::spawn(move || region(|| steps(seed + i)));
    let children: Vec<_> = (0..4).map(child).collect();
    children.into_iter().fold(steps(seed), |sum, child| {
        mix(sum, child.join().expect("a child"))
    })
}

/// The names that must be in a trace.
const NAMES: [&str; 2] = ["frames_outside_region", "frames_inside_region"];

/// Checks that a trace from a region has the same names as one from an undisturbed thread.
///
/// All names are there, unless they were removed from the program.
fn frames(stage: &'static Stage) {
    TRACE.is(trace);
    stage.repeat(2, frames_outside_region);
    if cfg!(debug_assertions) {
        stage.same("names", frames_outside_region(0), named(0, NAMES.len()));
    }
}

fn named(seed: u64, names: usize) -> u64 {
    mix(black_box(seed), names as u64)
}

#[inline(never)]
fn frames_outside_region(seed: u64) -> u64 {
    black_box(region(|| frames_inside_region(black_box(seed))))
}

static TRACE: Hidden<fn() -> usize> = Hidden::new();

/// Counts the names that are in a trace; taking and naming one needs locks of std's.
fn trace() -> usize {
    let trace = no_preempt(|| Backtrace::force_capture().to_string());
    NAMES.iter().filter(|name| trace.contains(**name)).count()
}

#[inline(never)]
fn frames_inside_region(seed: u64) -> u64 {
    let sum = black_box((0..20).fold(seed, |sum, _| steps(stir(sum))));
    let names = TRACE.get()();
    black_box(sum);
    named(seed, names)
}
