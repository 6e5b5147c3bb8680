//! Models of the queue: who is taken is called, who withdraws is not. Those of several arms are in
//! `select/tests.rs`.

use super::*;
use crate::park::guarded::Guarded;
use loom::sync::Arc;
use loom::thread;

/// Something to wait for: there are so many, and a queue.
struct Thing(Guarded<State>);

struct State {
    there: usize,
    queue: Queue,
}

impl Thing {
    fn new() -> Self {
        Thing(Guarded::new(State {
            there: 0,
            queue: Queue::new(),
        }))
    }

    /// Brings one: to whoever waits, by its slot, or for later.
    fn bring(&self) {
        let mut state = self.0.lock();
        let taken = state.queue.take(How::Done);
        match &taken {
            // SAFETY: whoever waits has a number there.
            Some(taken) => unsafe { *taken.slot().cast::<usize>() += 1 },
            None => state.there += 1,
        }
        state.finish([taken]);
    }

    /// One, if it is there; else the entry is put in.
    fn take_or_enlist(&self, entry: &Entry) -> bool {
        let mut state = self.0.lock();
        if state.there > 0 {
            state.there -= 1;
            return true;
        }
        // SAFETY: it stays until it is removed or called, see those who call this.
        unsafe { state.queue.push(entry) };
        false
    }

    fn remove(&self, entry: &Entry) -> bool {
        // SAFETY: put into this queue or none.
        unsafe { self.0.lock().queue.remove(entry) }
    }
}

fn operation() -> Operation {
    Operation::of_model()
}

/// After all who could call have ended: nobody has to be waited for.
fn called(operation: &Operation) -> Won {
    assert!(operation.was_notified());
    operation.won()
}

#[test]
fn loom_who_waits_is_called_and_finds_what_was_brought() {
    loom::model(|| {
        let thing = Arc::new(Thing::new());
        let other = thing.clone();
        let brings = thread::spawn(move || other.bring());
        let (operation, mut slot) = (operation(), 0usize);
        let entry = Entry::only(&operation, (&raw mut slot).cast());
        let waits = !thing.take_or_enlist(&entry);
        brings.join().unwrap();
        if waits {
            assert_eq!(called(&operation).how, How::Done);
            assert_eq!(slot, 1);
        }
        assert_eq!(thing.0.lock().there, 0, "it was not brought twice");
    });
}

#[test]
fn loom_who_withdraws_gets_nothing_or_all() {
    loom::model(|| {
        let thing = Arc::new(Thing::new());
        let other = thing.clone();
        let brings = thread::spawn(move || other.bring());
        let (operation, mut slot) = (operation(), 0usize);
        let entry = Entry::only(&operation, (&raw mut slot).cast());
        let mut got = usize::from(thing.take_or_enlist(&entry));
        let withdrawn = got == 0 && thing.remove(&entry);
        brings.join().unwrap();
        if got == 0 && !withdrawn {
            called(&operation);
            got = slot;
        }
        assert_eq!(thing.0.lock().there + got, 1, "neither lost nor doubled");
    });
}

#[test]
fn loom_who_was_taken_with_all_others_does_not_withdraw() {
    loom::model(|| {
        let thing = Arc::new(Thing::new());
        let other = thing.clone();
        let operations = [operation(), operation()];
        let entries = operations
            .each_ref()
            .map(|op| Entry::only(op, ptr::null_mut()));
        for entry in &entries {
            assert!(!thing.take_or_enlist(entry));
        }
        let tells = thread::spawn(move || {
            let state = other.0.lock();
            other
                .0
                .notify_all(state, How::Done, |state| &mut state.queue);
        });
        let withdrawn = entries.each_ref().map(|entry| thing.remove(entry));
        tells.join().unwrap();
        let called = operations.each_ref().map(Operation::was_notified);
        assert_eq!(called, withdrawn.map(|withdrawn| !withdrawn));
    });
}

#[test]
fn loom_one_of_several_arms_withdraws_or_has_won() {
    loom::model(|| {
        let thing = Arc::new(Thing::new());
        let other = thing.clone();
        let brings = thread::spawn(move || other.bring());
        let (operation, mut slot) = (operation(), 0usize);
        let entry = Entry::new(&operation, 3, (&raw mut slot).cast());
        let mut got = usize::from(thing.take_or_enlist(&entry));
        let withdrawn = got == 0 && operation.withdraw();
        if withdrawn {
            thing.remove(&entry);
        }
        brings.join().unwrap();
        if got == 0 && !withdrawn {
            assert_eq!(called(&operation).arm, 3);
            got = slot;
        }
        assert_eq!(thing.0.lock().there + got, 1, "neither lost nor doubled");
    });
}
