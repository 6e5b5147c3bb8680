//! How many threads of the pool are awake: a policy as plain data, changed under the pool's lock.
//!
//! A thread is *busy* with a job, or *idle* on a stack of sleepers, or it is the *searcher*: roused or
//! being started, and about to look at the queue. There is one searcher at most. While there is one, a
//! push rouses nobody; and whoever takes a job while others wait makes a new searcher before it begins
//! with its own. So jobs that block get a thread each, one after the
//! other without a pause; and a burst of short jobs is served by those who are awake, because by the
//! time a searcher looks they are done.
//!
//! **I15** If jobs wait, then there is a searcher, or nobody is idle and no thread may be added: there
//! are as many as allowed, or the system has just refused one. (A busy thread looks when it is done;
//! one that is about to end counts until it has.)
//!
//! The last to fall asleep is the first to be roused: its caches are warm, and those who are not
//! needed stay asleep until their time is over and end.
//!
//! All events happen under one lock, so every interleaving is a sequence of them: the test below
//! walks through all sequences of a small crew.
//!
//! Rejected, after measuring: one rouse per push, a system call each (that is what makes short jobs dear
//! elsewhere). Staying awake after the last job, spinning or yielding: with more threads than CPUs it
//! stands in the way of the caller it waits for. A searcher that naps while others take jobs fast:
//! fewer threads, but now and then a job waits for the nap.

/// Sleepers there is room for from the start; only who allows more threads pays for more, later.
const ROOM: usize = 1024;

/// `S` is what a sleeper is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Crew<S> {
    /// Threads there may be.
    most: usize,
    /// Alive or being started.
    threads: usize,
    idle: Vec<S>,
    searcher: bool,
    closed: bool,
}

/// What is to be done once the lock is dropped.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owed<S> {
    Nothing,
    /// Rouse this sleeper: it is the searcher.
    Rouse(S),
    /// Start a thread, which is the searcher; or say that it was [refused](Crew::refused).
    Start,
}

/// As what a thread comes to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Searcher,
    /// After a job, or because the pool was closed.
    Other,
}

/// What a thread does after it has looked.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Take a job, [summon](Crew::summon) another if there are more, run it.
    Work,
    /// Nothing to do: [lie down](Crew::lie_down).
    Sleep,
    /// End the thread, and say so in the end ([`gone`](Crew::gone)).
    End,
}

