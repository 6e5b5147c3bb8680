//! The I/O poller: a thread that takes events while workers compute.
//!
//! A worker in a long dispatch does not poll. When no worker polls, the runtime's epoll instance is
//! *armed*: it becomes part of another epoll instance, in which the I/O poller sleeps
//! (`polling_right.rs` says when). The I/O poller is woken once, takes the events in the workers'
//! place, and arms the instance again if that is still needed. A worker that comes to its scheduler
//! disarms it. A ring is armed in the same way when its own worker begins a long dispatch or
//! retires; then the I/O poller also submits what waits there to be submitted.
//!
//! It is a thread of its own and not the monitor: the monitor sleeps on a word, and looks at
//! everything when it wakes. It asks the kernel to be prompt, as the monitor does.

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

use crate::driver::Driver;
use crate::driver::epoll::Epoll;
use crate::driver::uring::Uring;
use crate::sched::Shared;
use crate::sched::io::polls::RefusedPolls;
use crate::sched::threads::retire;
use crate::sched::workers::context;
use crate::sched::workers::worker::Worker;
use crate::sys::eventfd;
use crate::util::loom::{Mutex, lock};

/// Before the kernel is asked again to take entries that it has refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// The key of the runtime's epoll instance. The key of a ring is the index of its worker.
pub(super) const EPOLL_KEY: u64 = u64::MAX - 1;

#[derive(Default)]
pub(crate) struct Poller {
    /// Where it sleeps: an epoll instance that contains the runtime's instances.
    epoll: OnceLock<Epoll>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
    /// The helper is to start the thread.
    wanted: AtomicBool,
    /// Waiters to be notified after a pause.
    pub(super) refused: Mutex<RefusedPolls>,
}

impl Poller {
    /// Adds an epoll instance or a ring, so that it can be armed. Starts the thread if it is the
    /// first.
    pub(super) fn add_instance(&self, shared: &Shared, fd: RawFd, key: u64) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if self.epoll.get().is_none() {
            let _ = self.epoll.set(Epoll::new()?);
        }
        let epoll = self.epoll.get().expect("it has just been set");
        // S16: from a thread that a fiber changed, by the helper, whose thread is as it should be;
        // and by the helper, again and again, if the system refuses it now.
        let is_left = thread.is_none() && retire::is_here();
        if is_left || self.start(shared, &mut thread).is_err() {
            self.wanted.store(true, SeqCst);
            shared.start_poller_soon();
        }
        epoll.add_once(fd, key)
    }

    /// Starts the thread if another thread could not. Called on the helper's thread. True if the
    /// system refuses it.
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
            *thread = Some(builder.spawn(move || run(&runtime))?);
        }
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stops.store(true, SeqCst);
        self.notify();
        let guard = context::disable_preempt();
        let thread = lock(&self.thread).take();
        drop(guard);
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }

    /// Wakes the thread. May be called in a signal handler.
    pub(super) fn notify(&self) {
        if let Some(epoll) = self.epoll.get() {
            eventfd::notify(epoll.waker());
        }
    }

    /// Sets `armed`, then the kernel's view; and again if `armed` was changed meanwhile: the last
    /// call to the kernel says what `armed` says last.
    #[cold]
    fn set_armed(&self, armed: &AtomicBool, fd: RawFd, key: u64, on: bool) {
        if armed.swap(on, SeqCst) == on {
            return;
        }
        let Some(epoll) = self.epoll.get() else {
            return;
        };
        let mut state = on;
        loop {
            epoll.arm(fd, key, state);
            match armed.load(SeqCst) {
                now if now == state => return,
                now => state = now,
            }
        }
    }
}

/// The body of the thread.
fn run(runtime: &Weak<Shared>) {
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
        if events.has_wakeup() {
            epoll.drain_waker();
        }
        events.for_each(|ready| shared.poll_for_workers(ready.key));
        let pauses = [shared.submit_for_workers(), shared.notify_refused()];
        pause = pauses.into_iter().flatten().min();
    }
}

impl Shared {
    /// The I/O poller: takes the events of an instance that no worker has polled.
    fn poll_for_workers(&self, key: u64) {
        match &self.driver {
            Driver::Epoll(instance) => {
                // What was done before it was armed is seen from here on.
                instance.is_armed.swap(false, SeqCst);
                self.poll_epoll();
                if self.no_worker_polls() {
                    self.arm_epoll();
                }
            }
            Driver::Uring(rings) => {
                let worker = &self.workers[key as usize];
                // What its worker did before it armed it is seen from here on.
                rings[worker.index].is_armed.swap(false, SeqCst);
                self.poll_ring_for(worker);
                if self.needs_poller(worker) {
                    self.arm_ring(worker);
                }
            }
        }
    }

    /// Whether its holder does not poll its ring before long.
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

