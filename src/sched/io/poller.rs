//! The poller thread: takes events while workers compute.
//!
//! A worker in a long dispatch does not look for events. When no worker does, the epoll instance is
//! *armed*: it becomes part of another one in which the poller thread sleeps (`polling_right.rs` says when).
//! The poller thread is woken once, takes the events in the workers' place, and arms the instance
//! again if that is still needed. A worker that comes to its scheduler disarms it. A ring is armed
//! in the same way when its own worker begins a long dispatch or retires, and what waits there to
//! be submitted is submitted.
//!
//! A thread of its own and not the monitor: the monitor sleeps on a word, and looks at everything
//! when it wakes. It asks the kernel to be prompt, as the monitor does.

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
use crate::sched::io::polls::Late;
use crate::sched::worker::Worker;
use crate::sched::{Shared, context, retire};

/// Before the kernel is asked again to take what it has refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// The key of the runtime's epoll instance; rings have the number of their worker.
pub(super) const SET: u64 = u64::MAX - 1;

#[derive(Default)]
pub(crate) struct Poller {
    pub(super) epoll: OnceLock<Epoll>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
    /// The helper is to start the thread.
    wanted: AtomicBool,
    /// Who is to be called after a pause.
    pub(super) late: Mutex<Late>,
}

impl Poller {
    /// Makes a set or a ring known, so that it can be armed. Starts the thread if this is the
    /// first.
    pub(super) fn add_instance(&self, shared: &Shared, set: RawFd, key: u64) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if self.epoll.get().is_none() {
            let _ = self.epoll.set(Epoll::new()?);
        }
        let epoll = self.epoll.get().expect("just set");
        // S16: from a thread that a fiber changed, by the helper, whose thread is as it should be;
        // and by the helper, again and again, if the system refuses it now.
        let is_left = thread.is_none() && retire::is_here();
        if is_left || self.start(shared, &mut thread).is_err() {
            self.wanted.store(true, SeqCst);
            shared.start_poller_soon();
        }
        epoll.add_once(set, key)
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
        if let Some(epoll) = self.epoll.get() {
            os::notify_eventfd(epoll.waker());
        }
        let guard = context::disable_preempt();
        let thread = lock(&self.thread).take();
        drop(guard);
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
    let Some(epoll) = shared.io_poller.epoll.get() else {
        return;
    };
    let mut pause = None;
    while !shared.io_poller.stops.load(SeqCst) {
        let events = epoll.wait(pause);
        if events.has_rung() {
            epoll.silence();
        }
        events.tell(|ready| {
            if ready.key == SET {
                return shared.poll_for_workers();
            }
            let worker = &shared.workers[ready.key as usize];
            worker.io_armed.swap(false, SeqCst); // and what its worker did before it armed it is seen
            shared.poll_ring_for(worker);
            if shared.needs_poller(worker) {
                shared.arm_ring(worker);
            }
        });
        let pauses = [shared.submit_for_others(), shared.notify_refused()];
        pause = pauses.into_iter().flatten().min();
    }
}

impl Shared {
    /// The poller thread: the set has something, and no worker has looked.
    fn poll_for_workers(&self) {
        self.io_set_armed.swap(false, SeqCst); // and what was done before it was armed is seen
        self.poll_epoll();
        if self.no_worker_polls() {
            self.arm_epoll();
        }
    }

    /// Whether its holder does not look into its ring before long.
    fn needs_poller(&self, worker: &Worker) -> bool {
        let overran = || worker.io_overrun.load(SeqCst) == worker.published.dispatches();
        let is_away =
            worker.published.phase() == Phase::Fiber && (worker.is_in_long_dispatch() || overran());
        is_away || self.count.is_retired(worker.index)
    }

    /// The monitor has found that this worker makes no progress.
    pub(crate) fn hand_io_to_poller(&self, worker: &Worker, dispatch: u64) {
        worker.io_overrun.store(dispatch, SeqCst);
        self.arm_io(worker);
    }

    /// The one way to look into a ring without holding its worker. The bell of a sleeper there may
    /// have been taken meanwhile: the sleeper is woken by other means. A ring of the bell comes
    /// after the sleeper announced its sleep.
    fn poll_ring_for(&self, worker: &Worker) {
        self.poll_ring(worker);
        worker.note_poll();
        fence(SeqCst);
        if worker.published.phase() != Phase::Idle || self.count.is_retired(worker.index) {
            return;
        }
        if let Some(ring) = worker.uring.get() {
            ring.nudge();
            ring.submit();
        }
    }

