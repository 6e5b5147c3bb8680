//! What the benchmark programs of all rivals have in common: the shapes, the command line, the
//! clock and the line of output.
//!
//! A program implements [`Rival`] and hands it to [`main`]; it is then called as
//! `PROGRAM SHAPE [OPS]` and prints `SHAPE NS_PER_OP`, in some shapes followed by further columns, each
//! as ` NAME=VALUE` with the unit in the name. The script `run` next to this package builds all
//! programs, runs them alternating and compares them; its head says what one operation is.
//! `go/shapes.go` mirrors this file for Go: a change of a shape belongs in both.
//!
//! Apart from these stand the programs of the [`beat`]: how late somebody is who is woken beside
//! loops that never end; and those of the [`echo`]: servers, of which the program `load` asks much.

pub mod beat;
pub mod echo;
pub mod fifo;
pub mod hog;
pub mod indent_heart;
pub mod latency;
pub mod load;
pub mod meet;
pub mod tokio_heart;

use std::fmt;
use std::hint;
use std::iter;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Makes the allocator that the features ask for that of the program: `jemalloc`, `mimalloc`, or else
/// the system's.
#[macro_export]
macro_rules! allocator {
    () => {
        #[cfg(feature = "jemalloc")]
        #[global_allocator]
        static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

        #[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
        #[global_allocator]
        static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
    };
}

/// Worker threads of every runtime, in every shape.
pub const WORKERS: usize = 2;

/// Whether every fiber of indent is to count as bound to its thread (`INDENT_RIVALS_BOUND=1`).
pub fn is_bound() -> bool {
    std::env::var_os("INDENT_RIVALS_BOUND").is_some_and(|value| value == "1")
}

/// Fibers that yield at the same time in [`Shape::Yield`].
pub const YIELDING_FIBERS: u64 = 1_000;

/// Fibers that make blocking calls at the same time in [`Shape::Blocking`].
pub const BLOCKING_FIBERS: u64 = 64;

/// Timers that are pending beside the one that is measured, in the busy half of
/// [`Shape::TimerCancel`].
pub const PENDING_TIMERS: u64 = 100_000;

/// Parts of the loop of [`Shape::TimerCancel`] if one without timers alternates with it; `count` is a
/// multiple of it.
pub const CANCEL_PARTS: u64 = 10;

/// Fibers that send through one channel in [`Shape::ChanMpsc`].
pub const PRODUCERS: u64 = 4;

/// The capacity of that channel.
pub const MPSC_CAPACITY: usize = 64;

/// Fibers that lock the mutex of [`Shape::Mutex`].
pub const LOCKING_FIBERS: u64 = 8;

/// Children of each inner node of the tree of [`Shape::Skynet`], which is also the capacity of its
/// channel.
pub const CHILDREN: u64 = 10;

/// Where the two fibers of a pair begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Begin {
    /// Where the runtime starts a fiber that one of its fibers spawns.
    Anywhere,
    /// On two workers at the same time: both call [`Meeting::arrive`](meet::Meeting::arrive) first.
    Apart,
}

/// What the waking thread does between two rounds of a wake shape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gap {
    /// Spins, for just long enough that the fiber, which answers before it parks, has parked.
    /// Without that, a wake-up may come first and be taken as a token, with nobody to wake.
    Spin(Duration),
    /// Sleeps, so that the workers of the runtime fall asleep too.
    Sleep(Duration),
}

impl Gap {
    /// The gap of [`Shape::Wake`].
    pub const SHORT: Self = Self::Spin(Duration::from_micros(2));

    /// The gap of [`Shape::WakeIdle`].
    pub const IDLE: Self = Self::Sleep(Duration::from_micros(100));

    /// Lets the gap pass.
    fn pass(self) {
        match self {
            Self::Spin(time) => {
                let start = Instant::now();
                while start.elapsed() < time {
                    hint::spin_loop();
                }
            }
            Self::Sleep(time) => thread::sleep(time),
        }
    }
}

