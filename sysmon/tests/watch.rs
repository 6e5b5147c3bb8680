//! The contract of the crate, tried by the example that watches plain threads: who overran is
//! named, with the function, and others are not.

use std::sync::{Arc, Mutex};

use indent_sysmon::ThreadState;
use indent_sysmon::stalls::{Stage, Stall};

#[path = "../examples/watch.rs"]
mod watch;

#[test]
fn whoever_holds_its_thread_up_is_named_running_or_asleep() {
    let told = Arc::new(Mutex::new(Vec::<Stall>::new()));
    let tell = {
        let told = told.clone();
        move |stall: &Stall| told.lock().unwrap().push(stall.clone())
    };
    watch::demonstrate(tell).unwrap();
    let told = told.lock().unwrap();
    let about = |label: &str, function: &str| {
        let found = |stall: &&Stall| stall.label == label && stall.stage == Stage::Found;
        let mut reports = told.iter().filter(found);
        let report = reports.next().unwrap_or_else(|| panic!("{told:#?}"));
        assert_eq!(reports.count(), 0, "once for each job: {told:#?}");
        assert!(report.to_string().contains(function), "{report}");
        report
    };
    let runner = about("report", "crunches_numbers");
    assert_eq!(runner.state, ThreadState::Running);
    let sleeper = about("backup", "waits_for_the_disk");
    assert_ne!(sleeper.state, ThreadState::Running);
    let text = sleeper.to_string();
    assert!(text.contains("watch.rs:"), "with the line: {text}");
    // Unless it was denied a CPU.
    let ran = |report: &Stall| {
        let ran = report.ran.is_some_and(|ran| ran >= watch::LIMIT);
        ran && report.stage != Stage::Ended
    };
    assert!(
        !told
            .iter()
            .any(|report| report.label == "ping" && ran(report))
    );
}
