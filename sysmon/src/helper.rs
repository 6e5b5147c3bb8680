//! The helper's thread: does what the monitor must not do.
//!
//! Requests are bits. The helper does each requested chore once, however often it was requested
//! meanwhile. A request is a few instructions and an unpark, and follows the monitor's rules; no
//! thread waits for a result.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::background_thread::BackgroundThread;

/// The chores of a helper. Called on its thread; they may block, allocate and start threads.
///
/// ```
/// use indent_sysmon::Chores;
/// use std::time::Duration;
///
/// const READ_SETTINGS: u32 = 1;
/// struct Office;
///
/// impl Chores for Office {
///     fn help(&self, asked: u32) -> Option<Duration> {
///         if asked & READ_SETTINGS == 0 {
///             return None;
///         }
///         let done = std::fs::read("settings").is_ok();
///         (!done).then_some(Duration::from_secs(1)) // tries again then
///     }
/// }
/// assert_eq!(Office.help(READ_SETTINGS), Some(Duration::from_secs(1)));
/// ```
pub trait Chores: Send + Sync + 'static {
    /// Does the chores whose bits are set in `asked`.
    ///
    /// Returns the time after which it wants to be called again, if any. Then `asked` may be zero.
    fn help(&self, asked: u32) -> Option<Duration>;
}

/// A thread for chores that may be slow.
///
/// ```
/// use indent_sysmon::{Chores, Helper};
/// use std::sync::Arc;
/// use std::sync::mpsc::{self, Sender};
/// use std::time::Duration;
///
/// struct Answer(Sender<u32>);
///
/// impl Chores for Answer {
///     fn help(&self, asked: u32) -> Option<Duration> {
///         self.0.send(asked).unwrap();
///         None
///     }
/// }
///
/// let (sender, answers) = mpsc::channel();
/// let helper = Helper::start("helper", Arc::new(Answer(sender)))?;
/// helper.ask(0b101);
/// assert_eq!(answers.recv().unwrap(), 0b101);
/// helper.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Helper {
    asked: Arc<Asked>,
    thread: BackgroundThread,
}

#[derive(Debug, Default)]
struct Asked {
    bits: AtomicU32,
    stop: AtomicBool,
}

impl Helper {
    /// Starts the thread.
    ///
    /// See [`Helper`] for an example.
    pub fn start(name: &str, chores: Arc<impl Chores>) -> io::Result<Self> {
        let asked = Arc::new(Asked::default());
        let own = asked.clone();
        let thread = BackgroundThread::start(name, move || run(&own, &*chores))?;
        Ok(Helper { asked, thread })
    }

    /// Requests the chores of these bits and returns at once.
    ///
    /// Follows the monitor's rules, and may be called from a signal handler that preserves `errno`.
    ///
    /// See [`Helper`] for an example.
    pub fn ask(&self, bits: u32) {
        if self.asked.bits.fetch_or(bits, SeqCst) & bits != bits {
            self.thread.notify();
        }
    }

    /// Ends the thread after its current chore and waits for it; requests not begun are dropped.
    ///
    /// See [`Helper`] for an example.
    pub fn stop(&self) {
        self.asked.stop.store(true, SeqCst);
        self.thread.join();
    }

    /// Ends the thread after its current chore, without waiting for it.
    ///
    /// Returns its handle, for callers that wait for a limited time; `None` if the thread was
    /// stopped before.
    ///
    /// ```
    /// use indent_sysmon::{Chores, Helper};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// struct Idle;
    ///
    /// impl Chores for Idle {
    ///     fn help(&self, _asked: u32) -> Option<Duration> {
    ///         None
    ///     }
    /// }
    ///
    /// let helper = Helper::start("idle", Arc::new(Idle))?;
    /// helper.dismiss().unwrap().join().unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn dismiss(&self) -> Option<thread::JoinHandle<()>> {
        self.asked.stop.store(true, SeqCst);
        self.thread.dismiss()
    }
}

fn run(asked: &Asked, chores: &impl Chores) {
    let mut again: Option<Instant> = None;
    while !asked.stop.load(SeqCst) {
        let bits = asked.bits.swap(0, SeqCst);
        let now = Instant::now();
        if bits != 0 || again.is_some_and(|at| at <= now) {
            let next = chores.help(bits).map(|after| now + after);
            // A planned return stays planned, whatever else is requested.
            again = match (again.filter(|at| *at > now), next) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => new.or(old),
            };
            continue;
        }
        match again {
            Some(at) => thread::park_timeout(at - now),
            None => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Count(mpsc::SyncSender<u32>, AtomicU32);

    impl Chores for Count {
        fn help(&self, asked: u32) -> Option<Duration> {
            self.0.send(asked).unwrap();
            let left = self.1.load(SeqCst);
            self.1.store(left.saturating_sub(1), SeqCst);
            (left > 0).then_some(Duration::from_millis(1))
        }
    }

    #[test]
    fn what_is_asked_twice_while_it_is_busy_is_done_once() {
        let (sender, done) = mpsc::sync_channel(0); // each chore waits to be seen
        let helper = Helper::start("h", Arc::new(Count(sender, AtomicU32::new(0)))).unwrap();
        helper.ask(1);
        while helper.asked.bits.load(SeqCst) != 0 {
            thread::yield_now();
        }
        helper.ask(2);
        helper.ask(4);
        helper.ask(2);
        assert_eq!(done.recv().unwrap(), 1);
        assert_eq!(done.recv().unwrap(), 6);
        assert!(done.try_recv().is_err());
        helper.stop();
    }

    #[test]
    fn it_comes_back_to_what_it_could_not_finish() {
        let (sender, done) = mpsc::sync_channel(8);
        let helper = Helper::start("h", Arc::new(Count(sender, AtomicU32::new(2)))).unwrap();
        helper.ask(1);
        let seen: Vec<_> = (0..3).map(|_| done.recv().unwrap()).collect();
        assert_eq!(seen, [1, 0, 0]);
        helper.stop();
        assert!(done.try_recv().is_err(), "nothing is left to come back to");
    }
}
