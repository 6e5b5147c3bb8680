//! A heartbeat beside fibers that never yield: on time with preemption, and starved without it.
//!
//! ```text
//! cargo run --release --example preempt
//! ```
//!
//! A plain thread wakes a fiber a thousand times a second; the fiber records how late it runs.
//! Beside it eight other fibers compute without a pause, four times as many as there are workers.
//! They never yield, and end after two seconds. That end matters only for the half without
//! preemption: before it, no other fiber runs there.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::Builder;

const WORKERS: usize = 2;
const HOGS: usize = 8;
const WAKES: u32 = 2_000;
const PERIOD: Duration = Duration::from_millis(1);
const TIME: Duration = Duration::from_millis(2_000); // WAKES times PERIOD
/// Columns of the sparkline.
const COLUMNS: usize = 40;

fn main() {
    println!("{WAKES} wakes in {TIME:?}, beside {HOGS} endless loops on {WORKERS} workers\n");
    println!("preemption  answered      median        99 %       worst   lateness, 10 µs to 1 s");
    for preempt in [true, false] {
        let answers = measure(preempt);
        print_row(if preempt { "on" } else { "off" }, &answers);
    }
}

/// A wake that was answered: when it was sent, since the start, and how much later the fiber ran.
struct Answer {
    sent: Duration,
    late: Duration,
}

fn measure(preempt: bool) -> Vec<Answer> {
    let builder = Builder::new().workers(WORKERS).preempt(preempt);
    let runtime = builder.build().expect("a runtime");
    let start = Instant::now() + Duration::from_millis(500); // until then nothing computes
    let ends = start + TIME;

    // When the wake was sent, in nanoseconds since the start; 0 once it is answered.
    let signal = Arc::new(AtomicU64::new(0));
    let sent = signal.clone();
    let heartbeat = runtime.spawn(move || {
        let mut answers = Vec::with_capacity(WAKES as usize);
        while Instant::now() < ends {
            park::park();
            let sent = Duration::from_nanos(sent.swap(0, SeqCst));
            let late = start.elapsed().saturating_sub(sent);
            if !sent.is_zero() {
                answers.push(Answer { sent, late }); // otherwise the wake was spurious
            }
        }
        answers
    });

    // Spurious wakes before the start, so that the runtime has measured the fiber.
    let unparker = heartbeat.unparker();
    while Instant::now() < start {
        thread::sleep(Duration::from_millis(1));
        unparker.unpark();
    }
    for seed in 0..HOGS as u64 {
        drop(runtime.spawn(move || compute_until(ends, seed)));
    }
    for wake in 1..=WAKES {
        thread::sleep((start + PERIOD * wake).saturating_duration_since(Instant::now()));
        let now = start.elapsed().as_nanos() as u64;
        // A wake that comes while the previous one is unanswered is lost.
        let _lost = signal.compare_exchange(0, now, SeqCst, SeqCst);
        unparker.unpark();
    }
    unparker.unpark();
    heartbeat.join().expect("a heartbeat does not panic")
}

/// Computes without a pause, and reads only the clock.
fn compute_until(ends: Instant, mut x: u64) {
    while Instant::now() < ends {
        for _ in 0..10_000 {
            x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

fn print_row(name: &str, answers: &[Answer]) {
    // Wakes that were lost while another waited count too, with the rest of its time.
    let lost = |late: Duration| (0..WAKES).map_while(move |n| late.checked_sub(PERIOD * n));
    let mut late: Vec<_> = answers.iter().flat_map(|a| lost(a.late)).collect();
    late.sort_unstable();
    let at = |percent: usize| match late.len() {
        0 => "never".to_owned(),
        n => format!(
            "{:.2} ms",
            1e3 * late[(n - 1) * percent / 100].as_secs_f64()
        ),
    };
    let (median, most, worst) = (at(50), at(99), at(100));
    let (answered, line) = (answers.len(), sparkline(answers));
    println!("{name:<10}{answered:>10}{median:>12}{most:>12}{worst:>12}   {line}");
}

/// Draws the longest wait in each part of the time.
///
/// While a wait lasts, it counts with its full length.
fn sparkline(answers: &[Answer]) -> String {
    let column = |at: Duration| (at.as_secs_f64() / TIME.as_secs_f64() * COLUMNS as f64) as usize;
    let mut longest = [Duration::ZERO; COLUMNS];
    for Answer { sent, late } in answers {
        for part in column(*sent)..=column(*sent + *late) {
            let most = longest.get_mut(part.min(COLUMNS - 1)).expect("a column");
            *most = (*most).max(*late);
        }
    }
    longest.map(bar).iter().collect()
}

/// Returns one of eight heights for times from 10 µs to 1 s, five decades.
fn bar(late: Duration) -> char {
    let decades = (late.as_secs_f64() / 10e-6).max(1.0).log10();
    ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][((decades / 5.0 * 8.0) as usize).min(7)]
}

#[test]
fn a_heartbeat_is_answered_more_often_with_preemption() {
    assert!(measure(true).len() > measure(false).len());
}
