#![expect(unsafe_code, reason = "runs loans that wait in an intrusive queue")]
//! The threads behind [`blocking`](super::blocking), and the queue they serve.
//!
//! Who is roused or started when is `crew.rs`. A thread that the system refuses is a fact, not an
//! error: the job stays queued, threads that run already will take it, and a new one is tried for
//! again, by the next push after [`RETRY`] or by whoever [tends](Service::tend) to the pool.
//!
//! Threads own what they touch (an `Arc` of [`Inner`]), so one that is left behind by a shutdown
//! comes to no harm. A loan in the queue belongs to a fiber that waits for it, and that keeps
//! the runtime; closing the pool leaves such loans where they are.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use crate::blocking::crew::{Crew, Look, Owed, Role};
use crate::error::AbortOnUnwind;
use crate::park::lend::Loan;
use crate::sched::service::Service;
use crate::sched::shutdown::Patience;
use crate::sched::{Hook, Shared, context, retire, shutdown};
use crate::sys::parker::Parker;
use crate::util::list::List;
use crate::util::loom::{Mutex, lock};

/// When to ask again for a thread that the system refused.
const RETRY: Duration = Duration::from_millis(10);

pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// What `state` says, for those who do not lock.
    queued: AtomicUsize,
    threads: AtomicUsize,
    idle: AtomicUsize,
    handles: Mutex<Handles>,
    keep_alive: Duration,
    thread_name: String,
    /// Called when a thread starts and ends.
    hooks: (Option<Hook>, Option<Hook>),
    runtime: Weak<Shared>,
}

struct State {
    queue: List<Loan>,
    crew: Crew<Arc<Seat>>,
    /// The system has refused a thread: not before then again.
    retry_at: Option<Instant>,
}

/// Where a thread sleeps.
struct Seat {
    parker: Parker,
    /// It is the searcher. Written under the lock.
    summoned: AtomicBool,
}

#[derive(Default)]
struct Handles {
    running: Vec<(usize, ThreadHandle<()>)>,
    /// Threads that ended because they had nothing to do, until another one does and joins them.
    leaving: Vec<ThreadHandle<()>>,
    serial: usize,
}

/// Numbers of a pool, each true at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Jobs nobody has taken yet.
    pub(crate) queue_depth: usize,
    /// Threads that run a job, or look for one.
    pub(crate) threads_active: usize,
    /// Threads that sleep.
    pub(crate) threads_idle: usize,
}

impl Pool {
    pub(super) fn new(shared: &Shared) -> Self {
        let settings = &shared.settings;
        Pool(Arc::new(Inner {
            state: Mutex::new(State {
                queue: List::new(),
                crew: Crew::new(settings.blocking_threads),
                retry_at: None,
            }),
            queued: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            handles: Mutex::new(Handles::default()),
            keep_alive: settings.blocking_keep_alive,
            thread_name: settings.thread_name.clone(),
            hooks: settings.hooks(),
            runtime: Arc::downgrade(&shared.arc()),
        }))
    }

    /// Queues a loan; some thread will run it.
    ///
    /// # Safety
    /// The loan is valid until it has run, and nobody else runs it.
    pub(super) unsafe fn push(&self, loan: NonNull<Loan>) {
        let owed = self.0.with(|state| {
            // SAFETY: by the caller's promise; it is in no other list.
            unsafe { state.queue.push(loan) };
            state.summon()
        });
        self.0.pay(owed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let idle = self.0.idle.load(Relaxed);
        Stats {
            queue_depth: self.0.queued.load(Relaxed),
            threads_active: self.0.threads.load(Relaxed).saturating_sub(idle),
            threads_idle: idle,
        }
    }
}

impl Service for Pool {
    fn close(&self, patience: Patience) -> usize {
        let mark = context::disable_preempt();
        let sleepers = self.0.with(|state| state.crew.close());
        sleepers.iter().for_each(|seat| seat.parker.notify());
        // No thread is started any more: `start` looks under this lock.
        let handles = std::mem::take(&mut *lock(&self.0.handles));
        drop(mark);
        let running = handles.running.into_iter().map(|(_, thread)| thread);
        shutdown::join_until(patience, running.chain(handles.leaving))
    }

    fn tend(&self) -> Option<Duration> {
        let owed = self.0.with(State::summon);
        self.0.pay(owed);
        self.0
            .with(|state| state.crew.is_short(state.queue.len()))
            .then_some(RETRY)
    }
}

impl State {
    fn summon(&mut self) -> Owed<Arc<Seat>> {
        let may_start = self.may_start();
        let owed = self.crew.summon(self.queue.len(), may_start);
        self.mark(owed)
    }

