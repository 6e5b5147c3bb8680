//! A crawler over generated pages.
//!
//! Fetchers make text from an address, readers take pages from a channel and count words and links,
//! and one fiber collects the results.
//!
//! ```text
//! cargo run --release -p indent-verdicts --bin pipeline [-- --statistics]
//! ```
//!
//! Channels are std's and are polled without blocking, because a blocking call would keep the
//! thread.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use indent::runtime::Builder;
use indent_verdicts::statistics;

const PAGES: u64 = 1500;
const FETCHERS: u64 = 50;
const READERS: u64 = 20;
const WORDS: [&str; 8] = [
    "fiber", "worker", "carrier", "park", "wake", "home", "free", "alone",
];

struct Page {
    address: u64,
    text: String,
}

#[derive(Default)]
struct Found {
    words: BTreeMap<String, u64>,
    links: HashSet<u64>,
    pages: u64,
}

impl Found {
    fn add(&mut self, other: Found) {
        for (word, n) in other.words {
            *self.words.entry(word).or_default() += n;
        }
        self.links.extend(other.links);
        self.pages += other.pages;
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Makes a page of a hundred words and a link, all determined by its address.
fn fetch(address: u64) -> Page {
    let mut text = String::new();
    for n in 0..100 {
        let word = WORDS[(hash((address, n)) % WORDS.len() as u64) as usize];
        text.push_str(word);
        text.push(' ');
    }
    statistics::pause(); // stands for the network
    text.push_str(&format!("page:{}", hash(address) % PAGES));
    Page { address, text }
}

fn fetch_some(first: u64, pages: &Sender<Page>) {
    for address in (first..PAGES).step_by(FETCHERS as usize) {
        let page = fetch(address);
        statistics::pause();
        pages.send(page).expect("somebody reads");
    }
}

fn read(page: &Page) -> Found {
    let mut found = Found::default();
    for word in page.text.split_whitespace() {
        match word.split_once(':') {
            Some((_, link)) => drop(found.links.insert(link.parse().unwrap_or(page.address))),
            None => *found.words.entry(word.to_owned()).or_default() += 1,
        }
    }
    found.pages = 1;
    statistics::pause();
    found
}

fn read_all(pages: &Mutex<Receiver<Page>>, results: &Sender<Found>) {
    loop {
        let next = pages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_recv();
        match next {
            Ok(page) => results.send(read(&page)).expect("somebody gathers"),
            Err(TryRecvError::Empty) => statistics::pause(),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

fn gather(results: &Receiver<Found>) -> Found {
    let mut all = Found::default();
    loop {
        match results.try_recv() {
            Ok(found) => all.add(found),
            Err(TryRecvError::Empty) => statistics::pause(),
            Err(TryRecvError::Disconnected) => return all,
        }
    }
}

fn main() {
    statistics::begin();
    let runtime = Builder::new().build().expect("a runtime");
    let (pages, to_read) = mpsc::channel();
    let (found, results) = mpsc::channel();
    let to_read = Arc::new(Mutex::new(to_read));
    for first in 0..FETCHERS {
        let pages = pages.clone();
        drop(runtime.spawn(move || fetch_some(first, &pages)));
    }
    for _ in 0..READERS {
        let (to_read, found) = (to_read.clone(), found.clone());
        drop(runtime.spawn(move || read_all(&to_read, &found)));
    }
    drop((pages, found));
    let all = runtime.spawn(move || gather(&results)).join();
    let all = all.expect("no fiber panics");
    let words: u64 = all.words.values().sum();
    println!(
        "{} pages, {words} words, {} links",
        all.pages,
        all.links.len()
    );
    assert_eq!((all.pages, words), (PAGES, PAGES * 100));
    statistics::print();
}
