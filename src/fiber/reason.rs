//! Why a fiber is parked; shown in listings of fibers.

/// What a parked fiber waits for. Numbers are stable: never reused for another reason.
///
/// ```
/// use indent::park::ParkReason;
/// assert_eq!(ParkReason::Join.to_string(), "join");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ParkReason {
    /// It has not parked so far.
    None = 0,
    /// [`park`](crate::park::park): waits for its unparker.
    Park = 1,
    /// Waits for another fiber's result.
    Join = 2,
    /// Waits for a closure in another runtime.
    BlockOn = 3,
    /// [`blocking`](crate::runtime::blocking): waits for a closure on a thread that may block.
    Blocking = 4,
    /// [`compute`](crate::runtime::compute): waits for a closure on a thread that computes.
    Compute = 5,
    /// Waits for time to pass.
    Sleep = 6,
    /// Waits for a socket, a pipe or another descriptor.
    Io = 7,
    /// Waits for room in a [channel](crate::chan), or for a receiver.
    Send = 8,
    /// Waits for a value of a [channel](crate::chan).
    Receive = 9,
    /// Waits for one of [several things](mod@crate::select).
    Select = 10,
    /// Delayed by the runtime, because it catches the unwinding of every blocking call.
    ///
    /// It was cancelled, or its [time limit](crate::time::timeout) has passed
    /// ([`unwind_delays_total`](crate::runtime::Metrics::unwind_delays_total)).
    Pause = 11,
    /// Waits for a [`Mutex`](crate::sync::Mutex) or an [`RwLock`](crate::sync::RwLock).
    Lock = 16,
    /// Waits for a [`Condvar`](crate::sync::Condvar) to be notified.
    Condvar = 17,
    /// Waits for permits of a [`Semaphore`](crate::sync::Semaphore).
    Semaphore = 18,
    /// Waits for an [`Event`](crate::sync::Event) or a [`Notify`](crate::sync::Notify).
    Event = 19,
    /// Waits for the other callers at a [`Barrier`](crate::sync::Barrier).
    Barrier = 20,
    /// Waits for an [initialization](crate::sync::Once) by another fiber or thread.
    Once = 21,
    /// Waits for a [`WaitGroup`](crate::sync::WaitGroup).
    WaitGroup = 22,
}

impl ParkReason {
    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            1 => ParkReason::Park,
            2 => ParkReason::Join,
            3 => ParkReason::BlockOn,
            4 => ParkReason::Blocking,
            5 => ParkReason::Compute,
            6 => ParkReason::Sleep,
            7 => ParkReason::Io,
            8 => ParkReason::Send,
            9 => ParkReason::Receive,
            10 => ParkReason::Select,
            11 => ParkReason::Pause,
            16 => ParkReason::Lock,
            17 => ParkReason::Condvar,
            18 => ParkReason::Semaphore,
            19 => ParkReason::Event,
            20 => ParkReason::Barrier,
            21 => ParkReason::Once,
            22 => ParkReason::WaitGroup,
            _ => ParkReason::None,
        }
    }
}

impl ParkReason {
    /// Whether fibers that park for it name what they wait for (`Record::set_awaited`).
    pub(crate) fn names_awaited(self) -> bool {
        self.is_join() || self as u8 >= ParkReason::Lock as u8
    }

    /// Whether it waits for another fiber, named by its id; other names are addresses.
    pub(crate) fn is_join(self) -> bool {
        matches!(self, ParkReason::Join | ParkReason::BlockOn)
    }
}

impl std::fmt::Display for ParkReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ParkReason::None => "none",
            ParkReason::Park => "park",
            ParkReason::Join => "join",
            ParkReason::BlockOn => "block_on",
            ParkReason::Blocking => "blocking",
            ParkReason::Compute => "compute",
            ParkReason::Sleep => "sleep",
            ParkReason::Io => "io",
            ParkReason::Send => "send",
            ParkReason::Receive => "receive",
            ParkReason::Select => "select",
            ParkReason::Pause => "pause after unwinding",
            ParkReason::Lock => "lock",
            ParkReason::Condvar => "condvar",
            ParkReason::Semaphore => "semaphore",
            ParkReason::Event => "event",
            ParkReason::Barrier => "barrier",
            ParkReason::Once => "once",
            ParkReason::WaitGroup => "wait_group",
        })
    }
}
