//! The table of carriers and the handles of their threads.
//!
//! Thousands of threads may be parked, each with its bound fiber, so nothing here is searched. A
//! carrier has a number, the numbers of ended threads are used again, and the table grows by chunks
//! that stay where they are.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::shutdown::still_running;

const CHUNKS: usize = 128;
const CHUNK: usize = 512;
/// Largest number of threads: more than most systems allow a process. Beyond it none is started.
pub(crate) const MOST: usize = CHUNKS * CHUNK;

/// Carriers by number.
pub(crate) struct Carriers {
    chunks: [OnceLock<Box<[OnceLock<Carrier>]>>; CHUNKS],
    /// Upper bound of the numbers that were ever used.
    used: AtomicUsize,
    /// Number of threads.
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

    /// The carrier of this number. Makes one if there is none.
    pub(crate) fn get_or_make(&self, index: usize, make: impl FnOnce() -> Carrier) -> &Carrier {
        let chunk = || (0..CHUNK).map(|_| OnceLock::new()).collect();
        let chunk = self.chunks[index / CHUNK].get_or_init(chunk);
        let carrier = chunk[index % CHUNK].get_or_init(make);
        self.used.fetch_max(index + 1, SeqCst);
        carrier
    }

    /// All carriers, including those without a thread.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Carrier> {
        (0..self.used.load(SeqCst)).filter_map(|index| self.get(index))
    }

    /// Number of threads.
    pub(crate) fn len(&self) -> usize {
        self.threads.load(SeqCst)
    }

    /// Changes the number of threads: one is about to start, or has ended.
    pub(crate) fn count(&self, change: isize) {
        self.threads.fetch_add(change.cast_unsigned(), SeqCst); // wraps for a negative change
    }
}

/// The handles of threads that were started, and the numbers that are free. Behind a lock.
pub(crate) struct Threads {
    /// By number. A thread whose number is taken has ended, but may still run destructors.
    handles: Vec<Option<JoinHandle<()>>>,
    free: Vec<usize>,
    /// Threads whose numbers have been taken again, and which may still run destructors.
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

    /// Takes a free number, or the smallest that was never used if none is free.
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

    /// Keeps the thread's handle, and joins the kept threads that have ended.
    ///
    /// A thread's destructors belong to the program and may take long, so only ended threads are
    /// joined.
    fn join_or_keep(&mut self, thread: JoinHandle<()>) {
        self.ending.push(thread);
        self.ending = still_running(std::mem::take(&mut self.ending));
    }

    /// Takes all handles, at the end of the runtime.
    pub(crate) fn take_all(&mut self) -> Vec<JoinHandle<()>> {
        let handles = std::mem::take(&mut self.handles).into_iter().flatten();
        handles.chain(std::mem::take(&mut self.ending)).collect()
    }
}
