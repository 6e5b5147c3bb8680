//! Starting the threads of carriers, within a limit for the process, and their beginning and end.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use crate::base::alarm::Alarm;
use crate::base::loom::lock;
use crate::base::signal::{self, AlternateStack};
use crate::error::AbortOnUnwind;
use crate::sched::carrier::{Carrier, Own};
use crate::sched::worker::Worker;
use crate::sched::{Shared, interrupt, retire, roster};

/// Threads of all runtimes together: so many there may be, unless one runtime asks for more.
pub(crate) const PROCESS_LIMIT: usize = 512;
static PROCESS_CARRIERS: AtomicUsize = AtomicUsize::new(0);

impl Shared {
    /// Starts a thread that holds `worker`.
    pub(crate) fn start_carrier(&self, worker: NonNull<Worker>) -> io::Result<()> {
        self.start_thread(Some(worker))
    }

    /// Starts a thread that holds nothing and rests.
    pub(crate) fn start_spare(&self) -> io::Result<()> {
        self.start_thread(None)
    }

    /// One at a time, and none once the runtime stops: whoever stops it takes the list of threads
    /// under the same lock.
    fn start_thread(&self, worker: Option<NonNull<Worker>>) -> io::Result<()> {
        // The first threads of a runtime are its maker's affair, as those of `std::thread::spawn`
        // are.
        if retire::is_here() && self.watchers.begun.load(SeqCst) {
            self.ask_for_spares(); // the helper's thread is as it should be
            return Err(io::Error::other(
                "this thread has attributes that a new one would inherit",
            ));
        }
        let mut threads = lock(&self.threads);
        if self.is_stopping() {
            return Err(io::Error::other("the runtime is stopping"));
        }
        let process_limit = PROCESS_LIMIT.max(self.settings.max_carriers);
        let place = Place::claim(process_limit);
        // The number is only claimed with a place in hand: a claim is not undone.
        let number = place.and_then(|place| Some((place, self.vacant.claim_any(0)?)));
        let Some((place, index)) = number else {
            return Err(io::Error::other(
                "as many carrier threads as allowed run already",
            ));
        };
        // A thread that ended because the runtime stops has not closed its word. It left its number
        // after it saw that; so whoever claims such a number sees it too.
        if self.is_stopping() {
            self.vacant.set(index);
            return Err(io::Error::other("the runtime is stopping"));
        }
        let carrier = self.carriers[index].get_or_init(|| Carrier::new(index, NonNull::from(self)));
        // The former thread of this number may still run destructors, which are the users' and may
        // take their time: only what is over is joined.
        let (over, left): (Vec<_>, Vec<_>) = std::mem::take(&mut *threads)
            .into_iter()
            .partition(|(_, thread)| thread.is_finished());
        *threads = left;
        over.into_iter().for_each(|(_, thread)| drop(thread.join()));
        // The mark is up until the thread has it: nobody takes the worker meanwhile. Without one the
        // word stays closed until the thread opens it, so none can come while there is no thread.
        let _ = carrier.owner.enter();
        match worker {
            Some(worker) => carrier.open_with(worker),
            None => {
                self.watchers.starting.fetch_add(1, SeqCst);
            }
        }
        let keep_alive = self.arc();
        let name = format!("{}-{index}", self.settings.thread_name);
        let spare = worker.is_none();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            carrier_main(&keep_alive, index, place, spare);
        });
        match started {
            Ok(thread) => {
                threads.push((index, thread));
                Ok(())
            }
            Err(error) => {
                match worker {
                    Some(worker) => assert_eq!(carrier.owner.reclose(), worker),
                    None => {
                        self.watchers.starting.fetch_sub(1, SeqCst);
                    }
                }
                carrier.owner.leave();
                self.vacant.set(index);
                Err(error)
            }
        }
    }
}

/// One of the carrier threads the process may have.
struct Place;

impl Place {
    fn claim(limit: usize) -> Option<Place> {
        let claimed =
            PROCESS_CARRIERS.fetch_update(SeqCst, SeqCst, |n| (n < limit).then_some(n + 1));
        claimed.is_ok().then_some(Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PROCESS_CARRIERS.fetch_sub(1, SeqCst);
    }
}

fn carrier_main(shared: &Arc<Shared>, index: usize, place: Place, spare: bool) {
    let abort = AbortOnUnwind("the scheduler loop");
    // Without one the handler runs on std's, which is small; better than no thread at all.
    let signal_stack = AlternateStack::install();
    let carrier = shared.carrier(index);
    carrier.thread.enlist();
    carrier.ice.forget();
    let entry = shared.settings.preempt.then(|| {
        signal::unblock(interrupt::signal());
        carrier.set_own(Own {
            alarm: Alarm::new(interrupt::signal(), interrupt::ours()),
            signal_stack: signal_stack.as_ref().map_or(0..0, AlternateStack::range),
        });
        roster::enter(carrier)
    });
    shared.settings.on_thread_start();
    carrier.live(spare);
    shared.settings.on_thread_stop();
    carrier.thread.leave();
    drop(entry);
    carrier.set_own(Own::default());
    drop(signal_stack);
    drop(place);
    shared.vacant.set(index);
    drop(abort);
}

/// Carrier threads of the whole process, for tests and metrics.
pub(crate) fn process_carriers() -> usize {
    PROCESS_CARRIERS.load(Relaxed)
}
