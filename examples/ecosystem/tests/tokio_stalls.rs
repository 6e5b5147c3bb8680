//! The example that watches a Tokio runtime finds the poll that was planted, and accuses nobody else.
//!
//! On a busy machine a poll of no length may last for long because its thread gets no CPU. So what is
//! asserted of the others is that they are few beside what was planted, and that their stacks do not
//! say otherwise.

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
    let found = |stall: &&Stall| stall.stage == Stage::Found;
    let (planted, others): (Vec<_>, Vec<_>) =
        (told.iter().filter(found)).partition(|stall| stall.label == "images");
    assert!(planted.len() >= 3, "{told:#?}");
    let shown = |stall: &Stall| {
        let mut top = stall.stack.iter().take(TOP);
        top.any(|place| place.to_string().contains("resizes_a_large_one"))
    };
    let named = planted.iter().filter(|stall| shown(stall)).count();
    assert!(named * 3 >= planted.len() * 2, "{planted:#?}");
    assert!(others.len() * 2 <= planted.len(), "{others:#?}");
    assert!(!others.iter().any(|stall| shown(stall)), "{others:#?}");
    let ended = told
        .iter()
        .find(|stall| stall.label == "images" && stall.stage == Stage::Ended);
    let ended = ended.unwrap_or_else(|| panic!("{told:#?}"));
    assert!(
        ended.lasted >= Duration::from_millis(25),
        "half of it at least: {ended}"
    );
}
