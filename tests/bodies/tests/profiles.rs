//! Every body gives the right result, however the program was built.
//!
//! Builds the program `bodies` once for each profile, with the profile's settings in the
//! environment and a target directory for all of them, and runs it: each example by itself, all of
//! them mixed, and the attacks. The attacks run once more with thread-locals that belong to
//! threads.
//!
//! `INDENT_BODIES_ONLY`, a list with commas, names the profiles to build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../../common/mod.rs"]
mod common;

/// Seconds after which a program is killed; its own watchdog, which prints a dump, acts earlier.
const LIMIT: &str = "3600";
/// Examples that hold something of their thread over a switch.
const HOLDING: &[&str] = &[
    // The compiler computes the address of a thread-local once and keeps it over all switches.
    "fastrand",
    "rayon",
    "regex",
    "std-hash-map",
    "thread_local",
    // They switch inside `LocalKey::with`, their own or a runtime's.
    "log",
    "once_cell",
    "std-thread-local",
    "tokio-current-thread",
    "tokio-local-set",
    // They switch while they unwind, and in a function that C has called.
    "std-catch-unwind",
    "rusqlite",
];
/// How many of the other examples may be bound.
const MOST_BOUND: usize = 3;

const GNU: &str = "x86_64-unknown-linux-gnu";
const MUSL: &str = "x86_64-unknown-linux-musl";

/// A way to build the program.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    release: bool,
    /// Settings of cargo, for the environment.
    settings: &'static [(&'static str, &'static str)],
    /// Set if it matters: build scripts are not built with the settings then.
    target: Option<&'static str>,
}

const RELEASE: Profile = Profile {
    name: "release",
    release: true,
    settings: &[],
    target: None,
};

const DEBUG: Profile = Profile {
    name: "debug",
    release: false,
    ..RELEASE
};

const fn with(name: &'static str, settings: &'static [(&'static str, &'static str)]) -> Profile {
    Profile {
        name,
        settings,
        ..RELEASE
    }
}

const THIN: Profile = with("thin", &[("CARGO_PROFILE_RELEASE_LTO", "thin")]);
const FAT: Profile = with(
    "fat",
    &[
        ("CARGO_PROFILE_RELEASE_LTO", "fat"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ],
);
const SMALL: Profile = with("small", &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")]);
const ABORT: Profile = with("abort", &[("CARGO_PROFILE_RELEASE_PANIC", "abort")]);
const NATIVE: Profile = Profile {
    target: Some(GNU),
    ..with("native", &[("RUSTFLAGS", "-Ctarget-cpu=native")])
};
const V0: Profile = Profile {
    target: Some(GNU),
    ..with("v0", &[("RUSTFLAGS", "-Csymbol-mangling-version=v0")])
};
const STATIC: Profile = Profile {
    target: Some(GNU),
    ..with("static", &[("RUSTFLAGS", "-Ctarget-feature=+crt-static")])
};
const STATIC_MUSL: Profile = Profile {
    target: Some(MUSL),
    ..with("musl", &[])
};

/// Returns true if a program can be run at all.
fn exists(program: &str) -> bool {
    let run = Command::new(program).arg("--version").output();
    run.is_ok_and(|output| output.status.success())
}

/// Returns true if the standard library for a target is installed.
fn has_target(target: &str) -> bool {
    let asked = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output();
    asked.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        output.status.success() && Path::new(path.trim()).exists()
    })
}

/// Returns true if there is a C library to link statically.
fn has_static_libc() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libc.a").output();
    asked.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        Path::new(path.trim()).is_absolute()
    })
}

