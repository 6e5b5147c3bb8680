#![expect(unsafe_code, reason = "opens a region")]
//! Overrun reports: what they contain about fibers that run for too long, and where they go.
//!
//! Times are the quantum and wide multiples of it. The tests assert nothing about durations, only
//! what was named, how often, and in which report.

use std::io::{PipeReader, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Overrun, OverrunAction, Overruns, Runtime};
use indent::task;

mod burn;
mod common;

use burn::burn;

/// Seconds of patience: far more than any test here needs beside other programs.
const PATIENCE: u64 = 120;
/// The default, by name.
const QUANTUM: Duration = Duration::from_millis(10);

/// The overruns that were reported.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Overrun>>>);

impl Told {
    fn listen(&self, builder: Builder) -> Builder {
        let told = self.clone();
        builder.on_overrun(move |overrun| told.0.lock().unwrap().push(overrun.clone()))
    }

    fn all(&self) -> Vec<Overrun> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for a report that fits, and returns it.
    #[track_caller]
    fn wait_for(&self, what: &str, fits: impl Fn(&Overrun) -> bool) -> Overrun {
        let find = || self.all().into_iter().find(|overrun| fits(overrun));
        common::wait_for(what, || find().is_some());
        find().unwrap()
    }
}

fn builder(workers: usize) -> Builder {
    Builder::new().workers(workers).preempt_quantum(QUANTUM)
}

fn listening(workers: usize) -> (Runtime, Told) {
    let told = Told::default();
    let rt = told.listen(builder(workers)).build().expect("a runtime");
    (rt, told)
}

/// Computes without a call into the runtime until the flag is set.
#[inline(never)]
fn spin_in_a_named_function(stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        std::hint::spin_loop();
    }
    std::hint::black_box(stop);
}

/// Runs ten fibers of one spawn site until ten overruns are counted.
fn ten_hogs_overrun(rt: &Runtime) {
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..10)
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(move || spin_in_a_named_function(&stop))
        })
        .collect();
    let overran = |overruns: Overruns| overruns.rows.iter().map(|row| row.overruns).sum::<u64>();
    common::wait_for("ten overruns", || overran(rt.overruns()) >= 10);
    stop.store(true, SeqCst);
    hogs.into_iter().for_each(|hog| hog.join().unwrap());
}

/// Blocks its thread until the other end of the pipe is closed.
#[inline(never)]
fn read_in_a_named_function(pipe: &mut PipeReader) {
    let _ = std::hint::black_box(pipe.read(&mut [0; 1]));
}

fn stack_names(overrun: &Overrun, function: &str) -> bool {
    let named = |place: &indent::runtime::CodeLocation| {
        let name = place.function.as_deref();
        name.is_some_and(|name| name.ends_with(function))
    };
    overrun.stack.iter().any(named)
}

#[test]
fn a_hogs_report_names_its_function_its_name_and_where_it_was_spawned() {
    common::within(PATIENCE, || {
        let (rt, told) = listening(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let line = line!() + 2;
        let hog = rt.block_on(|| {
            let hog = task::Builder::new().name("greedy");
            hog.spawn(move || spin_in_a_named_function(&stops))
        });
        let overrun = told.wait_for("a report", |_| true);
        assert_eq!(overrun.fiber, hog.id());
        assert_eq!(overrun.name.as_deref(), Some("greedy"));
        assert!(overrun.location.file().ends_with("overruns.rs"));
        assert!(overrun.location.line() >= line, "{overrun}");
        assert!(overrun.ran >= QUANTUM);
        assert!(
            stack_names(&overrun, "spin_in_a_named_function"),
            "{overrun}"
        );
        let function = overrun.function().unwrap();
        assert!(function.ends_with("spin_in_a_named_function"), "{function}");
        let text = overrun.to_string();
        assert!(text.contains("'greedy'") && text.contains("spin_in_a_named_function"));
        stop.store(true, SeqCst);
        hog.join().unwrap();
    });
}

#[test]
fn a_hog_for_which_others_wait_is_reported_as_stopped_and_says_that_they_did() {
    common::within(PATIENCE, || {
        let (rt, told) = listening(1);
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                rt.spawn(move || spin_in_a_named_function(&stop))
            })
            .collect();
        let stopped = |overrun: &Overrun| {
            use OverrunAction::{Frozen, FrozenInLibrary};
            let waited = overrun.waited.interactive + overrun.waited.batch;
            matches!(overrun.action, Frozen | FrozenInLibrary) && waited > 0
        };
        told.wait_for("a stop", stopped);
        stop.store(true, SeqCst);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
    });
}

