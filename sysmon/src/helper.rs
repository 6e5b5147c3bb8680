//! The helper's thread: does what the monitor must not.
//!
//! It is asked by number and does each thing once however often it was asked meanwhile. Asking is a
//! few instructions and a wake-up, and keeps the monitor's law; nobody ever waits for an answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::background_thread::BackgroundThread;

/// What a helper can be asked to do. Called on its thread; may block, allocate and start threads.
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
    /// Does what the bits of `asked` say (none: the time it named itself has come). If there is
    /// something to come back to: after how long.
    fn help(&self, asked: u32) -> Option<Duration>;
}

/// A thread for things that may take their time.
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

    /// Asks for what these bits stand for, and returns at once. Keeps the monitor's law, and may be
    /// called from a signal handler that keeps `errno`.
    ///
    /// See [`Helper`] for an example.
    pub fn ask(&self, bits: u32) {
        if self.asked.bits.fetch_or(bits, SeqCst) & bits != bits {
            self.thread.notify();
        }
    }

    /// Ends the thread after what it is doing and waits for it. What was asked and not begun is not done.
    ///
    /// See [`Helper`] for an example.
    pub fn stop(&self) {
        self.asked.stop.store(true, SeqCst);
        self.thread.join();
    }

    /// Ends the thread after what it is doing, without waiting for it. Returns its handle, for
    /// callers that wait for a limited time; `None` if the thread was stopped before.
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
            // What it wants to come back to stays, whatever else it was asked.
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