/// A runtime under measurement, given by how it does each shape once.
///
/// Every method enters the runtime by itself and leaves nothing running behind. Those that a rival does
/// not have panic, and `run` does not ask for them.
pub trait Rival {
    /// From a fiber, spawns `count` fibers that return their index, keeping all handles, then joins
    /// them in order. Returns the sum of what they returned.
    ///
    /// # Panics
    ///
    /// Panics where there is no such thing, as all that follow.
    fn spawn_join(&self, count: u64) -> u64 {
        panic!("no {count} fibers");
    }

    /// Spawns `fibers` fibers that each yield `yields` times and joins them. Returns how many
    /// yields they made in total.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn yields(&self, fibers: u64, yields: u64) -> u64 {
        panic!("no {fibers} fibers that yield {yields} times");
    }

    /// Spawns a fiber that spawns the next one, and so on for `count` fibers in all; returns when
    /// the last one has signalled.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn chain(&self, count: u64) {
        panic!("no chain of {count} fibers");
    }

    /// Parks a fiber that a plain thread wakes `rounds` times with [`Rounds::drive`], to which
    /// `gap` is passed on. Returns the time that took, without the gaps.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn wake(&self, rounds: u64, gap: Gap) -> Duration {
        panic!("no fiber to wake {rounds} times after {gap:?}");
    }

    /// Spawns `fibers` fibers that each, `calls` times and one after the other, have a closure that
    /// returns at once run by a thread that may block. Returns how many calls were made in total.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn blocking(&self, fibers: u64, calls: u64) -> u64 {
        panic!("no threads for {calls} blocking calls of {fibers} fibers");
    }

    /// As `blocking`, but each call is spawned, and then joined.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn spawn_blocking(&self, fibers: u64, calls: u64) -> u64 {
        self.blocking(fibers, calls)
    }

    /// From a fiber, adds up [`mixed`] of the numbers below `count`, on all CPUs.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn compute(&self, count: u64) -> u64 {
        panic!("no threads that compute {count} numbers");
    }

    /// From a fiber, spawns one for each length, which sleeps for it once, and joins them all.
    /// Returns by how many nanoseconds each woke late, as [`lateness`] says.
    ///
    /// # Panics
    ///
    /// Panics when one woke early, and where fibers do not sleep.
    fn sleepers(&self, lengths: Vec<Duration>) -> Vec<u64> {
        panic!("no sleeping for {} fibers", lengths.len());
    }

    /// On a runtime where `pending` fibers are parked with deadlines of [`pending_lengths`], sets
    /// and cancels `count` timers of [`timer_lengths`], one after the other. A rival whose loop does
    /// more than that does the same without timers after each of [`CANCEL_PARTS`] parts of it.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn timer_cancel(&self, count: u64, pending: u64) -> Cancelled {
        panic!("no {count} timers beside {pending}");
    }

    /// From a fiber, spawns two that exchange a number over two channels of capacity 1: one sends it
    /// and receives it back, `count` times, the other returns what it receives. Gives the time that
    /// took the first of them, once both have begun.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn chan_pair(&self, count: u64, begin: Begin) -> Duration {
        panic!("no channels for {count} round trips begun {begin:?}");
    }

    /// As `chan_pair` begun anywhere, but the fiber that returns what it receives does so by a select
    /// over two channels, of which the other one is open and never has anything.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn select_pair(&self, count: u64) -> Duration {
        panic!("no select for {count} round trips");
    }

    /// From a fiber, spawns [`PRODUCERS`] that each send the numbers below `each` through one channel
    /// of capacity [`MPSC_CAPACITY`], and receives them all. Returns their sum.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn chan_mpsc(&self, each: u64) -> u64 {
        panic!("no channel for {each} messages of each");
    }

    /// From a fiber, spawns [`LOCKING_FIBERS`] that each lock one mutex `each` times and add one to the
    /// number inside, and joins them. Returns that number.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn mutex(&self, each: u64) -> u64 {
        panic!("no mutex to lock {each} times");
    }

    /// Starts the root of a tree of so many leaves, a power of [`CHILDREN`]. An inner node makes a
    /// channel with that capacity, spawns that many children and sends the sum of what it receives to
    /// its own parent; a leaf sends its number, counted from 0. Returns what the root sends.
    ///
    /// # Panics
    ///
    /// As `spawn_join`.
    fn skynet(&self, leaves: u64) -> u64 {
        panic!("no tree of {leaves} leaves");
    }
}

