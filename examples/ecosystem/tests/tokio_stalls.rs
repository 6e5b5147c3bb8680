//! The example that watches a Tokio runtime finds the planted poll, and reports no other as
//! computing.
//!
//! On a busy machine a short poll may last for long because its thread gets no CPU. So the test
//! asserts of the others only that they hardly ever computed for that long, and that their stacks
//! agree.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use indent_sysmon::stalls::{Stage, Stall};

#[path = "../src/bin/tokio_stalls.rs"]
mod tokio_stalls;

/// Frames among which the function must be: those inlined into it come first.
const TOP: usize = 8;

#[test]
fn the_planted_poll_is_found_by_name_and_function_and_others_are_not() {
    let told = Arc::new(Mutex::new(Vec::<Stall>::new()));
    let tell = {
        let told = told.clone();
        move |stall: &Stall| told.lock().unwrap().push(stall.clone())
    };
    tokio_stalls::demonstrate(Duration::from_millis(1500), tell).unwrap();
    let told = told.lock().unwrap();
    let (planted, others): (Vec<_>, Vec<_>) = told
        .iter()
        .partition(|stall: &&Stall| stall.label == "images");
    let shown = |stall: &&&Stall| {
        let mut top = stall.stack.iter().take(TOP);
        top.any(|place| place.to_string().contains("resizes_a_large_one"))
    };
    let named = planted.iter().filter(shown).count();
    assert!(named > 0, "{planted:#?}");
    let with_stack = planted.iter().filter(|stall| !stall.stack.is_empty());
    assert!(named * 3 >= with_stack.count() * 2, "{planted:#?}");
    let ended = |stall: &&&Stall| stall.stage == Stage::Ended;
    let longest = planted.iter().filter(ended).map(|stall| stall.lasted).max();
    assert!(
        longest >= Some(Duration::from_millis(25)),
        "half at least: {planted:#?}"
    );
    // Others may have been denied a CPU, but did not compute. (For a poll that is over this is less
    // certain: the thread continues with others before the monitor, without a CPU itself, sees the
    // end.)
    let computed = |stall: &&&Stall| {
        let ran = stall.ran.is_some_and(|ran| ran >= tokio_stalls::LIMIT);
        ran && stall.stage != Stage::Ended
    };
    let computed = others.iter().filter(computed).count();
    assert!(computed * 3 <= planted.len(), "{others:#?}");
    assert!(!others.iter().any(|stall| shown(&stall)), "{others:#?}");
}
