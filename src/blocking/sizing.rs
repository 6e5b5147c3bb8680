//! How many threads of the pool run: a policy as plain data, changed under the pool's lock.
//!
//! A thread is *busy* with a job, or *idle* on a stack of idle threads, or it is the *searcher*: a
//! thread that was woken or is being started, and is about to look at the queue. There is at most
//! one searcher. While there is one, a push wakes no thread. A thread that takes a job while others
//! wait makes a new searcher before it runs its own job. So jobs that block get a thread each, one
//! after the other without a pause, and a burst of short jobs is served by the threads that are
//! awake: when a searcher looks, the jobs are done.
//!
//! **I15** If jobs wait, then there is a searcher, or no thread is idle and none may be added:
//! there are as many as allowed, or the system has just refused one. (A busy thread looks when it
//! is done; a thread that is about to end counts until it has ended.)
//!
//! The thread that became idle last is woken first: its caches are warm, and threads that are not
//! needed stay asleep until they time out and end.
//!
//! All events happen under one lock, so every interleaving is a sequence of them: a test below
//! walks through all sequences of a small pool.
//!
//! Rejected after measuring: one wake per push, a system call each, which makes short jobs
//! expensive. Staying awake after the last job, spinning or yielding: with more threads than CPUs
//! the spinning thread delays the caller it waits for. A searcher that sleeps for a moment while
//! others take jobs fast: it needs fewer threads, but now and then a job waits for that sleep.

/// Idle threads that the list has room for from the start; it grows only for a larger limit.
const ROOM: usize = 1024;

/// The policy. `S` identifies an idle thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizing<S> {
    /// The limit on threads.
    most: usize,
    /// Threads that are alive or being started.
    threads: usize,
    idle: Vec<S>,
    searcher: bool,
    closed: bool,
}

/// What the caller must do once it has dropped the lock.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action<S> {
    Nothing,
    /// Notify this idle thread: it is the searcher.
    Notify(S),
    /// Start a thread, which is the searcher; or report that it was
    /// [refused](Sizing::start_refused).
    Start,
}

/// The role in which a thread looks at the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Searcher,
    /// After a job, or because the pool was closed.
    Other,
}

/// What a thread does after it has looked at the queue.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Take a job, [make a searcher](Sizing::ensure_searcher) if more wait, run the job.
    Work,
    /// No job waits: become [idle](Sizing::add_idle).
    Sleep,
    /// End the thread, and report the end ([`thread_ended`](Sizing::thread_ended)).
    End,
}