    /// Polls a ring without holding its worker; nothing else does. The wake-up of a sleeper there
    /// may have been taken meanwhile: the sleeper is woken by other means. A notification of the
    /// waker comes after the sleeper announced its sleep.
    fn poll_ring_for(&self, worker: &Worker) {
        self.poll_ring(worker);
        worker.note_poll();
        fence(SeqCst);
        if worker.published.phase() != Phase::Idle || self.count.is_retired(worker.index) {
            return;
        }
        if let Some(ring) = self.driver.ring(worker.index) {
            ring.nudge();
            ring.submit();
        }
    }

    /// Has a worker or the I/O poller poll where none has since the monitor's last look.
    ///
    /// Called at each look of the monitor. A worker that always finds short fibers to run polls
    /// rarely: it is asked to. If it has not polled by the next look, another thread does.
    pub(crate) fn check_events_polled(&self) {
        let mut is_epoll_left = self.driver.epoll_instance().is_some();
        for worker in (self.present().iter()).filter(|worker| self.has_io(worker)) {
            let polls = worker.io_polls.load(Relaxed);
            let polled = worker.io_polls_known.swap(polls, Relaxed) != polls;
            is_epoll_left &= !polled;
            let stays_away = !polled && worker.published.phase() != Phase::Idle;
            if stays_away && worker.io_poll_due.swap(true, Relaxed) {
                self.arm_ring(worker);
            }
        }
        if is_epoll_left {
            self.hand_events_on();
        }
    }

    /// This worker computes from here on, or has retired. May be called in a signal handler.
    #[inline]
    pub(crate) fn arm_io(&self, worker: &Worker) {
        self.arm_ring(worker);
        self.hand_events_on();
    }

    /// This worker polls from here on.
    #[inline]
    pub(crate) fn disarm_io(&self, worker: &Worker) {
        match &self.driver {
            Driver::Epoll(_) => self.disarm_epoll(),
            Driver::Uring(rings) => {
                let instance = &rings[worker.index];
                if instance.is_armed.load(SeqCst)
                    && let Some(ring) = instance.get()
                {
                    let (armed, key) = (&instance.is_armed, worker.index as u64);
                    self.io_poller.set_armed(armed, ring.raw(), key, false);
                }
            }
        }
    }

    /// Has the I/O poller wait for completions in this worker's ring. May be called in a signal
    /// handler.
    fn arm_ring(&self, worker: &Worker) {
        let Driver::Uring(rings) = &self.driver else {
            return;
        };
        let instance = &rings[worker.index];
        let Some(ring) = instance.get().filter(|ring| ring.is_busy()) else {
            return;
        };
        let (armed, key) = (&instance.is_armed, worker.index as u64);
        self.io_poller.set_armed(armed, ring.raw(), key, true);
        if ring.is_pending() {
            self.io_poller.notify(); // no request waits behind a computation
        }
    }

    /// Has the I/O poller wait for events of the epoll instance. May be called in a signal handler.
    pub(super) fn arm_epoll(&self) {
        if let Driver::Epoll(instance) = &self.driver
            && let Some(epoll) = instance.get()
        {
            let armed = &instance.is_armed;
            self.io_poller
                .set_armed(armed, epoll.raw(), EPOLL_KEY, true);
        }
    }

    /// A worker waits for events, or polls soon.
    #[inline]
    pub(super) fn disarm_epoll(&self) {
        if let Driver::Epoll(instance) = &self.driver
            && instance.is_armed.load(SeqCst)
            && let Some(epoll) = instance.get()
        {
            let armed = &instance.is_armed;
            self.io_poller
                .set_armed(armed, epoll.raw(), EPOLL_KEY, false);
        }
    }

    /// Whether the I/O poller waits for completions in this worker's ring.
    pub(super) fn is_ring_armed(&self, worker: &Worker) -> bool {
        match &self.driver {
            Driver::Epoll(_) => false,
            Driver::Uring(rings) => rings[worker.index].is_armed.load(SeqCst),
        }
    }

    /// Asks the I/O poller to submit at once what was pushed to this ring.
    pub(super) fn ask_poller_to_submit(&self, ring: &Uring) {
        ring.request_submit();
        self.io_poller.notify();
    }

    /// The I/O poller: submits what computing workers have not come to, and what is urgent.
    ///
    /// If the kernel has not taken all of it, how long to wait before it is asked again.
    fn submit_for_workers(&self) -> Option<Duration> {
        let mut pause = None;
        let Driver::Uring(rings) = &self.driver else {
            return pause;
        };
        for (worker, instance) in self.workers.iter().zip(rings) {
            if let Some(ring) = instance.get()
                && (ring.take_submit_request() || instance.is_armed.load(SeqCst))
                && ring.is_pending()
            {
                self.poll_ring_for(worker);
                if ring.is_pending() {
                    // What was begun here is not left to others: they may sleep.
                    ring.request_submit();
                    pause = Some(REFUSED_PAUSE);
                }
            }
        }
        pause
    }
}