impl Profile {
    /// Returns the reason why this machine cannot build it.
    fn obstacle(self) -> Option<&'static str> {
        let only = std::env::var("INDENT_BODIES_ONLY").unwrap_or_default();
        if !only.is_empty() && only.split(',').all(|name| name != self.name) {
            return Some("not in INDENT_BODIES_ONLY");
        }
        match self.name {
            "musl" if !has_target(MUSL) => {
                Some("no target; rustup target add x86_64-unknown-linux-musl")
            }
            "static" if !has_static_libc() => Some("no libc.a to link"),
            _ => None,
        }
    }

    /// Builds a program and returns its path; `body` is for the program that has a single one.
    fn build(self, program: &str, body: &str) -> PathBuf {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("profiles");
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["build", "--locked", "--quiet", "--bin", program])
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .arg("--target-dir")
            .arg(&directory)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .env("INDENT_BODY", body)
            .envs(self.settings.iter().copied());
        let mut built = directory.clone();
        if let Some(target) = self.target {
            command.args(["--target", target]);
            built.push(target);
        }
        if self.release {
            command.arg("--release");
        }
        if self.target == Some(MUSL) && !exists("musl-gcc") {
            common::skip("no musl-gcc: without the bodies about code in C");
            command.arg("--no-default-features");
        }
        let output = command.output().expect("cargo");
        assert!(output.status.success(), "{}", common::text(&output));
        built.push(if self.release { "release" } else { "debug" });
        // The next profile uses the same file name.
        let copy = directory.join(format!("{program}-{body}-as-{}", self.name));
        std::fs::copy(built.join(program), &copy).expect("a copy");
        copy
    }
}

/// Runs bodies; `whose` is `fiber` if fibers can have thread-locals of their own, or `thread`.
fn run(program: &Path, what: &str, whose: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", LIMIT]).arg(program).arg(what);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INDENT_")) {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "0").env("INDENT_TLS", whose);
    let output = command.output().expect("the program");
    println!("{}", common::text(&output));
    output
}

/// Returns the rows of bodies that were wrong.
fn wrong(output: &Output) -> Vec<String> {
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!rows.is_empty(), "no rows");
    let is_wrong = |row: &&str| row.split('\t').nth(2) != Some("0");
    rows.lines().filter(is_wrong).map(str::to_owned).collect()
}

/// Locks the directory that profiles share.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a profile and runs everything.
fn check(profile: Profile) {
    let _one = one_at_a_time();
    if let Some(why) = profile.obstacle() {
        common::skip(why);
        return;
    }
    let program = profile.build("bodies", "nothing");
    let groups = [
        ("examples", "fiber"),
        ("together", "fiber"),
        ("attacks", "fiber"),
        ("attacks", "thread"),
    ];
    for (group, whose) in groups {
        let output = run(&program, group, whose);
        let of = format!("{}: {group}, thread-locals of the {whose}", profile.name);
        assert!(output.status.code().is_some(), "{of}: killed");
        let rows = wrong(&output);
        assert!(
            rows.is_empty() && output.status.success(),
            "{of}: {rows:#?}"
        );
    }
}

macro_rules! profiles {
    ($($test:ident: $profile:ident;)*) => {
        $(#[test]
        fn $test() {
            check($profile);
        })*
    };
}

profiles! {
    bodies_are_right_without_optimization: DEBUG;
    bodies_are_right_with_optimization: RELEASE;
    bodies_are_right_with_thin_optimization_when_linked: THIN;
    bodies_are_right_when_optimized_as_a_whole: FAT;
    bodies_are_right_when_optimized_for_size: SMALL;
    bodies_are_right_when_built_for_this_processor: NATIVE;
    bodies_are_right_when_linked_statically: STATIC;
    bodies_are_right_with_musl: STATIC_MUSL;
    bodies_are_right_when_a_panic_aborts: ABORT;
    bodies_are_right_with_names_of_the_new_kind: V0;
}

/// Runs each example in a program of its own, because the others may bind it by a pointer.
#[test]
fn few_examples_are_bound_where_they_are_alone() {
    if let Some(why) = RELEASE.obstacle() {
        return common::skip(why);
    }
    let _one = one_at_a_time();
    let mut bound = Vec::new();
    for example in indent_bodies::examples::ALL {
        let program = RELEASE.build("one", example.name);
        let output = run(&program, "", "fiber");
        std::fs::remove_file(program).expect("no copy is left");
        let rows = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(wrong(&output), Vec::<String>::new());
        let row: Vec<_> = rows.trim_end().split('\t').collect();
        let [parks, bound_at] = [4, 5].map(|n| row[n].parse::<u64>().expect("a number"));
        if bound_at * 10 > parks && !HOLDING.contains(&example.name) {
            bound.push(rows);
        }
    }
    println!("{} bound:\n{}", bound.len(), bound.concat());
    assert!(bound.len() <= MOST_BOUND, "{bound:#?}");
}
