//! Workers: rights to run fibers, with queues, counters, and data that only the holder uses.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
    Ordering::SeqCst,
};

use indent_sysmon::frames::TraceCache;
use indent_sysmon::{Activity as Published, Phase};

use crate::fiber::slab::Slab;
use crate::fiber::stack::Cache;
use crate::fiber::{FiberRef, Record, stack::StackGuard};
use crate::queue::local::{LifoSlot, Queue};
use crate::sched::block::timers::Timers;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::latency::Recorder;
use crate::sched::workers::pace::Rate;
use crate::sched::workers::spawn;
use crate::util::inbox::Inbox;
use crate::util::list::List;
use crate::util::rng::Rng;

/// A right to run fibers, with its queues.
///
/// Aligned to a pair of cache lines, because another thread writes its neighbour in the table.
#[repr(align(128))]
pub(crate) struct Worker {
    pub(crate) index: usize,
    /// The fiber that was spawned or woken last.
    pub(crate) lifo: LifoSlot,
    pub(crate) queue: Queue,
    /// Unstarted fibers that must start here.
    pub(crate) assigned: Inbox<Record>,
    /// What the monitor sees.
    pub(crate) published: Published,
    /// Deadlines of fibers that parked on this worker.
    pub(crate) timers: Timers,
    /// How many stacks `local` keeps.
    pub(crate) stacks_cached: AtomicUsize,
    /// The dispatch that the monitor has seen for too long.
    pub(crate) overran: AtomicU64,
    /// The dispatch in which the monitor found it away, so that the I/O poller polls in its place.
    pub(crate) io_overrun: AtomicU64,
    /// How often a thread has polled for events on its behalf, and that number at the monitor's
    /// last look.
    pub(crate) io_polls: AtomicU64,
    pub(crate) io_polls_known: AtomicU64,
    /// Whether its holder should poll for events when it next looks for work, because no thread has
    /// polled for a tick. Set by the monitor.
    pub(crate) io_poll_due: AtomicBool,
    /// Consecutive looks of the monitor that found it in one dispatch. The monitor's own.
    pub(crate) overran_for: AtomicU32,
    /// The carrier that holds or last held this worker.
    pub(crate) carrier: AtomicPtr<Carrier>,
    /// Whether fibers that must run here wait in `Local::own`. A hint for other threads.
    pub(crate) has_own: AtomicBool,
    /// Why this worker was notified. Set by the thread that claimed its sleep.
    pub(crate) wake_reason: AtomicU8,
    pub(crate) counters: Counters,
    pub(crate) rate: Rate,
    /// How long the fibers it ran had waited to run.
    pub(crate) wake_to_run: Recorder,
    pub(crate) local: UnsafeCell<Local>,
}

/// Reasons for which a worker is notified.
pub(crate) struct WakeReason;

impl WakeReason {
    pub(crate) const NO: u8 = 0;
    /// There is work for any worker; this worker already counts as a searcher.
    pub(crate) const TO_SEARCH: u8 = 1;
    /// There is work for this worker or its carrier.
    pub(crate) const TO_WORK: u8 = 2;
}

/// Counters of a worker.
///
/// Written by the holder with plain loads and stores, read by any thread.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) spawned: Count,
    pub(crate) finished: Count,
    pub(crate) started: Count,
    pub(crate) steals: Count,
    pub(crate) stolen: Count,
    pub(crate) parks: Count,
    pub(crate) steal_attempts: Count,
    pub(crate) from_shared: Count,
    pub(crate) budget_exhausted: Count,
    pub(crate) wakes_sent: Count,
    pub(crate) wakes_coalesced: Count,
    pub(crate) sleeps: Count,
    pub(crate) moves: Count,
    pub(crate) released: Count,
    pub(crate) overflows: Count,
}

