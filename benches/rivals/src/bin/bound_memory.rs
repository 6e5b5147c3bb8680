//! What parked threads cost in memory: fibers that are bound to their threads, beside plain threads
//! that do the same.
//!
//! `bound_memory COUNT [threads]` starts so many, each of which allocates and frees buffers of
//! several sizes and then parks, and prints the resident memory, the address space and the number
//! of threads that this added, for each. Build with `--features mimalloc` or `jemalloc` for other
//! allocators.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::Builder;

indent_rivals::allocator!();

/// What a handler leaves behind in the caches of an allocator.
fn use_allocator() {
    for size in [32, 512, 8 * 1024, 64 * 1024] {
        let buffers: Vec<_> = (0..8).map(|_| black_box(vec![1_u8; size])).collect();
        drop(buffers);
    }
}

/// A field of `/proc/self/status`: kilobytes, or a number.
fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a mounted /proc");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|value| value.split_whitespace().next());
    value
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

fn measure(what: &str, count: usize, start: impl FnOnce(Arc<AtomicUsize>)) {
    let before = (status("VmRSS:"), status("VmSize:"), status("Threads:"));
    let parked = Arc::new(AtomicUsize::new(0));
    start(parked.clone());
    while parked.load(SeqCst) < count {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300)); // until the last has parked
    let each = |now: usize, before: usize| now.saturating_sub(before) * 1024 / count;
    println!(
        "{what} {count} resident_bytes={} address_space_bytes={} threads={}",
        each(status("VmRSS:"), before.0),
        each(status("VmSize:"), before.1),
        status("Threads:") - before.2,
    );
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.first().and_then(|count| count.parse().ok());
    let Some(count) = count else {
        eprintln!("usage: bound_memory COUNT [threads]");
        return ExitCode::from(2);
    };
    if arguments.get(1).is_some_and(|word| word == "threads") {
        let stop = Arc::new(AtomicBool::new(false));
        measure("threads", count, |parked| {
            for _ in 0..count {
                let (parked, stop) = (parked.clone(), stop.clone());
                let thread = move || {
                    use_allocator();
                    parked.fetch_add(1, SeqCst);
                    while !stop.load(SeqCst) {
                        std::thread::park();
                    }
                };
                drop(std::thread::spawn(thread));
            }
        });
        return ExitCode::SUCCESS;
    }
    let builder = Builder::new().workers(indent_rivals::WORKERS);
    let rt = builder
        .soft_carriers(count + 16)
        .max_carriers(count + 16)
        .build();
    let rt = rt.expect("a runtime");
    rt.wait_until_surveyed(None);
    rt.handle().bind_everything(true);
    measure("bound", count, |parked| {
        for _ in 0..count {
            let parked = parked.clone();
            drop(rt.spawn(move || {
                use_allocator();
                parked.fetch_add(1, SeqCst);
                indent::park::park();
            }));
        }
    });
    ExitCode::SUCCESS
}
