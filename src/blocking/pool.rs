#![expect(
    unsafe_code,
    reason = "runs scoped jobs that wait in an intrusive queue"
)]
//! The threads behind [`blocking`](super::blocking), and the queue they serve.
//!
//! `sizing.rs` decides when a thread is woken or started. If the system refuses a thread, that is
//! no error: the job stays queued and threads that run already take it. The pool asks for a thread
//! again with the next push after [`RETRY`], or when the helper calls [`Service::tend`].
//!
//! Threads own what they use (an `Arc` of [`Inner`]), so a thread that a shutdown leaves behind
//! comes to no harm. A scoped job in the queue belongs to a fiber that waits for it and keeps the
//! runtime alive; closing the pool leaves such jobs in the queue.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use crate::blocking::sizing::{Action, Look, Role, Sizing};
use crate::error::AbortOnUnwind;
use crate::park::scoped::ScopedJob;
use crate::sched::threads::retire;
use crate::sched::workers::context;
use crate::sched::workers::service::Service;
use crate::sched::workers::shutdown;
use crate::sched::workers::shutdown::Patience;
use crate::sched::{Hook, Shared};
use crate::sys::parker::Parker;
use crate::util::list::List;
use crate::util::loom::{Mutex, lock};

/// How long to wait before asking again for a thread that the system refused.
const RETRY: Duration = Duration::from_millis(10);

pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Copies of numbers in `state`, readable without its lock.
    queued: AtomicUsize,
    threads: AtomicUsize,
    idle: AtomicUsize,
    handles: Mutex<Handles>,
    keep_alive: Duration,
    thread_name: String,
    /// The hooks for the start and the end of a thread.
    hooks: (Option<Hook>, Option<Hook>),
    runtime: Weak<Shared>,
}

struct State {
    queue: List<ScopedJob>,
    sizing: Sizing<Arc<IdleThread>>,
    /// When to ask again, after the system has refused a thread.
    retry_at: Option<Instant>,
}

/// Where an idle thread of the pool sleeps.
struct IdleThread {
    parker: Parker,
    /// Whether the thread was woken as the searcher. Written under the lock.
    is_searcher: AtomicBool,
}

#[derive(Default)]
struct Handles {
    running: Vec<(usize, ThreadHandle<()>)>,
    /// Threads that ended because they were idle; the next one that ends joins them.
    leaving: Vec<ThreadHandle<()>>,
    serial: usize,
}

/// Numbers of a pool, each read at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Jobs that no thread has taken yet.
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
                sizing: Sizing::new(settings.blocking_threads),
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

    /// Queues a scoped job, which a thread of the pool will run.
    ///
    /// # Safety
    /// The job is valid until it has run, and nothing else runs it.
    pub(super) unsafe fn push(&self, job: NonNull<ScopedJob>) {
        let action = self.0.with(|state| {
            // SAFETY: by the caller's promise; it is in no other list.
            unsafe { state.queue.push(job) };
            state.ensure_searcher()
        });
        self.0.carry_out(action);
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
        let guard = context::disable_preempt();
        let idle = self.0.with(|state| state.sizing.close());
        idle.iter().for_each(|thread| thread.parker.notify());
        // No thread is started any more: `start` looks under this lock.
        let handles = std::mem::take(&mut *lock(&self.0.handles));
        drop(guard);
        let running = handles.running.into_iter().map(|(_, thread)| thread);
        shutdown::join_until(patience, running.chain(handles.leaving))
    }

    fn tend(&self) -> Option<Duration> {
        let action = self.0.with(State::ensure_searcher);
        self.0.carry_out(action);
        self.0
            .with(|state| state.sizing.is_short(state.queue.len()))
            .then_some(RETRY)
    }
}

impl State {
    fn ensure_searcher(&mut self) -> Action<Arc<IdleThread>> {
        let may_start = self.may_start();
        let action = self.sizing.ensure_searcher(self.queue.len(), may_start);
        self.appoint(action)
    }

    fn may_start(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// Marks an idle thread as the searcher, under the lock.
    fn appoint(&mut self, action: Action<Arc<IdleThread>>) -> Action<Arc<IdleThread>> {
        if let Action::Notify(thread) = &action {
            thread.is_searcher.store(true, Relaxed);
        }
        action
    }
}

/// What a thread does next.
enum Next {
    Run(NonNull<ScopedJob>, Action<Arc<IdleThread>>),
    Sleep,
    End,
}

impl Inner {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        self.queued.store(state.queue.len(), Relaxed);
        self.threads.store(state.sizing.threads(), Relaxed);
        self.idle.store(state.sizing.idle(), Relaxed);
        result
    }

