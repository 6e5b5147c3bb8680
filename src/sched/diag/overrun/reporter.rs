//! Delivers reports: to the table, and to listeners.
//!
//! The collector takes reports out of their slots and passes them to the reporter: it adds them to
//! the table always, and to a line if there is a listener. Names cost tens of milliseconds the
//! first time, seconds in a large debug build, and callbacks are the user's. Neither is for the
//! collector, which other threads wait for. So a thread of its own serves the line. It is started
//! when there is something to serve, ends when there has been nothing for [`LINGER`], and a
//! shutdown waits for it as for any other.
//!
//! A callback that blocks delays those after it. The line holds [`LINE`] reports; what does not fit
//! is lost, and counted. A callback that panics is caught; that is reported once in a runtime.
//!
//! The lock is held for some instructions, never while a name is looked up or a callback runs. A
//! fiber that takes it has preemption disabled (S6).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::fiber::Held;
use crate::sched::Shared;
use crate::sched::diag::overrun::log::Log;
use crate::sched::diag::overrun::report::{self, Named, Names, Overrun, Told};
use crate::sched::diag::overrun::slots::Captured;
use crate::sched::diag::overrun::summary::Overruns;
use crate::sched::diag::overrun::table::Table;
use crate::sched::workers::context;
use crate::sys::{fork, stderr};
use crate::util::preempt_check;

/// Callback for every report.
pub(crate) type Listener = Arc<dyn Fn(&Overrun) + Send + Sync>;

/// Number of reports that may wait for listeners.
const LINE: usize = 64;
/// How long the thread waits for more.
const LINGER: Duration = Duration::from_millis(100);

pub(crate) struct Reporter {
    state: Mutex<State>,
    wake_up: Condvar,
    has_complained: AtomicBool,
    logs: bool,
}

#[derive(Default)]
struct State {
    table: Table,
    listeners: Vec<Listener>,
    line: VecDeque<Told>,
    log: Log,
    /// The thread that serves the line, or the last one that did.
    thread: Option<JoinHandle<()>>,
    serves: bool,
    closes: bool,
}

/// Next step of the thread.
enum Next {
    Serve(Box<Told>, Vec<Listener>),
    Print(String),
    End,
}

impl Reporter {
    pub(crate) fn new(listeners: Vec<Listener>, logs: bool) -> Self {
        let state = State {
            listeners,
            ..State::default()
        };
        Reporter {
            state: Mutex::new(state),
            wake_up: Condvar::new(),
            has_complained: AtomicBool::new(false),
            logs,
        }
    }

