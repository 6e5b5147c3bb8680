//! Runs bodies on fibers and on plain threads, and compares the results.

use std::collections::BTreeMap;
use std::io::Write;
use std::iter::repeat;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Handle, Runtime};

use crate::body::{Body, FIBERS, Me, Outcome};
use crate::step::{MOVES, PARKS, SWITCHES};

/// Exit code of the process if a run was wrong.
pub const WRONG: i32 = 1;
/// Exit code of the process if it hangs.
const HANGS: i32 = 3;
/// Number of rounds in which all fibers run, and the number when all bodies are mixed.
///
/// How many run at once and how often each switches is the same in every build; so a slow build, or
/// a busy machine, has fewer rounds. The first round always runs to its end: then every fiber has
/// had all of its switches.
const ROUNDS: u64 = 4;
const MIXED: u64 = 3;
/// Time after which no further round begins.
const ENOUGH: Duration = Duration::from_secs(4);
const ENOUGH_MIXED: Duration = Duration::from_secs(40);
/// Stack size of fibers; a debug build of `flate2` overflows the default size.
const STACK: usize = 1 << 20;
/// Most characters of an error that are shown.
const SHOWN: usize = 120;
const QUANTUM: Duration = Duration::from_micros(200);
/// Much longer than any body takes, also in a debug build beside busy processes.
const LIMIT: Duration = Duration::from_secs(600);
/// The same for all bodies mixed.
const LIMIT_MIXED: Duration = Duration::from_secs(1800);

fn runtime() -> Runtime {
    if std::env::args().any(|argument| argument == "--trust-pointers") {
        trust_pointers();
    }
    let builder = Builder::new().workers(2).preempt_quantum(QUANTUM);
    let builder = builder.stack_size(STACK);
    let rt = builder.build().expect("a runtime");
    rt.wait_until_surveyed(None);
    if std::env::args().any(|argument| argument == "--trust") {
        trust_everything(rt.handle());
    }
    rt
}

/// Lets every fiber move, whatever its frames show: bodies that rely on being bound must fail then.
#[expect(unsafe_code, reason = "shows that a body can fail")]
fn trust_everything(handle: &Handle) {
    // SAFETY: none: the flag shows what goes wrong.
    unsafe { handle.trust_everything(true) };
}

/// Assumes that code behind pointers leaves nothing, so that frames and the look decide on each
/// body.
///
/// For all examples that is true.
#[expect(unsafe_code, reason = "vouches for the examples")]
fn trust_pointers() {
    // SAFETY: no example keeps something of its thread from a call through a pointer.
    unsafe { indent_sysmon::frames::trust_pointers() };
}

/// The function of a body.
///
/// It has its own type, so that it is called directly, or is a pointer to a function.
pub trait Run: Fn(&Me) -> Outcome + Copy + Send + 'static {}

impl<F: Fn(&Me) -> Outcome + Copy + Send + 'static> Run for F {}

/// Returns the outcomes of fibers that run at once, by their numbers.
fn on_fibers<R: Run>(rt: &Runtime, runs: &[(R, Me)]) -> Vec<Outcome> {
    let start = |&(run, me): &(R, Me)| rt.spawn(move || run(&me));
    let fibers: Vec<_> = runs.iter().map(start).collect();
    let join = |fiber: indent::task::JoinHandle<Outcome>| match fiber.join() {
        Ok(outcome) => outcome,
        Err(error) => Err(error.to_string()),
    };
    fibers.into_iter().map(join).collect()
}

/// Does the same for threads.
fn on_threads<R: Run>(runs: &[(R, Me)]) -> Vec<Outcome> {
    let start = |&(run, me): &(R, Me)| thread::spawn(move || run(&me));
    let threads: Vec<_> = runs.iter().map(start).collect();
    let join = |thread: thread::JoinHandle<Outcome>| {
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err("panicked".to_owned()))
    };
    threads.into_iter().map(join).collect()
}

fn all_of<R: Copy>(run: R, of: u64, round: u64) -> Vec<(R, Me)> {
    (0..of).map(|n| (run, Me { n, of, round })).collect()
}

/// Error texts without the numbers in them, and their counts.
#[derive(Default)]
struct Wrong(BTreeMap<String, u64>);

impl Wrong {
    fn note(&mut self, place: &str, what: &str) {
        let shown: String = what.chars().take(SHOWN).collect();
        let shown = shown.replace(|c: char| c.is_ascii_digit(), "#");
        *self.0.entry(format!("{place}: {shown}")).or_default() += 1;
    }

