//! Waiting until the program's code has been read, and the report on a program without symbols.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Part of the line about a program without symbols.
const LINE: &str = "the program has no symbols of functions";

/// A copy of this test binary that `strip` has processed; removed when it is dropped.
struct Copy(PathBuf);

impl Copy {
    /// Returns a stripped copy, or `None` with a message if there is no `strip`.
    fn stripped(name: &str, option: &str) -> Option<Copy> {
        let me = std::env::current_exe().expect("the path of this test binary");
        let name = format!("indent-survey-{name}-{}", std::process::id());
        let copy = Copy(std::env::temp_dir().join(name));
        let strip = Command::new("strip")
            .arg(option)
            .arg("-o")
            .args([&copy.0, &me])
            .output();
        match strip {
            Ok(output) if output.status.success() => Some(copy),
            Ok(output) => panic!("{}", common::text(&output)),
            Err(error) => {
                common::skip(&format!("no strip: {error}"));
                None
            }
        }
    }

    fn run(&self, test: &str, variables: &[(&str, &str)]) -> Output {
        run(&self.0, test, variables)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(program: &Path, test: &str, variables: &[(&str, &str)]) -> Output {
    let output = Command::new(program)
        .arg(test)
        .args(common::CHILD)
        .env_remove("INDENT_WARN_STRIPPED")
        .envs(variables.iter().copied())
        .output()
        .expect("a child process");
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no such test: {text}");
    output
}

/// Counts how often the line is in a child's standard error.
fn lines(output: &Output) -> usize {
    let text = String::from_utf8_lossy(&output.stderr);
    text.matches(LINE).count()
}

#[test]
fn a_plain_thread_waits_until_the_code_has_been_read() {
    common::alone("a_plain_thread_waits");
}

#[test]
fn a_fiber_parks_until_the_code_has_been_read_and_leaves_its_worker_to_others() {
    common::alone("a_fiber_waits");
}

#[test]
fn a_wait_ends_with_the_timeout_and_after_a_shutdown() {
    common::alone("waits_that_end_early");
}

#[test]
fn a_stripped_program_reports_once_what_that_costs() {
    if let Some(copy) = Copy::stripped("bare", "--strip-all") {
        let output = copy.run("child::has_no_symbols", &[]);
        assert_eq!(lines(&output), 1, "{}", common::text(&output));
        let text = common::text(&output);
        assert!(text.contains("strip = \"debuginfo\""), "no remedy: {text}");
    }
}

#[test]
fn the_report_of_a_stripped_program_can_be_silenced() {
    if let Some(copy) = Copy::stripped("silenced", "--strip-all") {
        let output = copy.run("child::has_no_symbols", &[("INDENT_WARN_STRIPPED", "0")]);
        assert_eq!(lines(&output), 0, "{}", common::text(&output));
        let output = copy.run("child::is_silenced_by_the_builder", &[]);
        assert_eq!(lines(&output), 0, "{}", common::text(&output));
    }
}

#[test]
fn a_program_that_keeps_its_symbols_reports_nothing() {
    let me = std::env::current_exe().expect("the path of this test binary");
    let output = run(&me, "child::a_plain_thread_waits", &[]);
    assert_eq!(lines(&output), 0, "{}", common::text(&output));
    if let Some(copy) = Copy::stripped("debuginfo", "--strip-debug") {
        let output = copy.run("child::a_plain_thread_waits", &[]);
        assert_eq!(lines(&output), 0, "{}", common::text(&output));
    }
}

mod child {
    use super::common;
    use indent::park;
    use indent::runtime::{Builder, Runtime, Survey};
    use indent::task::{self, Mobility};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    fn start() -> Runtime {
        Builder::new().workers(1).build().expect("a runtime")
    }

    #[test]
    #[ignore = "in a process of its own, whose code has not been read"]
    fn a_plain_thread_waits() {
        let rt = start();
        let parked = rt.spawn(park::park); // judged as soon as all code has been read
        assert_eq!(rt.wait_until_surveyed(None), Survey::Done);
        assert_eq!(rt.wait_until_surveyed(Some(Duration::MAX)), Survey::Done);
        if !common::all_fibers_are_bound() {
            let mobility = || rt.handle().fibers()[0].binding().mobility();
            common::wait_for("the verdict", || mobility() == Mobility::Movable);
        }
        parked.unparker().unpark();
        parked.join().expect("the parked fiber");
    }

    #[test]
    #[ignore = "in a process of its own, whose code has not been read"]
    fn a_fiber_waits() {
        let rt = start();
        let done = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicUsize::new(0));
        let (stop, count) = (done.clone(), turns.clone());
        let other = rt.spawn(move || {
            while !stop.load(SeqCst) {
                count.fetch_add(1, SeqCst);
                task::yield_now();
            }
        });
        let handle = rt.handle().clone();
        let waiting = rt.spawn(move || handle.wait_until_surveyed(None));
        assert_eq!(waiting.join().expect("the waiting fiber"), Survey::Done);
        common::wait_for("another turn", || turns.load(SeqCst) > 1);
        done.store(true, SeqCst);
        other.join().expect("the other fiber");
    }

    #[test]
    #[ignore = "in a process of its own, whose code has not been read"]
    fn waits_that_end_early() {
        let rt = start();
        let early = rt.wait_until_surveyed(Some(Duration::ZERO));
        assert!(matches!(early, Survey::Pending | Survey::Done), "{early:?}");
        let handle = rt.handle().clone();
        drop(rt);
        let late = common::within(60, || handle.wait_until_surveyed(None));
        assert!(matches!(late, Survey::Pending | Survey::Done), "{late:?}");
    }

    #[test]
    #[ignore = "of a stripped copy"]
    fn has_no_symbols() {
        // Several runtimes, but only one line.
        for _ in 0..2 {
            let rt = start();
            assert_eq!(rt.wait_until_surveyed(None), Survey::NoSymbols);
            assert_eq!(rt.spawn(|| 1).join().expect("a fiber"), 1);
        }
    }

    #[test]
    #[ignore = "of a stripped copy"]
    fn is_silenced_by_the_builder() {
        let rt = Builder::new().workers(1).warn_stripped(false).build();
        let rt = rt.expect("a runtime");
        assert_eq!(rt.wait_until_surveyed(None), Survey::NoSymbols);
    }
}
