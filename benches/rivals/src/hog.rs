//! Hogs: loops that give no worker away by themselves, of several kinds.
//!
//! They end only so that a measurement does: each looks at a flag between two steps. A step of
//! arithmetic takes about a microsecond, one of the compressor more than a quantum.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, PipeReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flate2::{Compress, Compression, FlushCompress, Status};
use nix::unistd;

/// What a hog does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Multiplies and adds.
    Arith,
    /// Allocates and frees over many size classes.
    Alloc,
    /// Prints lines to a pipe that a thread drains.
    Println,
    /// Compresses, one long call into C after the other.
    Compress,
    /// Sleeps in the kernel, 1 to 50 ms at a time.
    Sleep,
}

/// Multiplications of one step of arithmetic.
const MULTIPLICATIONS: u64 = 1_000;
/// Allocations a hog keeps alive.
const KEPT: usize = 64;
/// What one call of the compressor reads: enough for several quanta.
const INPUT: usize = 1 << 18;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Arith,
        Self::Alloc,
        Self::Println,
        Self::Compress,
        Self::Sleep,
    ];

    /// The name on the command line and in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arith => "arith",
            Self::Alloc => "alloc",
            Self::Println => "println",
            Self::Compress => "compress",
            Self::Sleep => "sleep",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it uses the CPU, so that two threads do as much as there is to do.
    #[must_use]
    pub fn computes(self) -> bool {
        self != Self::Sleep
    }
}

/// Some hogs, what they have done, and the flag that ends them.
#[derive(Debug)]
pub struct Hogs {
    kind: Kind,
    over: AtomicBool,
    done: Box<[Done]>,
}

/// What one hog has done, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Done(AtomicU64);

impl Done {
    fn add(&self, steps: u64) {
        let done = self.0.load(Ordering::Relaxed); // nobody else writes it
        self.0.store(done + steps, Ordering::Relaxed);
    }
}

impl Hogs {
    /// So many hogs, not started yet.
    #[must_use]
    pub fn new(kind: Kind, count: usize) -> Self {
        Hogs {
            kind,
            over: AtomicBool::new(false),
            done: (0..count).map(|_| Done::default()).collect(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.done.len()
    }

    /// What all have done together.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.done
            .iter()
            .map(|done| done.0.load(Ordering::Relaxed))
            .sum()
    }

    /// How many have done something.
    #[must_use]
    pub fn started(&self) -> usize {
        let begun = |done: &&Done| done.0.load(Ordering::Relaxed) > 0;
        self.done.iter().filter(begun).count()
    }

    /// Begins to measure what they do.
    #[must_use]
    pub fn begin(&self) -> Begin {
        Begin {
            clock: Instant::now(),
            cpu: crate::cpu_time(),
            iterations: self.iterations(),
        }
    }

    /// Ends them all, each at the end of its step.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The life of one of them, until [`stop`](Self::stop).
    ///
    /// # Panics
    ///
    /// If there is no such hog.
    pub fn run(&self, index: usize) {
        let done = &self.done[index];
        let seed = 1 + index as u64;
        match self.kind {
            Kind::Arith => self.arith(seed, done),
            Kind::Alloc => self.alloc(seed, done),
            Kind::Println => self.println(index, done),
            Kind::Compress => self.compress(seed, done),
            Kind::Sleep => self.sleep(seed, done),
        }
    }

    fn arith(&self, seed: u64, done: &Done) {
        let mut x = seed;
        while !self.is_over() {
            x = multiply(x, MULTIPLICATIONS);
            done.add(MULTIPLICATIONS);
        }
    }

    fn alloc(&self, seed: u64, done: &Done) {
        let mut kept: [Vec<u8>; KEPT] = [const { Vec::new() }; KEPT];
        let mut x = seed;
        while !self.is_over() {
            x = next(x);
            let size = (16 << ((x >> 59) % 13)) + (x >> 32) as usize % 16; // 16 B to 64 KiB
            let mut fresh = Vec::with_capacity(size);
            fresh.push(x as u8);
            kept[(x >> 20) as usize % KEPT] = fresh;
            done.add(1);
        }
        drop(black_box(kept));
    }

    fn println(&self, index: usize, done: &Done) {
        let mut line = 0u64;
        while !self.is_over() {
            println!("hog {index} prints its line {line}");
            line += 1;
            done.add(1);
        }
    }

    fn compress(&self, seed: u64, done: &Done) {
        let input = text(seed);
        let mut output = Vec::with_capacity(2 * INPUT);
        while !self.is_over() {
            output.clear();
            let mut stream = Compress::new(Compression::default(), true);
            let status = stream.compress_vec(&input, &mut output, FlushCompress::Finish);
            assert_eq!(status.expect("zlib compresses"), Status::StreamEnd);
            done.add(1);
        }
    }

    fn sleep(&self, seed: u64, done: &Done) {
        let mut x = next(seed);
        while !self.is_over() {
            x = next(x);
            thread::sleep(Duration::from_millis(1 + (x >> 32) % 50));
            done.add(1);
        }
    }
}

/// The beginning of a measurement of what hogs do.
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    clock: Instant,
    cpu: Duration,
    iterations: u64,
}

