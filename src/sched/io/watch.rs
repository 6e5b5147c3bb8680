//! Watches the sets of workers that compute.
//!
//! A worker in a long dispatch does not look into its set. So when such a dispatch begins, or the monitor
//! finds one, the set is *armed*: it becomes part of one in which a thread of its own sleeps. That one is told once,
//! looks in the worker's place, and arms it again if the dispatch goes on. A worker that comes to its scheduler
//! disarms its set. The set of a worker that is retired stays armed. A ring is armed like a set, and what waits there
//! to be submitted is submitted.
//!
//! A thread of its own and not the monitor: the monitor sleeps on a word, and looks at everything when it
//! wakes. It asks the kernel to be prompt, as the monitor does.

use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::thread::JoinHandle;
use std::time::Duration;

use indent_sysmon::Phase;

use crate::base::loom::{Mutex, lock};
use crate::base::os;
use crate::driver::epoll::Epoll;
use crate::driver::uring::Uring;
use crate::sched::io::polled::Late;
use crate::sched::worker::Worker;
use crate::sched::{Shared, context, retire};

/// Before the kernel is asked again to take what it has refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Watch {
    pub(super) sets: OnceLock<Epoll>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
    /// The helper is to start the thread.
    wanted: AtomicBool,
    /// Who is to be called after a pause.
    pub(super) late: Mutex<Late>,
}

