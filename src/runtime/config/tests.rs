//! The table, by hand, at its limits and at random.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::runtime::config::stray::{LATER, PREFIX, stray};

/// A time that is no whole number of seconds.
const ODD: Duration = Duration::from_micros(1_500);

fn empty(_: &str) -> Option<OsString> {
    None
}

/// An environment with one variable.
fn only(name: &'static str, value: &str) -> impl Fn(&str) -> Option<OsString> + use<> {
    let value = OsString::from(value);
    move |asked| (asked == name).then(|| value.clone())
}

/// The message for a text in the setting's variable, or `None` if it is allowed.
fn complaint(setting: &Setting, text: &str) -> Option<String> {
    let name = setting.variable.expect("has a variable");
    let asked = setting.asked::<Raw>(None, &only(name, text));
    asked.err().map(|error| error.to_string())
}

/// A value of any setting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Raw(u64);

impl Value for Raw {
    fn to_raw(self) -> u64 {
        self.0
    }

    fn from_raw(raw: u64) -> Self {
        Raw(raw)
    }
}

/// The settings that have limits, with the step between two values that can be written.
fn limited() -> impl Iterator<Item = (&'static Setting, u64, u64, u64)> {
    ALL.iter().filter_map(|setting| {
        let (range, step) = match &setting.kind {
            Kind::Number(range) | Kind::Bytes(range) | Kind::PowerOfTwo(range) => (range, 1),
            Kind::Time(unit, range) => (range, *unit as u64),
            Kind::FineTime(range) => (range, 1),
            Kind::Word(_) | Kind::Signal | Kind::Typed(_) => return None,
        };
        Some((*setting, *range.start(), *range.end(), step))
    })
}

#[test]
fn names_are_unique_and_say_their_unit() {
    let mut names = BTreeSet::from(LATER);
    for setting in ALL {
        assert!(names.insert(setting.method), "{} twice", setting.method);
        let Some(variable) = setting.variable else {
            continue;
        };
        assert!(names.insert(variable), "{variable} twice");
        assert!(variable.starts_with(PREFIX), "{variable}");
        let unit = match setting.kind {
            Kind::Time(Unit::Millisecond, _) | Kind::FineTime(_) => "_MS",
            Kind::Time(Unit::Microsecond, _) => "_US",
            _ => "",
        };
        assert!(variable.ends_with(unit), "{variable}");
    }
}

#[test]
fn every_setting_is_a_method_of_the_builder_and_every_method_a_setting() {
    let sources = [
        include_str!("../builder.rs"),
        include_str!("../harmless.rs"),
        include_str!("../reports.rs"),
        include_str!("../survey.rs"),
        include_str!("../threads.rs"),
    ];
    let methods = sources.iter().flat_map(|source| source.lines());
    let methods = methods.map(|line| line.trim().replace("pub unsafe fn ", "pub fn "));
    let methods = methods.filter_map(|line| {
        let (name, rest) = line.strip_prefix("pub fn ")?.split_once("(")?;
        rest.starts_with("mut self").then(|| name.to_owned())
    });
    let methods: BTreeSet<String> = methods.collect();
    let settings: BTreeSet<String> = ALL.iter().map(|s| s.method.to_owned()).collect();
    assert_eq!(methods, settings);
}

#[test]
fn every_default_is_allowed_and_can_be_written() {
    for setting in ALL {
        if let Preset::Value(raw) = setting.preset {
            assert!(setting.kind.allows(raw), "{}", setting.method);
            let text = setting.kind.show(raw);
            assert_eq!(setting.kind.parse(&text), Some(raw), "{}", setting.method);
        }
    }
}

#[test]
fn the_builder_wins_over_the_environment_and_that_over_the_default() {
    let set = only("INDENT_BLOCKING_THREADS", "7");
    let value = |built, environment: Environment<'_>| {
        BLOCKING_THREADS.value::<usize>(built, environment).unwrap()
    };
    assert_eq!(value(Some(3), &set), 3);
    assert_eq!(value(None, &set), 7);
    assert_eq!(value(None, &empty), 512);
    let name = |built, environment: Environment<'_>| {
        let asked = BLOCKING_THREADS.asked::<usize>(built, environment).unwrap();
        asked.map(|asked| asked.name)
    };
    assert_eq!(name(Some(3), &set), Some("blocking_threads"));
    assert_eq!(name(None, &set), Some("INDENT_BLOCKING_THREADS"));
    assert_eq!(name(None, &empty), None);
}