impl<S> Sizing<S> {
    pub(super) fn new(most: usize) -> Self {
        Sizing {
            most,
            threads: 0,
            idle: Vec::with_capacity(most.min(ROOM)), // nothing is allocated under the lock
            searcher: false,
            closed: false,
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether jobs wait for a thread that could be started.
    pub(super) fn is_short(&self, queued: usize) -> bool {
        queued > 0 && self.threads < self.most && !self.searcher && !self.closed
    }

    /// Makes a searcher if there should be one: after a push, and after a job was taken.
    pub(super) fn ensure_searcher(&mut self, queued: usize, may_start: bool) -> Action<S> {
        if queued == 0 || self.searcher || self.closed {
            return Action::Nothing;
        }
        let action = match self.idle.pop() {
            Some(thread) => Action::Notify(thread),
            None if may_start && self.threads < self.most => {
                self.threads += 1;
                Action::Start
            }
            None => return Action::Nothing,
        };
        self.searcher = true;
        action
    }

    /// Records that the system refused to start a thread.
    ///
    /// Other threads may have become idle meanwhile, since they saw a searcher.
    pub(super) fn start_refused(&mut self, queued: usize) -> Action<S> {
        self.threads -= 1;
        self.searcher = false;
        self.ensure_searcher(queued, false)
    }

    /// Decides what a thread that looks at the queue does.
    pub(super) fn look(&mut self, role: Role, queued: usize) -> Look {
        if role == Role::Searcher {
            self.searcher = false;
        }
        if self.closed {
            Look::End
        } else if queued > 0 {
            Look::Work
        } else {
            Look::Sleep
        }
    }

    /// Adds an idle thread: after [`Look::Sleep`], under the same lock hold.
    pub(super) fn add_idle(&mut self, thread: S) {
        self.idle.push(thread);
    }

    /// Removes an idle thread that has timed out.
    ///
    /// True if the thread must end and report its end ([`thread_ended`](Sizing::thread_ended));
    /// false if it was notified just now.
    #[must_use]
    pub(super) fn time_out(&mut self, is_me: impl Fn(&S) -> bool) -> bool {
        match self.idle.iter().position(is_me) {
            None => false,
            Some(at) => {
                self.idle.remove(at);
                true
            }
        }
    }

    /// Records that a thread has ended.
    ///
    /// Jobs may wait for which the limit allowed no further thread.
    pub(super) fn thread_ended(&mut self, queued: usize, may_start: bool) -> Action<S> {
        self.threads -= 1;
        self.ensure_searcher(queued, may_start)
    }

    /// Makes every thread that looks from now on end; the caller notifies the idle ones returned.
    #[must_use]
    pub(super) fn close(&mut self) -> Vec<S> {
        self.closed = true;
        std::mem::take(&mut self.idle)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The policy with few threads, the queue, and what each thread does.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        sizing: Sizing<u8>,
        queued: usize,
        to_push: usize,
        busy: usize,
        ending: usize,
        /// Rouses and starts that are action.
        notified: usize,
        starting: usize,
        /// The system has refused a thread and was not asked again.
        refused: bool,
        /// How often it will refuse one.
        refusals: usize,
    }

    impl World {
        fn carry_out(&mut self, action: Action<u8>) {
            match action {
                Action::Nothing => {}
                Action::Notify(_) => self.notified += 1,
                Action::Start => self.starting += 1,
            }
        }

        fn ensure_searcher(&mut self) {
            let action = self.sizing.ensure_searcher(self.queued, !self.refused);
            self.carry_out(action);
        }

        fn look(&mut self, role: Role) {
            match self.sizing.look(role, self.queued) {
                Look::Work => {
                    self.queued -= 1;
                    self.busy += 1;
                    self.ensure_searcher();
                }
                Look::Sleep => self.sizing.add_idle(0),
                Look::End => self.ending += 1,
            }
        }

        /// Every event that can happen next.
        fn steps(&self) -> Vec<(&'static str, World)> {
            let mut next = Vec::new();
            let mut step = |name, possible: bool, act: &dyn Fn(&mut World)| {
                if possible {
                    let mut world = self.clone();
                    act(&mut world);
                    next.push((name, world));
                }
            };
            step("push", self.to_push > 0, &|w| {
                w.to_push -= 1;
                w.queued += 1;
                w.ensure_searcher();
            });
            step("a job ends", self.busy > 0, &|w| {
                w.busy -= 1;
                w.look(Role::Other);
            });
            step("the notified thread looks", self.notified > 0, &|w| {
                w.notified -= 1;
                w.look(Role::Searcher);
            });
            step("the new thread looks", self.starting > 0, &|w| {
                w.starting -= 1;
                w.look(Role::Searcher);
            });
            step("refused", self.starting > 0 && self.refusals > 0, &|w| {
                w.starting -= 1;
                w.refusals -= 1;
                w.refused = true;
                let action = w.sizing.start_refused(w.queued);
                w.carry_out(action);
            });
            step("the helper retries", self.refused, &|w| {
                w.refused = false;
                w.ensure_searcher();
            });
            step("an idle thread times out", self.sizing.idle() > 0, &|w| {
                assert!(w.sizing.time_out(|_| true));
                w.ending += 1;
            });
            step("a thread has ended", self.ending > 0, &|w| {
                w.ending -= 1;
                let action = w.sizing.thread_ended(w.queued, !w.refused);
                w.carry_out(action);
            });
            step("closed", !self.sizing.closed, &|w| {
                for _ in w.sizing.close() {
                    w.look(Role::Other);
                }
            });
            next
        }

        fn check(&self, how: &[&str]) {
            let sizing = &self.sizing;
            let searchers = self.notified + self.starting;
            assert_eq!(usize::from(sizing.searcher), searchers, "{how:?}");
            let counted = self.busy + self.ending + sizing.idle() + searchers;
            assert_eq!(sizing.threads, counted, "{how:?}");
            assert!(sizing.threads <= sizing.most, "{how:?}");
            let none_available = sizing.threads == sizing.most || self.refused;
            let i15 = sizing.searcher || (sizing.idle.is_empty() && none_available);
            assert!(self.queued == 0 || sizing.closed || i15, "I15: {how:?}");
            assert!(!sizing.closed || sizing.idle.is_empty(), "{how:?}");
        }
    }

    #[test]
    fn waiting_jobs_are_never_forgotten_in_any_order_of_events() {
        for most in 1..=3 {
            let start = World {
                sizing: Sizing::new(most),
                queued: 0,
                to_push: 4,
                busy: 0,
                ending: 0,
                notified: 0,
                starting: 0,
                refused: false,
                refusals: 2,
            };
            let mut seen = HashSet::new();
            let mut open = vec![(start, Vec::new())];
            while let Some((world, how)) = open.pop() {
                world.check(&how);
                if seen.insert(world.clone()) {
                    for (name, next) in world.steps() {
                        let mut how = how.clone();
                        how.push(name);
                        open.push((next, how));
                    }
                }
            }
            assert!(seen.len() > 100, "{} states only", seen.len());
        }
    }

    #[test]
    fn jobs_that_block_get_a_thread_each() {
        let mut sizing = Sizing::<u8>::new(10);
        let mut queued = 5;
        assert_eq!(sizing.ensure_searcher(queued, true), Action::Start);
        for left in (0..5).rev() {
            assert_eq!(sizing.look(Role::Searcher, queued), Look::Work);
            queued -= 1;
            let next = if left > 0 {
                Action::Start
            } else {
                Action::Nothing
            };
            assert_eq!(sizing.ensure_searcher(queued, true), next);
        }
        assert_eq!(sizing.threads(), 5);
    }

    #[test]
    fn a_burst_of_short_jobs_is_served_by_the_thread_that_is_awake() {
        let mut sizing = Sizing::<u8>::new(10);
        assert_eq!(sizing.ensure_searcher(1, true), Action::Start);
        assert_eq!(sizing.look(Role::Searcher, 1), Look::Work);
        // Jobs come while it works: one more thread is started, but only one.
        for queued in 1..100 {
            let action = sizing.ensure_searcher(queued, true);
            assert_eq!(action == Action::Start, queued == 1);
        }
        for queued in (1..100).rev() {
            assert_eq!(sizing.look(Role::Other, queued), Look::Work);
            assert_eq!(sizing.ensure_searcher(queued - 1, true), Action::Nothing);
        }
        assert_eq!(sizing.look(Role::Other, 0), Look::Sleep);
    }
}
