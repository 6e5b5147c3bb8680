//! Every ordinary program gives the right result in every kind of build and every setting.
//!
//! | variant | what is special |
//! |---|---|
//! | debug | no optimization; reading the program's code takes longest |
//! | debug-stripped | no symbols: every fiber is bound to its thread |
//! | release | the build of most users |
//! | release-stripped | the build of many users |
//!
//! | setting | what is special |
//! |---|---|
//! | plain | nothing |
//! | busy | two processes beside it compute all the time |
//! | no-preempt | `INDENT_PREEMPT=off`: without programs whose loops only preemption interrupts |
//!
//! `INDENT_ORDINARY_ONLY`, a list with commas, names the programs, variants and settings to run;
//! `INDENT_ORDINARY_ROUNDS` sets the number of rounds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

#[path = "../../common/mod.rs"]
mod common;

/// Seconds after which a program is killed; its own watchdog, which prints a dump, acts earlier.
const LIMIT: &str = "120";
/// Programs that run at once.
const AT_ONCE: usize = 2;
/// Line that a stripped program prints on standard error, once its code has been read.
const STRIPPED: &str = "indent: the program has no symbols of functions";
/// The program that ends only after that line.
const WAITS: &str = "idle";

/// The names that `INDENT_ORDINARY_ONLY` lists.
struct Only(BTreeSet<String>);

impl Only {
    fn from_environment() -> Only {
        let list = std::env::var("INDENT_ORDINARY_ONLY").unwrap_or_default();
        let names = list.split(',').filter(|name| !name.is_empty());
        Only(names.map(str::to_owned).collect())
    }

    /// Returns the names of a kind that are to run: all of them, unless the list has some.
    fn of<'a>(&self, kind: &[&'a str]) -> Vec<&'a str> {
        let listed = kind.iter().copied().filter(|name| self.0.contains(*name));
        let listed: Vec<_> = listed.collect();
        if listed.is_empty() {
            kind.to_vec()
        } else {
            listed
        }
    }
}

/// A built program.
struct Variant {
    name: &'static str,
    program: PathBuf,
}

impl Variant {
    fn is_stripped(&self) -> bool {
        self.name.ends_with("stripped")
    }

    /// Builds the program in the target directory of this test, and copies it.
    ///
    /// Variants of a profile differ in the last link only, and the next variant has the same file
    /// name.
    fn build(name: &'static str) -> Variant {
        let mut command = Command::new(env!("CARGO"));
        command.args(["rustc", "--locked", "--quiet", "--bin", "ordinary"]);
        command.args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ]);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
        let target = target.expect("a directory above the temporary one");
        command.arg("--target-dir").arg(target);
        let profile = if name.starts_with("release") {
            "release"
        } else {
            "dev"
        };
        command.args(["--profile", profile]);
        if name.ends_with("stripped") {
            command.args(["--", "-Cstrip=symbols"]);
        }
        let output = command.output().expect("cargo");
        assert!(output.status.success(), "{}", common::text(&output));
        let directory = if profile == "release" {
            profile
        } else {
            "debug"
        };
        let program = target.join(directory).join(format!("ordinary-as-{name}"));
        std::fs::copy(program.with_file_name("ordinary"), &program).expect("a copy");
        Variant { name, program }
    }
}

/// Variants without symbols come first, so that the target directory keeps what the next build
/// needs.
const VARIANTS: &[&str] = &["debug-stripped", "debug", "release-stripped", "release"];
const SETTINGS: &[&str] = &["plain", "busy", "no-preempt"];

/// Returns the names of all programs, and whether each needs preemption to end.
fn programs(variant: &Variant) -> Vec<(String, bool)> {
    let list = Command::new(&variant.program).arg("--list").output();
    let list = String::from_utf8(list.expect("a list").stdout).expect("names");
    let line = |line: &str| {
        let (name, kind) = line.split_once(' ')?;
        Some((name.to_owned(), kind == "endless"))
    };
    list.lines().filter_map(line).collect()
}

/// A process that computes until this is dropped, or until the test process ends.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let script = format!("while kill -0 $PPID; do {count}; done");
        let child = Command::new("sh")
            .args(["-c", &script])
            .stderr(Stdio::null())
            .spawn();
        Busy(child.expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn run(variant: &Variant, program: &str, setting: &str) -> Output {
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", LIMIT])
        .arg(&variant.program)
        .arg(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INDENT_")) {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "1");
    if setting == "no-preempt" {
        command.env("INDENT_PREEMPT", "off");
    }
    command.output().expect("a program to run")
}

/// Returns what is wrong with a run.
fn complaint(variant: &Variant, program: &str, output: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Some(common::text(output));
    }
    if output.stdout != format!("{program}: ok\n").as_bytes() {
        return Some(format!("not the one line: {}", common::text(output)));
    }
    match (said.contains(STRIPPED), variant.is_stripped()) {
        (true, false) => Some(format!("{STRIPPED:?} is for stripped programs: {said}")),
        (false, true) if program == WAITS => Some(format!("does not report {STRIPPED:?}: {said}")),
        _ => None,
    }
}

#[test]
fn ordinary_programs_come_out_right_in_every_build_and_setting() {
    let only = Only::from_environment();
    let rounds = std::env::var("INDENT_ORDINARY_ROUNDS").ok();
    let rounds: usize = rounds.map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    let variants: Vec<_> = only.of(VARIANTS).into_iter().map(Variant::build).collect();
    let all = programs(&variants[0]);
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    let names = only.of(&names);
    let needs_preemption = |name: &str| all.contains(&(name.to_owned(), true));

    let started = Instant::now();
    let mut count = 0;
    let failures = Mutex::new(Vec::new());
    for setting in only.of(SETTINGS) {
        let _busy = (setting == "busy").then(|| [Busy::start(), Busy::start()]);
        let suits = |name: &&str| setting != "no-preempt" || !needs_preemption(name);
        let names = || names.iter().copied().filter(suits);
        let of_variant = |variant| names().map(move |name| (variant, name));
        let round = || variants.iter().flat_map(of_variant);
        let jobs: Vec<_> = (0..rounds).flat_map(|_| round()).collect();
        count += jobs.len();
        let jobs = Mutex::new(jobs.into_iter());
        let work = || loop {
            let job = jobs.lock().unwrap().next();
            let Some((variant, program)) = job else {
                return;
            };
            let output = run(variant, program, setting);
            if let Some(complaint) = complaint(variant, program, &output) {
                let failure = format!("{program}, {}, {setting}: {complaint}", variant.name);
                failures.lock().unwrap().push(failure);
            }
        };
        thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    }
    let failures = failures.into_inner().unwrap();
    println!("{count} runs of programs in {:?}", started.elapsed());
    let failed = failures.len();
    assert!(
        failed == 0,
        "{failed} of {count} runs:\n{}",
        failures.join("\n")
    );
}
