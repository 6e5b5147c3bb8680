//! `std::sync::Mutex` held across a sleep: legal on threads, so legal on fibers.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use indent::runtime::Runtime;
use indent::time::sleep;

const TURNS: usize = 3;

/// Lets fibers take turns; each turn finds the count as the previous turn left it.
pub(crate) fn held_across_a_sleep(rt: &Runtime, fibers: usize) {
    let count = Arc::new(Mutex::new(0));
    let turns = || {
        let count = count.clone();
        rt.spawn(move || {
            for _ in 0..TURNS {
                let mut held = count.lock().unwrap();
                let before = *held;
                *held = usize::MAX;
                sleep(Duration::from_millis(2));
                let locked = matches!(count.try_lock(), Err(TryLockError::WouldBlock));
                assert!(locked && *held == usize::MAX, "two fibers have the lock");
                *held = before + 1;
            }
        })
    };
    let fibers: Vec<_> = (0..fibers).map(|_| turns()).collect();
    let turns = fibers.len() * TURNS;
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*count.lock().unwrap(), turns);
}
