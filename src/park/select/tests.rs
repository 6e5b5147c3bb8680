//! Models of a select: the code above, but for the park. Whoever waits looks again and again.

use super::*;
use crate::fiber::job::{self, Completed};
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;
use crate::util::loom::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;

/// A channel without room, of units: who gives waits for who takes.
struct Meeting(Guarded<Sides>);

struct Sides {
    giving: Queue,
    taking: Queue,
    /// For who comes later.
    left: usize,
}

impl Meeting {
    fn new() -> Self {
        Meeting(Guarded::new(Sides {
            giving: Queue::new(),
            taking: Queue::new(),
            left: 0,
        }))
    }

    /// Gives one to whoever waits, or leaves it there.
    fn bring(&self) {
        let mut sides = self.0.lock();
        let taken = sides.taking.take(How::Done);
        sides.left += usize::from(taken.is_none());
        sides.finish([taken]);
    }

    fn left(&self) -> usize {
        self.0.lock().left
    }
}

/// One side of it, as an arm.
struct Side<'a> {
    meeting: &'a Meeting,
    gives: bool,
}

// SAFETY: all of one meeting: its lock and its queues. There is no slot, and nobody uses one.
unsafe impl Queued for Side<'_> {
    fn try_now(&self) -> bool {
        let mut sides = self.meeting.0.lock();
        match sides.attempt(self.gives) {
            Some(taken) => {
                sides.finish([taken]);
                true
            }
            None => false,
        }
    }

    fn lock(&self) -> &RawLock {
        self.meeting.0.raw()
    }

    unsafe fn attempt(&self) -> Option<Option<Taken>> {
        // SAFETY: the lock is held, by the caller's promise.
        unsafe { self.meeting.0.inside() }.attempt(self.gives)
    }

    fn slot(&self) -> *mut () {
        ptr::null_mut()
    }

    unsafe fn enlist(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let sides = unsafe { self.meeting.0.inside() };
        // SAFETY: by the caller's promise.
        unsafe { sides.own(self.gives).push(entry) };
    }

    unsafe fn remove(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let sides = unsafe { self.meeting.0.inside() };
        // SAFETY: by the caller's promise.
        let _or_taken = unsafe { sides.own(self.gives).remove(entry) };
    }

    fn won(&self, _: How) {}
}

impl Sides {
    fn own(&mut self, gives: bool) -> &mut Queue {
        match gives {
            true => &mut self.giving,
            false => &mut self.taking,
        }
    }

    fn attempt(&mut self, gives: bool) -> Option<Option<Taken>> {
        if !gives && self.left > 0 {
            self.left -= 1;
            return Some(None);
        }
        self.own(!gives).take(How::Done).map(Some)
    }
}

/// The end of a fiber, by the word that is really asked.
struct End<'a>(&'a AtomicUsize);

impl Event for End<'_> {
    fn is_ready(&self) -> bool {
        job::is_done(self.0)
    }

    fn register(&self, waiter: &Waiter) -> Registered {
        match job::register(self.0, waiter.address()) {
            job::Registered::Waits => Registered::WillNotify,
            job::Registered::Done => Registered::Ready,
            job::Registered::Occupied => Registered::CheckAgain,
        }
    }

    fn withdraw(&self, waiter: &Waiter) -> bool {
        job::withdraw(self.0, waiter.address())
    }
}

/// The fiber is over, and calls whoever waits for that.
fn end(word: &AtomicUsize) {
    if let Completed::Notify(waiter) = job::complete(word) {
        // SAFETY: out of the word, and this is the one call.
        drop(unsafe { Waiter::notify(&context::disable_preempt(), waiter) });
    }
}

fn queued<'a>(side: &'a Side<'a>) -> ArmRef<'a> {
    ArmRef(Arm::Queued(side))
}

