#![expect(unsafe_code, reason = "signals, and calls that they would interrupt")]
//! The stall detector, on plain threads.
//!
//! The machine may be busy with anything: a job that should take no time may take long. So jobs
//! that must not be reported have a limit a hundred times their length.

use std::cell::OnceCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use indent_sysmon::ThreadState;
use indent_sysmon::stalls::{Builder, EnlistError, Enlisted, Stage, Stall, Stalls};

const LIMIT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(200);

/// The reports so far.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Stall>>>);

impl Reports {
    fn callback(&self) -> impl Fn(&Stall) + Send + Sync + 'static {
        let reports = self.0.clone();
        move |stall| reports.lock().unwrap().push(stall.clone())
    }

    fn all(&self) -> Vec<Stall> {
        self.0.lock().unwrap().clone()
    }

    /// The first report of a label, and how many there are of it.
    fn first(&self, label: &str) -> (Stall, usize) {
        let all = self.all();
        let of_it: Vec<_> = all.iter().filter(|stall| stall.label == label).collect();
        let first = of_it.first().unwrap_or_else(|| panic!("{label}: {all:#?}"));
        ((*first).clone(), of_it.len())
    }
}

/// Runs this on a thread of its own, watched.
fn watched(name: &str, stalls: &Stalls, work: impl FnOnce(&Enlisted) + Send) {
    thread::scope(|scope| {
        let body = || work(&stalls.enlist().unwrap());
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn_scoped(scope, body).unwrap();
    });
}

/// Line tables alone, as optimized builds have them, name functions without their paths.
fn shows(stall: &Stall, function: &str) -> bool {
    let is = |name: &String| name == function || name.ends_with(&format!("::{function}"));
    (stall.stack.iter()).any(|place| place.function.as_ref().is_some_and(is))
}

