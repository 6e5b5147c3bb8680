//! Thread-locals that stay with the thread have the intended effect, in debug and release.
//!
//! Each test runs programs of this package (see `src/lib.rs`) and compares their output. Times and
//! memory are compared within one run, or with the same program on the system's allocator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

#[path = "../../common/mod.rs"]
mod common;

/// Seconds after which a program is killed; its own watchdog, which prints a dump, acts earlier.
const LIMIT: &str = "300";

/// Numbers of fibers: more than sharded-slab can number (4,096), and many more.
const MANY: [usize; 2] = [6_000, 20_000];

/// Directories of the programs of both profiles.
///
/// The test is built in one of the profiles; the other one shares its target directory.
static DIRECTORIES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("a directory above the temporary one");
    let build = |profile: &str, directory: &str| {
        let output = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--quiet", "--bins"])
            .args(["--profile", profile])
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .arg("--target-dir")
            .arg(target)
            .output()
            .expect("cargo");
        assert!(output.status.success(), "{}", common::text(&output));
        target.join(directory)
    };
    [build("dev", "debug"), build("release", "release")]
});

/// The output of a program.
struct Printed {
    /// For messages.
    what: String,
    numbers: BTreeMap<String, f64>,
}

impl Printed {
    /// Returns the number of this name, or the sum if there are several.
    fn get(&self, name: &str) -> f64 {
        let number = self.numbers.get(name).copied();
        number.unwrap_or_else(|| panic!("{}: no {name}", self.what))
    }
}

/// Runs a program, which must end well, in both profiles.
fn run(program: &str, arguments: &[&str]) -> [Printed; 2] {
    let directories = LazyLock::force(&DIRECTORIES);
    directories
        .each_ref()
        .map(|directory| run_in(directory, program, arguments))
}

/// The same with optimization alone.
fn run_optimized(program: &str, arguments: &[&str]) -> Printed {
    let [_, release] = LazyLock::force(&DIRECTORIES);
    run_in(release, program, arguments)
}

/// One program at a time: they measure.
fn run_in(directory: &Path, program: &str, arguments: &[&str]) -> Printed {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", LIMIT]);
    command.arg(directory.join(program)).args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INDENT_")) {
        command.env_remove(name);
    }
    let output = command.output().expect("a program to run");
    let profile = directory.file_name().unwrap_or_default().display();
    let what = format!("{program} {}, {profile}", arguments.join(" "));
    let text = common::text(&output);
    assert!(output.status.success(), "{what}: {text}");
    println!("{what}: {text}");
    let mut numbers = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        *numbers.entry(name.to_owned()).or_default() += number.parse::<f64>().expect("a number");
    }
    Printed { what, numbers }
}

/// Checks that fibers went from thread to thread: otherwise a run shows little.
fn assert_moved(printed: &Printed, at_least: usize) {
    let (what, moved) = (&printed.what, printed.get("moved"));
    assert!(
        moved >= at_least as f64,
        "{what}: only {moved} fibers moved"
    );
}

#[test]
fn more_fibers_log_in_their_spans_than_the_registry_numbers_threads() {
    for count in MANY {
        for printed in run("spans", &["lines", &count.to_string()]) {
            assert_eq!(printed.get("lines"), 6. * count as f64);
            assert_moved(&printed, count / 20);
        }
    }
}

#[test]
fn more_fibers_enter_spans_of_a_bare_registry_than_it_numbers_threads() {
    for count in MANY {
        for printed in run("spans", &["registry", &count.to_string()]) {
            assert_moved(&printed, count / 20);
        }
    }
}

#[test]
fn fibers_that_hold_guards_of_an_arc_swap_do_not_slow_down_its_store() {
    for printed in run("swap", &["10000"]) {
        assert_few_times(&printed);
        assert_moved(&printed, 500);
    }
}

/// Checks that a store gets slower by the few threads that have used the `ArcSwap` only.
///
/// The number of fibers must not make it slower.
fn assert_few_times(printed: &Printed) {
    const AT_MOST: f64 = 150.;
    for name in ["during", "after"] {
        let times = printed.get(name) / printed.get("before");
        let what = &printed.what;
        assert!(times < AT_MOST, "{what}: {times:.0} times as slow {name}");
    }
}

#[test]
fn no_two_fibers_draw_the_same_numbers_and_each_finds_what_is_in_its_maps() {
    for printed in run("seeds", &["5000"]) {
        assert_moved(&printed, 250);
    }
    run("seeds", &["300", "--judged"]);
}

#[test]
fn a_variable_that_the_program_names_is_that_of_the_thread_at_every_moment() {
    for printed in run("named", &["2000"]) {
        assert_moved(&printed, 100);
        let (what, uses) = (&printed.what, printed.get("uses"));
        assert!(uses > 100., "{what}: {uses} uses, ten are one fiber's");
    }
    run("named", &["300", "--judged"]);
}

#[test]
fn memory_goes_from_fiber_to_fiber_and_costs_about_the_same_with_every_allocator() {
    const FIBERS: &str = "10000";
    let system = run("alloc-system", &[FIBERS, "--judged"]);
    // In debug and in release. Without optimization the frames of jemalloc's C code take tens of
    // kilobytes of each stack.
    let others: [(&str, &[&str], [f64; 2]); 4] = [
        ("alloc-jemalloc", &[FIBERS, "--judged"], [12., 4.]),
        ("alloc-mimalloc", &[FIBERS, "--judged"], [4., 4.]),
        // Its lists belong to each fiber, unless they are named.
        ("alloc-lists", &[FIBERS, "--judged"], [12., 12.]),
        ("alloc-lists", &[FIBERS, "named", "--judged"], [4., 4.]),
    ];
    for (program, arguments, at_most) in others {
        let runs = run(program, arguments);
        for ((printed, system), at_most) in runs.iter().zip(&system).zip(at_most) {
            assert_moved(printed, 500);
            let times = printed.get("resident") / system.get("resident");
            let what = &printed.what;
            assert!(times < at_most, "{what}: {times:.1} times the memory");
        }
    }
}

#[test]
fn what_the_runtime_allocates_is_not_counted_as_a_fibers() {
    for printed in run("alloc-counts", &["2000"]) {
        let what = &printed.what;
        assert_eq!(
            printed.get("first"),
            0.,
            "{what}: begins with others' counts"
        );
        assert_moved(&printed, 100);
    }
}

/// With optimization: without, a subscriber finds its thread-locals by keys that may come from
/// anywhere, so that a fiber in a span keeps its thread.
#[test]
fn more_fibers_log_in_their_spans_than_the_registry_numbers_threads_as_judged() {
    for count in MANY {
        let printed = run_optimized("spans", &["lines", &count.to_string(), "--judged"]);
        assert_eq!(printed.get("lines"), 6. * count as f64);
    }
}

#[test]
fn fibers_that_hold_guards_of_an_arc_swap_do_not_slow_down_its_store_as_judged() {
    for printed in run("swap", &["10000", "--judged"]) {
        assert_few_times(&printed);
    }
}
