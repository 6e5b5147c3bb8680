//! What a worker publishes: what it is doing, and how many dispatches it has begun.

use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::time::Duration;

/// What a worker is doing.
///
/// ```
/// use indent_sysmon::{Phase, Activity};
///
/// let activity = Activity::new();
/// activity.set_phase(Phase::Scheduling);
/// assert_ne!(activity.phase(), Phase::Idle);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Asleep, nothing to do.
    Idle = 0,
    /// Looking for work, or storing some: its work must not be taken over.
    Scheduling = 1,
    /// Running its actual work: a fiber, a job, a request.
    Fiber = 2,
}

/// What one worker publishes. Written by the thread that holds the worker, read by any thread.
///
/// ```
/// use indent_sysmon::{Phase, Activity};
///
/// let activity = Activity::new();
/// activity.dispatch();
/// assert_eq!(activity.phase(), Phase::Fiber);
/// assert_eq!(activity.dispatches(), 1);
/// activity.set_phase(Phase::Idle);
/// assert_eq!(activity.phase(), Phase::Idle);
/// assert!(activity.busy().is_zero(), "no monitor has seen it");
/// ```
#[derive(Debug)]
pub struct Activity {
    phase: AtomicU8,
    dispatches: AtomicU64,
    /// Nanoseconds for which the monitor saw the worker awake; written by the monitor.
    busy: AtomicU64,
}

impl Activity {
    /// Creates the activity of an idle worker.
    ///
    /// See [`Activity`] for an example.
    pub const fn new() -> Self {
        Activity {
            phase: AtomicU8::new(Phase::Idle as u8),
            dispatches: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    /// Begins a new dispatch. Needs no read-modify-write: there is one writer at a time.
    ///
    /// See [`Activity`] for an example.
    #[inline]
    pub fn dispatch(&self) {
        self.dispatches
            .store(self.dispatches.load(Relaxed).wrapping_add(1), Relaxed);
        self.phase.store(Phase::Fiber as u8, Release);
    }

    /// Publishes that the worker is in another phase now.
    ///
    /// See [`Activity`] for an example.
    #[inline]
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Release);
    }

    /// Returns what the worker was doing a moment ago.
    ///
    /// See [`Activity`] for an example.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Scheduling,
            _ => Phase::Fiber,
        }
    }

    /// Returns how many dispatches the worker has begun.
    ///
    /// See [`Activity`] for an example.
    pub fn dispatches(&self) -> u64 {
        self.dispatches.load(Relaxed)
    }

    /// Returns how long the worker has been awake, as sampled by its monitor.
    ///
    /// See [`Monitor`](crate::Monitor) for an example.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.load(Relaxed))
    }

    /// Adds time for which the monitor found the worker awake; one monitor at a time.
    pub(crate) fn add_busy(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.busy
            .store(self.busy.load(Relaxed).saturating_add(nanos), Relaxed);
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}
