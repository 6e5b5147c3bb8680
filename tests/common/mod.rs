//! Functions that the tests share.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary uses a part of it"
)]

use std::io::Write;
use std::process::{Command, Output};

mod random;
pub use random::Random;

/// Returns the name of the calling thread.
///
/// `std::thread::current` belongs to the fiber and has no name; the system stores the first 15
/// bytes of the thread's name.
pub fn thread_name() -> String {
    if let Some(name) = std::thread::current().name() {
        return name.to_owned();
    }
    let name = std::fs::read_to_string("/proc/thread-self/comm").expect("its own name");
    name.trim_end().to_owned()
}

/// Reports, past the harness's capture, that the calling test cannot run here.
///
/// `.ci/run` counts these reports.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test").to_owned();
    shout(&format!("SKIPPED {name}: {why}"));
}

/// Writes a line that the harness does not capture: it captures the `print!` family only.
///
/// It does not write through `/proc/self/fd`, which would open a file anew: another process's, or
/// one from its beginning.
fn shout(line: &str) {
    drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
}

/// Arguments after an ignored test's name: the binary runs that test and shows its output.
pub const CHILD: [&str; 4] = ["--exact", "--ignored", "--nocapture", "--test-threads=1"];

/// Runs one ignored test of the calling binary in a process of its own.
///
/// For tests that end a process, count its threads or measure its memory. If the child cannot run
/// here, the calling test counts as skipped, too.
pub fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let me = std::env::current_exe().expect("the path of this test binary");
    let output = Command::new(me)
        .arg(test)
        .args(CHILD)
        .envs(variables.iter().copied())
        .output()
        .expect("a child process of this test binary");
    skip_like(&output);
    output
}

/// Reports for the calling test what a child reported by [`skip`] into the pipe held here.
fn skip_like(child: &Output) {
    let said = String::from_utf8_lossy(&child.stderr);
    let skipped = said
        .lines()
        .filter_map(|line| line.strip_prefix("SKIPPED "));
    skipped
        .filter_map(|line| line.split_once(": "))
        .for_each(|(_, why)| skip(why));
}

/// Runs a test of the binary's module `child` in a process of its own.
///
/// The calling test fails if that test fails.
pub fn alone(test: &str) -> String {
    alone_in("", test)
}

/// Does the same for the module `child` of a module, given by its path with that of the crate.
pub fn alone_in(module: &str, test: &str) -> String {
    let module = module
        .split_once("::")
        .map_or("", |(_crate, module)| module);
    let path = format!("{module}::child::{test}");
    let output = in_child(path.trim_start_matches(':'), &[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no such test: {text}");
    println!("{text}");
    text
}

/// Returns the child's standard output and error, for messages.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n--- stdout\n{out}\n--- stderr\n{err}", output.status)
}

/// Starts the survey and waits for its end, for tests that measure memory.
///
/// The survey keeps some memory. A runtime starts it, since the result depends on whether
/// thread-locals belong to fibers or threads.
pub fn wait_for_the_survey() {
    if indent_sysmon::frames::judge().is_none() {
        let builder = indent::runtime::Builder::new().workers(1);
        let rt = builder.build().expect("a runtime");
        let _known_or_impossible = rt.wait_until_surveyed(None);
    }
}

/// Counts the threads of this process whose name begins like this.
///
/// The kernel stores fifteen characters of a name.
pub fn threads_named(begin: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(begin)).count()
}

/// Counts the threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .expect("/proc/self/task")
        .count()
}

/// Runs the closure; if it takes longer than this, ends the process with a message.
///
/// So a test that hangs fails.
pub fn within<T>(seconds: u64, f: impl FnOnce() -> T) -> T {
    use std::sync::mpsc::{self, RecvTimeoutError};

    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let (running, over) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let limit = std::time::Duration::from_secs(seconds);
        if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            shout(&format!(
                "{name} hangs: not done after {seconds} s; aborting"
            ));
            std::process::abort();
        }
    });
    let result = f(); // a panic drops `running` as well
    drop(running);
    watchdog.join().expect("the watchdog ends quietly");
    result
}

/// Waits on a plain thread until `done` returns true, with short sleeps in between.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 60, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

/// Returns true, with a report, where the C library is part of the program, as with musl.
///
/// Its code binds every fiber to its thread.
pub fn all_fibers_are_bound() -> bool {
    let linked_in = cfg!(target_feature = "crt-static");
    if linked_in {
        skip("linked statically: every fiber is bound to its thread");
    }
    linked_in
}

/// Returns true, with a report, if this is a sanitizer build in which the test has no meaning.
pub fn sanitizer_forbids(why: &str) -> bool {
    if cfg!(indent_sanitize) {
        skip(&format!("sanitizer: {why}"));
    }
    cfg!(indent_sanitize)
}