#[test]
fn a_variable_that_the_builder_overrides_is_not_looked_at() {
    let nobody = |name: &str| panic!("looked at {name}");
    for (setting, least, ..) in limited() {
        let asked = setting.asked(Some(Raw(least)), &nobody).unwrap().unwrap();
        assert_eq!((asked.value, asked.name), (Raw(least), setting.method));
    }
}

#[test]
fn both_ways_in_have_the_same_limits() {
    for (setting, least, most, step) in limited() {
        let below = least.checked_sub(step);
        for (raw, fine) in [
            (below, false),
            (Some(least), true),
            (Some(most), true),
            (Some(most + step), false),
        ] {
            let Some(raw) = raw else { continue };
            let built = setting.asked(Some(Raw(raw)), &empty);
            assert_eq!(built.is_ok(), fine, "{}({raw})", setting.method);
            if setting.variable.is_some() {
                let refused = complaint(setting, &setting.kind.show(raw));
                assert_eq!(refused.is_none(), fine, "{raw}: {refused:?}");
            }
        }
    }
}

#[test]
fn a_bad_value_is_refused_with_its_name_the_value_and_what_is_allowed() {
    let number = "allowed is 1 to 1024, a whole number";
    let time = "allowed is 0 to 31536000000 milliseconds, a whole number";
    let fine = "allowed is 0.1 to 10000 milliseconds, a number with at most six decimals";
    let signals = format!("allowed is {}, a name", signal_names::list());
    let size = "allowed is 1 to 1GiB, a whole number of bytes or one with KiB, MiB or GiB right \
                after it";
    let cases = [
        (&WORKERS, "0", number),
        (&WORKERS, "1025", number),
        (&WORKERS, "-1", number),
        (&WORKERS, "+1", number),
        (&WORKERS, "1.5", number),
        (&WORKERS, "four", number),
        (&WORKERS, "99999999999999999999999", number),
        (&WORKERS, "1 2", number),
        (&SHUTDOWN_TIMEOUT, "5s", time),
        (&SHUTDOWN_TIMEOUT, "31536000001", time),
        (&SHUTDOWN_TIMEOUT, "18446744073709551615", time),
        (&STACK_SIZE, "0", size),
        (&STACK_SIZE, "256K", size),
        (&STACK_SIZE, "256KB", size),
        (&STACK_SIZE, "256kib", size),
        (&STACK_SIZE, "256 KiB", size),
        (&STACK_SIZE, "KiB", size),
        (&STACK_SIZE, "0.5MiB", size),
        (&STACK_SIZE, "2GiB", size),
        (&STACK_SIZE, "99999999999999GiB", size),
        (&CPU_ROUNDING, "UP", "allowed is up or down"),
        (&CPU_ROUNDING, "0", "allowed is up or down"),
        (&PREEMPT, "true", "allowed is off or on"),
        (&PREEMPT, "1", "allowed is off or on"),
        (&PREEMPT_QUANTUM, "0", fine),
        (&PREEMPT_QUANTUM, "0.099999", fine),
        (&PREEMPT_QUANTUM, "10000.000001", fine),
        (&PREEMPT_QUANTUM, "1.0000000", fine),
        (&PREEMPT_QUANTUM, "1.", fine),
        (&PREEMPT_QUANTUM, ".5", fine),
        (&PREEMPT_QUANTUM, "1.5.5", fine),
        (&PREEMPT_QUANTUM, "1,5", fine),
        (&PREEMPT_QUANTUM, "1e3", fine),
        (&PREEMPT_QUANTUM, "-1", fine),
        (&PREEMPT_QUANTUM, "10ms", fine),
        (&PREEMPT_QUANTUM, "18446744073709551615.5", fine),
        (&PREEMPT_SIGNAL, "KILL", &signals),
        (&PREEMPT_SIGNAL, "SEGV", &signals),
        (&PREEMPT_SIGNAL, "urg", &signals),
        (&PREEMPT_SIGNAL, "23", &signals),
        (&PREEMPT_SIGNAL, "RTMIN+0", &signals),
        (&PREEMPT_SIGNAL, "RTMIN+99", &signals),
    ];
    for (setting, text, allowed) in cases {
        let name = setting.variable.unwrap();
        let expected = format!("{name} = {text}: {allowed}");
        assert_eq!(complaint(setting, text), Some(expected));
    }
}