    /// Notifies or starts the searcher, without the lock.
    fn carry_out(self: &Arc<Self>, mut action: Action<Arc<IdleThread>>) {
        loop {
            action = match action {
                Action::Nothing => return,
                Action::Notify(thread) => return thread.parker.notify(),
                Action::Start if self.start() => return,
                Action::Start => self.with(|state| {
                    state.retry_at = Some(Instant::now() + RETRY);
                    let action = state.sizing.start_refused(state.queue.len());
                    state.appoint(action)
                }),
            };
            if let Some(runtime) = self.runtime.upgrade() {
                runtime.tend_soon();
            }
        }
    }

    /// Starts a thread.
    ///
    /// False if the system refuses it, if the pool is closed, or if a new thread would inherit what
    /// it must not (S16): then the helper starts one.
    #[cold]
    fn start(self: &Arc<Self>) -> bool {
        if retire::is_here() {
            return false;
        }
        let mut handles = lock(&self.handles);
        if self.with(|state| state.sizing.is_closed()) {
            return false;
        }
        handles.serial += 1;
        let number = handles.serial;
        let inner = self.clone();
        let name = format!("{}-blocking-{number}", self.thread_name);
        let thread = std::thread::Builder::new().name(name);
        match thread.spawn(move || inner.thread_main(number)) {
            Ok(thread) => {
                handles.running.push((number, thread));
                true
            }
            Err(_) => false,
        }
    }

    /// The main function of a thread of the pool.
    fn thread_main(self: Arc<Self>, number: usize) {
        let abort = AbortOnUnwind("a thread of the blocking pool");
        context::set_served(self.runtime.clone());
        self.serve();
        context::serves_no_more();
        self.hooks.1.iter().for_each(|hook| hook());
        let action = self.with(|state| {
            let may_start = state.may_start();
            let action = state.sizing.thread_ended(state.queue.len(), may_start);
            state.appoint(action)
        });
        self.carry_out(action);
        let mut handles = lock(&self.handles);
        let at = handles.running.iter().position(|(n, _)| *n == number);
        // None if the pool was closed: `close` joins this thread then.
        if let Some(at) = at {
            let mut leaving = shutdown::still_running(std::mem::take(&mut handles.leaving));
            leaving.push(handles.running.swap_remove(at).1);
            handles.leaving = leaving;
        }
        drop(handles);
        drop(abort);
    }

    fn serve(self: &Arc<Self>) {
        let thread = Arc::new(IdleThread {
            parker: Parker::new(),
            is_searcher: AtomicBool::new(false),
        });
        let mut role = Role::Searcher;
        let mut start_hook = self.hooks.0.as_ref();
        loop {
            role = match self.with(|state| turn(state, role, &thread)) {
                Next::Run(job, action) => {
                    self.carry_out(action);
                    // Only now: until a new thread has looked no other starts, and the hook may be
                    // slow.
                    if let Some(hook) = start_hook.take() {
                        hook();
                        if self.with(|state| state.sizing.is_closed()) {
                            return; // as if the job were still queued: none begins after the end
                        }
                    }
                    // SAFETY: taken from the queue, so this thread alone has it; valid by its
                    // pusher's promise.
                    unsafe { ScopedJob::run(job) };
                    Role::Other
                }
                Next::Sleep => {
                    start_hook.take().into_iter().for_each(|hook| hook());
                    match self.sleep(&thread) {
                        Some(role) => role,
                        None => return,
                    }
                }
                Next::End => {
                    start_hook.take().into_iter().for_each(|hook| hook()); // before the stop hook
                    return;
                }
            };
        }
    }

    /// Sleeps until notified; `None` if the idle time is over instead.
    fn sleep(&self, thread: &Arc<IdleThread>) -> Option<Role> {
        let until = Instant::now().checked_add(self.keep_alive);
        loop {
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            thread.parker.wait(left);
            let woken = self.with(|state| {
                if thread.is_searcher.swap(false, Relaxed) {
                    return Some(Some(Role::Searcher));
                }
                if state.sizing.is_closed() {
                    return Some(Some(Role::Other));
                }
                let over = until.is_some_and(|at| at <= Instant::now());
                (over && state.sizing.time_out(|idle| Arc::ptr_eq(idle, thread))).then_some(None)
            });
            if let Some(end) = woken {
                return end;
            }
        }
    }
}

fn turn(state: &mut State, role: Role, thread: &Arc<IdleThread>) -> Next {
    match state.sizing.look(role, state.queue.len()) {
        Look::Work => {
            let job = state.queue.pop().expect("jobs wait");
            Next::Run(job, state.ensure_searcher())
        }
        Look::Sleep => {
            state.sizing.add_idle(thread.clone());
            Next::Sleep
        }
        Look::End => Next::End,
    }
}
