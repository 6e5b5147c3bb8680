//! A background thread with its handle: it can be notified, and joined by its owner.

use std::io;
use std::sync::Mutex;
use std::thread::{self, JoinHandle, Thread};

#[derive(Debug)]
pub(crate) struct BackgroundThread {
    /// The thread that [`notify`](Self::notify) unparks.
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

    /// Ends the thread's sleep, or its next one. Follows the monitor's rules.
    pub(crate) fn notify(&self) {
        self.thread.unpark();
    }

    /// Waits for the end of a thread that was asked to end.
    pub(crate) fn join(&self) {
        self.dismiss().map(JoinHandle::join);
    }

    /// Returns the handle of a thread that was asked to end, to the first caller.
    pub(crate) fn dismiss(&self) -> Option<JoinHandle<()>> {
        self.notify();
        self.handle.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
}
