//! The table of carriers and the handles of their threads.
//!
//! Thousands of threads may be parked, each with its bound fiber, so nothing here is searched: a
//! carrier has a number, numbers of ended threads are used again, and the table grows by chunks
//! that stay where they are.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::shutdown::still_running;

const CHUNKS: usize = 128;
const CHUNK: usize = 512;
/// More threads than a process gets from most systems; beyond it none is started.
pub(crate) const MOST: usize = CHUNKS * CHUNK;

/// Carriers by number.
pub(crate) struct Carriers {
    chunks: [OnceLock<Box<[OnceLock<Carrier>]>>; CHUNKS],
    /// Numbers that were ever used.
    used: AtomicUsize,
    /// Threads there are.
    threads: AtomicUsize,
}

impl Carriers {
    pub(crate) fn new() -> Self {
        Carriers {
            chunks: [const { OnceLock::new() }; CHUNKS],
            used: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Carrier> {
        self.chunks[index / CHUNK].get()?[index % CHUNK].get()
    }

    /// The carrier of this number, made if there is none.
    pub(crate) fn get_or_make(&self, index: usize, make: impl FnOnce() -> Carrier) -> &Carrier {
        let chunk = || (0..CHUNK).map(|_| OnceLock::new()).collect();
        let chunk = self.chunks[index / CHUNK].get_or_init(chunk);
        let carrier = chunk[index % CHUNK].get_or_init(make);
        self.used.fetch_max(index + 1, SeqCst);
        carrier
    }

    /// All carriers, those without a thread too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Carrier> {
        (0..self.used.load(SeqCst)).filter_map(|index| self.get(index))
    }

    /// How many threads there are.
    pub(crate) fn len(&self) -> usize {
        self.threads.load(SeqCst)
    }

    /// A thread is about to start, or has ended.
    pub(crate) fn count(&self, change: isize) {
        self.threads.fetch_add(change.cast_unsigned(), SeqCst); // wraps: one less
    }
}

/// The handles of threads that were started, and the numbers that are free. Behind a lock.
pub(crate) struct Threads {
    /// By number. A thread whose number is used again has ended, but may still run destructors.
    handles: Vec<Option<JoinHandle<()>>>,
    free: Vec<usize>,
    /// Such threads.
    ending: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(crate) fn new() -> Self {
        Threads {
            handles: Vec::new(),
            free: Vec::new(),
            ending: Vec::new(),
        }
    }

    /// A free number, the smallest that was never used if there is no other.
    pub(crate) fn take_number(&mut self) -> Option<usize> {
        let fresh = || (self.handles.len() < MOST).then_some(self.handles.len());
        let index = self.free.pop().or_else(fresh)?;
        if index == self.handles.len() {
            self.handles.push(None);
        } else if let Some(before) = self.handles[index].take() {
            self.join_or_keep(before);
        }
        Some(index)
    }

    pub(crate) fn give_back(&mut self, index: usize) {
        self.free.push(index);
    }

    pub(crate) fn set(&mut self, index: usize, handle: JoinHandle<()>) {
        self.handles[index] = Some(handle);
    }

    /// Its destructors are the program's and may take their time: only a thread that is over is
    /// joined.
    fn join_or_keep(&mut self, thread: JoinHandle<()>) {
        self.ending.push(thread);
        self.ending = still_running(std::mem::take(&mut self.ending));
    }

    /// All handles, at the end.
    pub(crate) fn take_all(&mut self) -> Vec<JoinHandle<()>> {
        let handles = std::mem::take(&mut self.handles).into_iter().flatten();
        handles.chain(std::mem::take(&mut self.ending)).collect()
    }
}
