//! A thread that stands beside others: it is rung, and ended by whoever has it.

use std::io;
use std::sync::Mutex;
use std::thread::{self, JoinHandle, Thread};

#[derive(Debug)]
pub(crate) struct BackgroundThread {
    /// Which to ring.
    thread: Thread,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl BackgroundThread {
    pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(BackgroundThread {
            thread: handle.thread().clone(),
            handle: Mutex::new(Some(handle)),
        })
    }

    /// Ends its sleep, or the next one; keeps the monitor's law.
    pub(crate) fn notify(&self) {
        self.thread.unpark();
    }

    /// Waits for the end of a thread that was asked to end.
    pub(crate) fn join(&self) {
        self.dismiss().map(JoinHandle::join);
    }

    /// The handle of a thread that was asked to end, for the first caller.
    pub(crate) fn dismiss(&self) -> Option<JoinHandle<()>> {
        self.notify();
        self.handle.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
}