/// What [`Rival::timer_cancel`] took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cancelled {
    /// The loop that sets and cancels timers.
    pub with: Duration,
    /// The same loop without the timers, if it does more than that.
    pub without: Option<Duration>,
}

/// Pseudo-random numbers (xorshift), the same for every rival.
fn random() -> impl Iterator<Item = u64> + Send {
    iter::successors(Some(0x9e37_79b9_7f4a_7c15_u64), |&x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 7);
        Some(x ^ (x << 17))
    })
    .skip(1)
}

/// How long the fibers of [`Shape::Sleepers`] sleep: 1 to 1000 ms.
pub fn sleep_lengths() -> impl Iterator<Item = Duration> {
    random().map(|number| Duration::from_millis(1 + number % 1000))
}

/// How far ahead the timers that [`Shape::TimerCancel`] sets and cancels are: 1 to 3600 s.
pub fn timer_lengths() -> impl Iterator<Item = Duration> + Send {
    random().map(|number| Duration::from_secs(1 + number % 3600))
}

/// How far ahead those are that are pending meanwhile: ten minutes more, so that none comes.
pub fn pending_lengths() -> impl Iterator<Item = Duration> + Send {
    timer_lengths().map(|length| length + Duration::from_secs(600))
}

/// By how many nanoseconds somebody who began to sleep for `length` at `start` is late now.
///
/// # Panics
///
/// Panics if it is early.
#[must_use]
pub fn lateness(start: Instant, length: Duration) -> u64 {
    let slept = start.elapsed();
    assert!(
        slept >= length,
        "woke after {slept:?} instead of {length:?}"
    );
    u64::try_from((slept - length).as_nanos()).expect("nobody is centuries late")
}

/// The CPU time this process has used, user and system, on all threads.
pub fn cpu_time() -> Duration {
    cpu_time_of(UsageWho::RUSAGE_SELF)
}

/// The same of its children that are over and were waited for.
#[must_use]
pub fn children_cpu_time() -> Duration {
    cpu_time_of(UsageWho::RUSAGE_CHILDREN)
}

fn cpu_time_of(whom: UsageWho) -> Duration {
    let usage = getrusage(whom).expect("this process may ask about itself");
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| Duration::new(time.tv_sec().unsigned_abs(), 1000 * time.tv_usec() as u32))
        .sum()
}

/// One number of [`Shape::Compute`]: enough work that the compiler cannot do it all by itself.
#[must_use]
pub fn mixed(number: u64) -> u64 {
    let n = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n ^ (n >> 29)
}

/// A benchmark shape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    /// Spawn many fibers, then join them all.
    SpawnJoin,
    /// Many fibers that do nothing but yield.
    Yield,
    /// Each fiber spawns the next.
    Chain,
    /// A plain thread wakes a fiber, and again almost as soon as it has answered.
    Wake,
    /// A plain thread wakes a fiber of a runtime that has been idle for a while.
    WakeIdle,
    /// Many fibers make blocking calls that return at once.
    Blocking,
    /// One fiber does.
    BlockingOne,
    /// Many fibers spawn such calls and join them.
    SpawnBlocking,
    /// A parallel sum.
    Compute,
    /// Many fibers that each sleep once.
    Sleepers,
    /// Timers that are set and cancelled.
    TimerCancel,
    /// Two fibers that exchange a number over two channels.
    ChanPair,
    /// The same, begun on two workers.
    ChanPairApart,
    /// Many senders, one receiver.
    ChanMpsc,
    /// Two fibers that exchange a number, one of which receives by a select.
    SelectPair,
    /// Many fibers that lock one mutex.
    Mutex,
    /// A tree of fibers whose sums go through channels.
    Skynet,
}

/// What a round has measured.
#[derive(Debug)]
struct Figures {
    /// The main one: nanoseconds per operation.
    ns: f64,
    /// Further ones, with names that say the unit.
    columns: Vec<(&'static str, f64)>,
}

impl Figures {
    /// Those of `made` operations that took that long.
    fn each(made: u64, time: Duration) -> Self {
        Figures {
            ns: nanos(time) / made as f64,
            columns: Vec::new(),
        }
    }

