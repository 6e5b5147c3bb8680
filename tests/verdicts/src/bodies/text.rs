//! Text: formatting, JSON, regular expressions.
//!
//! A regex keeps its scratch space in a pool. A thread that asks for one gives its number, a
//! thread-local: the first one to ask owns the pool's first space and finds it again without a
//! lock. A search holds the space itself and its owner's number, and both may be given back on any
//! thread; but an address of the variable must not move along. So a search in progress is bound.
//! Functions that have finished searching are harmless, and so are those that compile.

use std::fmt::Write;

use regex::{Captures, Regex};
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Value, json};

use super::{MOVABLE, OWN, each, table};
use crate::Probe;

table! {
    string_formatted: MOVABLE;
    display_parks: each("MMBBB");
    number_parsed: MOVABLE;
    json_parsed: MOVABLE;
    json_value_held: MOVABLE;
    json_struct_both_ways: MOVABLE;
    json_stream_under_way: MOVABLE;
    regex_matched: MOVABLE;
    regex_captures_under_way: OWN;
    regex_replacer_parks: OWN;
    regex_compiled: MOVABLE;
}

fn string_formatted(probe: &Probe) -> bool {
    let mut text = format!("{:>8}|{:?}", probe.seed % 1000, Some("x"));
    probe.park();
    write!(text, " {:.2}", 1.5).is_ok() && text.ends_with("|Some(\"x\") 1.50")
}

struct Parks<'a>(&'a Probe);

impl std::fmt::Display for Parks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("parked ")?;
        self.0.park();
        write!(f, "{}", self.0.seed)
    }
}

fn display_parks(probe: &Probe) -> bool {
    format!("{}", Parks(probe)) == format!("parked {}", probe.seed)
}

fn number_parsed(probe: &Probe) -> bool {
    let number: f64 = std::hint::black_box("2.5").parse().unwrap_or(0.0);
    probe.park();
    number.to_string() == "2.5"
}

const DOCUMENT: &str = r#"{"name": "a", "numbers": [1, 2.5, -3], "inner": {"deep": [null, true]}}"#;

fn json_parsed(probe: &Probe) -> bool {
    let before: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
    probe.park();
    let after: Value = serde_json::from_str(&before.to_string()).unwrap_or_default();
    before == after && after["inner"]["deep"][1] == true
}

fn json_value_held(probe: &Probe) -> bool {
    let mut value = json!({"seed": probe.seed, "list": [1, 2]});
    probe.park();
    value["list"] = Value::Null;
    value["seed"] == probe.seed && value["list"].is_null()
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Order {
    id: u64,
    items: Vec<String>,
    note: Option<String>,
}

fn json_struct_both_ways(probe: &Probe) -> bool {
    let order = Order {
        id: probe.seed,
        items: vec!["bread".to_owned(), "butter \"salted\"".to_owned()],
        note: None,
    };
    let text = serde_json::to_string(&order).unwrap_or_default();
    probe.park();
    serde_json::from_str::<Order>(&text).is_ok_and(|back| back == order)
}

fn json_stream_under_way(probe: &Probe) -> bool {
    let text = "1 2 3 4";
    let mut numbers = Deserializer::from_str(text).into_iter::<u64>();
    let first = numbers.next().and_then(Result::ok);
    probe.park();
    first == Some(1) && numbers.flatten().sum::<u64>() == 9
}

fn regex_matched(probe: &Probe) -> bool {
    let before = probe.kit.words.is_match("12 words 34");
    probe.park();
    before && !probe.kit.words.is_match("12 34")
}

fn regex_captures_under_way(probe: &Probe) -> bool {
    let mut pairs = probe.kit.pairs.captures_iter("a=1 b=22 c=333 d=x");
    let number = |pair: Captures<'_>| pair["number"].parse::<u64>().unwrap_or(0);
    let first = pairs.next().map(number);
    probe.park();
    first == Some(1) && pairs.map(number).sum::<u64>() == 355
}

fn regex_replacer_parks(probe: &Probe) -> bool {
    let mut parked = false;
    let text = probe
        .kit
        .pairs
        .replace_all("a=1 b=2", |pair: &Captures<'_>| {
            if !std::mem::replace(&mut parked, true) {
                probe.park();
            }
            format!("{}={}", &pair["number"], &pair["key"])
        });
    text == "1=a 2=b"
}

fn regex_compiled(probe: &Probe) -> bool {
    let Ok(digits) = Regex::new(r"^\d{2,4}$") else {
        return false;
    };
    probe.park();
    digits.is_match("123") && !digits.is_match("1")
}