    /// Returns whether there is a listener, or the log, from the start.
    pub(crate) fn listens(&mut self) -> bool {
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        self.logs || !state.listeners.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        preempt_check::expect_disabled();
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn add_listener(&self, listener: Listener) {
        let _guard = context::disable_preempt();
        let mut state = self.lock();
        if !state.closes {
            state.listeners.push(listener);
        }
    }

    /// Adds a report; false if the line is full.
    fn put(&self, captured: Captured, listens: bool) -> bool {
        let functions = report::functions(&captured.frames);
        let told = Told {
            facts: captured.facts,
            fiber: named(&captured.fiber),
            frames: captured.frames,
        };
        let _guard = context::disable_preempt();
        let mut state = self.lock();
        let location = told.fiber.location;
        state
            .table
            .add(location, functions, &told.frames, &told.facts);
        if listens && state.line.len() >= LINE {
            return false;
        }
        if listens {
            state.line.push_back(told);
            self.wake_up.notify_one();
        }
        true
    }

    /// Returns the next step of the thread; waits for one.
    fn next(&self) -> Next {
        let mut lingers_until = Instant::now() + LINGER;
        let mut state = self.lock();
        loop {
            if let Some(told) = state.line.pop_front() {
                return Next::Serve(Box::new(told), state.listeners.clone());
            }
            let now = Instant::now();
            let text = if state.closes {
                state.log.rest(now)
            } else {
                state.log.due(now)
            };
            if !text.is_empty() {
                return Next::Print(text);
            }
            if let Some(next) = state.log.next() {
                lingers_until = lingers_until.max(next);
            }
            if state.closes || now >= lingers_until {
                state.serves = false;
                return Next::End;
            }
            let waited = self.wake_up.wait_timeout(state, lingers_until - now);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Serves the line until there is nothing left; the main function of the thread.
    fn serve(&self) {
        let mut names = Names::default();
        loop {
            match self.next() {
                Next::Serve(told, listeners) => {
                    self.tell(&Overrun::new(&told, &mut names), &listeners);
                }
                Next::Print(text) => stderr::print(&text),
                Next::End => return,
            }
        }
    }

    fn tell(&self, overrun: &Overrun, listeners: &[Listener]) {
        for listener in listeners {
            let told = catch_unwind(AssertUnwindSafe(|| listener(overrun)));
            if told.is_err() && !self.has_complained.swap(true, Relaxed) {
                stderr::print("indent: a callback for overruns panicked; it is called again\n");
            }
        }
        if self.logs {
            let text = self.lock().log.add(Instant::now(), overrun);
            stderr::print(&text.unwrap_or_default());
        }
    }

    /// Starts the thread if it is needed and does not run.
    fn start(self: &Arc<Self>, name: &str, runtime: Weak<Shared>) {
        let guard = context::disable_preempt();
        let mut state = self.lock();
        if state.serves || state.line.is_empty() {
            return;
        }
        state.serves = true; // no other caller starts one
        let former = state.thread.take();
        drop(state);
        drop(guard);
        drop(former); // it has announced its end; its exit is not waited for
        let reporter = self.clone();
        let started = thread::Builder::new()
            .name(format!("{name}-reports"))
            .spawn(move || {
                context::set_served(runtime); // for callbacks
                reporter.serve();
                context::serves_no_more();
            });
        // If the thread could not be started the next report tries again.
        let _guard = context::disable_preempt();
        let mut state = self.lock();
        state.serves = started.is_ok();
        state.thread = started.ok();
    }

    /// Makes the thread serve what is in line and end, as the runtime ends.
    fn close(&self) -> Option<JoinHandle<()>> {
        let mut state = self.lock();
        state.closes = true;
        self.wake_up.notify_one();
        state.thread.take()
    }
}

fn named(fiber: &Held) -> Named {
    Named {
        id: fiber.id(),
        name: fiber.name().map(str::to_owned),
        location: fiber.location(),
    }
}

impl Shared {
    /// Takes captured reports out of their slots; on the collector's thread, or at shutdown.
    pub(crate) fn collect_reports(&self) {
        self.reports.make_slots();
        let listens = self.reports.listens();
        let slots = self.reports.slots.get();
        while let Some(captured) = slots.and_then(|slots| slots.take()) {
            if !self.reports.reporter.put(captured, listens) {
                self.reports.lost.fetch_add(1, Relaxed);
            }
        }
        if listens {
            self.start_reporter();
        }
    }

    fn start_reporter(&self) {
        let name = &self.settings.thread_name;
        self.reports.reporter.start(name, self.this.clone());
    }

    pub(crate) fn listen(&self, listener: Listener) {
        if fork::in_child() {
            return; // F1
        }
        self.reports.reporter.add_listener(listener);
        self.reports.begin_to_listen();
    }

    /// Closes the reporter when no fiber is stopped any more.
    ///
    /// Collects the last reports if the collector has ended, and returns the thread that must be
    /// waited for.
    pub(crate) fn close_reports(&self, collected: bool) -> Option<JoinHandle<()>> {
        if collected && self.reports.slots.get().is_some() {
            self.collect_reports();
        }
        let guard = context::disable_preempt();
        let thread = self.reports.reporter.close();
        drop(guard);
        thread
    }

    /// Drops the callbacks, since they may hold the runtime.
    pub(crate) fn forget_listeners(&self) {
        let guard = context::disable_preempt();
        let listeners = std::mem::take(&mut self.reports.reporter.lock().listeners);
        drop(guard);
        drop(listeners); // the user's, so with preemption enabled
    }

    /// Returns the table so far, without names.
    pub(crate) fn overruns(&self) -> impl FnOnce() -> Overruns + Send + use<> {
        let entries = if fork::in_child() {
            Vec::new() // F1: another thread may have held the lock
        } else {
            let _guard = context::disable_preempt();
            self.reports.reporter.lock().table.entries()
        };
        let unseen = self.reports.unseen.load(Relaxed);
        let lost = self.reports.lost.load(Relaxed);
        move || Overruns::new(&entries, unseen, lost)
    }
}
