//! Ordinary work of services: sort, match, parse, format, each with caches and locks of its own.

use serde::{Deserialize, Serialize};

use super::Program;
use crate::noise::{Random, bytes, checksum, mix, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "sort",
        "the user's comparator runs in the middle of a sort",
        sort,
    )
    .pure(),
    Program::new("regex", "caches per thread, handed out from a pool", regex).pure(),
    Program::new("json", "many small strings, there and back", json).pure(),
    Program::new("format", "text by the formatting machinery", format_text).pure(),
];

const FIBERS: usize = 6;

fn sort(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, sorted);
}

pub(super) fn sorted(seed: u64) -> u64 {
    let mut words: Vec<String> = (0..1_500).map(|i| stir(seed + i).to_string()).collect();
    words.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| b.cmp(a)));
    words.sort_unstable_by_key(|word| checksum(word.as_bytes()) % 97);
    words.sort(); // equal elements of the previous sort may be in any order
    words
        .iter()
        .fold(seed, |sum, word| mix(sum, checksum(word.as_bytes())))
}

fn regex(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, matched);
}

pub(super) fn matched(seed: u64) -> u64 {
    static PATTERN: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
        regex::Regex::new(r"(?P<word>[a-z]+)-(\d{2,5})\b|x(y|z)*w").expect("a pattern")
    });
    let own = regex::Regex::new(&format!("[{}-9]+", seed % 9)).expect("a pattern");
    let text: String = (0..60)
        .map(|i| format!("word-{} xyzw ", stir(seed + i)))
        .collect();
    let found = PATTERN.find_iter(&text).map(|found| found.start() as u64);
    let digits = own.find_iter(&text).map(|found| found.len() as u64);
    let replaced = PATTERN.replace_all(&text, "$word").into_owned();
    mix(
        found.chain(digits).fold(seed, mix),
        checksum(replaced.as_bytes()),
    )
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Order {
    id: u64,
    names: Vec<String>,
    price: f64,
    notes: std::collections::BTreeMap<String, Option<i64>>,
}

fn order(seed: u64) -> Order {
    let mut random = Random::new(seed + 1);
    Order {
        id: stir(seed),
        names: (0..random.below(8))
            .map(|i| format!("naïve \"{i}\"\n"))
            .collect(),
        price: random.below(1 << 40) as f64 / 128.0,
        notes: (0..random.below(6))
            .map(|i| (i.to_string(), (i > 2).then_some(-7)))
            .collect(),
    }
}

fn json(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, parsed);
}

pub(super) fn parsed(seed: u64) -> u64 {
    let orders: Vec<Order> = (0..120).map(|i| order(seed + i)).collect();
    let text = serde_json::to_string(&orders).expect("text");
    let back: Vec<Order> = serde_json::from_str(&text).expect("orders");
    let value: serde_json::Value = serde_json::from_str(&text).expect("a value");
    mix(
        checksum(value.to_string().as_bytes()),
        u64::from(orders == back),
    )
}

fn format_text(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, formatted);
}

pub(super) fn formatted(seed: u64) -> u64 {
    let data = bytes(seed, 400);
    let text: String = data
        .iter()
        .map(|byte| format!("{byte:>5}|{:<7.3}|{byte:#x};", f64::from(*byte) / 7.0))
        .collect();
    let debug = format!("{data:?} {:#?}", &data[..40]);
    mix(checksum(text.as_bytes()), checksum(debug.as_bytes()))
}