#[test]
fn a_bad_value_from_code_goes_by_the_name_of_its_method() {
    let time = BLOCKING_KEEP_ALIVE.asked(Some(Duration::MAX), &empty);
    assert_eq!(
        time.err().unwrap().to_string(),
        "blocking_keep_alive = 18446744073709551615.999999999s: \
         allowed is 0 to 31536000000 milliseconds"
    );
    let time = TIMER_RESOLUTION.asked(Some(Duration::from_micros(99)), &empty);
    assert_eq!(
        time.err().unwrap().to_string(),
        "timer_resolution = 99µs: allowed is 100 to 1000000 microseconds"
    );
    let queue = LOCAL_QUEUE.asked(Some(100_usize), &empty);
    assert_eq!(
        queue.err().unwrap().to_string(),
        "local_queue = 100: allowed is a power of two, 4 to 65536"
    );
}

#[test]
fn what_is_not_unicode_is_refused_by_name() {
    let value = OsString::from_vec(vec![b'4', 0xff]);
    let asked = WORKERS.asked::<usize>(None, &|_| Some(value.clone()));
    let text = asked.err().unwrap().to_string();
    assert!(
        text.starts_with("INDENT_WORKER_THREADS = 4\u{fffd}: "),
        "{text}"
    );
}

#[test]
fn white_space_around_a_value_does_not_count() {
    let value = |text| WORKERS.asked::<usize>(None, &only("INDENT_WORKER_THREADS", text));
    for text in ["12", " 12", "12\n", "\t12 \r\n"] {
        assert_eq!(value(text).unwrap().map(|asked| asked.value), Some(12));
    }
    for text in ["", " ", "\n"] {
        assert!(value(text).unwrap().is_none(), "{text:?} counts as unset");
    }
    let text = complaint(&WORKERS, "1\n2\n").unwrap();
    assert!(
        text.starts_with(r"INDENT_WORKER_THREADS = 1\n2\n: "),
        "{text}"
    );
}

#[test]
fn sizes_and_times_take_their_units() {
    let cases = [
        (&STACK_SIZE, "262144", 262_144),
        (&STACK_SIZE, "256KiB", 262_144),
        (&STACK_SIZE, "1MiB", 1 << 20),
        (&STACK_SIZE, "1GiB", 1 << 30),
        (&SHUTDOWN_TIMEOUT, "250", 250_000_000),
        (&IDLE_SPIN, "250", 250_000),
        (&CPU_ROUNDING, "down", 1),
        (&PREEMPT, "off", 0),
        (&PREEMPT, "on", 1),
        (&PREEMPT_QUANTUM, "10", 10_000_000),
        (&PREEMPT_QUANTUM, "0.2", 200_000),
        (&PREEMPT_QUANTUM, "1.500001", 1_500_001),
        (&PREEMPT_SIGNAL, "URG", 23),
        (&PREEMPT_SIGNAL, "SIGUSR1", 10),
    ];
    for (setting, text, raw) in cases {
        assert_eq!(setting.kind.parse(text), Some(raw), "{text}");
    }
    // Finer than a variable can say, but not than the builder can.
    assert_eq!(SHUTDOWN_TIMEOUT.value(Some(ODD), &empty).unwrap(), ODD);
    let rounding = only("INDENT_CPU_ROUNDING", "down");
    assert_eq!(
        CPU_ROUNDING.value::<Rounding>(None, &rounding).unwrap(),
        Rounding::Down
    );
    assert_eq!(
        CPU_ROUNDING.value::<Rounding>(None, &empty).unwrap(),
        Rounding::Up
    );
}

proptest! {
    #[test]
    fn what_is_shown_parses_to_the_same_value(
        which in 0..ALL.len(),
        raw in any::<u64>(),
        bits in 0..64_u32,
    ) {
        let kind = &ALL[which].kind;
        let raw = raw >> bits; // small ones as often as large ones
        let raw = match kind {
            Kind::Time(unit, _) => raw - raw % *unit as u64,
            Kind::Word(words) => raw % words.len() as u64,
            Kind::Signal => {
                let all: Vec<_> = signal_names::all().collect();
                all[raw as usize % all.len()].to_raw()
            }
            Kind::Typed(_) => return Ok(()),
            _ => raw,
        };
        prop_assert_eq!(kind.parse(&kind.show(raw)), Some(raw));
    }

    #[test]
    fn a_text_is_refused_or_means_what_it_is_shown_as(
        which in 0..ALL.len(),
        text in r"\PC*|[0-9]{0,21}(KiB|MiB|GiB|K|B| )?|[+-][0-9]*|[0-9]{0,3}[.][0-9]{0,8}|(SIG)?(URG|USR1|RTMIN[+][0-9]{0,2})",
    ) {
        let kind = &ALL[which].kind;
        if let Some(raw) = kind.parse(&text) {
            prop_assert!(!text.is_empty());
            prop_assert_eq!(kind.parse(&kind.show(raw)), Some(raw));
        }
    }
}