impl Counters {
    /// Counts a wake: either a sleeping worker was notified, or that was not needed.
    pub(crate) fn count_wake(&self, sent: bool) {
        if sent {
            self.wakes_sent.add(1);
        } else {
            self.wakes_coalesced.add(1);
        }
    }
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Relaxed) + n,
            std::sync::atomic::Ordering::Release,
        );
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// The part of a worker that only its holder uses (`Entered::local`).
pub(crate) struct Local {
    pub(crate) slab: Slab,
    pub(crate) stacks: Cache,
    pub(crate) rng: Rng,
    /// Dispatches until the global queue comes first again.
    pub(crate) until_shared: u32,
    /// Whether assigned fibers had the last turn, not the local queue.
    pub(crate) own_turn: bool,
    /// Whether the last turn was one that was owed.
    pub(crate) paid: bool,
    /// Turns the LIFO slot has had in a row.
    pub(crate) lifo_turns: u32,
    /// Whose turn it is at the global queue: carriers without a worker, or fibers.
    pub(crate) carrier_turn: bool,
    /// Turns in a row for started fibers of the global queue, and for interrupted ones.
    pub(crate) urgent_turns: u32,
    /// Whose turn it is among the kinds of fibers that come last.
    pub(crate) batch_turn: u32,
    /// Whether it has polled for events since it last found something to do.
    pub(crate) looked: bool,
    /// Fibers assigned to this worker, in order.
    pub(crate) own: List<Record>,
    /// The fiber that runs first, for which the worker came to the carrier that holds it.
    pub(crate) next: Option<FiberRef>,
    /// Whether the unstarted fiber that runs next has been admitted. If it were admitted again on
    /// the thread that the worker has gone to for it, that thread would count against it.
    pub(crate) admitted: bool,
    /// Whether the worker has a reservation for that start (`threads/admission.rs`).
    pub(crate) reserved: bool,
    /// Whether fibers that wait for a thread came last.
    pub(crate) threadless_turn: bool,
    /// Increased by each dispatch of a bound fiber, reduced by each of a movable one, within
    /// bounds.
    pub(crate) bound_lately: u32,
    /// Stacks seen lately, and the verdicts on them.
    pub(crate) traces: TraceCache,
}

// SAFETY: `local` is only touched by the holder (I7); everything else is atomic.
#[expect(unsafe_code, reason = "the holder alone touches `local`")]
unsafe impl Sync for Worker {}

impl Worker {
    /// The carrier that holds or last held this worker, once there was one.
    #[expect(unsafe_code, reason = "known by pointer")]
    pub(crate) fn carrier(&self) -> Option<&Carrier> {
        // SAFETY: null until the worker was first given away; carriers live as long as `Shared`,
        // and so do workers.
        unsafe { self.carrier.load(SeqCst).as_ref() }
    }

    /// Whether it runs a fiber, and the monitor has seen that dispatch for some time.
    pub(crate) fn is_stuck(&self) -> bool {
        self.published.phase() == Phase::Fiber
            && self.overran.load(Relaxed) == self.published.dispatches()
    }

    pub(crate) fn new(index: usize, queue: usize, class: u8, guard: StackGuard) -> Self {
        Worker {
            index,
            lifo: LifoSlot::new(),
            queue: Queue::new(queue),
            assigned: Inbox::new(),
            published: Published::new(),
            timers: Timers::new(),
            stacks_cached: AtomicUsize::new(0),
            overran: AtomicU64::new(0),
            io_overrun: AtomicU64::new(0),
            io_polls: AtomicU64::new(0),
            io_polls_known: AtomicU64::new(0),
            io_poll_due: AtomicBool::new(false),
            overran_for: AtomicU32::new(0),
            carrier: AtomicPtr::new(ptr::null_mut()),
            has_own: AtomicBool::new(false),
            wake_reason: AtomicU8::new(WakeReason::NO),
            counters: Counters::default(),
            rate: Rate::new(),
            wake_to_run: Recorder::new(),
            local: UnsafeCell::new(Local {
                slab: spawn::obtain_slab(),
                stacks: Cache::new(class, guard),
                rng: Rng::new(index as u64),
                until_shared: 1,
                own_turn: false,
                paid: false,
                lifo_turns: 0,
                carrier_turn: false,
                urgent_turns: 0,
                batch_turn: 0,
                looked: false,
                own: List::new(),
                next: None,
                admitted: false,
                reserved: false,
                threadless_turn: false,
                bound_lately: 0,
                traces: TraceCache::new(),
            }),
        }
    }
}
