//! Says what binds a function to its thread, about this very program.
//!
//! `--explain FUNCTION` prints the way to what binds it, `--statistics` what was read, `--list` all
//! functions with their verdicts (`--list bound`, `--list touching`: only those). The functions
//! below are samples to ask about.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hint::black_box;

use indent_sysmon::frames::{Judge, Mobility};

thread_local! {
    static COUNT: Cell<u32> = const { Cell::new(0) };
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn counts() -> u32 {
    COUNT.replace(COUNT.get() + 1)
}

#[inline(never)]
fn remembers(name: &str) -> usize {
    NAMES.with_borrow_mut(|names| {
        names.push(name.to_owned());
        names.len()
    })
}

#[inline(never)]
fn calls_through_a_box() -> u32 {
    let boxed: Box<dyn Fn() -> u32> = black_box(Box::new(counts));
    boxed()
}

#[inline(never)]
fn formats(number: u32) -> String {
    format!("{number:>8}")
}

#[inline(never)]
fn hashes(words: &[&str]) -> usize {
    let unique: HashMap<&str, ()> = words.iter().map(|word| (*word, ())).collect();
    unique.len()
}

#[inline(never)]
fn reads_a_file() -> std::io::Result<Vec<u8>> {
    std::fs::read("/proc/self/comm")
}

#[inline(never)]
fn prints() {
    println!("usage: verdict --explain FUNCTION | --statistics | --list [bound|touching]");
}

fn samples() {
    black_box(counts());
    black_box(remembers("somebody"));
    black_box(calls_through_a_box());
    black_box(formats(7));
    black_box(hashes(&["a", "b", "a"]));
    let _ = black_box(reads_a_file());
}

fn explain(judge: &Judge, name: &str) {
    let Some(ip) = judge.find(name) else {
        println!("no function has a name like {name}");
        return;
    };
    let binding = judge.explain(ip);
    println!("{:?}", binding.mobility());
    for step in binding.path() {
        println!("  {step}");
    }
}

fn list(judge: &Judge, which: &str) {
    for function in judge.functions() {
        let wanted = match which {
            "bound" => function.mobility == Mobility::Bound,
            "touching" => function.touches,
            _ => true,
        };
        if wanted {
            let name = function.name().unwrap_or_default();
            println!("{:<7?} {:#x} {name}", function.mobility, function.start);
        }
    }
}

fn main() {
    samples();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let judge = Judge::survey();
    match arguments.first().map(String::as_str) {
        Some("--explain") => explain(&judge, arguments.get(1).map_or("counts", String::as_str)),
        Some("--statistics") => println!("{:#?}", judge.statistics()),
        Some("--list") => list(&judge, arguments.get(1).map_or("", String::as_str)),
        _ => prints(),
    }
}
