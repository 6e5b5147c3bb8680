//! Settings of the threads that run fibers.

use std::sync::Once;
use std::time::Duration;

use indent_sysmon::frames;

use crate::error::StartError;
use crate::fiber::locals::{self, Unprepared};
use crate::runtime::{Builder, config};
use crate::sys::stderr;

/// Whose thread-locals a fiber uses.
///
/// ```
/// use indent::runtime::{Builder, ThreadLocals};
///
/// let rt = Builder::new().thread_locals(ThreadLocals::Thread).build()?;
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadLocals {
    /// Its own: see [`Builder::thread_locals`].
    Fiber,
    /// Those of the thread it runs on.
    Thread,
}

impl Builder {
    /// Sets whether interrupted fibers leave their thread where that is proved to be safe; by
    /// default they do not.
    ///
    /// An interrupted fiber keeps its thread, which waits with it, so a thousand fibers that
    /// compute take turns among tens of threads. With this setting such a fiber is switched away
    /// like one that yields, at the instruction it has come to, and goes on later on any thread.
    /// That happens only where the machine code shows that nothing of the thread is in use: in Rust
    /// code of the executable, outside of allocators, C and thread-locals, with no address of the
    /// thread's memory in registers or on the stack. Everywhere else the fiber keeps its thread as
    /// before.
    /// [`Metrics::in_place_outside_regions_total`](super::Metrics::in_place_outside_regions_total)
    /// counts.
    ///
    /// Results stay the same, with one exception: code that compares two readings of the thread's
    /// own CPU clock (`CLOCK_THREAD_CPUTIME_ID`) may read two clocks.
    /// [`task::pin`](crate::task::pin) keeps the fiber on its thread. A lock that such a fiber
    /// holds is held until its next turn.
    ///
    /// Of no effect where [`preempt`](Self::preempt) is off, where fibers use the
    /// [thread-locals](Self::thread_locals) of threads, on processors without XSAVE, in programs
    /// without symbols, and in those whose allocator is written in Rust and may hold a lock or
    /// calls functions through pointers: one line on standard error says so. In code whose author
    /// guarantees more, [`preemptible`](super::preemptible) does the same without this setting.
    /// Variable: `INDENT_PREEMPT_IN_PLACE`.
    ///
    /// ```
    /// use indent::runtime::Builder;
    ///
    /// let rt = Builder::new().preempt_in_place(true).build()?;
    /// let sums = rt.block_on(|| {
    ///     let sum = |n: u64| indent::spawn(move || (0..n).fold(0, u64::wrapping_add));
    ///     let fibers = [1_000, 100_000].map(sum);
    ///     fibers.map(|fiber| fiber.join().unwrap())
    /// });
    /// assert_eq!(sums, [499_500, 4_999_950_000]);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn preempt_in_place(mut self, on: bool) -> Self {
        self.preempt_in_place = Some(on);
        self
    }

    /// Sets whose thread-locals a fiber uses: its own, or those of its thread.
    ///
    /// By default a fiber has its own: what `thread_local!` declares in the executable begins with
    /// its initial value in every fiber, goes with the fiber from thread to thread, and is
    /// destroyed when the fiber ends. So is what std keeps for a thread, such as
    /// `std::thread::current()`, which has no name on a fiber. Caches in thread-locals are as many
    /// as there are fibers that use them.
    ///
    /// Some stay with the thread: variables of C code and of shared libraries, and a few for which
    /// it makes no difference or which count threads (the keys of `HashMap`, `fastrand`,
    /// `sharded-slab`, `arc-swap`).
    ///
    /// Where a fiber cannot have its own (the program has no symbols, is linked statically, or the
    /// runtime is in a shared library), this is reported on standard error once, and fibers use
    /// those of their threads. Then a fiber that may use a thread-local, or that calls a function
    /// through a pointer (a trait object, a boxed closure), keeps its thread while it is parked.
    /// Variable: `INDENT_TLS` (`fiber` or `thread`).
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// thread_local!(static REQUEST: Cell<u32> = const { Cell::new(0) });
    ///
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let fibers: Vec<_> = (1..=3)
    ///     .map(|request| {
    ///         rt.spawn(move || {
    ///             REQUEST.set(request);
    ///             indent::task::yield_now(); // the others run
    ///             REQUEST.get() == request
    ///         })
    ///     })
    ///     .collect();
    /// assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn thread_locals(mut self, whose: ThreadLocals) -> Self {
        self.thread_locals = Some(whose);
        self
    }

    /// Names a thread-local of the program that stays with the thread.
    ///
    /// Every fiber then sees the value of the thread it runs on.
    ///
    /// For what is about threads, such as the CPU that a [hook](Self::on_thread_start) has pinned a
    /// thread to, and for the lists of free memory of an allocator written in Rust, which would
    /// otherwise be kept once for each fiber. A fiber that uses one keeps its thread while it is
    /// parked, unless the variable is declared harmless
    /// ([`harmless_thread_local`](Self::harmless_thread_local)).
    ///
    /// The name is the path of the variable, or of a module for all variables in it. A name that
    /// fits no variable of the program is an error. All runtimes of a process have the same, so the
    /// first one that is built names them all; a name that comes later is an error.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// thread_local!(static CPU: Cell<usize> = const { Cell::new(0) });
    ///
    /// fn main() -> Result<(), indent::StartError> {
    ///     let rt = indent::runtime::Builder::new()
    ///         .per_thread(concat!(module_path!(), "::CPU"))
    ///         .on_thread_start(|| CPU.set(7))
    ///         .build()?;
    ///     assert_eq!(rt.block_on(|| CPU.get()), 7);
    ///     Ok(())
    /// }
    /// ```
    pub fn per_thread(mut self, name: impl Into<String>) -> Self {
        self.per_thread.push(name.into());
        self
    }

    /// Sets the number of threads beyond which no fiber starts that may need one of its own.
    ///
    /// A fiber that is [bound](crate::task::Mobility::Bound) keeps its thread while it is parked.
    /// With so many threads, only fibers start that are known not to need one. Others wait until
    /// threads become free, and end with an error
    /// ([`is_no_thread`](crate::JoinError::is_no_thread)) when that takes too long. Fibers that
    /// have started get a thread in any case, and so do workers. At least as many as there are
    /// workers; by default 10,000, or less where the system's limits on processes and mappings
    /// suggest that.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).max_carriers(8).build()?;
    /// assert!(rt.metrics().carriers <= 8);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn max_carriers(mut self, n: usize) -> Self {
        self.max_carriers = Some(n);
        self
    }

    /// Sets the number of threads beyond which fibers that may need one of their own wait.
    ///
    /// Such a fiber starts when a thread becomes free, when all other fibers wait (no worker has
    /// dispatched any for 10 ms), or when no such fiber has started for 100 ms although others run.
    /// They start in the order in which they came. Until the program's code has been read the
    /// number is 64 for each worker, if that is less, and 2 ms take the place of 10.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).soft_carriers(100).build()?;
    /// assert!(rt.metrics().carriers <= 100);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn soft_carriers(mut self, n: usize) -> Self {
        self.soft_carriers = Some(n);
        self
    }

    /// Sets how long a fiber that gets no thread to start on waits before it fails.
    ///
    /// A fiber that is not known to be movable may need a thread of its own. If as many threads as
    /// [`max_carriers`](Self::max_carriers) are in use, or the system refuses another one, it waits
    /// for a thread to become free. It fails with [`JoinError::is_no_thread`](crate::JoinError)
    /// when it has waited for this long and none of the fibers that wait has started for as long.
    /// Variable: `INDENT_START_TIMEOUT_MS`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new()
    ///     .start_timeout(Duration::from_secs(1))
    ///     .build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.start_timeout = Some(time);
        self
    }
}

