//! Runs every body once and prints the verdict on its frames.
//!
//! Each body has a line, with tabs between: name, verdict, the verdict that the scheduler recorded
//! while it was parked, whether its values were right, the function and the variable that bind. The
//! two verdicts differ only if frames of the runtime bind.
//!
//! ```text
//! cargo run -p indent-verdicts --bin table [part of a name] [--explain]
//! ```
//!
//! `--explain` adds the path from a frame to what binds.

#![expect(unsafe_code, reason = "vouches for pointers")]

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use indent::runtime::{Builder, Runtime};
use indent::task::Phase;
use indent_verdicts::noted::word;
use indent_verdicts::probe::{Mode, Note};
use indent_verdicts::{Body, Kit, Probe, bodies};

/// How often a parked fiber is checked, until the verdict on it equals its own.
///
/// At first the scheduler does not know it.
const LOOKS: u32 = 15_000;
const PAUSE: Duration = Duration::from_millis(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let explain = arguments.iter().any(|argument| argument == "--explain");
    let mut parts = arguments.iter().filter(|text| !text.starts_with("--"));
    let part = parts.next().cloned().unwrap_or_default();
    bodies::install_sinks();
    // Some bodies bind all others, being called through pointers. Where thread-locals belong to
    // threads, that is so in every program.
    if std::env::var_os("INDENT_TLS").is_none_or(|whose| whose != "thread") {
        // SAFETY: one fiber runs at a time, and checks what it holds before the next one begins.
        unsafe { indent_sysmon::frames::trust_pointers() };
    }
    let kit = Kit::leak();
    let runtime = Builder::new().workers(2).build().expect("a runtime");
    let chosen = bodies::all().into_iter().filter(|b| b.name.contains(&part));
    for (number, body) in chosen.enumerate() {
        let note: &'static Note = Box::leak(Box::default());
        let probe = Probe::new(number as u64 + 1, Mode::Note(note), kit);
        let (right, parked) = run(&runtime, body, probe, note);
        let (verdict, function, variable) = match note.first.get() {
            Some(noted) => (
                word(noted.mobility),
                noted.function.as_deref().unwrap_or("-"),
                noted.variable.as_deref().unwrap_or("-"),
            ),
            None => ("never parked", "-", "-"),
        };
        let name = body.name;
        println!("{name}\t{verdict}\t{parked}\t{right}\t{function}\t{variable}");
        if explain {
            let path = note.first.get().map_or(&[][..], |noted| &noted.path);
            path.iter().for_each(|step| println!("    {step}"));
        }
    }
}

/// Returns whether the values were right, and the verdict recorded while it was parked.
///
/// The fiber's first frame knows the body by a pointer alone.
fn run(runtime: &Runtime, body: Body, probe: Probe, note: &Note) -> (bool, &'static str) {
    let run = body.run;
    let mut fiber = runtime.spawn(move || run(&probe));
    let mut parked = "unseen";
    for _ in 0..LOOKS {
        let watched = fiber.fiber();
        let Some(noted) = note.first.get() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if watched.phase() == Phase::Parked {
            let mobility = watched.binding().mobility();
            parked = word(mobility);
            if mobility == noted.mobility {
                break;
            }
            fiber.unparker().unpark(); // to be judged again
        }
        std::thread::sleep(PAUSE);
    }
    note.seen.store(true, Relaxed);
    loop {
        fiber.unparker().unpark();
        match fiber.join_timeout(PAUSE) {
            Ok(right) => return (right.unwrap_or(false), parked),
            Err(back) => fiber = back,
        }
    }
}
