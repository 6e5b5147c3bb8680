//! The report on fibers that keep a thread while they are parked.

mod common;

use std::cell::RefCell;
use std::time::Duration;

use indent::runtime::{BindingCause, BindingRow, Bindings, Builder, Runtime};
use indent::task::{self, JoinHandle, Phase};

thread_local!(static BORROWED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) });

fn runtime() -> Runtime {
    let rt = Builder::new().workers(2).build().unwrap();
    rt.wait_until_surveyed(None);
    rt
}

/// Parks `times` times with a thread-local borrowed; the last park lasts until it is unparked.
fn park_with_a_borrow(times: usize) {
    BORROWED.with_borrow_mut(|list| {
        for _ in 1..times {
            indent::time::sleep(Duration::from_millis(1));
        }
        indent::park::park();
        list.push(1);
    });
}

fn wait_until_parked<T>(fiber: &JoinHandle<T>, times: u64, rt: &Runtime) {
    common::wait_for("it parks", || {
        fiber.fiber().phase() == Phase::Parked
            && rt.binding().rows.iter().any(|row| row.parks >= times)
    });
}

/// Returns the only row of the report.
#[track_caller]
fn row(report: &Bindings) -> &BindingRow {
    assert_eq!(report.rows.len(), 1, "{report}");
    &report.rows[0]
}

#[test]
fn a_bound_fiber_is_reported_with_its_spawn_site_variable_parks_and_threads() {
    let rt = runtime();
    let here = line!() + 1;
    let fiber = rt.spawn(|| park_with_a_borrow(5));
    wait_until_parked(&fiber, 5, &rt);
    let report = rt.binding();
    let row = row(&report);
    assert!(row.location.file().ends_with("binding.rs"), "{report}");
    assert_eq!(row.location.line(), here, "{report}");
    assert_eq!((row.parks, row.threads), (5, 1), "{report}");
    assert_eq!(row.cause, BindingCause::Frame, "{report}");
    let variable = row.variable.as_deref().unwrap_or_default();
    assert!(variable.contains("BORROWED"), "{report}");
    assert!(!row.path.is_empty() && !row.advice.is_empty(), "{report}");
    assert!(report.to_string().contains("BORROWED"), "{report}");
    fiber.unparker().unpark();
    fiber.join().unwrap();
}

#[test]
fn a_thread_is_no_longer_counted_when_its_fiber_has_ended_but_its_parks_are() {
    let rt = runtime();
    let fibers: Vec<_> = (0..10)
        .map(|_| rt.spawn(|| park_with_a_borrow(1)))
        .collect();
    common::wait_for("all park", || {
        let report = rt.binding();
        report.rows.first().is_some_and(|row| row.threads == 10)
    });
    for fiber in fibers {
        fiber.unparker().unpark();
        fiber.join().unwrap();
    }
    let report = rt.binding();
    assert_eq!(
        (row(&report).parks, row(&report).threads),
        (10, 0),
        "{report}"
    );
}

#[test]
fn fibers_that_hold_nothing_are_not_reported() {
    let rt = runtime();
    let fibers: Vec<_> = (0..100)
        .map(|_| rt.spawn(|| indent::time::sleep(Duration::from_millis(2))))
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    let report = rt.binding();
    assert!(report.rows.is_empty(), "{report}");
    assert_eq!((report.others, report.unjudged), (0, 0), "{report}");
    let text = "no fiber is known to have kept a thread while it was parked";
    assert_eq!(report.to_string(), text);
}

#[test]
fn a_pinned_fiber_is_reported_as_pinned() {
    let rt = runtime();
    let fiber = rt.spawn(|| {
        let _pin = task::pin();
        indent::time::sleep(Duration::from_millis(1));
    });
    fiber.join().unwrap();
    let report = rt.binding();
    assert_eq!(row(&report).cause, BindingCause::Pinned, "{report}");
    assert_eq!(row(&report).function, None, "{report}");
}

#[test]
fn a_fiber_that_blocks_while_it_unwinds_is_reported_as_such() {
    struct Sleeps;
    impl Drop for Sleeps {
        fn drop(&mut self) {
            indent::time::sleep(Duration::from_millis(1));
        }
    }
    let rt = runtime();
    let fiber = rt.spawn(|| {
        let _sleeps = Sleeps;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    fiber.join().unwrap_err();
    let report = rt.binding();
    let unwinding = |row: &BindingRow| row.cause == BindingCause::Unwinding && row.parks == 1;
    assert!(report.rows.iter().any(unwinding), "{report}");
}

#[test]
fn a_fiber_can_ask_for_the_report() {
    let rt = runtime();
    let fiber = rt.spawn(|| park_with_a_borrow(1));
    wait_until_parked(&fiber, 1, &rt);
    let handle = rt.handle().clone();
    let report = rt.block_on(move || handle.binding());
    assert!(report.to_string().contains("BORROWED"), "{report}");
    fiber.unparker().unpark();
    fiber.join().unwrap();
}

#[test]
fn a_fiber_that_parked_before_the_code_had_been_read_is_reported_afterwards() {
    common::alone("parked_cold");
}

/// Returns the lines of the child's standard error about fibers that keep threads.
fn lines(setting: &str) -> Vec<String> {
    let output = common::in_child("child::parks", &[("INDENT_LOG_BOUND", setting)]);
    assert!(output.status.success(), "{}", common::text(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let keeps = |line: &&str| line.contains("keep a thread while they are parked");
    text.lines().filter(keeps).map(str::to_owned).collect()
}

#[test]
fn a_setting_reports_each_cause_once_on_standard_error() {
    let lines = lines("1");
    let named = |line: &&String| line.contains("tests/binding.rs") && line.contains("BORROWED");
    assert_eq!(lines.iter().filter(named).count(), 1, "{lines:?}");
}

#[test]
fn without_the_setting_nothing_is_reported() {
    assert!(lines("0").is_empty());
}

mod child {
    use super::*;

    #[test]
    #[ignore = "run by a test above: the code of its process has not been read"]
    fn parked_cold() {
        let rt = Builder::new().workers(2).build().unwrap();
        let fiber = rt.spawn(|| park_with_a_borrow(1));
        rt.wait_until_surveyed(None);
        wait_until_parked(&fiber, 1, &rt);
        let report = rt.binding();
        assert_eq!(row(&report).threads, 1, "{report}");
        fiber.unparker().unpark();
        fiber.join().unwrap();
    }

    #[test]
    #[ignore = "run by tests above, with their settings"]
    fn parks() {
        let rt = runtime();
        let fibers: Vec<_> = (0..20)
            .map(|_| rt.spawn(|| park_with_a_borrow(3)))
            .collect();
        for fiber in fibers {
            fiber.unparker().unpark();
            fiber.join().unwrap();
        }
    }
}