    /// At each look of the monitor: a worker that always finds short fibers to run looks for events
    /// rarely. It is asked to; if no worker has looked by the next look of the monitor, another
    /// thread does.
    pub(crate) fn check_events_polled(&self) {
        let mut set_is_left = self.io_set.get().is_some();
        for worker in (self.present().iter()).filter(|worker| self.has_io(worker)) {
            let looks = worker.io_polls.load(Relaxed);
            let looked = worker.io_polls_known.swap(looks, Relaxed) != looks;
            set_is_left &= !looked;
            let stays_away = !looked && worker.published.phase() != Phase::Idle;
            if stays_away && worker.io_poll_due.swap(true, Relaxed) {
                self.arm_ring(worker);
            }
        }
        if set_is_left {
            self.hand_events_on();
        }
    }

    /// This worker computes from here on, or has retired. May be called in a signal handler.
    #[inline]
    pub(crate) fn arm_io(&self, worker: &Worker) {
        self.arm_ring(worker);
        self.hand_events_on();
    }

    fn arm_ring(&self, worker: &Worker) {
        let Some(ring) = worker.busy_ring() else {
            return;
        };
        self.set_armed(&worker.io_armed, ring.raw(), worker.index as u64, true);
        if ring.is_pending()
            && let Some(epoll) = self.io_poller.epoll.get()
        {
            os::notify_eventfd(epoll.waker()); // no request waits behind a computation
        }
    }

    /// The poller thread waits for events of the set from here on. May be called in a signal
    /// handler.
    pub(super) fn arm_epoll(&self) {
        if let Some(set) = self.io_set.get() {
            self.set_armed(&self.io_set_armed, set.raw(), SET, true);
        }
    }

    /// A worker waits for events, or looks soon.
    #[inline]
    pub(super) fn disarm_epoll(&self) {
        if self.io_set_armed.load(SeqCst)
            && let Some(set) = self.io_set.get()
        {
            self.set_armed(&self.io_set_armed, set.raw(), SET, false);
        }
    }

    /// What was pushed there is to be submitted now, and not by us.
    pub(crate) fn urge_poller(&self, ring: &Uring) {
        ring.urge();
        if let Some(epoll) = self.io_poller.epoll.get() {
            os::notify_eventfd(epoll.waker());
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
                self.poll_ring_for(worker);
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
        self.disarm_epoll();
        if worker.io_armed.load(SeqCst)
            && let Some(ring) = worker.uring.get()
        {
            self.set_armed(&worker.io_armed, ring.raw(), worker.index as u64, false);
        }
    }

    /// Changes the word, then the kernel's view; and again if the word was changed meanwhile: the
    /// last call to the kernel says what the word says last.
    #[cold]
    fn set_armed(&self, word: &AtomicBool, descriptor: RawFd, key: u64, on: bool) {
        if word.swap(on, SeqCst) == on {
            return;
        }
        let Some(epoll) = self.io_poller.epoll.get() else {
            return;
        };
        let mut state = on;
        loop {
            epoll.arm(descriptor, key, state);
            match word.load(SeqCst) {
                now if now == state => return,
                now => state = now,
            }
        }
    }

    /// Whether a fiber may wait for a descriptor, or for an operation in the worker's ring.
    #[inline]
    pub(crate) fn has_io(&self, worker: &Worker) -> bool {
        match self.io_set.get() {
            Some(set) => !set.is_empty(),
            None => worker.busy_ring().is_some(),
        }
    }
}

impl Worker {
    /// A thread has looked for events in the name of this worker.
    pub(crate) fn note_poll(&self) {
        let looks = self.io_polls.load(Relaxed).wrapping_add(1);
        self.io_polls.store(looks, Relaxed);
        self.io_poll_due.store(false, Relaxed);
    }

    /// Its ring, if operations are in flight there.
    #[inline]
    pub(crate) fn busy_ring(&self) -> Option<&Uring> {
        self.uring.get().filter(|ring| ring.in_flight() > 0)
    }
}
