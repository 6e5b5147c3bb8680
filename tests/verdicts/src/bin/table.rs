//! Runs every body once and prints what its frames allow: name, verdict, whether its values were
//! right, the function and the variable that bind; tabs between, a line each.
//!
//! ```text
//! cargo run -p indent-verdicts --bin table [part of a name] [--explain]
//! ```
//!
//! `--explain` adds the way from a frame to what binds.

use indent::runtime::{Builder, Runtime};
use indent_verdicts::noted::word;
use indent_verdicts::probe::{Mode, Note};
use indent_verdicts::{Body, Kit, Probe, bodies};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let explain = arguments.iter().any(|argument| argument == "--explain");
    let mut parts = arguments.iter().filter(|text| !text.starts_with("--"));
    let part = parts.next().cloned().unwrap_or_default();
    bodies::install_sinks();
    let kit = Kit::leak();
    let runtime = Builder::new().workers(2).build().expect("a runtime");
    let chosen = bodies::all().into_iter().filter(|b| b.name.contains(&part));
    for (number, body) in chosen.enumerate() {
        let note: &'static Note = Box::leak(Box::default());
        let probe = Probe::new(number as u64 + 1, Mode::Note(note), kit);
        let right = run(&runtime, body, probe);
        let (verdict, function, variable) = match note.get() {
            Some(noted) => (
                word(noted.verdict),
                noted.function.as_deref().unwrap_or("-"),
                noted.variable.as_deref().unwrap_or("-"),
            ),
            None => ("never parked", "-", "-"),
        };
        let name = body.name;
        println!("{name}\t{verdict}\t{right}\t{function}\t{variable}");
        if explain {
            let path = note.get().map_or(&[][..], |noted| &noted.path);
            path.iter().for_each(|step| println!("    {step}"));
        }
    }
}

/// The fiber's first frame knows the body by a pointer alone.
fn run(runtime: &Runtime, body: Body, probe: Probe) -> bool {
    let run = body.run;
    let fiber = runtime.spawn(move || run(&probe));
    fiber.join().unwrap_or(false)
}