    /// Those of [`Shape::Sleepers`]: what the fibers were late by, the CPU time and the wall time.
    fn sleepers(mut late: Vec<u64>, cpu: Duration, wall: Duration) -> Self {
        late.sort_unstable();
        let quantile = |percent| late[(late.len() - 1) * percent / 100] as f64 / 1e3;
        let mut figures = Self::each(late.len() as u64, cpu);
        figures.columns = vec![
            ("late_p50_us", quantile(50)),
            ("late_p99_us", quantile(99)),
            ("late_max_us", quantile(100)),
            ("wall_ms", nanos(wall) / 1e6),
        ];
        figures
    }

    /// Those of [`Shape::TimerCancel`]: `count` timers alone, and beside others.
    fn timer_cancel(count: u64, alone: Cancelled, beside: Cancelled) -> Self {
        let each = |time| nanos(time) / count as f64;
        let pair = |times: Cancelled| each(times.with) - times.without.map_or(0.0, each);
        let mut columns = vec![("pending_ns", pair(beside))];
        if let (Some(without), Some(without_beside)) = (alone.without, beside.without) {
            columns.extend([
                ("loop_ns", each(alone.with)),
                ("bare_ns", each(without)),
                ("pending_loop_ns", each(beside.with)),
                ("pending_bare_ns", each(without_beside)),
            ]);
        }
        Figures {
            ns: pair(alone),
            columns,
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.ns)?;
        self.columns
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={value:.1}"))
    }
}

/// A time in nanoseconds.
fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 17] = [
        Self::SpawnJoin,
        Self::Yield,
        Self::Chain,
        Self::Wake,
        Self::WakeIdle,
        Self::Blocking,
        Self::BlockingOne,
        Self::SpawnBlocking,
        Self::Compute,
        Self::Sleepers,
        Self::TimerCancel,
        Self::ChanPair,
        Self::ChanPairApart,
        Self::ChanMpsc,
        Self::SelectPair,
        Self::Mutex,
        Self::Skynet,
    ];

    /// The name on the command line and in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SpawnJoin => "spawn_join",
            Self::Yield => "yield",
            Self::Chain => "chain",
            Self::Wake => "wake",
            Self::WakeIdle => "wake_idle",
            Self::Blocking => "blocking",
            Self::BlockingOne => "blocking_one",
            Self::SpawnBlocking => "spawn_blocking",
            Self::Compute => "compute",
            Self::Sleepers => "sleepers",
            Self::TimerCancel => "timer_cancel",
            Self::ChanPair => "chan_pair",
            Self::ChanPairApart => "chan_pair_apart",
            Self::ChanMpsc => "chan_mpsc",
            Self::SelectPair => "select_pair",
            Self::Mutex => "mutex",
            Self::Skynet => "skynet",
        }
    }

    /// The shape with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == name)
    }

    /// How many operations make one round if the command line does not say.
    #[must_use]
    pub fn default_ops(self) -> u64 {
        match self {
            Self::SpawnJoin | Self::Yield | Self::Chain => 1_000_000,
            Self::Blocking | Self::SpawnBlocking | Self::TimerCancel => 1_000_000,
            Self::ChanPair | Self::ChanPairApart | Self::SelectPair | Self::Skynet => 1_000_000,
            Self::ChanMpsc | Self::Mutex => 4_000_000,
            Self::Wake | Self::BlockingOne | Self::Sleepers => 100_000,
            Self::Compute => 100_000_000,
            Self::WakeIdle => 5_000,
        }
    }

    /// Runs one round of about `ops` operations; returns what it measured.
    ///
    /// # Panics
    ///
    /// Panics when the fibers did something else than they were told to.
    fn round(self, rival: &impl Rival, ops: u64) -> Figures {
        let start = Instant::now();
        let (made, time) = match self {
            Self::SpawnJoin => {
                let sum = rival.spawn_join(ops);
                let time = start.elapsed();
                assert_eq!(sum, (0..ops).sum(), "a spawned fiber was lost");
                (ops, time)
            }
            Self::Yield => {
                let each = ops.div_ceil(YIELDING_FIBERS);
                let made = rival.yields(YIELDING_FIBERS, each);
                let time = start.elapsed();
                assert_eq!(made, YIELDING_FIBERS * each, "a yield was lost");
                (made, time)
            }
            Self::Chain => {
                rival.chain(ops);
                (ops, start.elapsed())
            }
            Self::Wake => (ops, rival.wake(ops, Gap::SHORT)),
            Self::WakeIdle => (ops, rival.wake(ops, Gap::IDLE)),
            Self::Blocking | Self::BlockingOne | Self::SpawnBlocking => {
                let fibers = match self {
                    Self::BlockingOne => 1,
                    _ => BLOCKING_FIBERS,
                };
                let each = ops.div_ceil(fibers);
                let made = match self {
                    Self::SpawnBlocking => rival.spawn_blocking(fibers, each),
                    _ => rival.blocking(fibers, each),
                };
                let time = start.elapsed();
                assert_eq!(made, fibers * each, "a call was lost");
                (made, time)
            }
            Self::Compute => {
                let sum = rival.compute(ops);
                let time = start.elapsed();
                let expected = (0..ops).fold(0u64, |sum, n| sum.wrapping_add(mixed(n)));
                assert_eq!(sum, expected, "the sum is wrong");
                (ops.div_ceil(1000), time)
            }
            Self::Sleepers => {
                let lengths = sleep_lengths().take(ops as usize).collect();
                let (start, cpu) = (Instant::now(), cpu_time());
                let late = rival.sleepers(lengths);
                let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
                assert_eq!(late.len() as u64, ops, "a sleeper was lost");
                return Figures::sleepers(late, cpu, wall);
            }
            Self::TimerCancel => {
                let ops = ops.next_multiple_of(CANCEL_PARTS);
                let alone = rival.timer_cancel(ops, 0);
                let beside = rival.timer_cancel(ops, PENDING_TIMERS);
                return Figures::timer_cancel(ops, alone, beside);
            }
            Self::ChanPair => (ops, rival.chan_pair(ops, Begin::Anywhere)),
            Self::ChanPairApart => (ops, rival.chan_pair(ops, Begin::Apart)),
            Self::SelectPair => (ops, rival.select_pair(ops)),
            Self::ChanMpsc => {
                let each = ops.div_ceil(PRODUCERS);
                let sum = rival.chan_mpsc(each);
                let time = start.elapsed();
                let expected = PRODUCERS * (0..each).sum::<u64>();
                assert_eq!(sum, expected, "a message was lost");
                (PRODUCERS * each, time)
            }
            Self::Mutex => {
                let each = ops.div_ceil(LOCKING_FIBERS);
                let made = rival.mutex(each);
                let time = start.elapsed();
                assert_eq!(made, LOCKING_FIBERS * each, "a lock was held by two");
                (made, time)
            }
            Self::Skynet => {
                let leaves = CHILDREN.pow(ops.ilog(CHILDREN));
                let sum = rival.skynet(leaves);
                let time = start.elapsed();
                assert_eq!(sum, (0..leaves).sum(), "a leaf was lost");
                (leaves, time)
            }
        };
        Figures::each(made, time)
    }
}

