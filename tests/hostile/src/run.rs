#![expect(
    unsafe_code,
    reason = "sets an environment variable before there are threads"
)]
//! Runs one program, or all of them at once.
//!
//! A program has a process to itself unless it runs with all others. Then those that may share a
//! process do, on one runtime, and the others are started as processes beside it.

use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Metrics, Runtime, Survey};

use crate::heartbeat::Heartbeat;
use crate::options::{self, Options, Task, USAGE};
use crate::programs::{self, Program};
use crate::region;
use crate::say::{self, say};
use crate::stage::Stage;
use crate::watchdog::Watchdog;

const WORKERS: usize = 2;
/// Time to end what is left when the programs are done.
const END: Duration = Duration::from_secs(15);
/// Carriers for all programs at once, which block some hundreds of threads and do not test the cap.
const CARRIERS_FOR_ALL: usize = 2048;
/// Least time for each program of a group.
const LEAST: Duration = Duration::from_secs(1);
const QUANTUM: &str = "INDENT_PREEMPT_QUANTUM_MS";

/// Runs the task of the command line.
pub fn main() -> ExitCode {
    say::prepare();
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(what) => return misused(&what),
    };
    // SAFETY: this is the only thread so far.
    unsafe { std::env::set_var(QUANTUM, &options.quantum) };
    // SAFETY: no program keeps something of its thread from a function that it called through a
    // pointer. Some have such functions, and these would bind all others.
    unsafe { indent_sysmon::frames::trust_pointers() };
    if options.regions {
        region::want();
    }
    let complaints = match &options.task {
        Task::List => {
            list(options.regions);
            Vec::new()
        }
        Task::All => all(&options),
        Task::Regions => regions(&options),
        Task::One(name) => match programs::all().iter().find(|program| program.name == name) {
            Some(program) => one(program, &options),
            None => return misused(&format!("there is no program {name}")),
        },
    };
    complaints.iter().for_each(|what| say(what));
    if complaints.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn misused(what: &str) -> ExitCode {
    say(&format!("{what}\n{USAGE}"));
    ExitCode::from(2)
}

/// Lists all programs, or those for which regions make a difference.
fn list(regions: bool) {
    let listed = |program: &Program| !regions || program.pure;
    for program in programs::all().into_iter().filter(listed) {
        println!("{:<24}{}", program.name, program.why);
    }
}

/// Runs one program; returns the complaints.
fn one(program: &Program, options: &Options) -> Vec<String> {
    if let Some(before) = program.before {
        before();
    }
    let runtime = Builder::new().workers(WORKERS).build().expect("a runtime");
    if let Some(why) = program.impossible() {
        say(&format!("SKIPPED {}: {why}", program.name));
        return Vec::new();
    }
    let limit = options.time + options.patience;
    let watchdog = Watchdog::start(program.name, runtime.handle().clone(), limit);
    let heartbeat = Heartbeat::start(runtime.handle());
    if options.warm {
        heartbeat.warm_up();
    }
    let (handle, seed) = (runtime.handle().clone(), options.seed);
    let stage = Stage::new(program.name, handle, seed, options.time);
    (program.body)(stage);
    let lateness = heartbeat.stop();
    let mut complaints = stage.complaints();
    if can_preempt() && !program.silences {
        complaints.extend(lateness.complaint());
    }
    let (rounds, wrong) = (stage.rounds(), stage.wrong());
    if rounds == 0 {
        complaints.push("nothing came out right, or at all".to_owned());
    }
    let metrics = runtime.metrics();
    // Without symbols, no frame can be recognized as not belonging to the runtime.
    let has_symbols = runtime.wait_until_surveyed(Some(Duration::ZERO)) != Survey::NoSymbols;
    let switches = can_preempt() && has_symbols && program.switches;
    if switches && region::never_switched(&metrics) {
        complaints.push("never switched in place".to_owned());
    }
    let deeds = deeds(&metrics);
    say(&format!(
        "{}: {rounds} rounds, {wrong} wrong, {deeds}; {lateness}",
        program.name
    ));
    complaints.extend(end(runtime));
    drop(watchdog);
    complaints
}

/// Runs one of several programs that end at the same time.
fn perform(
    program: &Program,
    runtime: &Runtime,
    options: &Options,
    until: Instant,
) -> &'static Stage {
    let (handle, seed) = (runtime.handle().clone(), options.seed);
    let stage = Stage::until(program.name, handle, seed, until);
    (program.body)(stage);
    stage
}

