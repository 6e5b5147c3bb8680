//! Every body gets the right verdict, however the program was built.
//!
//! Builds the program `table` once for each profile, with the profile's settings in the environment
//! and a target directory of its own, runs it, and compares with the table of bodies. A verdict
//! that is looser than the expected one is unsound; a stricter one costs more than necessary: both
//! fail. A stricter verdict is allowed where nothing is known by name (stripped), code is laid out
//! differently (no position-independent code), or thread-locals belong to threads.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use indent_verdicts::noted::{Mobility, from_word, word};
use indent_verdicts::{Body, Profile, bodies};

#[path = "../../common/mod.rs"]
mod common;

/// Settings of cargo, for the environment.
type Settings = &'static [(&'static str, &'static str)];

const ONE_UNIT: (&str, &str) = ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
const SMALL: Settings = &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")];
const THIN: Settings = &[("CARGO_PROFILE_RELEASE_LTO", "thin")];
const FAT: Settings = &[("CARGO_PROFILE_RELEASE_LTO", "fat"), ONE_UNIT];
const STRIPPED: Settings = &[("CARGO_PROFILE_RELEASE_STRIP", "symbols")];
/// Settings with the target named, so that build scripts are not built with them.
const FIXED: Settings = &[
    ("RUSTFLAGS", "-C relocation-model=static"),
    ("CARGO_BUILD_TARGET", TRIPLE),
];
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// How many verdicts may differ.
#[derive(Clone, Copy, PartialEq)]
enum Tolerance {
    None,
    Stricter,
}

/// Builds the program and returns its path.
fn build(name: &str, profile: Profile, settings: Settings) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("table-{name}"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--offline", "--locked", "--bin", "table"])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        // Sanitizers and similar flags change the very code under test.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .envs(settings.iter().copied());
    let directory = match profile {
        Profile::Debug => "debug",
        _ => {
            command.arg("--release");
            "release"
        }
    };
    let output = command.output().expect("cargo");
    assert!(output.status.success(), "{}", common::text(&output));
    let named = settings.iter().any(|setting| setting.1 == TRIPLE);
    let target = if named { target.join(TRIPLE) } else { target };
    target.join(directory).join("table")
}

/// The program's output about one body.
struct Row<'a> {
    name: &'a str,
    verdict: &'a str,
    /// The verdict while it was parked.
    parked: &'a str,
    right: bool,
    why: String,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let row = |line| {
        let columns: Vec<&str> = str::split(line, '\t').collect();
        let [name, verdict, parked, right, function, variable] = columns[..] else {
            panic!("not a row: {line}");
        };
        Row {
            name,
            verdict,
            parked,
            right: right == "true",
            why: format!("{function}, {variable}"),
        }
    };
    text.lines().map(row).collect()
}

/// Returns what is wrong with a row, if anything.
fn complaint(
    body: &Body,
    row: &Row<'_>,
    profile: Profile,
    own: bool,
    tolerance: Tolerance,
) -> Option<String> {
    let why = &row.why;
    if !row.right && body.lawful {
        return Some("its values were wrong".to_owned());
    }
    let Some(found) = from_word(row.verdict) else {
        return Some(format!("verdict {:?}", row.verdict));
    };
    let expected = body.expected.in_profile(profile, own).unwrap_or(found);
    if found == Mobility::Movable && expected == Mobility::Bound {
        Some(format!(
            "{}, and must be {}: UNSOUND",
            word(found),
            word(expected)
        ))
    } else if found != expected && tolerance == Tolerance::None {
        Some(format!(
            "{}, and could be {}: {why}",
            word(found),
            word(expected)
        ))
    } else if row.parked != row.verdict {
        let (parked, own) = (row.parked, row.verdict);
        Some(format!(
            "{own}, but {parked} while parked: by the runtime's frames?"
        ))
    } else {
        None
    }
}

fn check(name: &str, profile: Profile, settings: Settings, tolerance: Tolerance) {
    let program = build(name, profile, settings);
    if settings != STRIPPED {
        compare(name, &program, profile, true, tolerance);
    }
    compare(name, &program, profile, false, Tolerance::Stricter);
}

/// Runs the program, with thread-locals that belong to fibers or to threads.
fn compare(name: &str, program: &Path, profile: Profile, own: bool, tolerance: Tolerance) {
    let whose = if own { "fiber" } else { "thread" };
    let mut command = Command::new(program);
    let output = command.env("INDENT_TLS", whose).output();
    let output = output.expect("the program");
    assert!(output.status.success(), "{}", common::text(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (rows, bodies) = (rows(&text), bodies::all());
    let mut complaints = String::new();
    for body in &bodies {
        let row = rows.iter().find(|row| row.name == body.name);
        let wrong = match row {
            Some(row) => complaint(body, row, profile, own, tolerance),
            None => Some("not in the output".to_owned()),
        };
        if let Some(wrong) = wrong {
            writeln!(complaints, "  {:<32}{wrong}", body.name).expect("a string");
        }
    }
    let wrong = complaints.lines().count();
    assert!(
        complaints.is_empty(),
        "{name}, thread-locals of the {whose}: {wrong} of {} bodies\n{complaints}",
        bodies.len()
    );
}

#[test]
fn there_are_many_bodies_and_no_name_occurs_twice() {
    let mut names: Vec<_> = bodies::all().iter().map(|body| body.name).collect();
    assert!(names.len() >= 48, "{} bodies", names.len());
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

#[test]
fn verdicts_are_right_without_optimization() {
    check("debug", Profile::Debug, &[], Tolerance::None);
}

#[test]
fn verdicts_are_right_with_optimization() {
    check("release", Profile::Release, &[], Tolerance::None);
}

/// One after the other: each builds everything again.
#[test]
#[ignore = "minutes; part of .ci/long"]
fn verdicts_are_right_when_optimized_for_size() {
    check("small", Profile::Small, SMALL, Tolerance::None);
}

#[test]
#[ignore = "minutes; part of .ci/long"]
fn verdicts_are_right_with_thin_optimization_when_linked() {
    check("thin", Profile::Thin, THIN, Tolerance::None);
}

#[test]
#[ignore = "minutes; part of .ci/long"]
fn verdicts_are_right_when_optimized_as_a_whole() {
    check("fat", Profile::Fat, FAT, Tolerance::None);
}

#[test]
#[ignore = "minutes; part of .ci/long"]
fn verdicts_are_never_looser_without_names() {
    check("stripped", Profile::Release, STRIPPED, Tolerance::Stricter);
}

#[test]
#[ignore = "minutes; part of .ci/long"]
fn verdicts_are_never_looser_at_a_fixed_address() {
    check("fixed", Profile::Release, FIXED, Tolerance::Stricter);
}