/// As `select`, from the second step on. Without patience it withdraws as soon as it would park.
fn select_in_model(arms: &[ArmRef<'_>], patient: bool) -> Option<usize> {
    let operation = Operation::of_model();
    let mut set = Set::new(arms, &operation);
    let order: Vec<_> = (0..arms.len()).collect();
    if let Some(arm) = set.attempt_or_enlist(&order) {
        return Some(arm);
    }
    let (mut found, mut deaf) = (set.register(), false);
    let ended = loop {
        match found {
            Look::Won(won) => break Some(won),
            Look::Lost => deaf = true,
            Look::Nothing { .. } => {}
        }
        if operation.was_notified() {
            break Some(operation.won());
        }
        if !deaf && !patient {
            if operation.withdraw() {
                break None;
            }
            deaf = true;
        }
        thread::yield_now();
        if !deaf {
            found = set.look();
        }
    };
    set.leave(ended);
    ended.map(|won| won.arm)
}

#[test]
fn loom_of_two_arms_one_fires_and_the_other_leaves() {
    loom::model(|| {
        let meetings = Arc::new([Meeting::new(), Meeting::new()]);
        let brings: Vec<_> = (0..2)
            .map(|n| {
                let meetings = meetings.clone();
                thread::spawn(move || meetings[n].bring())
            })
            .collect();
        let sides = meetings.each_ref().map(|meeting| Side {
            meeting,
            gives: false,
        });
        let fired = select_in_model(&sides.each_ref().map(queued), true);
        for brings in brings {
            brings.join().unwrap();
        }
        let fired = fired.expect("it is patient");
        assert_eq!(meetings[fired].left(), 0);
        assert_eq!(meetings[1 - fired].left(), 1, "nothing was taken there");
    });
}

#[test]
fn loom_two_selects_meet_once() {
    loom::model(|| {
        // Each could give by one meeting and take by the other.
        let meetings = Arc::new([Meeting::new(), Meeting::new()]);
        let play = |meetings: &[Meeting; 2], gives_by: usize| {
            let sides = [0, 1].map(|n| Side {
                meeting: &meetings[n],
                gives: n == gives_by,
            });
            select_in_model(&sides.each_ref().map(queued), true)
        };
        let theirs = meetings.clone();
        let other = thread::spawn(move || play(&theirs, 0));
        let mine = play(&meetings, 1);
        assert_eq!(mine, other.join().unwrap(), "at the same meeting");
    });
}

#[test]
fn loom_a_select_that_withdraws_has_met_nobody() {
    loom::model(|| {
        let meeting = Arc::new(Meeting::new());
        let other = meeting.clone();
        let brings = thread::spawn(move || other.bring());
        let side = Side {
            meeting: &meeting,
            gives: false,
        };
        let fired = select_in_model(&[queued(&side), ArmRef(Arm::Absent)], false);
        brings.join().unwrap();
        assert_eq!(meeting.left(), usize::from(fired.is_none()));
    });
}

#[test]
fn loom_an_event_that_loses_is_found_again() {
    loom::model(|| {
        let both = Arc::new((Meeting::new(), AtomicUsize::new(0)));
        let (brings, ends) = (both.clone(), both.clone());
        let others = [
            thread::spawn(move || brings.0.bring()),
            thread::spawn(move || end(&ends.1)),
        ];
        let side = Side {
            meeting: &both.0,
            gives: false,
        };
        let event = End(&both.1);
        let arms = [queued(&side), ArmRef(Arm::Event(&event))];
        let mut fired = [select_in_model(&arms, true), select_in_model(&arms, true)];
        if fired[0] == Some(1) && fired[1] == Some(1) {
            // An end that has come fires each time: the value is still there, or will be.
            fired[1] = select_in_model(&arms[..1], true);
        }
        for other in others {
            other.join().unwrap();
        }
        fired.sort();
        assert_eq!(fired, [Some(0), Some(1)]);
        assert_eq!((both.0.left(), both.1.load(SeqCst) != 0), (0, true));
    });
}

#[test]
fn loom_two_arms_at_one_handle_fire_when_it_is_over() {
    loom::model(|| {
        let word = Arc::new(AtomicUsize::new(0));
        let other = word.clone();
        let ends = thread::spawn(move || end(&other));
        let events = [End(&word), End(&word)];
        let arms = events.each_ref().map(|event| ArmRef(Arm::Event(event)));
        assert!(select_in_model(&arms, true).is_some());
        assert!(job::is_done(&word), "it was not over");
        ends.join().unwrap();
    });
}
