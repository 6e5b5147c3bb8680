//! Deadlines of parks: one thread per runtime, started with the first deadline, asleep until the
//! earliest.
//!
//! Setting and clearing are a lock and a step in an ordered map; an entry names the park it was
//! set for, so one that fires too late for its park does nothing (`State::expire`). An entry holds
//! a reference to the fiber's record.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use crate::fiber::state::Notify;
use crate::fiber::{FiberRef, Held};
use crate::sched::wake;

pub(crate) struct Alarm(Arc<Inner>);

struct Inner {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<Key, (Held, u32)>,
    serial: u64,
    thread: Option<std::thread::JoinHandle<()>>,
    closed: bool,
}

/// When, and which of those set for that instant.
pub(crate) type Key = (Instant, u64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Alarm(Arc::new(Inner {
            table: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Wakes park number `park` of `fiber` at that time.
    pub(crate) fn set(&self, at: Instant, fiber: FiberRef, park: u32) -> Key {
        let held = fiber.hold();
        let mut table = self.0.lock();
        table.serial += 1;
        let key = (at, table.serial);
        table.entries.insert(key, (held, park));
        let first = table
            .entries
            .first_key_value()
            .is_some_and(|(earliest, _)| *earliest == key);
        if first {
            self.0.changed.notify_one();
        }
        key
    }

    /// Starts the thread, before the first deadline and before the fiber announces its park.
    ///
    /// # Panics
    /// If the system refuses it.
    pub(crate) fn prepare(&self) {
        let mut table = self.0.lock();
        if table.thread.is_none() && !table.closed {
            table.thread = Some(self.start());
        }
    }

    pub(crate) fn clear(&self, key: Key) {
        let entry = self.0.lock().entries.remove(&key);
        drop(entry); // outside the lock
    }

    fn start(&self) -> std::thread::JoinHandle<()> {
        let inner = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("indent-alarm".into());
        thread
            .spawn(move || tick(&inner))
            .expect("the system refused the thread for deadlines; raise the limit on threads")
    }

    /// Ends the thread; no deadline passes any more.
    pub(crate) fn close(&self) {
        let mut table = self.0.lock();
        table.closed = true;
        let thread = table.thread.take();
        drop(table);
        self.0.changed.notify_one();
        thread.map(std::thread::JoinHandle::join);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn tick(inner: &Weak<Inner>) {
    let Some(inner) = inner.upgrade() else { return };
    let mut table = inner.lock();
    while !table.closed {
        let now = Instant::now();
        match table.entries.first_entry() {
            None => table = inner.changed.wait(table).unwrap_or_else(|e| e.into_inner()),
            Some(entry) if entry.key().0 > now => {
                let left = entry.key().0 - now;
                let waited = inner.changed.wait_timeout(table, left);
                table = waited.unwrap_or_else(|e| e.into_inner()).0;
            }
            Some(entry) => {
                let (held, park) = entry.remove();
                drop(table);
                if held.state.expire(park) == Notify::Enqueue {
                    wake::enqueue(held.fiber());
                }
                drop(held);
                table = inner.lock();
            }
        }
    }
}
