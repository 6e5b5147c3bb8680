//! The body of the programs that differ in their allocator.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use indent::chan;
use indent::runtime::{Builder, Runtime};
use indent::sync::Barrier;
use indent::{task, time};

use crate::{crowd, number, report, run, thread};

/// Sizes of the small and large buffers that are passed on.
const SIZES: [usize; 8] = [1, 24, 100, 500, 1_000, 5_000, 40_000, 200_000];
/// Number of pairs of fibers, and of buffers that each of them passes on.
const PAIRS: usize = 300;
const PASSED: usize = 48;

/// Measures the cost of as many fibers as the first argument says, then passes memory between
/// fibers.
///
/// `settings` are those of the runtime.
pub fn program(settings: impl FnOnce(Builder) -> Builder) {
    let count = number(1);
    run(settings, |rt| {
        rt.wait_until_surveyed(None);
        measure(rt, count); // first, because freed memory would be reused
        pass_on(rt);
        report("threads", rt.metrics().carriers);
    });
}

/// Returns a buffer whose bytes follow from its number.
fn filled(number: usize, size: usize) -> Vec<u8> {
    let mut buffer = Vec::new();
    // In steps, so that it is reallocated.
    while buffer.len() < size {
        let more = (buffer.len() + 16).min(size - buffer.len());
        let length = buffer.len() + more;
        buffer.resize(length, number as u8);
    }
    buffer
}

fn check(number: usize, buffer: &[u8]) {
    let wrong = buffer.iter().position(|byte| *byte != number as u8);
    assert_eq!(wrong, None, "another's bytes in buffer {number}");
}

fn pause(number: usize, turn: usize) {
    match (number + turn) % 4 {
        0 | 1 => task::yield_now(),
        2 => time::sleep(Duration::from_micros(500)),
        _ => (),
    }
}

/// Passes memory to other fibers, which free it; a plain thread frees a third of it.
fn pass_on(rt: &Runtime) {
    let (to_thread, on_thread) = std::sync::mpsc::channel::<(usize, Vec<u8>)>();
    let frees = std::thread::spawn(move || {
        let check = |(number, buffer): (usize, Vec<u8>)| check(number, &buffer);
        on_thread.into_iter().map(check).count()
    });
    let channels: Vec<_> = (0..PAIRS).map(|_| chan::bounded(4)).collect();
    let moved = crowd(rt, 2 * PAIRS, move |n| {
        let before = thread();
        let (sender, receiver) = &channels[n / 2];
        let mut kept = Vec::new();
        for turn in 0..PASSED {
            if n % 2 == 0 {
                let size = SIZES[(n / 2 + turn) % SIZES.len()];
                kept.push(filled(n + turn, size));
                pause(n, turn);
                let passed = kept.swap_remove((n + turn) % kept.len());
                let number = passed[0] as usize;
                sender.send((number, passed)).expect("the other fiber");
                kept.push(filled(number, 300));
            } else {
                let (number, buffer): (usize, Vec<u8>) = receiver.recv().expect("a buffer");
                pause(n, turn);
                check(number, &buffer);
                if turn % 3 == 0 {
                    to_thread.send((number, buffer)).expect("the thread");
                }
            }
            kept.iter()
                .for_each(|buffer| check(buffer[0].into(), buffer));
        }
        thread() != before
    });
    let freed = frees.join().expect("the thread's count");
    assert_eq!(freed, PAIRS * PASSED.div_ceil(3));
    report("moved", moved.iter().filter(|moved| **moved).count());
}

/// Allocates and frees, to leave in the allocator's caches what a handler leaves there.
#[inline(never)]
fn use_allocator() {
    for size in [16, 32, 64, 128, 512, 1_024, 8 * 1024, 64 * 1024] {
        let buffers: Vec<_> = (0..8).map(|_| black_box(vec![1_u8; size])).collect();
        drop(buffers);
    }
}

/// Returns the resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a mounted /proc");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: Option<usize> = kilobytes.and_then(|number| number.parse().ok());
    kilobytes.expect("resident kilobytes") * 1024
}

/// Reports the resident bytes for each fiber that has used the allocator and is parked.
fn measure(rt: &Runtime, count: usize) {
    let all_inside = Arc::new(Barrier::new(count + 1));
    let measured = Arc::new(Barrier::new(count + 1));
    let barriers = (all_inside.clone(), measured.clone());
    let before = resident();
    let (used, moved) = std::thread::scope(|scope| {
        let fibers = scope.spawn(|| {
            crowd(rt, count, move |n| {
                let (all_inside, measured) = &barriers;
                let before = thread();
                use_allocator();
                task::yield_now();
                let kept = filled(n, 100);
                all_inside.wait();
                measured.wait();
                check(n, &kept);
                thread() != before
            })
        });
        all_inside.wait();
        let used = resident().saturating_sub(before);
        report("occupied", rt.metrics().carriers_bound);
        measured.wait();
        (used, fibers.join().expect("all fibers end"))
    });
    report("resident", used / count);
    report("moved", moved.iter().filter(|moved| **moved).count());
}
