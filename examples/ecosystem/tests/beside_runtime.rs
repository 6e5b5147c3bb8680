//! A stall detector and the runtime in one process, with the same signal: each gets its own.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::Runtime;
use indent_sysmon::stalls::{Builder, Stall};

#[inline(never)]
fn crunches_on_a_plain_thread(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        black_box((0..10_000u64).fold(0, |x, i| x ^ black_box(i)));
    }
    black_box(began);
}

/// Runs both, with the detector's handler installed before the runtime's, or after it.
fn both(detector_first: bool) {
    let told = Arc::new(Mutex::new(Vec::<Stall>::new()));
    let start = || {
        let told = told.clone();
        let tell = move |stall: &Stall| told.lock().unwrap().push(stall.clone());
        let builder = Builder::new(Duration::from_millis(10)).signal(libc::SIGURG);
        builder.start(tell).unwrap()
    };
    let runtime = || indent::runtime::Builder::new().workers(1).build().unwrap();
    let (stalls, runtime): (_, Runtime) = match detector_first {
        true => (start(), runtime()),
        false => {
            let runtime = runtime();
            (start(), runtime)
        }
    };
    // A fiber that never yields, and one that waits for its turn.
    let (stop, turns) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let hog = {
        let stop = stop.clone();
        runtime.spawn(move || while !stop.load(SeqCst) {})
    };
    let other = {
        let (stop, turns) = (stop.clone(), turns.clone());
        runtime.spawn(move || {
            while !stop.load(SeqCst) {
                turns.fetch_add(1, SeqCst);
                indent::task::yield_now();
            }
        })
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let enlisted = stalls.enlist().unwrap();
            for _ in 0..10 {
                let _job = enlisted.begin("plain");
                crunches_on_a_plain_thread(Duration::from_millis(100));
            }
        });
    });
    stop.store(true, SeqCst);
    hog.join().unwrap();
    other.join().unwrap();
    drop(stalls);
    assert!(turns.load(SeqCst) > 2, "the hog was interrupted: {turns:?}");
    let told = told.lock().unwrap();
    let named = |stall: &&Stall| stall.to_string().contains("crunches_on_a_plain_thread");
    let named = told.iter().filter(named).count();
    // Looking up the first names takes time, and meanwhile later stacks are not taken.
    assert!((1..=10 * 3).contains(&named), "{told:#?}");
    assert!(told.iter().all(|stall| stall.label == "plain"), "{told:#?}");
}

#[test]
fn a_detector_and_a_runtime_share_a_signal_whoever_comes_first() {
    both(true);
    both(false);
}
