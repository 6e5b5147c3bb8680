#![expect(unsafe_code, reason = "forks")]
//! `fork` without `exec`: the child has one thread and no runtime, and reports that instead of
//! hanging.
//!
//! The child of each test checks a few things and exits with the number of the first that is wrong.
//! Its parent waits for it; a child that does not exit in time counts as hanging.

use std::any::Any;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason, Woken};
use indent::runtime::{self, Builder, Handle, Runtime};
use indent::{JoinHandle, SpawnError, StartError, task, time};

mod common;

/// A child that takes this long hangs.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(2);

fn runtime() -> Runtime {
    Builder::new().workers(2).build().expect("a runtime")
}

/// Forks; the child calls `f` and exits with its result.
fn forked(f: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child continues in Rust code, which these tests are about; glibc's allocator is
    // consistent in it.
    match unsafe { libc::fork() } {
        // SAFETY: the call ends the process.
        0 => unsafe { libc::_exit(f()) },
        -1 => panic!("{}", std::io::Error::last_os_error()),
        child => child,
    }
}

/// Waits for a child and returns its exit status.
fn status(child: libc::pid_t) -> i32 {
    let begun = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the call writes to `status` only.
        let waited = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        assert!(waited >= 0, "{}", std::io::Error::last_os_error());
        if waited == child {
            assert!(libc::WIFEXITED(status), "ended by a signal: {status:#x}");
            return libc::WEXITSTATUS(status);
        }
        if begun.elapsed() > LONG {
            // SAFETY: a child of this process that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the number of the first wrong check of a child; each has a name.
fn first_wrong(found: &[(&str, bool)]) -> i32 {
    let wrong = found.iter().position(|(_, right)| !right);
    if let Some(at) = wrong {
        complain(&format!("in the child: not so: {}\n", found[at].0));
    }
    wrong.map_or(0, |at| at as i32 + 1)
}

/// Writes to standard error without std's lock, which another thread may have held at the fork.
fn complain(text: &str) {
    // SAFETY: the buffer is valid for its length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Returns the message of a closure's panic, if there is one; prints nothing.
fn panic_of<T>(f: impl FnOnce() -> T) -> String {
    std::panic::set_hook(Box::new(|_| ()));
    let text = |payload: Box<dyn Any + Send>| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(_) => String::from("something else"),
    };
    catch_unwind(AssertUnwindSafe(f)).map_or_else(text, |_| String::new())
}

/// Fibers that spawn, park and end all the time, so that a fork interrupts something.
struct Traffic(Vec<JoinHandle<()>>);

impl Traffic {
    fn on(rt: &Runtime) -> Self {
        let busy = || {
            loop {
                let parts: Vec<_> = (0..8).map(|_| indent::spawn(task::yield_now)).collect();
                parts.into_iter().for_each(|part| drop(part.join()));
                time::sleep(Duration::from_micros(50));
                runtime::blocking(|| ());
            }
        };
        Traffic((0..4).map(|_| rt.spawn(busy)).collect())
    }
}

/// Checks what a plain thread observes in the child.
fn is_plain() -> i32 {
    let thread = std::thread::current().id();
    let begun = Instant::now();
    time::sleep(SHORT);
    let slept = begun.elapsed() >= SHORT;
    task::yield_now();
    task::checkpoint();
    park::unparker().unpark();
    park::park();
    let deadline = Some(Instant::now() + SHORT);
    first_wrong(&[
        ("no fiber runs here", task::id().is_none()),
        ("nothing is known of it", task::current().is_none()),
        ("there is no runtime", Handle::try_current().is_err()),
        ("a sleep takes its time", slept),
        (
            "a park ends in time",
            park::park_until(deadline, ParkReason::Park) == Woken::ByDeadline,
        ),
        (
            "a time limit is heard",
            time::timeout(SHORT, || time::sleep(LONG)).is_err(),
        ),
        (
            "calls that block are simply made",
            runtime::blocking(|| std::thread::current().id()) == thread,
        ),
        (
            "computations, too",
            runtime::compute(|| std::thread::current().id()) == thread,
        ),
        ("a pin does nothing", {
            let _pin = task::pin();
            true
        }),
    ])
}

#[test]
fn a_fiber_that_forks_is_a_plain_thread_in_the_child() {
    let rt = runtime();
    let children: Vec<_> = (0..8).map(|_| rt.spawn(|| forked(is_plain))).collect();
    for child in children {
        assert_eq!(status(child.join().unwrap()), 0);
    }
    let nested = || forked(|| status(forked(is_plain)));
    assert_eq!(status(rt.block_on(nested)), 0, "and so in its child");
}

#[test]
fn a_thread_that_forks_is_as_plain_in_the_child() {
    let rt = runtime();
    assert_eq!(status(forked(is_plain)), 0);
    let inside = rt.block_on(|| runtime::blocking(|| forked(is_plain)));
    assert_eq!(status(inside), 0, "one that serves fibers, too");
    let waits = rt.block_on(|| {
        let child = || {
            rt.wait_idle(); // inside the runtime: not refused, but does not wait
            0
        };
        runtime::blocking(|| forked(child))
    });
    assert_eq!(status(waits), 0);
    let no_fiber = || i32::from(task::id().is_some() || Handle::try_current().is_ok());
    let inside = rt.block_on(|| runtime::compute(|| forked(no_fiber)));
    assert_eq!(status(inside), 0, "one that computes as well");
}

#[test]
fn a_fiber_goes_on_in_the_parent_as_if_nothing_had_been() {
    let rt = runtime();
    let ids = rt.block_on(|| {
        let before = task::id();
        let child = forked(|| 0);
        time::sleep(SHORT);
        indent::spawn(task::yield_now).join().unwrap();
        runtime::blocking(|| assert_eq!(status(child), 0));
        (before, task::id())
    });
    assert!(ids.0.is_some());
    assert_eq!(ids.0, ids.1);
}

/// Checks that a child cannot spawn.
fn cannot_spawn(handle: &Handle) -> i32 {
    let refused = task::Builder::new().try_spawn(|| ()).err();
    let text = SpawnError::Forked.to_string();
    let build = Builder::new().workers(1).build();
    first_wrong(&[
        (
            "it says why",
            text.contains("forked") && text.contains("exec"),
        ),
        ("try_spawn refuses", refused == Some(SpawnError::Forked)),
        (
            "spawn says so",
            panic_of(|| indent::spawn(|| ())).contains(&text),
        ),
        (
            "so does that of a handle",
            panic_of(|| handle.spawn(|| ())).contains(&text),
        ),
        (
            "so does block_on",
            panic_of(|| handle.block_on(|| ())).contains(&text),
        ),
        (
            "so does that of the default runtime",
            panic_of(|| indent::block_on(|| ())).contains("forked"),
        ),
        (
            "no runtime can be started",
            matches!(build, Err(StartError::Forked)),
        ),
        (
            "nor is there one",
            Handle::try_current().is_err_and(|e| e.to_string().contains("forked")),
        ),
    ])
}

#[test]
fn a_spawn_in_the_child_is_refused_with_a_sentence() {
    let rt = runtime();
    let handle = rt.handle().clone();
    assert_eq!(status(forked(|| cannot_spawn(&handle))), 0);
    let child = rt.block_on(|| forked(|| cannot_spawn(&handle)));
    assert_eq!(status(child), 0);
    let ended = runtime();
    let handle = ended.handle().clone();
    drop(ended);
    assert_eq!(status(forked(|| cannot_spawn(&handle))), 0, "gone before");
}

#[test]
fn a_join_in_the_child_waits_for_nobody() {
    let rt = runtime();
    let over = rt.spawn(|| String::from("over"));
    while !over.is_finished() {
        std::thread::yield_now();
    }
    let parked: Vec<_> = (0..3).map(|_| rt.spawn(park::park)).collect();
    let wakers: Vec<_> = parked.iter().map(JoinHandle::unparker).collect();
    let child = forked(move || {
        let mut parked = parked.into_iter();
        let unpark = parked.next().unwrap();
        unpark.unparker().unpark();
        let error = unpark.join().unwrap_err();
        let other = parked.next().unwrap().join_timeout(LONG);
        drop(parked);
        first_wrong(&[
            ("what was over is there", over.join().unwrap() == "over"),
            ("what was not is an error", error.is_forked()),
            (
                "which says where it is",
                error.to_string().contains("forked from; join it there"),
            ),
            (
                "and which has nothing to do with time",
                other.is_ok_and(|result| result.unwrap_err().is_forked()),
            ),
        ])
    });
    assert_eq!(status(child), 0);
    wakers.iter().for_each(park::Unparker::unpark);
    rt.wait_idle();
}

/// Checks a child that has a runtime without its threads.
fn leaves_it_alone(rt: Runtime) -> i32 {
    let fibers = rt.handle().fibers();
    let seen = fibers.iter().all(|fiber| fiber.name().is_none());
    let workers = rt.metrics().workers_in_service;
    let text = format!("{rt:?} {fibers:?}");
    rt.wait_idle();
    let report = rt.shutdown_timeout(LONG);
    first_wrong(&[
        ("fibers can be looked at", seen && !fibers.is_empty()),
        ("numbers, too", workers == 2),
        ("and printed", text.contains("Runtime")),
        ("a shutdown does nothing", report.is_clean()),
    ])
}

#[test]
fn in_the_child_a_busy_runtime_is_left_alone() {
    for _ in 0..20 {
        let rt = runtime();
        let _traffic = Traffic::on(&rt);
        time::sleep(SHORT);
        assert_eq!(status(forked(move || leaves_it_alone(rt))), 0);
        // In the parent, the drop above ended the runtime's fibers.
    }
    let rt = runtime();
    let traffic = Traffic::on(&rt);
    let child = forked(move || {
        drop(traffic);
        drop(rt);
        0
    });
    assert_eq!(status(child), 0, "dropped");
}

#[test]
fn in_the_child_what_a_runtime_left_behind_can_be_dropped() {
    let rt = runtime();
    let handle = rt.handle().clone();
    let fiber = rt.spawn(|| 7);
    rt.wait_idle();
    drop(rt);
    let child = forked(move || {
        let value = fiber.join().unwrap();
        drop(handle); // the last handle
        first_wrong(&[("its result is there", value == 7)])
    });
    assert_eq!(status(child), 0);
}

#[test]
fn stress_forks_beside_traffic_hang_neither_child_nor_parent() {
    let rt = runtime();
    let traffic = Traffic::on(&rt);
    let parked: Vec<_> = (0..32).map(|_| rt.spawn(park::park)).collect();
    let wakers: Vec<_> = parked.iter().map(JoinHandle::unparker).collect();
    for round in 0..60 {
        let (handle, wakers) = (rt.handle().clone(), &wakers);
        let child = move || {
            wakers.iter().for_each(park::Unparker::unpark);
            drop(handle.metrics());
            drop(handle.fibers());
            let refused = task::Builder::new().try_spawn(|| ()).is_err();
            first_wrong(&[("a spawn is refused", refused)]) + is_plain()
        };
        let child = match round % 3 {
            0 => forked(child),
            1 => rt.block_on(|| forked(child)),
            _ => rt.block_on(|| runtime::blocking(|| forked(child))),
        };
        assert_eq!(status(child), 0);
    }
    let mut all = traffic.0.iter().chain(&parked);
    assert!(
        all.all(|fiber| !fiber.is_finished()),
        "children wake nobody"
    );
}

#[test]
fn commands_work_in_fibers_with_and_without_pre_exec() {
    let rt = runtime();
    let run = |with: bool| {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]);
        if with {
            let look = || {
                time::sleep(SHORT);
                assert!(task::id().is_none());
                Ok(())
            };
            // SAFETY: `look` takes no lock and allocates nothing.
            unsafe { command.pre_exec(look) };
        }
        let status = runtime::blocking(|| command.status());
        let direct = command.status();
        assert_eq!(status.unwrap().code(), Some(7));
        assert_eq!(direct.unwrap().code(), Some(7), "without a thread for it");
    };
    let commands: Vec<_> = (0..8).map(|i| rt.spawn(move || run(i % 2 == 0))).collect();
    commands
        .into_iter()
        .for_each(|command| command.join().unwrap());
    let refused = || {
        let mut command = Command::new("sh");
        // SAFETY: the closure takes no lock and allocates nothing.
        unsafe { command.pre_exec(|| Err(std::io::ErrorKind::Unsupported.into())) };
        command.status().is_err()
    };
    assert!(rt.block_on(refused), "and fail as they should");
    let missing = || Command::new("/no/such/program").status().is_err();
    assert!(rt.block_on(missing));
}