#[test]
fn a_slip_in_a_name_is_answered_with_the_name_meant() {
    for (name, meant) in [
        ("INDENT_WORKER_THREAD", "INDENT_WORKER_THREADS?"),
        ("INDENT_WOKRER_THREADS", "INDENT_WORKER_THREADS?"),
        ("INDENT_WORKERS", "INDENT_WORKER_THREADS?"),
        ("INDENT_STACKSIZE", "INDENT_STACK_SIZE?"),
        ("INDENT_SHUTDOWN_TIMEOUT", "INDENT_SHUTDOWN_TIMEOUT_MS?"),
        ("INDENT_IDLE_SPIN_MS", "INDENT_IDLE_SPIN_US?"),
        (
            "INDENT_BLOCKING_KEEPALIVE",
            "INDENT_BLOCKING_KEEP_ALIVE_MS?",
        ),
        ("INDENT_LOCAL_QUEUE", "Builder::local_queue"),
        ("INDENT_PREEMPT_QUANTUM", "INDENT_PREEMPT_QUANTUM_MS?"),
        ("INDENT_PREMPT", "INDENT_PREEMPT?"),
    ] {
        let line = stray(name).unwrap_or_else(|| panic!("nothing about {name}"));
        assert!(
            line.starts_with(&format!("{name} is not a setting; ")),
            "{line}"
        );
        assert!(line.ends_with(meant), "{line}");
    }
}

#[test]
fn names_of_others_and_our_own_get_no_word() {
    let ours = ALL.iter().filter_map(|setting| setting.variable);
    let others = [
        "INDENT",
        "INDENT_",
        "INDENT_SIZE",
        "INDENT_STYLE",
        "INDENT_WIDTH",
        "INDENT_TABS",
        "INDENT_SOAK_SECONDS",
        "INDENT_TEST_FULL",
        "WORKER_THREADS",
        "indent_worker_threads",
    ];
    for name in ours.chain(others) {
        assert_eq!(stray(name), None, "{name}");
    }
}

#[test]
fn a_name_kept_for_later_is_said_to_be_one() {
    for name in LATER {
        let line = format!("{name} is not supported yet by this version");
        assert_eq!(stray(name), Some(line));
    }
}

/// The table in `docs/settings.md`.
fn table() -> String {
    let mut table = String::from(
        "| variable | method of `Builder` | default | allowed | what it is |\n|---|---|---|---|---|\n",
    );
    for setting in ALL {
        let variable = setting
            .variable
            .map_or_else(|| "–".to_owned(), |name| format!("`{name}`"));
        let preset = match setting.preset {
            Preset::Value(raw) => setting.kind.show(raw),
            Preset::Words(words) => words.to_owned(),
        };
        let (method, meaning) = (setting.method, setting.meaning);
        let allowed = setting.kind.limits();
        writeln!(
            table,
            "| {variable} | `{method}` | {preset} | {allowed} | {meaning} |"
        )
        .unwrap();
    }
    table
}

/// The page before its table, the table, and what follows.
fn page() -> [String; 3] {
    const OPEN: &str = "<!-- settings: printed from src/runtime/config.rs -->\n\n";
    const CLOSE: &str = "\n<!-- end of settings -->";
    let text = std::fs::read_to_string(page_path()).unwrap();
    let start = text.find(OPEN).expect("the mark before the table") + OPEN.len();
    let end = text.find(CLOSE).expect("the mark behind the table");
    [&text[..start], &text[start..end], &text[end..]].map(str::to_owned)
}

fn page_path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md")
}

#[test]
fn the_page_of_settings_has_this_table() {
    if cfg!(target_env = "musl") {
        let line = "SKIPPED the_page_of_settings_has_this_table: musl leaves one signal less\n";
        return crate::sys::stderr::print(line);
    }
    let [_, written, _] = page();
    assert_eq!(
        written,
        table(),
        "write it anew: cargo test --lib -- --ignored rewrite_the_table_of_settings"
    );
}

#[test]
#[ignore = "changes docs/settings.md"]
fn rewrite_the_table_of_settings() {
    let [before, _, after] = page();
    std::fs::write(page_path(), before + &table() + &after).unwrap();
}
