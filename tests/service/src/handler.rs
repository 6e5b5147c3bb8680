//! The work of the service for a request: counts the words of a text and adds them to a table.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use indent::sync::Mutex;
use indent::time::sleep;
use rand::RngExt;
use regex::Regex;
use serde_json::{Value, json};
use tracing::{info, info_span};

static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[a-z]+\d\b").expect("a regex"));

/// The tables: few, so that requests wait for each other's locks.
#[derive(Default)]
pub(crate) struct Tables([Mutex<HashMap<String, u64>>; 4]);

/// Returns the body of the answer.
pub(crate) fn count_words(id: u64, body: &[u8], tables: &Tables) -> serde_json::Result<String> {
    let request: HashMap<String, Value> = serde_json::from_slice(body)?;
    let text = request.get("text").and_then(Value::as_str).unwrap_or("");
    let mut counts = HashMap::new();
    for word in WORD.find_iter(text) {
        *counts.entry(word.as_str()).or_insert(0) += 1;
    }
    info!("counted for {id}");

    let mut rng = rand::rng();
    sleep(Duration::from_micros(rng.random_range(500..1500)));

    let number = id as usize % tables.0.len();
    let _step = info_span!("table", number).entered();
    let mut table = tables.0[number].lock().expect("no handler panics");
    sleep(Duration::from_micros(200)); // simulates a table on a disk
    for (word, count) in &counts {
        *table.entry((*word).to_owned()).or_insert(0) += count;
    }
    drop(table);
    info!("stored for {id}");
    Ok(json!({ "id": id, "words": counts, "token": rng.random::<u32>() }).to_string())
}