/// Returns the output of a test's program up to the end of its children.
fn said_by(test: &str) -> String {
    let output = common::in_child(&format!("child::{test}"), &[]);
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn a_closure_that_returns_in_the_child_ends_it_and_says_so() {
    let text = said_by("closures_that_return");
    let lines: Vec<_> = text.lines().filter(|l| l.contains("indent:")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(
        lines[0].contains("'returner', spawned at tests/fork.rs"),
        "{text}"
    );
    for line in lines {
        assert!(line.contains("returned in the child of a fork"), "{line}");
        assert!(line.contains("ends with status 70"), "{line}");
        assert!(line.contains("exec or _exit"), "{line}");
    }
}

#[test]
fn a_process_that_forks_before_its_first_runtime_is_a_program_like_any_other() {
    common::alone("forks_before_the_first_runtime");
}

/// Test bodies that the tests above run, each in a process of its own.
mod child {
    use super::*;

    /// Forks; in the child the fiber returns, with a null result.
    fn fork_and_return() -> libc::pid_t {
        // SAFETY: the child returns to the runtime, which ends the process.
        unsafe { libc::fork() }
    }

    #[test]
    #[ignore = "a process of its own: its standard error is looked at"]
    fn closures_that_return() {
        let rt = runtime();
        let named = task::Builder::new().name("returner");
        let returner = rt.block_on(|| named.spawn(fork_and_return)).join().unwrap();
        assert_eq!(status(returner), 70);
        let panics = || match fork_and_return() {
            0 => std::panic::resume_unwind(Box::new("no message")),
            child => child,
        };
        assert_eq!(status(rt.block_on(panics)), 70, "or panics");
        let lent = rt.block_on(|| runtime::blocking(fork_and_return));
        assert_eq!(status(lent), 70, "on a thread for it");
        let lent = rt.block_on(|| runtime::compute(fork_and_return));
        assert_eq!(status(lent), 70);
    }

    #[test]
    #[ignore = "a process of its own: no runtime was started in it"]
    fn forks_before_the_first_runtime() {
        let child = forked(|| {
            let rt = runtime();
            let sum = rt.block_on(|| indent::spawn(|| 20).join().unwrap() + 1);
            let late = rt.block_on(|| forked(is_plain));
            first_wrong(&[
                ("it has a runtime", sum == 21),
                ("whose fork has none", status(late) == 0),
            ])
        });
        assert_eq!(status(child), 0);
    }
}
