//! The heartbeat on plain threads: one for each hog, and one for the heartbeat.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use indent_rivals::allocator;
use indent_rivals::beat::{self, Bell, Heart, Wake};

allocator!();

/// The threads that were started.
struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    fn keep(&self, thread: JoinHandle<()>) {
        self.0.lock().expect("nobody panics with it").push(thread);
    }
}

impl Heart for Threads {
    const NAME: &'static str = "threads";

    fn start() -> Self {
        Threads(Mutex::default())
    }

    fn beat(&self, bell: Arc<Bell>) -> Wake {
        let beating = thread::spawn(move || {
            while !bell.is_over() {
                thread::park();
                bell.answer();
            }
        });
        let thread = beating.thread().clone();
        self.keep(beating);
        Arc::new(move || thread.unpark())
    }

    fn hog(&self, body: impl FnOnce() + Send + 'static) {
        self.keep(thread::spawn(body));
    }

    fn end(self) {
        for thread in self.0.into_inner().expect("nobody panics with it") {
            thread.join().expect("no thread panics");
        }
    }
}

fn main() -> ExitCode {
    beat::main::<Threads>()
}
