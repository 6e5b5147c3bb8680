//! A small service without a network, with a fiber for every request.
//!
//! Its handler does the work of typical handlers: it parses JSON, looks things up, waits a random
//! time, matches text, answers in JSON, and logs. It parks between all of that, as it would for a
//! database or a socket.
//!
//! ```text
//! cargo run --release -p indent-verdicts --bin service [-- --statistics] [--spans]
//! ```
//!
//! `--spans` lets the handlers enter a span as well, briefly: a fiber that may be inside a span
//! shares its thread with no other fiber.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use indent::runtime::Builder;
use indent::time;
use indent_verdicts::{bodies, statistics};
use regex::Regex;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, info_span, warn};

const REQUESTS: u64 = 3000;

#[derive(Deserialize)]
struct Request {
    user: String,
    items: Vec<Item>,
    #[serde(default)]
    headers: HashMap<String, String>,
}

#[derive(Clone, Deserialize, Serialize)]
struct Item {
    sku: String,
    amount: u32,
}

#[derive(Serialize)]
struct Answer {
    user: String,
    total: u64,
    refused: Vec<String>,
    trace: Option<String>,
}

/// State that all handlers share.
struct Shop {
    prices: RwLock<HashMap<String, u64>>,
    sku: Regex,
}

impl Shop {
    fn open() -> Shop {
        let price = |n: u64| (format!("AB-{n:04}"), 100 + n * 7 % 90);
        Shop {
            prices: RwLock::new((0..100).map(price).collect()),
            sku: Regex::new(r"^(?<shelf>[A-Z]{2})-(?<number>\d{4})$").expect("a pattern"),
        }
    }

    /// Handles one request from beginning to end.
    fn handle<const SPANS: bool>(&self, body: &str) -> Result<String, String> {
        let request = self.parse(body)?;
        statistics::pause();
        let priced = self.look_up(&request);
        statistics::pause();
        jitter();
        let refused = self.refuse(&request);
        statistics::pause();
        let answer = answer(&request, &priced, refused)?;
        statistics::pause();
        let total = priced.values().sum::<u64>();
        if SPANS {
            let span = info_span!("request", length = body.len());
            span.in_scope(|| info!(user = %request.user, total, "done"));
        } else {
            info!(user = %request.user, total, "done");
        }
        statistics::sample();
        Ok(answer)
    }

    fn parse(&self, body: &str) -> Result<Request, String> {
        let request = serde_json::from_str(body);
        statistics::pause();
        request.map_err(|error| {
            warn!(%error, "a request that cannot be read");
            error.to_string()
        })
    }

    /// Looks up the prices of the items.
    fn look_up(&self, request: &Request) -> HashMap<String, u64> {
        let mut priced = HashMap::new();
        for item in &request.items {
            statistics::pause(); // stands for a query
            let prices = self.prices.read().expect("nobody panics with it");
            if let Some(price) = prices.get(&item.sku) {
                priced.insert(item.sku.clone(), price * u64::from(item.amount));
            }
        }
        priced
    }

    /// Returns the items whose names are not names.
    fn refuse(&self, request: &Request) -> Vec<String> {
        let mut refused = Vec::new();
        for item in &request.items {
            let shelf = self.sku.captures(&item.sku).map(|c| c["shelf"].to_owned());
            statistics::pause();
            debug!(?shelf, "looked at");
            if shelf.is_none() {
                refused.push(item.sku.clone());
            }
        }
        refused
    }
}

/// Spreads the requests of a burst in time.
fn jitter() {
    let pause = Duration::from_micros(rand::random_range(10..500));
    statistics::sample();
    time::sleep(pause);
}

fn answer(
    request: &Request,
    priced: &HashMap<String, u64>,
    refused: Vec<String>,
) -> Result<String, String> {
    let answer = Answer {
        user: request.user.clone(),
        total: priced.values().sum(),
        refused,
        trace: request.headers.get("trace").cloned(),
    };
    let text = serde_json::to_string(&answer).map_err(|error| error.to_string());
    statistics::pause();
    text
}

/// Makes a request.
///
/// Most are right, some have an item that does not exist, a few are not JSON.
fn request(n: u64) -> String {
    let end = if n.is_multiple_of(50) { "" } else { "}" };
    let odd = if n.is_multiple_of(7) {
        "odd"
    } else {
        "AB-0007"
    };
    format!(
        r#"{{"user": "u{n}", "headers": {{"trace": "t{n}"}}, "items": [
            {{"sku": "AB-{:04}", "amount": 2}}, {{"sku": "{odd}", "amount": 1}}]{end}"#,
        n % 100
    )
}

fn main() {
    statistics::begin();
    bodies::install_sinks();
    let start = Instant::now();
    let runtime = Builder::new().build().expect("a runtime");
    let shop = Arc::new(Shop::open());
    let spans = std::env::args().any(|argument| argument == "--spans");
    let handlers: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let shop = shop.clone();
            if spans {
                runtime.spawn(move || shop.handle::<true>(&request(n)))
            } else {
                runtime.spawn(move || shop.handle::<false>(&request(n)))
            }
        })
        .collect();
    let answers: Vec<_> = handlers
        .into_iter()
        .map(|handler| handler.join().expect("no handler panics"))
        .collect();
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    let bytes: usize = answers.iter().flatten().map(String::len).sum();
    let took = start.elapsed();
    println!("{REQUESTS} requests in {took:.2?}: {failed} refused, {bytes} bytes of answers");
    assert_eq!(failed as u64, REQUESTS.div_ceil(50));
    statistics::print();
}