impl<S> Crew<S> {
    pub(super) fn new(most: usize) -> Self {
        Crew {
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

    /// Whether more threads would help.
    pub(super) fn is_short(&self, queued: usize) -> bool {
        queued > 0 && self.threads < self.most && !self.searcher && !self.closed
    }

    /// After a push, and after a job was taken from the queue: makes a searcher if there should be
    /// one.
    pub(super) fn summon(&mut self, queued: usize, may_start: bool) -> Owed<S> {
        if queued == 0 || self.searcher || self.closed {
            return Owed::Nothing;
        }
        let owed = match self.idle.pop() {
            Some(sleeper) => Owed::Rouse(sleeper),
            None if may_start && self.threads < self.most => {
                self.threads += 1;
                Owed::Start
            }
            None => return Owed::Nothing,
        };
        self.searcher = true;
        owed
    }

    /// The thread that was to be started is not to be had. Others may have gone to sleep meanwhile,
    /// since they saw a searcher.
    pub(super) fn refused(&mut self, queued: usize) -> Owed<S> {
        self.threads -= 1;
        self.searcher = false;
        self.summon(queued, false)
    }

    /// A thread that is awake looks at the queue.
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

    /// After [`Look::Sleep`], under the same lock.
    pub(super) fn lie_down(&mut self, sleeper: S) {
        self.idle.push(sleeper);
    }

    /// A sleeper's time is over: true if it must end, and say so in the end ([`gone`](Crew::gone));
    /// false if it was roused just now.
    #[must_use]
    pub(super) fn retire(&mut self, is_me: impl Fn(&S) -> bool) -> bool {
        match self.idle.iter().position(is_me) {
            None => false,
            Some(at) => {
                self.idle.remove(at);
                true
            }
        }
    }

    /// A thread that was to end has no more to do. Jobs may wait that there was no place for another
    /// thread for.
    pub(super) fn gone(&mut self, queued: usize, may_start: bool) -> Owed<S> {
        self.threads -= 1;
        self.summon(queued, may_start)
    }

    /// From here on who looks ends. The sleepers are to be roused for that.
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

    /// A crew of few threads, the queue, and what each thread is at.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        crew: Crew<u8>,
        queued: usize,
        to_push: usize,
        busy: usize,
        ending: usize,
        /// Rouses and starts that are owed.
        roused: usize,
        starting: usize,
        /// The system has refused a thread and was not asked since.
        refused: bool,
        /// How often it will.
        refusals: usize,
    }

    impl World {
        fn pay(&mut self, owed: Owed<u8>) {
            match owed {
                Owed::Nothing => {}
                Owed::Rouse(_) => self.roused += 1,
                Owed::Start => self.starting += 1,
            }
        }

        fn summon(&mut self) {
            let owed = self.crew.summon(self.queued, !self.refused);
            self.pay(owed);
        }

        fn look(&mut self, role: Role) {
            match self.crew.look(role, self.queued) {
                Look::Work => {
                    self.queued -= 1;
                    self.busy += 1;
                    self.summon();
                }
                Look::Sleep => self.crew.lie_down(0),
                Look::End => self.ending += 1,
            }
        }

        /// All that can happen next.
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
                w.summon();
            });
            step("a job ends", self.busy > 0, &|w| {
                w.busy -= 1;
                w.look(Role::Other);
            });
            step("the roused looks", self.roused > 0, &|w| {
                w.roused -= 1;
                w.look(Role::Searcher);
            });
            step("the new one looks", self.starting > 0, &|w| {
                w.starting -= 1;
                w.look(Role::Searcher);
            });
            step("refused", self.starting > 0 && self.refusals > 0, &|w| {
                w.starting -= 1;
                w.refusals -= 1;
                w.refused = true;
                let owed = w.crew.refused(w.queued);
                w.pay(owed);
            });
            step("tended", self.refused, &|w| {
                w.refused = false;
                w.summon();
            });
            step("time is over", self.crew.idle() > 0, &|w| {
                assert!(w.crew.retire(|_| true));
                w.ending += 1;
            });
            step("one is gone", self.ending > 0, &|w| {
                w.ending -= 1;
                let owed = w.crew.gone(w.queued, !w.refused);
                w.pay(owed);
            });
            step("closed", !self.crew.closed, &|w| {
                for _ in w.crew.close() {
                    w.look(Role::Other);
                }
            });
            next
        }

        fn check(&self, how: &[&str]) {
            let crew = &self.crew;
            let searchers = self.roused + self.starting;
            assert_eq!(usize::from(crew.searcher), searchers, "{how:?}");
            let counted = self.busy + self.ending + crew.idle() + searchers;
            assert_eq!(crew.threads, counted, "{how:?}");
            assert!(crew.threads <= crew.most, "{how:?}");
            let none_to_be_had = crew.threads == crew.most || self.refused;
            let i13 = crew.searcher || (crew.idle.is_empty() && none_to_be_had);
            assert!(self.queued == 0 || crew.closed || i13, "I15: {how:?}");
            assert!(!crew.closed || crew.idle.is_empty(), "{how:?}");
        }
    }

    #[test]
    fn jobs_that_wait_are_never_forgotten_whatever_happens_in_which_order() {
        for most in 1..=3 {
            let start = World {
                crew: Crew::new(most),
                queued: 0,
                to_push: 4,
                busy: 0,
                ending: 0,
                roused: 0,
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
        let mut crew = Crew::<u8>::new(10);
        let mut queued = 5;
        assert_eq!(crew.summon(queued, true), Owed::Start);
        for left in (0..5).rev() {
            assert_eq!(crew.look(Role::Searcher, queued), Look::Work);
            queued -= 1;
            let next = if left > 0 { Owed::Start } else { Owed::Nothing };
            assert_eq!(crew.summon(queued, true), next);
        }
        assert_eq!(crew.threads(), 5);
    }

    #[test]
    fn a_burst_of_short_jobs_is_served_by_the_one_who_is_awake() {
        let mut crew = Crew::<u8>::new(10);
        assert_eq!(crew.summon(1, true), Owed::Start);
        assert_eq!(crew.look(Role::Searcher, 1), Look::Work);
        // One more comes while it works: one more thread is on its way, but only one.
        for queued in 1..100 {
            let owed = crew.summon(queued, true);
            assert_eq!(owed == Owed::Start, queued == 1);
        }
        for queued in (1..100).rev() {
            assert_eq!(crew.look(Role::Other, queued), Look::Work);
            assert_eq!(crew.summon(queued - 1, true), Owed::Nothing);
        }
        assert_eq!(crew.look(Role::Other, 0), Look::Sleep);
    }
}