    fn may_start(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// Tells a sleeper, under the lock, that it is the searcher.
    fn mark(&mut self, owed: Owed<Arc<Seat>>) -> Owed<Arc<Seat>> {
        if let Owed::Rouse(seat) = &owed {
            seat.summoned.store(true, Relaxed);
        }
        owed
    }
}

/// What a thread does next.
enum Turn {
    Run(NonNull<Loan>, Owed<Arc<Seat>>),
    Sleep,
    End,
}

impl Inner {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        self.queued.store(state.queue.len(), Relaxed);
        self.threads.store(state.crew.threads(), Relaxed);
        self.idle.store(state.crew.idle(), Relaxed);
        result
    }

    /// Rouses or starts the searcher.
    fn pay(self: &Arc<Self>, mut owed: Owed<Arc<Seat>>) {
        loop {
            owed = match owed {
                Owed::Nothing => return,
                Owed::Rouse(seat) => return seat.parker.notify(),
                Owed::Start if self.start() => return,
                Owed::Start => self.with(|state| {
                    state.retry_at = Some(Instant::now() + RETRY);
                    let owed = state.crew.refused(state.queue.len());
                    state.mark(owed)
                }),
            };
            if let Some(runtime) = self.runtime.upgrade() {
                runtime.tend_soon();
            }
        }
    }

    /// Starts a thread; false if the system refuses it, or the pool is closed, or a new thread
    /// would inherit what it must not (S16): then the helper starts one.
    #[cold]
    fn start(self: &Arc<Self>) -> bool {
        if retire::is_here() {
            return false;
        }
        let mut handles = lock(&self.handles);
        if self.with(|state| state.crew.is_closed()) {
            return false;
        }
        handles.serial += 1;
        let number = handles.serial;
        let inner = self.clone();
        let name = format!("{}-blocking-{number}", self.thread_name);
        let thread = std::thread::Builder::new().name(name);
        match thread.spawn(move || inner.live(number)) {
            Ok(thread) => {
                handles.running.push((number, thread));
                true
            }
            Err(_) => false,
        }
    }

    /// The life of a thread.
    fn live(self: Arc<Self>, number: usize) {
        let abort = AbortOnUnwind("the threads for blocking calls");
        context::set_served(self.runtime.clone());
        self.serve();
        context::serves_no_more();
        self.hooks.1.iter().for_each(|hook| hook());
        let owed = self.with(|state| {
            let may_start = state.may_start();
            let owed = state.crew.gone(state.queue.len(), may_start);
            state.mark(owed)
        });
        self.pay(owed);
        let mut handles = lock(&self.handles);
        let at = handles.running.iter().position(|(n, _)| *n == number);
        // None if the pool was closed: then we are joined there.
        if let Some(at) = at {
            let mut leaving = shutdown::still_running(std::mem::take(&mut handles.leaving));
            leaving.push(handles.running.swap_remove(at).1);
            handles.leaving = leaving;
        }
        drop(handles);
        drop(abort);
    }

    fn serve(self: &Arc<Self>) {
        let seat = Arc::new(Seat {
            parker: Parker::new(),
            summoned: AtomicBool::new(false),
        });
        let mut role = Role::Searcher;
        let mut greet = self.hooks.0.as_ref();
        loop {
            role = match self.with(|state| turn(state, role, &seat)) {
                Turn::Run(loan, owed) => {
                    self.pay(owed);
                    // Only now: others wait for a new thread to look, and the hook may take its time.
                    if let Some(hook) = greet.take() {
                        hook();
                        if self.with(|state| state.crew.is_closed()) {
                            return; // nothing is begun after the end: as if it were still queued
                        }
                    }
                    // SAFETY: out of the queue it is ours alone; valid by its pusher's promise.
                    unsafe { Loan::run(loan) };
                    Role::Other
                }
                Turn::Sleep => {
                    greet.take().into_iter().for_each(|hook| hook());
                    match self.sleep(&seat) {
                        Some(role) => role,
                        None => return,
                    }
                }
                Turn::End => {
                    greet.take().into_iter().for_each(|hook| hook()); // before the other one
                    return;
                }
            };
        }
    }

    /// Sleeps until roused; `None` if its time is over instead.
    fn sleep(&self, seat: &Arc<Seat>) -> Option<Role> {
        let until = Instant::now().checked_add(self.keep_alive);
        loop {
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            seat.parker.wait(left);
            let woken = self.with(|state| {
                if seat.summoned.swap(false, Relaxed) {
                    return Some(Some(Role::Searcher));
                }
                if state.crew.is_closed() {
                    return Some(Some(Role::Other));
                }
                let over = until.is_some_and(|at| at <= Instant::now());
                (over && state.crew.retire(|idle| Arc::ptr_eq(idle, seat))).then_some(None)
            });
            if let Some(end) = woken {
                return end;
            }
        }
    }
}

fn turn(state: &mut State, role: Role, seat: &Arc<Seat>) -> Turn {
    match state.crew.look(role, state.queue.len()) {
        Look::Work => {
            let loan = state.queue.pop().expect("jobs wait");
            Turn::Run(loan, state.summon())
        }
        Look::Sleep => {
            state.crew.lie_down(seat.clone());
            Turn::Sleep
        }
        Look::End => Turn::End,
    }
}