    /// Records what is wrong with the outcomes of fibers, which are in the order of these names.
    fn compare<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        fibers: &[Outcome],
        threads: Option<&[Outcome]>,
    ) {
        for (n, (name, outcome)) in names.zip(fibers).enumerate() {
            match (outcome, threads.map(|threads| &threads[n])) {
                (Err(what), _) => self.note(name, what),
                (Ok(value), Some(Ok(expected))) if value != expected => {
                    self.note(name, &format!("{value} instead of {expected}"));
                }
                _ => {}
            }
        }
    }

    fn count(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Runs the body of this name and prints its row; returns true if all was right.
///
/// `at_once` runs start together; if `plain` is set, threads run it, too.
pub fn alone(name: &'static str, run: impl Run, at_once: u64, plain: bool) -> bool {
    let rounds = if plain { ROUNDS } else { 1 };
    let rt = runtime();
    let watched = watch(name, rt.handle().clone(), LIMIT);
    let begun = Instant::now();
    let of_round = |round| on_fibers(&rt, &all_of(run, at_once, round));
    let begins = |&round: &u64| round == 0 || begun.elapsed() < ENOUGH;
    let fibers: Vec<_> = (0..rounds).take_while(begins).map(of_round).collect();
    let report = rt.binding();
    drop(rt);
    let on_threads = || on_threads(&all_of(run, at_once, rounds));
    let threads = plain.then(on_threads);
    drop(watched);

    let mut wrong = Wrong::default();
    let outcomes = threads.iter().flatten();
    let errors = outcomes.filter_map(|outcome| outcome.as_ref().err());
    errors.for_each(|what| wrong.note("thread", what));
    for outcomes in &fibers {
        wrong.compare(repeat(name), outcomes, threads.as_deref());
    }
    let runs = at_once * (fibers.len() as u64 + u64::from(plain));
    let bound = report.rows.iter().map(|row| row.parks).sum::<u64>() + report.others;
    let why = |row: &indent::runtime::BindingRow| {
        let variable = row.variable.as_deref().unwrap_or("?");
        let path = row.path.iter().map(|(name, how)| format!("{name} {how}"));
        let path: Vec<_> = path.collect();
        format!("{:?} {variable}: {}", row.cause, path.join(", "))
    };
    let why = report.rows.first().map(why).unwrap_or_default();
    print_row(name, runs, &wrong, bound + report.unjudged, &why);
    wrong.count() == 0
}

/// Runs all bodies mixed and prints one row.
pub fn together(bodies: &[Body]) -> bool {
    let rt = runtime();
    let watched = watch("together", rt.handle().clone(), LIMIT_MIXED);
    let mut wrong = Wrong::default();
    let mut runs = 0;
    let usual: Vec<_> = bodies.iter().filter(|body| body.fibers == FIBERS).collect();
    let begun = Instant::now();
    let begins = |&round: &u64| round == 0 || begun.elapsed() < ENOUGH_MIXED;
    for round in (0..MIXED).take_while(begins) {
        // The first of every body, then the second of every body, so that neighbours differ.
        let all = usual.iter().map(|body| all_of(**body, FIBERS, round));
        let mut mixed: Vec<_> = all.flatten().collect();
        mixed.sort_by_key(|(_, me)| me.n);
        let names = mixed.iter().map(|(body, _)| body.name);
        let mixed_runs: Vec<_> = mixed.iter().map(|(body, me)| (body.run, *me)).collect();
        runs += mixed.len() as u64;
        wrong.compare(names, &on_fibers(&rt, &mixed_runs), None);
    }
    drop(watched);
    let report = rt.binding();
    let bound = report.rows.iter().map(|row| row.parks).sum::<u64>() + report.others;
    print_row("together", runs, &wrong, bound + report.unjudged, "");
    wrong.count() == 0
}

fn print_row(name: &str, runs: u64, wrong: &Wrong, bound: u64, why: &str) {
    let [switches, parks, moves] = [&SWITCHES, &PARKS, &MOVES].map(|count| count.load(Relaxed));
    let count = wrong.count();
    let of_kind = |(what, times): (&String, &u64)| format!("{times} x {what}");
    let kinds: Vec<_> = wrong.0.iter().map(of_kind).collect();
    let last = if kinds.is_empty() {
        why.to_owned()
    } else {
        kinds.join("; ")
    };
    let row = format!("{name}\t{runs}\t{count}\t{switches}\t{parks}\t{bound}\t{moves}\t{last}\n");
    // Bodies may have left standard output locked, so this bypasses the lock.
    let mut out = std::mem::ManuallyDrop::new(stdout());
    out.write_all(row.as_bytes()).expect("a row");
}

/// Returns the descriptor of standard output, without std's lock.
#[expect(unsafe_code, reason = "standard output without its lock")]
fn stdout() -> std::fs::File {
    // SAFETY: the descriptor is open, and the caller does not close it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(1) }
}

/// Ends the process with a dump if the returned sender is not dropped in time.
fn watch(name: &'static str, handle: Handle, limit: Duration) -> mpsc::Sender<()> {
    let (running, over) = mpsc::channel();
    thread::spawn(move || {
        if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let dump = format!("{name} HANGS\n{}\n", handle.dump());
            drop(std::io::stderr().write_all(dump.as_bytes()));
            std::process::exit(HANGS);
        }
    });
    running
}