/// The exchange between the waking thread and the woken fiber, which share one of these.
#[derive(Debug, Default)]
pub struct Rounds {
    /// The round whose wake-up is on its way, counted from 1. Written by the thread.
    sent: Line,
    /// The round last answered. Written by the fiber.
    answered: Line,
}

/// A counter that has its cache line (and the one prefetched with it) for itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Rounds {
    /// The waking thread: in each round lets the `gap` pass, calls `wake` once, and spins until the
    /// fiber has answered. Returns the sum of the times from wake-up to answer.
    pub fn drive(&self, rounds: u64, gap: Gap, wake: impl Fn()) -> Duration {
        (1..=rounds)
            .map(|round| {
                gap.pass();
                let start = Instant::now();
                self.sent.0.store(round, Ordering::Release);
                wake();
                while self.answered.0.load(Ordering::Acquire) < round {
                    hint::spin_loop();
                }
                start.elapsed()
            })
            .sum()
    }

    /// For the fiber, after it was woken: whether that was for `round`, rather than spurious.
    ///
    /// Only to be asked after parking: a fiber that looks first might never park.
    #[must_use]
    pub fn has_sent(&self, round: u64) -> bool {
        self.sent.0.load(Ordering::Acquire) >= round
    }

    /// For the fiber: answers `round`.
    pub fn answer(&self, round: u64) {
        self.answered.0.store(round, Ordering::Release);
    }
}

