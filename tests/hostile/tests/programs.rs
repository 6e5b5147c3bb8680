//! Every hostile program gives right results in every kind of build.
//!
//! Builds each variant once, with the settings of cargo in the environment and, unless variants
//! differ only in the last link, a target directory of its own. Then runs all programs, a few at a
//! time. A failed program's output is shown.
//!
//! | variant | what is special |
//! |---|---|
//! | debug | no optimization: calls where others inline, overflow checks |
//! | release | the build of most users |
//! | stripped | no symbols: nearly every fiber counts as bound |
//! | jemalloc, mimalloc | other allocators, in the release build |
//! | abort | a panic ends the process; nothing unwinds |
//! | fat | optimized as a whole: thread-locals are inlined everywhere |
//! | regions | release, with regions around the pure parts of all programs that have any |
//! | regions-debug, regions-jemalloc, regions-mimalloc | the same in those builds |
//!
//! With other allocators only programs that allocate are run. The heartbeat is judged before a
//! program begins: beside hogs it takes between some tenths of a second and many seconds, in a
//! debug build, to read so large a program, and until then the heartbeat counts as bound.
//!
//! `INDENT_HOSTILE_SECONDS` is the time of each program; `INDENT_HOSTILE_ONLY`, a list with commas,
//! names the only programs and variants to run.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

#[path = "../../common/mod.rs"]
mod common;

/// A built program.
struct Variant {
    name: &'static str,
    program: PathBuf,
    /// If set, its programs run with regions around their pure parts.
    regions: bool,
}

const ALLOCATING: &[&str] = &[
    "allocation",
    "hash-maps",
    "btree",
    "sort",
    "regex",
    "json",
    "format",
    "panic-loop",
    "panic-messages",
    "panic-joined",
    "backtrace",
    "loader-lock",
    "libc-loops",
    "command",
    "fork",
    "epoch",
    "thread-scope",
    "tokio",
    "region-btree",
    "region-json",
    "region-regex",
    "region-sort",
];

impl Variant {
    /// Returns true if a program makes sense in this variant.
    fn suits(&self, program: &str) -> bool {
        match self.name {
            name if name.ends_with("malloc") => ALLOCATING.contains(&program),
            _ => true,
        }
    }
}

/// Settings of cargo, for the environment.
type Settings = &'static [(&'static str, &'static str)];

const ABORT: Settings = &[("CARGO_PROFILE_RELEASE_PANIC", "abort")];
const FAT: Settings = &[
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
];