impl Watch {
    /// The set of a worker is there: it can be armed. Starts the thread if this is the first.
    pub(crate) fn include(&self, shared: &Shared, set: RawFd, worker: usize) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if self.sets.get().is_none() {
            let _ = self.sets.set(Epoll::new()?);
        }
        let sets = self.sets.get().expect("just set");
        if thread.is_none() && retire::is_here() {
            // S16: by the helper, whose thread is as it should be.
            self.wanted.store(true, SeqCst);
            shared.start_poller_soon();
        } else {
            self.start(shared, &mut thread)?;
        }
        sets.add_once(set, worker as u64)
    }

    /// On the helper's thread: starts the thread if another must not start it. True if it is
    /// refused.
    pub(crate) fn start_if_wanted(&self, shared: &Shared) -> bool {
        if !self.wanted.swap(false, SeqCst) {
            return false;
        }
        let refused = self.start(shared, &mut lock(&self.thread)).is_err();
        if refused {
            self.wanted.store(true, SeqCst);
        }
        refused
    }

    fn start(&self, shared: &Shared, thread: &mut Option<JoinHandle<()>>) -> io::Result<()> {
        if thread.is_none() && !self.stops.load(SeqCst) {
            let runtime = std::sync::Arc::downgrade(&shared.arc());
            let name = format!("{}-io", shared.settings.thread_name);
            let builder = std::thread::Builder::new().name(name);
            *thread = Some(builder.spawn(move || watch(&runtime))?);
        }
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stops.store(true, SeqCst);
        if let Some(sets) = self.sets.get() {
            os::ring_eventfd(sets.bell());
        }
        let mark = context::marked();
        let thread = lock(&self.thread).take();
        drop(mark);
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

/// What the thread does.
fn watch(runtime: &Weak<Shared>) {
    indent_sysmon::be_prompt();
    // It is joined before the runtime goes.
    let Some(shared) = runtime.upgrade() else {
        return;
    };
    let Some(sets) = shared.io_watch.sets.get() else {
        return;
    };
    let mut pause = None;
    while !shared.io_watch.stops.load(SeqCst) {
        sets.wait(pause).tell(|ready| {
            let worker = &shared.workers[ready.key as usize];
            worker.io_armed.swap(false, SeqCst); // and what its worker did before it armed it is seen
            shared.look_in_place_of(worker);
            if shared.needs_watch(worker) {
                shared.arm_io(worker);
            }
        });
        let pauses = [shared.submit_for_others(), shared.call_late()];
        pause = pauses.into_iter().flatten().min();
    }
}

impl Shared {
    /// Whether nobody else looks into its set before long.
    fn needs_watch(&self, worker: &Worker) -> bool {
        let overran = || worker.io_away.load(SeqCst) == worker.published.dispatches();
        let is_away =
            worker.published.phase() == Phase::Fiber && (worker.is_in_long_dispatch() || overran());
        is_away || self.count.is_retired(worker.index)
    }

    /// The monitor has found that this worker does not get on.
    pub(crate) fn watch_io(&self, worker: &Worker, dispatch: u64) {
        worker.io_away.store(dispatch, SeqCst);
        self.arm_io(worker);
    }

    /// The one way to look without holding the worker. We may have heard its bell instead of whoever sleeps there:
    /// then that one is woken by other means, since the bell may be polled by nobody now. Whoever rang it did so after
    /// the sleeper said that it sleeps.
    fn look_in_place_of(&self, worker: &Worker) {
        self.look_into(worker);
        fence(SeqCst);
        if worker.published.phase() != Phase::Idle || self.count.is_retired(worker.index) {
            return;
        }
        if let Some(set) = worker.io.get() {
            os::ring_eventfd(set.bell());
        } else if let Some(ring) = worker.uring.get() {
            ring.nudge();
            ring.submit();
        }
    }

    /// At each look of the monitor: a worker that always finds something short to do looks into its set rarely. It is
    /// told to; if it has not by the next look somebody does in its place.
    pub(crate) fn mind_sets(&self) {
        for worker in self.present().iter().filter(|worker| worker.has_sources()) {
            let looks = worker.io_looks.load(Relaxed);
            let looked = worker.io_looks_known.swap(looks, Relaxed) != looks;
            let stays_away = !looked && worker.published.phase() != Phase::Idle;
            if stays_away && worker.io_due.swap(true, Relaxed) {
                self.arm_io(worker);
            }
        }
    }

    /// This worker computes from here on, or has retired. May be called in a signal handler.
    #[inline]
    pub(crate) fn arm_io(&self, worker: &Worker) {
        if worker.has_sources() {
            self.set_armed(worker, true);
            if worker.uring.get().is_some_and(Uring::is_pending)
                && let Some(sets) = self.io_watch.sets.get()
            {
                os::ring_eventfd(sets.bell()); // nobody's request waits behind a computation
            }
        }
    }

    /// What was pushed there is to be submitted now, and not by us.
    pub(crate) fn urge_watch(&self, ring: &Uring) {
        ring.urge();
        if let Some(sets) = self.io_watch.sets.get() {
            os::ring_eventfd(sets.bell());
        }
    }

    /// The watch: what workers that compute have not come to, and what is urgent. If the kernel has not taken all of
    /// it, how long to wait before it is asked again.
    fn submit_for_others(&self) -> Option<Duration> {
        let mut pause = None;
        for worker in &self.workers {
            if let Some(ring) = worker.uring.get()
                && (ring.was_urged() || worker.io_armed.load(SeqCst))
                && ring.is_pending()
            {
                self.look_in_place_of(worker);
                if ring.is_pending() {
                    ring.urge(); // what we have begun is not left to others: they may sleep
                    pause = Some(REFUSED_PAUSE);
                }
            }
        }
        pause
    }

    /// This worker looks itself from here on.
    #[inline]
    pub(crate) fn disarm_io(&self, worker: &Worker) {
        if worker.io_armed.load(SeqCst) {
            self.set_armed(worker, false);
        }
    }

    #[cold]
    fn set_armed(&self, worker: &Worker, on: bool) {
        if worker.io_armed.swap(on, SeqCst) == on {
            return;
        }
        let ring = || worker.uring.get().map(Uring::raw);
        let set = worker.io.get().map(Epoll::raw).or_else(ring);
        let (Some(sets), Some(set)) = (self.io_watch.sets.get(), set) else {
            return;
        };
        // Whoever changes the word tells the kernel after that, and again if it was changed meanwhile: what
        // the kernel hears last is what the word says last.
        let mut told = on;
        loop {
            sets.arm(set, worker.index as u64, told);
            match worker.io_armed.load(SeqCst) {
                now if now == told => return,
                now => told = now,
            }
        }
    }
}

impl Worker {
    /// Whether somebody may wait for a descriptor in its set, or for an operation in its ring.
    #[inline]
    pub(crate) fn has_sources(&self) -> bool {
        match self.io.get() {
            Some(set) => !set.is_empty(),
            None => self.uring.get().is_some_and(|ring| ring.in_flight() > 0),
        }
    }

    /// What wakes whoever sleeps among them, if there are any.
    #[inline]
    pub(crate) fn io_bell(&self) -> Option<RawFd> {
        self.has_sources().then(|| self.set_bell())?
    }

    /// The bell of its set, or of its ring.
    pub(crate) fn set_bell(&self) -> Option<RawFd> {
        let ring = || self.uring.get().map(Uring::bell);
        self.io.get().map(Epoll::bell).or_else(ring)
    }
}