#[test]
fn reports_of_one_stretch_come_at_twice_the_time_of_the_last() {
    common::within(PATIENCE, || {
        let (rt, told) = listening(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let hog = rt.spawn(move || spin_in_a_named_function(&stops));
        told.wait_for("some reports", |overrun| overrun.ran >= 8 * QUANTUM);
        stop.store(true, SeqCst);
        hog.join().unwrap();
        let all = told.all();
        assert!(all.len() >= 2);
        for pair in all.windows(2) {
            assert!(
                pair[1].ran >= 2 * pair[0].ran,
                "{} then {}",
                pair[0],
                pair[1]
            );
        }
    });
}

#[test]
fn a_sleepers_report_names_the_system_call() {
    if common::sanitizer_forbids("its own read stands between the fiber and the kernel") {
        return;
    }
    common::within(PATIENCE, || {
        let (rt, told) = listening(1);
        let (mut read, write) = std::io::pipe().unwrap();
        let sleeper = rt.spawn(move || read_in_a_named_function(&mut read));
        let overrun = told.wait_for("a report", |_| true);
        assert_eq!(overrun.fiber, sleeper.id());
        assert!(overrun.ran >= QUANTUM);
        let OverrunAction::Detached { name, call } = &overrun.action else {
            panic!("{overrun}");
        };
        assert_eq!((*name, *call), (Some("read"), libc::SYS_read));
        assert!(overrun.to_string().contains("blocks its thread in read"));
        assert!(
            stack_names(&overrun, "read_in_a_named_function"),
            "{overrun}"
        );
        drop(write);
        sleeper.join().unwrap();
    });
}

#[test]
fn ten_hogs_of_one_site_are_one_row() {
    common::within(PATIENCE, || {
        let rt = builder(1).build().unwrap();
        ten_hogs_overrun(&rt);
        let overruns = rt.overruns();
        assert_eq!(overruns.rows.len(), 1, "{overruns}");
        let row = &overruns.rows[0];
        let function = row.function.as_deref().unwrap();
        assert!(function.ends_with("spin_in_a_named_function"), "{overruns}");
        assert_eq!(row.overruns, 10, "{overruns}");
        assert!(row.longest >= QUANTUM && row.total >= 10 * QUANTUM);
        assert!(row.frozen + row.frozen_in_library >= 10);
        let inside = rt.block_on(|| indent::runtime::Handle::current().overruns());
        assert_eq!(inside.rows.len(), 1, "the same on a fiber");
    });
}

#[test]
fn a_fiber_that_stays_under_the_quantum_is_never_reported() {
    common::within(PATIENCE, || {
        let told = Told::default();
        let quantum = Duration::from_secs(1);
        let builder = Builder::new().workers(2).preempt_quantum(quantum);
        let rt = told.listen(builder).build().unwrap();
        let fibers: Vec<_> = (0..8)
            .map(|_| {
                rt.spawn(|| {
                    for _ in 0..8 {
                        burn(Duration::from_millis(3));
                        indent::time::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let overruns = rt.overruns();
        assert!(
            overruns.rows.is_empty() && overruns.unseen == 0,
            "{overruns}"
        );
        drop(rt); // waits for reports on their way
        assert!(told.all().is_empty(), "{:?}", told.all());
    });
}

#[test]
fn an_overrun_at_which_nobody_looks_is_counted() {
    common::within(PATIENCE, || {
        let rt = builder(1).build().unwrap();
        rt.block_on(|| burn(20 * QUANTUM)); // no other fiber waits
        let overruns = rt.overruns();
        assert!(overruns.unseen > 0, "{overruns}");
        assert!(overruns.to_string().contains("nobody looked at"));
    });
}

#[test]
fn a_callback_that_panics_is_called_again_and_said_once() {
    let text = common::alone("panicking_callback");
    let said = text.matches("indent: a callback for overruns panicked");
    assert_eq!(said.count(), 1, "{text}");
}

#[test]
fn a_callback_that_blocks_delays_nobody_but_later_reports() {
    common::within(PATIENCE, || {
        let (calls, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
        let blocked = go.lock().unwrap();
        let (counts, waits) = (calls.clone(), go.clone());
        let rt = builder(2)
            .on_overrun(move |_| {
                counts.fetch_add(1, SeqCst);
                drop(waits.lock());
            })
            .build()
            .unwrap();
        rt.block_on(|| burn(10 * QUANTUM));
        common::wait_for("a call", || calls.load(SeqCst) == 1);
        // Other fibers compute, park and wake as usual, and the table reports them.
        let more: Vec<_> = (0..8).map(|_| rt.spawn(|| burn(4 * QUANTUM))).collect();
        rt.block_on(|| indent::time::sleep(Duration::from_millis(5)));
        more.into_iter().for_each(|fiber| fiber.join().unwrap());
        common::wait_for("rows", || rt.overruns().rows.len() >= 2);
        assert_eq!(calls.load(SeqCst), 1);
        drop(blocked);
        common::wait_for("later reports", || calls.load(SeqCst) > 1);
    });
}

#[test]
fn a_callback_that_is_added_later_hears_of_later_overruns_and_may_use_the_runtime() {
    common::within(PATIENCE, || {
        let rt = builder(1).build().unwrap();
        let answered = Arc::new(AtomicUsize::new(0));
        let answer = answered.clone();
        rt.handle().on_overrun(move |overrun| {
            let id = overrun.fiber;
            let fiber = indent::spawn(move || id > 0); // on the same runtime
            answer.fetch_add(usize::from(fiber.join().unwrap_or(false)), SeqCst);
        });
        rt.block_on(|| burn(10 * QUANTUM));
        common::wait_for("an answer", || answered.load(SeqCst) > 0);
        assert!(rt.metrics().fibers_spawned_total >= 2);
    });
}

#[test]
fn a_callback_that_holds_a_handle_keeps_nothing_alive_after_the_end() {
    common::within(PATIENCE, || {
        let alive = Arc::new(());
        let held = alive.clone();
        let rt = builder(1).build().unwrap();
        let handle = rt.handle().clone();
        rt.handle().on_overrun(move |_| {
            let _both = (&handle, &held);
        });
        rt.block_on(|| burn(4 * QUANTUM));
        drop(rt);
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}

#[test]
fn a_fiber_that_gives_way_in_place_is_one_stretch_until_it_comes_back_by_itself() {
    common::within(PATIENCE, || {
        common::wait_for_the_survey(); // before that it freezes
        let (rt, told) = listening(1);
        let hog_for_a_while = || {
            let stop = Arc::new(AtomicBool::new(false));
            let spin = |stop: Arc<AtomicBool>| {
                // SAFETY: neither the region nor its surroundings use anything of the thread.
                move || unsafe { indent::runtime::preemptible(|| spin_in_a_named_function(&stop)) }
            };
            let hogs = [1, 2].map(|_| rt.spawn(spin(stop.clone())));
            std::thread::sleep(20 * QUANTUM);
            stop.store(true, SeqCst);
            hogs.into_iter().for_each(|hog| hog.join().unwrap());
        };
        // Sometimes one of them is stopped in another way when its report is due.
        let in_place = |overrun: &Overrun| overrun.action == OverrunAction::InPlace;
        let long = |overrun: &Overrun| in_place(overrun) && overrun.ran >= 2 * QUANTUM;
        common::wait_for("a long stretch in place", || {
            hog_for_a_while();
            told.all().iter().any(long)
        });
        let overrun = told.wait_for("the same", long);
        assert!(
            stack_names(&overrun, "spin_in_a_named_function"),
            "{overrun}"
        );
    });
}

#[test]
fn a_variable_has_overruns_printed_and_their_number_is_limited() {
    let output = common::in_child("child::many_overruns", &[("INDENT_LOG_OVERRUNS", "1")]);
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines = || stderr.lines().filter(|line| line.starts_with("indent: "));
    let whole = lines().filter(|line| line.contains("indent: fiber "));
    assert_eq!(whole.count(), 1, "one group: {text}");
    assert!(stderr.contains("spin_in_a_named_function"), "{text}");
    let more = lines().filter(|line| line.contains(" more overrun"));
    assert!((1..8).contains(&more.count()), "{text}");

    let output = common::in_child("child::many_overruns", &[("INDENT_LOG_OVERRUNS", "0")]);
    let quiet = common::text(&output);
    assert!(!quiet.contains("indent: "), "{quiet}");
}

#[test]
fn no_thread_for_reports_stays_behind() {
    common::alone("threads");
}

mod child {
    use super::*;

    #[test]
    #[ignore = "writes to standard error"]
    fn panicking_callback() {
        common::within(PATIENCE, || {
            let calls = Arc::new(AtomicUsize::new(0));
            let counts = calls.clone();
            let rt = builder(1)
                .on_overrun(move |_| {
                    counts.fetch_add(1, SeqCst);
                    panic!("on purpose");
                })
                .build()
                .unwrap();
            rt.block_on(|| burn(20 * QUANTUM));
            common::wait_for("calls", || calls.load(SeqCst) > 1);
            assert_eq!(rt.block_on(|| 1), 1);
        });
    }

    #[test]
    #[ignore = "its settings come from variables"]
    fn many_overruns() {
        common::within(PATIENCE, || {
            let rt = builder(1).build().unwrap();
            ten_hogs_overrun(&rt);
        });
    }

    #[test]
    #[ignore = "counts the threads of the process"]
    fn threads() {
        common::within(PATIENCE, || {
            let told = Told::default();
            let builder = told.listen(builder(1).thread_name("abc"));
            let rt = builder.build().unwrap();
            assert_eq!(common::threads_named("abc-reports"), 0);
            rt.block_on(|| burn(10 * QUANTUM));
            told.wait_for("a report", |_| true);
            common::wait_for("it ends", || common::threads_named("abc-reports") == 0);
            rt.block_on(|| burn(10 * QUANTUM));
            drop(rt);
            assert_eq!(common::threads_named("abc-"), 0);
        });
    }

    /// Runs fibers that each compute for some quanta, all at once.
    ///
    /// Returns the time until the last has ended, and the number of reports received.
    fn crowd(listens: bool) -> (Duration, usize) {
        let heard = Arc::new(AtomicUsize::new(0));
        let hears = heard.clone();
        let builder = Builder::new().workers(2);
        let mut builder = builder.preempt_quantum(Duration::from_millis(1));
        if listens {
            builder = builder.on_overrun(move |_| {
                hears.fetch_add(1, SeqCst);
            });
        }
        let rt = builder.build().unwrap();
        let begun = Instant::now();
        let work = || {
            let fold = |x: u64, i| x.wrapping_mul(i | 1) ^ std::hint::black_box(i);
            let _ = std::hint::black_box((0..4_000_000_u64).fold(1, fold));
        };
        let fibers: Vec<_> = (0..300).map(|_| rt.spawn(work)).collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let took = begun.elapsed();
        drop(rt);
        (took, heard.load(SeqCst))
    }

    #[test]
    #[ignore = "prints figures"]
    fn overhead() {
        crowd(true); // looks up names for the first time
        let mut took = [Vec::new(), Vec::new()];
        let mut reports = 0;
        for _ in 0..7 {
            for listens in [false, true] {
                let (time, heard) = crowd(listens);
                took[usize::from(listens)].push(time);
                reports += heard;
            }
        }
        took.iter_mut().for_each(|times| times.sort());
        let [without, with] = took.map(|times| times[times.len() / 2].as_secs_f64());
        let each = reports / 7;
        println!(
            "{with:.3} s with {each} reports, {without:.3} without: {:.3}",
            with / without
        );
    }
}