/// How long the calling thread has run: jobs are counted by that, since on a busy machine a job may
/// be over by the clock on the wall before it was given a CPU.
fn own_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills in `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Computes, in a function of this very name; in steps of its own, or the compiler makes one of
/// all.
macro_rules! computes {
    ($name:ident, $rounds:literal) => {
        #[inline(never)]
        fn $name(time: Duration) {
            let ends = own_time() + time;
            while own_time() < ends {
                let mut rounds = black_box($rounds);
                while rounds > 0 {
                    rounds = black_box(rounds) - 1;
                }
            }
            black_box(time); // no tail call: the frame stays
        }
    };
}
computes!(crunches, 10_000);
computes!(mixes_paint, 10_001);
computes!(weighs_flour, 10_002);

#[test]
fn a_job_that_computes_is_found_with_its_function_and_again_when_it_ends() {
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    watched("cruncher", &stalls, |enlisted| {
        let _job = enlisted.begin("sums");
        crunches(LONG);
    });
    drop(stalls);
    let (first, count) = reports.first("sums");
    assert_eq!(first.thread, "cruncher");
    assert_eq!(
        (first.stage, first.state),
        (Stage::Found, ThreadState::Running)
    );
    assert!(first.lasted >= LIMIT, "{first}");
    assert!(shows(&first, "crunches"), "{first:#}");
    let all = reports.all();
    let last = all.last().unwrap();
    assert_eq!(last.stage, Stage::Ended);
    assert!(last.lasted > first.lasted.max(LONG / 2), "{last}");
    assert!((2..=5).contains(&count), "at powers of ten: {all:#?}");
}

#[test]
fn one_that_sleeps_is_found_with_its_call_and_its_sleep_is_not_disturbed() {
    #[inline(never)]
    fn waits_for_nothing(time: Duration) -> i32 {
        // SAFETY: no files, so nothing is read or written.
        let ready = unsafe { libc::poll(std::ptr::null_mut(), 0, time.as_millis() as i32) };
        black_box(ready)
    }
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    watched("sleeper", &stalls, |enlisted| {
        let _job = enlisted.begin("waits");
        for _ in 0..3 {
            assert_eq!(
                waits_for_nothing(LONG),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
        }
    });
    drop(stalls);
    let (first, _) = reports.first("waits");
    assert_eq!(first.state, ThreadState::Sleeping, "{first}");
    assert_eq!(first.call.unwrap().to_string(), "poll");
    assert!(shows(&first, "waits_for_nothing"), "{first:#}");
}

#[test]
fn frames_of_a_sleeper_are_seen_up_to_its_job() {
    #[inline(never)]
    fn naps(time: Duration) {
        thread::sleep(time);
        black_box(time);
    }
    #[inline(never)]
    fn has_a_job(time: Duration) {
        let kept = black_box([1u64; 100]);
        naps(time);
        black_box(kept);
    }
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    watched("napper", &stalls, |enlisted| {
        let _job = enlisted.begin("naps");
        has_a_job(LONG);
    });
    drop(stalls);
    let (first, _) = reports.first("naps");
    // Where the compiler keeps something else in the frame pointer it is unknown.
    let all: &[&str] = if cfg!(debug_assertions) {
        &["naps", "has_a_job"]
    } else {
        &["sleep"]
    };
    for function in all {
        assert!(shows(&first, function), "{function}: {first:#}");
    }
}

#[test]
fn one_that_waits_for_a_lock_is_found_with_who_waits() {
    #[inline(never)]
    fn wants(lock: &Mutex<()>) {
        let held = lock.lock().unwrap();
        black_box(&held); // no tail call: the frame stays
    }
    let (reports, lock) = (Reports::default(), Mutex::new(()));
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    let held = lock.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let enlisted = stalls.enlist().unwrap();
            let _job = enlisted.begin("wants");
            wants(&lock);
        });
        thread::sleep(LONG);
        drop(held);
    });
    drop(stalls);
    let (first, _) = reports.first("wants");
    assert_eq!(first.state, ThreadState::Locked, "{first}");
    assert_eq!(first.call.unwrap().number, libc::SYS_futex);
    assert!(shows(&first, "wants"), "{first:#}");
    assert!(
        first.thread.starts_with("thread "),
        "it has no name: {first}"
    );
}

#[test]
fn jobs_below_the_limit_are_never_reported_however_many() {
    let reports = Reports::default();
    let limit = Duration::from_secs(2);
    let stalls = Stalls::start(limit, reports.callback()).unwrap();
    watched("quick", &stalls, |enlisted| {
        let began = Instant::now();
        while began.elapsed() < LONG {
            let _job = enlisted.begin("quick");
            crunches(Duration::from_millis(1));
        }
    });
    drop(stalls);
    // Unless the whole process was stopped.
    let slow = |stall: &Stall| stall.ran.is_some_and(|ran| ran >= limit);
    assert!(!reports.all().iter().any(slow), "{:#?}", reports.all());
}

#[test]
fn labels_threads_and_functions_belong_together() {
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    let time = 5 * LIMIT;
    let paint = |enlisted: &Enlisted| {
        for _ in 0..5 {
            drop(enlisted.begin("a pause"));
            let _job = enlisted.begin("paint");
            mixes_paint(time);
        }
    };
    let flour = |enlisted: &Enlisted| {
        for _ in 0..5 {
            let _job = enlisted.begin("flour of another length");
            weighs_flour(time);
        }
    };
    thread::scope(|scope| {
        let stalls = &stalls;
        scope.spawn(move || watched("painter", stalls, paint));
        scope.spawn(move || watched("painter", stalls, paint));
        scope.spawn(move || watched("baker", stalls, flour));
    });
    drop(stalls);
    let all = reports.all();
    for (label, thread, function, others) in [
        ("paint", "painter", "mixes_paint", "weighs_flour"),
        (
            "flour of another length",
            "baker",
            "weighs_flour",
            "mixes_paint",
        ),
    ] {
        let of_it: Vec<_> = all.iter().filter(|stall| stall.label == label).collect();
        let with_stack = of_it.iter().filter(|stall| shows(stall, function)).count();
        assert!(with_stack > 0, "{label}: {all:#?}");
        for stall in of_it {
            assert_eq!(stall.thread, thread, "{stall}");
            assert!(!shows(stall, others), "{stall:#}");
        }
    }
    assert!(all.iter().all(|stall| stall.label != "a pause"), "{all:#?}");
}

#[test]
fn a_piece_inside_another_is_part_of_it() {
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    watched("nested", &stalls, |enlisted| {
        let _outer = enlisted.begin("outer");
        let ends = own_time() + LONG;
        while own_time() < ends {
            let _inner = enlisted.begin("inner");
            crunches(Duration::from_millis(1));
        }
    });
    drop(stalls);
    assert_eq!(reports.first("outer").0.stage, Stage::Found);
    assert!(reports.all().iter().all(|stall| stall.label == "outer"));
}

#[test]
fn two_detectors_on_one_thread_both_find_it() {
    let reports = [Reports::default(), Reports::default()];
    let [one, other] = reports
        .each_ref()
        .map(|reports| Stalls::start(LIMIT, reports.callback()).unwrap());
    watched("twice", &one, |enlisted| {
        let second = other.enlist().unwrap();
        let _jobs = (enlisted.begin("of one"), second.begin("of the other"));
        crunches(LONG);
    });
    drop((one, other));
    for (reports, label) in reports.iter().zip(["of one", "of the other"]) {
        let (first, _) = reports.first(label);
        assert!(shows(&first, "crunches"), "{first:#}");
        assert!(reports.all().iter().all(|stall| stall.label == label));
    }
}

#[test]
fn the_handler_that_was_there_before_gets_its_signals() {
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn hears(_: i32) {
        HEARD.fetch_add(1, SeqCst);
    }
    let signal = libc::SIGRTMIN() + 5; // one that is queued: none is lost for another
    // SAFETY: the handler adds to a counter.
    unsafe { libc::signal(signal, hears as extern "C" fn(i32) as usize) };
    let reports = Reports::default();
    let stalls = Builder::new(LIMIT)
        .signal(signal)
        .start(reports.callback())
        .unwrap();
    let raised = 50;
    watched("raiser", &stalls, |enlisted| {
        let _job = enlisted.begin("raises");
        for _ in 0..raised {
            // SAFETY: takes a number only; to the calling thread, and heard before it returns.
            unsafe { libc::raise(signal) };
            crunches(LONG / raised as u32);
        }
    });
    drop(stalls);
    assert_eq!(HEARD.load(SeqCst), raised, "each once, and none of ours");
    let shown = reports.all().iter().any(|stall| !stall.stack.is_empty());
    assert!(shown, "ours come too: {:#?}", reports.all());
}

#[test]
fn errno_stays_as_it_was() {
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    watched("careful", &stalls, |enlisted| {
        let _job = enlisted.begin("careful");
        // SAFETY: takes nothing and cannot fail.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own.
        unsafe { *errno = 12345 };
        let mut rounds = black_box(1u64 << 27); // calls nothing
        while rounds > 0 {
            rounds = black_box(rounds) - 1;
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(12345));
    });
    drop(stalls);
    assert!(!reports.all().is_empty());
}

#[test]
fn a_thread_may_end_without_leaving_and_makes_room() {
    thread_local! {
        static ENLISTED: OnceCell<Enlisted> = const { OnceCell::new() };
    }
    let reports = Reports::default();
    let stalls = Builder::new(LIMIT)
        .threads(1)
        .start(reports.callback())
        .unwrap();
    let stalls = &stalls;
    for _ in 0..20 {
        thread::scope(|scope| {
            let kept = scope
                .spawn(|| ENLISTED.with(|enlisted| enlisted.set(stalls.enlist().unwrap()).is_ok()));
            kept.join().unwrap()
        });
    }
    thread::scope(|scope| {
        let forgets = || {
            let enlisted = stalls.enlist().unwrap();
            std::mem::forget(enlisted.begin("forgotten"));
            std::mem::forget(enlisted);
        };
        scope.spawn(forgets).join().unwrap();
    });
    thread::sleep(5 * LIMIT);
    assert!(reports.all().is_empty(), "{:#?}", reports.all());
    assert!(
        matches!(stalls.enlist(), Err(EnlistError::Full { threads: 1 })),
        "lost"
    );
}

#[test]
fn a_thread_enlists_once_and_may_leave_and_come_back() {
    let stalls = Stalls::start(LIMIT, |_| ()).unwrap();
    for _ in 0..3 {
        let _enlisted = stalls.enlist().unwrap();
        assert!(matches!(stalls.enlist(), Err(EnlistError::Twice)));
    }
}

#[test]
fn dropping_it_ends_its_threads_even_while_a_job_goes_on() {
    let reports = Reports::default();
    let stalls = Stalls::start(LIMIT, reports.callback()).unwrap();
    let enlisted = stalls.enlist().unwrap();
    let job = enlisted.begin("goes on");
    crunches(3 * LIMIT);
    drop(stalls);
    let count = reports.all().len();
    crunches(3 * LIMIT);
    assert_eq!(reports.all().len(), count, "nobody looks");
    drop(job);
    drop(enlisted);
    assert_eq!(Arc::strong_count(&reports.0), 1, "the callback is dropped");
}

#[test]
fn a_panic_of_the_callback_does_not_end_the_reports() {
    let reports = Reports::default();
    let tell = reports.callback();
    let first = AtomicUsize::new(0);
    let stalls = Stalls::start(LIMIT, move |stall| {
        tell(stall);
        assert!(first.fetch_add(1, SeqCst) > 0, "the first one is too much");
    });
    let stalls = stalls.unwrap();
    watched("two jobs", &stalls, |enlisted| {
        for label in ["one", "two"] {
            let _job = enlisted.begin(label);
            crunches(5 * LIMIT);
        }
    });
    drop(stalls);
    reports.first("one");
    reports.first("two");
}