impl Begin {
    /// What the hogs have done since.
    #[must_use]
    pub fn end(self, hogs: &Hogs) -> Rate {
        let seconds = self.clock.elapsed().as_secs_f64();
        Rate {
            iterations: (hogs.iterations() - self.iterations) as f64 / seconds,
            cpus: (crate::cpu_time() - self.cpu).as_secs_f64() / seconds,
        }
    }
}

/// What hogs do in a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Their steps.
    pub iterations: f64,
    /// The CPUs that the process had meanwhile. Fewer than there are: others had them, or they idled.
    pub cpus: f64,
}

impl Rate {
    /// The steps of a second of CPU, which others on the machine disturb less.
    #[must_use]
    pub fn each(self) -> f64 {
        self.iterations / self.cpus
    }

    /// The mean of some.
    #[must_use]
    pub fn mean(rates: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| rates.iter().map(of).sum::<f64>() / rates.len() as f64;
        Rate {
            iterations: mean(|rate| rate.iterations),
            cpus: mean(|rate| rate.cpus),
        }
    }
}

/// Arithmetic that nothing shortens.
#[must_use]
pub fn multiply(mut x: u64, times: u64) -> u64 {
    for _ in 0..times {
        x = black_box(next(x));
    }
    x
}

fn next(x: u64) -> u64 {
    x.wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// Something like text: compressible, and different for each seed.
fn text(seed: u64) -> Vec<u8> {
    let mut x = next(seed);
    let letter = |_| {
        x = next(x);
        b"eeeettaaooinnshrdlu  \n"[(x >> 40) as usize % 22]
    };
    (0..INPUT).map(letter).collect()
}

/// What as many hogs on as many plain threads do in a second, with nobody beside them.
///
/// # Panics
///
/// If a thread cannot be had.
#[must_use]
pub fn plain(kind: Kind, threads: usize, time: Duration) -> Rate {
    let hogs = Arc::new(Hogs::new(kind, threads));
    let start = |index| {
        let hogs = hogs.clone();
        thread::spawn(move || hogs.run(index))
    };
    let threads: Vec<_> = (0..threads).map(start).collect();
    thread::sleep(Duration::from_millis(20)); // all run by then
    let begin = hogs.begin();
    thread::sleep(time);
    let rate = begin.end(&hogs);
    hogs.stop();
    for thread in threads {
        thread.join().expect("a hog does not panic");
    }
    rate
}

/// How long a plain thread takes for so much arithmetic: the multiplications that make up `time` of
/// CPU here and now, the machine being quiet.
#[must_use]
pub fn multiplications(time: Duration) -> u64 {
    let probe = 2_000_000;
    let took = |_| {
        let start = Instant::now();
        black_box(multiply(1, probe));
        start.elapsed()
    };
    let best = (0..20).map(took).min().expect("some probes");
    (probe as f64 * time.as_secs_f64() / best.as_secs_f64()) as u64
}

/// The program's output: stdout, or what it was before it became a pipe that a thread drains.
#[derive(Debug)]
pub struct Output {
    real: File,
    drain: Option<JoinHandle<()>>,
}

impl Output {
    /// Makes stdout a pipe if that kind of hog prints.
    ///
    /// # Panics
    ///
    /// If there are no descriptors left.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let real = File::from(unistd::dup(io::stdout()).expect("a descriptor"));
        let drain = (kind == Kind::Println).then(|| {
            let (reader, writer) = io::pipe().expect("a pipe");
            unistd::dup2_stdout(&writer).expect("stdout can be replaced");
            thread::spawn(move || drain(reader))
        });
        Output { real, drain }
    }

    /// What stdout was when the program began.
    pub fn real(&mut self) -> &mut impl Write {
        &mut self.real
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let Some(drain) = self.drain.take() else {
            return;
        };
        io::stdout().flush().expect("the pipe is being drained");
        unistd::dup2_stdout(&self.real).expect("stdout can be put back");
        drain.join().expect("draining does not panic");
    }
}

fn drain(mut reader: PipeReader) {
    let mut buffer = [0; 1 << 16];
    while reader.read(&mut buffer).expect("a pipe can be read") > 0 {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_does_something_until_it_is_stopped() {
        let mut output = Output::new(Kind::Println);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            let rate = plain(kind, 2, Duration::from_millis(300));
            assert!(rate.iterations > 0.0, "{kind:?}");
        }
        output.real().flush().unwrap();
    }

    #[test]
    fn twice_the_time_is_twice_the_work() {
        let work = multiplications(Duration::from_millis(100));
        assert!(work > 1_000_000, "{work}");
    }
}