/// Reads `SHAPE [OPS]`.
fn parse(mut args: impl Iterator<Item = String>) -> Option<(Shape, u64)> {
    let shape = Shape::from_name(&args.next()?)?;
    let ops = match args.next() {
        Some(ops) => ops.parse().ok().filter(|&ops| ops > 0)?,
        None => shape.default_ops(),
    };
    args.next().is_none().then_some((shape, ops))
}

/// The `main` of every program: does what the command line says on `rival`, one round to warm up
/// and one for the clock, and prints the result.
#[must_use]
pub fn main(rival: &impl Rival) -> ExitCode {
    main_with(rival, std::env::args().skip(1))
}

/// The same for a program that has read the first words of its command line by itself.
#[must_use]
pub fn main_with(rival: &impl Rival, args: impl Iterator<Item = String>) -> ExitCode {
    let Some((shape, ops)) = parse(args) else {
        let names = Shape::ALL.map(Shape::name).join("|");
        eprintln!("usage: PROGRAM {names} [OPS]");
        return ExitCode::from(2);
    };
    shape.round(rival, ops);
    println!("{} {}", shape.name(), shape.round(rival, ops));
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Option<(Shape, u64)> {
        parse(words.split_whitespace().map(String::from))
    }

    #[test]
    fn reads_the_command_line() {
        for shape in Shape::ALL {
            assert_eq!(
                parse_words(shape.name()),
                Some((shape, shape.default_ops()))
            );
        }
        assert_eq!(parse_words("chain 7"), Some((Shape::Chain, 7)));
    }

    #[test]
    fn refuses_a_bad_command_line() {
        for words in ["", "nothing", "chain 0", "chain x", "chain 7 7"] {
            assert_eq!(parse_words(words), None, "{words:?}");
        }
    }

    #[test]
    fn lengths_are_the_same_each_time_and_fill_their_range() {
        let lengths: Vec<_> = sleep_lengths().take(100_000).collect();
        assert!(sleep_lengths().take(100_000).eq(lengths.iter().copied()));
        let ms = Duration::from_millis;
        assert_eq!(lengths.iter().min(), Some(&ms(1)));
        assert_eq!(lengths.iter().max(), Some(&ms(1000)));
        let short = lengths.iter().filter(|&&length| length <= ms(500)).count();
        assert!((49_000..51_000).contains(&short), "{short}");
    }

    #[test]
    fn prints_a_line_that_the_script_reads() {
        let ms = Duration::from_millis;
        let sleepers =
            Figures::sleepers((1..=100).rev().map(|us| us * 1000).collect(), ms(1), ms(3));
        assert_eq!(
            sleepers.to_string(),
            "10000.0 late_p50_us=50.0 late_p99_us=99.0 late_max_us=100.0 wall_ms=3.0"
        );
        let times = |with, without| Cancelled {
            with: ms(with),
            without: Some(ms(without)),
        };
        let cancelled = Figures::timer_cancel(1000, times(3, 2), times(9, 2));
        assert_eq!(
            cancelled.to_string(),
            "1000.0 pending_ns=7000.0 loop_ns=3000.0 bare_ns=2000.0 \
             pending_loop_ns=9000.0 pending_bare_ns=2000.0"
        );
    }

    #[test]
    #[should_panic(expected = "instead of")]
    fn an_early_sleeper_is_found_out() {
        let _late = lateness(Instant::now(), Duration::from_secs(3600));
    }

    #[test]
    fn drives_every_round() {
        for gap in [Gap::SHORT, Gap::IDLE] {
            let rounds = Rounds::default();
            let time = thread::scope(|scope| {
                let driver = scope.spawn(|| rounds.drive(10, gap, || {}));
                for round in 1..=10 {
                    while !rounds.has_sent(round) {
                        thread::yield_now();
                    }
                    rounds.answer(round);
                }
                driver.join().unwrap()
            });
            assert!(time > Duration::ZERO);
        }
    }
}