/// Calls cargo; returns the directory with the built programs.
fn cargo(directory: &str, arguments: &[&str], settings: Settings) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(directory);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let (command, rest) = arguments.split_first().expect("a command");
    let output = Command::new(cargo)
        // No `--offline`: other allocators may have to be fetched.
        .args([command, "--locked", "--release", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .args(rest)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .envs(settings.iter().copied())
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", common::text(&output));
    target.join("release")
}

/// Copies the program under another name, since the next build may replace it.
fn keep(name: &'static str, built: &Path) -> Variant {
    let program = built.with_file_name(format!("hostile-as-{name}"));
    std::fs::copy(built, &program).expect("a copy of a program");
    Variant {
        name,
        program,
        regions: false,
    }
}

/// Returns the same program with regions, under another name.
fn with_regions(name: &'static str, variant: &Variant) -> Variant {
    Variant {
        name,
        program: variant.program.clone(),
        regions: true,
    }
}

/// Returns the variants that differ only in the last link, so that shared code is built once.
fn plain() -> Vec<Variant> {
    let last = [
        "rustc",
        "--features",
        "allocators",
        "--bin",
        "hostile",
        "--",
        "-Cstrip=symbols",
    ];
    let directory = cargo("plain", &last, &[]);
    let stripped = keep("stripped", &directory.join("hostile"));
    let all = ["build", "--bins", "--features", "allocators"];
    let directory = cargo("plain", &all, &[]);
    let release = keep("release", &directory.join("hostile"));
    let jemalloc = keep("jemalloc", &directory.join("hostile-jemalloc"));
    let mimalloc = keep("mimalloc", &directory.join("hostile-mimalloc"));
    let regions = [
        with_regions("regions", &release),
        with_regions("regions-jemalloc", &jemalloc),
        with_regions("regions-mimalloc", &mimalloc),
    ];
    let plain = [stripped, release, jemalloc, mimalloc];
    plain.into_iter().chain(regions).collect()
}

fn build(only: &BTreeSet<String>) -> Vec<Variant> {
    let wanted = |name: &str| chosen(only, VARIANTS, name);
    let mut variants = Vec::new();
    if ["debug", "regions-debug"].into_iter().any(wanted) && cfg!(debug_assertions) {
        let debug = Variant {
            name: "debug",
            program: env!("CARGO_BIN_EXE_hostile").into(),
            regions: false,
        };
        variants.push(with_regions("regions-debug", &debug));
        variants.push(debug);
    }
    if PLAIN.iter().copied().any(wanted) {
        variants.extend(plain());
    }
    for (name, settings) in [("abort", ABORT), ("fat", FAT)] {
        if wanted(name) {
            let directory = cargo(name, &["build", "--bin", "hostile"], settings);
            variants.push(keep(name, &directory.join("hostile")));
        }
    }
    variants.retain(|variant| wanted(variant.name));
    variants
}

const PLAIN: &[&str] = &[
    "release",
    "stripped",
    "jemalloc",
    "mimalloc",
    "regions",
    "regions-jemalloc",
    "regions-mimalloc",
];

const VARIANTS: &[&str] = &[
    "debug",
    "release",
    "stripped",
    "jemalloc",
    "mimalloc",
    "abort",
    "fat",
    "regions",
    "regions-debug",
    "regions-jemalloc",
    "regions-mimalloc",
];

/// Returns true if a name is selected: if none of its kind is named, all are.
fn chosen(only: &BTreeSet<String>, kind: &[&str], name: &str) -> bool {
    only.contains(name) || !kind.iter().any(|name| only.contains(*name))
}

fn programs(variant: &Variant) -> Vec<String> {
    let output = Command::new(&variant.program)
        .arg("--list")
        .args(variant.regions.then_some("--regions"))
        .output()
        .expect("a list");
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Returns a variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Returns the value of `RUST_BACKTRACE` for a program.
///
/// A backtrace takes a lock of the loader's, which the C library does not release in the child of a
/// fork. Children that panic would hang if a thread of the parent held it at the fork.
fn backtrace(program: &str) -> &'static str {
    if program == "fork" { "0" } else { "1" }
}

fn run(variant: &Variant, program: &str, seconds: &str) -> Output {
    let mut command = Command::new(&variant.program);
    command
        .args([program, "--warm", "--seconds", seconds])
        .args(variant.regions.then_some("--regions"))
        .env("RUST_BACKTRACE", backtrace(program));
    // With the programs' own settings, not with those of the test's user.
    let settings = std::env::vars().filter(|(name, _)| name.starts_with("INDENT_"));
    settings.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.output().expect("a program to run")
}

/// Writes past the harness's capture, so that the output of a long run shows what was skipped.
fn shout(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .ok();
}

#[test]
fn stress_hostile_programs_come_out_right_in_every_build() {
    let only = variable("INDENT_HOSTILE_ONLY").unwrap_or_default();
    let only: BTreeSet<String> = only
        .split(',')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect();
    let seconds = variable("INDENT_HOSTILE_SECONDS").unwrap_or("2".to_owned());
    let variants = build(&only);
    let started = Instant::now();
    let mut jobs: Vec<(&Variant, String)> = Vec::new();
    for variant in &variants {
        let names = programs(variant);
        let kind: Vec<&str> = names.iter().map(String::as_str).collect();
        let wanted = names
            .iter()
            .filter(|name| variant.suits(name) && chosen(&only, &kind, name));
        jobs.extend(wanted.map(|name| (variant, name.clone())));
    }
    let (count, queue) = (jobs.len(), Mutex::new(jobs.into_iter()));
    let failures: Mutex<Vec<String>> = Mutex::default();
    let work = || loop {
        let job = queue.lock().expect("no panic inside").next();
        let Some((variant, name)) = job else { return };
        let output = run(variant, &name, &seconds);
        let text = common::text(&output);
        let skipped = text.lines().filter(|line| line.starts_with("SKIPPED"));
        skipped.for_each(|line| shout(&format!("{line} ({})", variant.name)));
        if !output.status.success() {
            let report = format!("{} in the variant {}: {text}", name, variant.name);
            failures.lock().expect("no panic inside").push(report);
        }
    };
    thread::scope(|scope| {
        let at_once = thread::available_parallelism().map_or(2, usize::from) * 2;
        (0..at_once).for_each(|_| drop(scope.spawn(work)));
    });
    let failures = failures.into_inner().expect("no panic inside");
    println!("{count} runs of programs in {:?}", started.elapsed());
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
