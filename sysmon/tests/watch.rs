//! The contract of the crate, tried by the example that watches plain threads: who overran is named,
//! with the function, and others are not. In a process of its own: the signal is the process's.

use std::sync::{Arc, Mutex};

#[path = "../examples/watch.rs"]
mod watch;

#[test]
fn whoever_holds_its_thread_up_is_named_running_or_asleep() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = {
        let told = told.clone();
        move |report: watch::Report| told.lock().unwrap().push(report.to_string())
    };
    watch::demonstrate(tell).unwrap();
    let told = told.lock().unwrap();
    let about = |function: &str| {
        let mut reports = told.iter().filter(|report| report.contains(function));
        let report = reports.next().unwrap_or_else(|| panic!("{told:#?}"));
        assert_eq!(reports.count(), 0, "once for each job: {told:#?}");
        report
    };
    assert!(about("crunches_numbers").contains("its thread runs"));
    let sleeper = about("waits_for_the_disk");
    assert!(!sleeper.contains("its thread runs"), "{sleeper}");
    assert!(sleeper.contains("watch.rs:"), "with the line: {sleeper}");
    assert!(!told.iter().any(|report| report.contains("is_quick")));
}