/// Runs all programs at the same time.
fn all(options: &Options) -> Vec<String> {
    let builder = Builder::new()
        .workers(WORKERS)
        .max_carriers(CARRIERS_FOR_ALL);
    let runtime = builder.build().expect("a runtime");
    let limit = options.time + 3 * options.patience;
    let watchdog = Watchdog::start("all", runtime.handle().clone(), limit);
    let heartbeat = Heartbeat::start(runtime.handle());
    if options.warm {
        heartbeat.warm_up();
    }
    let possible = |program: &&Program| program.impossible().is_none();
    let programs: Vec<_> = programs::all().into_iter().collect();
    let (apart, together): (Vec<_>, Vec<_>) = programs
        .iter()
        .filter(possible)
        .partition(|program| program.apart);
    let children: Vec<_> = apart
        .iter()
        .map(|program| start(program, options))
        .collect();
    let until = Instant::now() + options.time;
    let stages: Vec<&'static Stage> = thread::scope(|scope| {
        let threads: Vec<_> = together
            .iter()
            .map(|program| scope.spawn(|| perform(program, &runtime, options, until)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("a program");
        threads.into_iter().map(join).collect()
    });
    let mut complaints = Vec::new();
    for stage in stages {
        say(&format!("{}: {} rounds", stage.name, stage.rounds()));
        complaints.extend(stage.complaints());
    }
    complaints.extend(children.into_iter().filter_map(failed));
    let (deeds, lateness) = (deeds(&runtime.metrics()), heartbeat.stop());
    say(&format!("all: {deeds}; {lateness}"));
    complaints.extend(end(runtime));
    drop(watchdog);
    complaints
}

/// Runs the programs about regions one after the other, each in a process of its own.
///
/// Each gets an equal part of the time.
fn regions(options: &Options) -> Vec<String> {
    let programs: Vec<_> = programs::all()
        .into_iter()
        .filter(|program| program.regions)
        .collect();
    let time = options.time / programs.len() as u32;
    let each = Options {
        time: time.max(LEAST),
        warm: true,
        ..options.clone()
    };
    let run = |program: &Program| failed(start(program, &each));
    programs.iter().filter_map(run).collect()
}

fn start(program: &Program, options: &Options) -> (&'static str, Child) {
    let me = std::env::current_exe().expect("the path of this program");
    let (seconds, seed) = (
        options.time.as_secs_f64().to_string(),
        options.seed.to_string(),
    );
    let child = Command::new(me)
        .args([program.name, "--seconds", &seconds, "--seed", &seed])
        .args(["--quantum", &options.quantum])
        .args(options.warm.then_some("--warm"))
        .args(options.regions.then_some("--regions"))
        .spawn();
    (program.name, child.expect("a child process"))
}

fn failed((name, mut child): (&'static str, Child)) -> Option<String> {
    let status = child.wait().expect("a child to wait for");
    (!status.success()).then(|| format!("{name}, in a process of its own: {status}"))
}

/// Checks that nothing is left behind: no fiber, and no thread in the middle of one.
fn end(runtime: Runtime) -> Vec<String> {
    let mut complaints = Vec::new();
    let started = Instant::now();
    let busy = loop {
        let metrics = runtime.metrics();
        let stuck = metrics.carriers_waiting + metrics.carriers_frozen + metrics.carriers_detached;
        let busy = metrics.fibers_alive > 0 || stuck > 0;
        if !busy || started.elapsed() > END {
            break busy;
        }
        thread::sleep(Duration::from_millis(1));
    };
    if busy {
        complaints.push(format!("not idle at the end: {:?}", runtime.metrics()));
    }
    let report = runtime.shutdown_timeout(END);
    if !report.is_clean() {
        complaints.push(report.to_string());
    }
    complaints
}

/// Returns true if the runtime preempts at all; a user may turn preemption off.
pub(crate) fn can_preempt() -> bool {
    std::env::var("INDENT_PREEMPT").map_or(true, |word| word != "off")
}

/// Returns what preemption did.
fn deeds(metrics: &Metrics) -> String {
    let Metrics {
        freezes_total,
        detaches_total,
        preemptions_postponed_total,
        frozen_fibers_released_total,
        preemptions_without_thread_total,
        ..
    } = metrics;
    let switches = region::switches(metrics);
    format!(
        "{switches} switches in place, {freezes_total} freezes, {detaches_total} detaches, \
         {preemptions_postponed_total} postponed, {frozen_fibers_released_total} releases, \
         {preemptions_without_thread_total} times without a thread"
    )
}
