//! Starts the threads of carriers; what such a thread does first and last.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use crate::error::AbortOnUnwind;
use crate::fiber::locals;
use crate::sched::Shared;
use crate::sched::preempt::anywhere::Identity;
use crate::sched::preempt::interrupt;
use crate::sched::threads::by_number;
use crate::sched::threads::carrier::{Carrier, Own};
use crate::sched::threads::retire;
use crate::sched::workers::worker::Worker;
use crate::sys::signal::{self, AlternateStack};
use crate::util::loom::lock;

static PROCESS_CARRIERS: AtomicUsize = AtomicUsize::new(0);

impl Shared {
    /// Starts a thread that holds `worker`.
    pub(crate) fn start_carrier(&self, worker: NonNull<Worker>) -> io::Result<()> {
        self.start_thread(Some(worker))
    }

    /// Starts a thread that holds no worker and waits as a spare.
    pub(crate) fn start_spare(&self) -> io::Result<()> {
        self.start_thread(None)
    }

    /// Starts a carrier's thread, one at a time, and none once the runtime stops.
    ///
    /// The thread that stops the runtime takes the list of threads under the same lock.
    fn start_thread(&self, worker: Option<NonNull<Worker>>) -> io::Result<()> {
        // The first threads of a runtime inherit from the thread that makes it, like those of
        // `std::thread::spawn`.
        if retire::is_here() && self.watchers.begun.load(SeqCst) {
            self.ask_for_spares(); // the helper's thread has the original attributes
            return Err(io::Error::other(
                "this thread has attributes that a new one would inherit",
            ));
        }
        let mut threads = lock(&self.threads);
        if self.is_stopping() {
            return Err(io::Error::other("the runtime is stopping"));
        }
        let Some(index) = threads.take_number() else {
            return Err(io::Error::other(format!(
                "{} threads run fibers already",
                self.carriers.len()
            )));
        };
        // A thread that ended because the runtime stops has not closed its owner word. It returned
        // its number after it saw that the runtime stops, so a thread that takes such a number sees
        // it, too.
        if self.is_stopping() {
            threads.give_back(index);
            return Err(io::Error::other("the runtime is stopping"));
        }
        let make = || Carrier::new(index, NonNull::from(self));
        let carrier = self.carriers.get_or_make(index, make);
        // Preemption is disabled until the thread has the worker, so no thread takes it meanwhile.
        // Without a worker the word stays closed until the thread opens it, so none can be given
        // while there is no thread.
        let _ = carrier.owner.enter();
        if let Some(worker) = worker {
            carrier.open_with(worker);
        }
        let keep_alive = self.arc();
        let name = format!("{}-{index}", self.settings.thread_name);
        let spare = worker.is_none();
        self.carriers.count(1);
        let place = Place::take();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            carrier_main(&keep_alive, index, place, spare);
        });
        self.threadless.note_refused(started.is_err());
        match started {
            Ok(thread) => {
                threads.set(index, thread);
                if spare {
                    self.watchers.starting.fetch_add(1, SeqCst); // the thread may be ahead of us
                }
                Ok(())
            }
            Err(error) => {
                if let Some(worker) = worker {
                    assert_eq!(carrier.owner.reclose(), worker);
                }
                carrier.owner.leave();
                self.carriers.count(-1);
                threads.give_back(index);
                Err(error)
            }
        }
    }
}

/// One carrier thread in the count for the whole process.
struct Place;

impl Place {
    fn take() -> Place {
        PROCESS_CARRIERS.fetch_add(1, SeqCst);
        Place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PROCESS_CARRIERS.fetch_sub(1, SeqCst);
    }
}

fn carrier_main(shared: &Arc<Shared>, index: usize, place: Place, spare: bool) {
    let abort = AbortOnUnwind("the scheduler loop");
    // Without it the handler runs on std's stack, which is small; better than no thread at all.
    let signal_stack = AlternateStack::install();
    let carrier = shared.carrier(index);
    carrier.thread.enlist();
    carrier.preempt.forget();
    let entry = shared.settings.preempt.then(|| {
        signal::unblock(interrupt::signal());
        carrier.set_own(Own {
            alarm: None,
            signal_stack: signal_stack.as_ref().map_or(0..0, AlternateStack::range),
            identity: None,
        });
        by_number::enter(carrier)
    });
    carrier.begin_spread_out();
    shared.settings.on_thread_start();
    locals::warm_up();
    if shared.settings.leaves_anywhere() {
        carrier.set_identity(Identity::of(carrier)); // the hook may have changed control words
    }
    carrier.live(spare);
    shared.settings.on_thread_stop();
    carrier.thread.leave();
    drop(entry);
    carrier.set_own(Own::default());
    drop(signal_stack);
    drop(place);
    shared.carriers.count(-1);
    lock(&shared.threads).give_back(index);
    drop(abort);
}

/// Number of carrier threads of the whole process, for tests and metrics.
pub(crate) fn process_carriers() -> usize {
    PROCESS_CARRIERS.load(Relaxed)
}