/// Whether fibers get thread-locals of their own, except those with these names.
///
/// If they should and cannot, that is reported once.
pub(super) fn own_locals(whose: ThreadLocals, per_thread: &[String]) -> Result<bool, StartError> {
    static REPORTED: Once = Once::new();
    if whose == ThreadLocals::Thread {
        return Ok(false);
    }
    let why = match locals::prepare(per_thread) {
        Ok(()) => {
            frames::assume_own_thread_locals(locals::exchanged());
            return Ok(true);
        }
        Err(Unprepared::TooLate(name)) => return Err(config::PER_THREAD.refuse(name.to_owned())),
        Err(Unprepared::NoSuchVariable { name, near }) => {
            let near = match near.join(" or ") {
                near if near.is_empty() => ", and there is none of this name".to_owned(),
                near => format!("; did you mean {near}?"),
            };
            let allowed = format!("the path of a thread-local of the program{near}");
            return Err(config::PER_THREAD.refuse_beyond(name.to_owned(), allowed));
        }
        Err(Unprepared::Impossible(why)) => why,
    };
    if cfg!(not(indent_sanitize)) {
        REPORTED.call_once(|| {
            stderr::print(&format!(
                "indent: fibers use the thread-locals of their threads, and those that may use \
                 one, or call a function through a pointer, keep a thread while they are parked: \
                 {why}. INDENT_TLS=thread silences this line\n"
            ));
        });
    }
    Ok(false)
}
