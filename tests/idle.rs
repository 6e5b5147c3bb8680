//! A runtime without work does nothing at all: none of its threads wakes up, not even to check.
//!
//! One child process holds several runtimes, each idle in another way and with each driver:
//!
//! - after work;
//! - with parked fibers;
//! - with a spare carrier that rests;
//! - with deadlines that have passed and one far in the future;
//! - with connections on which no data arrives.
//!
//! After a time to settle, the kernel may switch to no thread but the measuring one for a few
//! seconds. Where `strace` is installed, it must see no system call.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::{Builder, Runtime};
use indent::task::{self, Phase};

mod common;
mod sockets;

/// How long runtimes may take to settle, and how long they are observed.
const SETTLE: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(5);

#[test]
fn idle_threads_are_never_switched_to() {
    let output = common::in_child("child::count_switches", &[]);
    let text = common::text(&output);
    println!("{text}");
    assert!(output.status.success(), "see above");
    assert!(text.contains("1 passed"), "no such test");
}

#[test]
fn idle_threads_make_no_system_call() {
    if Command::new("strace").arg("-V").output().is_err() {
        return common::skip("strace is not installed");
    }
    let me = std::env::current_exe().expect("the path of this test binary");
    let mut child = Command::new(me)
        .args(["child::wait_for_strace", "--exact", "--ignored"])
        .args(["--nocapture", "--test-threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child process of this test binary");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // The child prints which of its threads waits for this test.
    let waiter = lines.find_map(|line| {
        let line = line.expect("the child's output");
        line.split_once("waiter ")
            .map(|(_, tid)| tid.trim().to_owned())
    });
    let waiter = waiter.expect("the child announces itself");
    let log = format!("{}/idle-{}.strace", env!("CARGO_TARGET_TMPDIR"), child.id());
    let seconds = (SETTLE + WATCH).as_secs().to_string();
    let strace = Command::new("timeout")
        .args([
            "-s", "INT", &seconds, "strace", "-f", "-qq", "-ttt", "-o", &log,
        ])
        .args(["-p", &child.id().to_string()])
        .output()
        .expect("timeout and strace");
    drop(child.stdin.take()); // this ends the child's wait
    let status = child.wait().expect("the child's end");
    let errors = String::from_utf8_lossy(&strace.stderr).into_owned();
    let Ok(text) = std::fs::read_to_string(&log) else {
        return common::skip(&format!("strace wrote nothing: {errors}"));
    };
    drop(std::fs::remove_file(&log));
    if errors.contains("ptrace") {
        return common::skip(&format!("strace may not attach: {errors}"));
    }
    // System calls that were in progress when strace attached, and when it detached.
    let sleeping = |line: &str| {
        line.contains("<unfinished ...>")
            || line.contains("<detached ...>")
            || line.contains("resuming interrupted")
    };
    // When strace attaches, it ends the sleep of threads that wait for descriptors; each checks and
    // sleeps again.
    let when = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
    let settled = text.lines().find_map(when).unwrap_or(0.0) + SETTLE.as_secs_f64();
    let calls: Vec<_> = text
        .lines()
        .filter(|line| when(line).is_none_or(|time| time > settled))
        .filter(|line| line.split_whitespace().next() != Some(&waiter) && !sleeping(line))
        .collect();
    println!("{text}\n{errors}");
    assert!(
        text.lines().count() > 3,
        "strace saw no thread: {text}{errors}"
    );
    assert!(calls.is_empty(), "system calls: {calls:#?}");
    assert!(status.success());
}

mod child {
    use super::*;

    fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !there() {
            assert!(Instant::now() < patience, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn start(name: &str) -> Runtime {
        Builder::new().workers(2).thread_name(name).build().unwrap()
    }

    /// Wakes, steals and sleeps: everything a runtime does.
    fn work(rt: &Runtime) {
        let sum: u64 = rt.block_on(|| {
            let body = |i: u64| {
                for _ in 0..i % 7 {
                    task::yield_now();
                }
                i
            };
            let fibers: Vec<_> = (0..2000).map(|i| indent::spawn(move || body(i))).collect();
            fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
        });
        assert_eq!(sum, 1999 * 2000 / 2);
        let woken: Vec<_> = (0..50).map(|_| rt.spawn(park::park)).collect();
        woken.iter().for_each(|fiber| fiber.unparker().unpark());
        woken.into_iter().for_each(|fiber| fiber.join().unwrap());
    }

    fn after_work() -> Runtime {
        let rt = start("worked");
        work(&rt);
        rt
    }

    fn never_used() -> Runtime {
        start("unused")
    }

    fn with_parked_fibers() -> Runtime {
        let rt = start("parked");
        work(&rt);
        for _ in 0..100 {
            drop(rt.spawn(park::park));
        }
        let parked = |rt: &Runtime| {
            let fibers = rt.handle().fibers();
            fibers.iter().filter(|f| f.phase() == Phase::Parked).count()
        };
        wait_for("parked fibers", || parked(&rt) == 100);
        rt
    }

    fn with_a_spare_carrier() -> Runtime {
        let rt = start("spare");
        work(&rt);
        let release: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let busy = rt.spawn(move || {
            while !release.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        wait_for("a worker taken from a busy carrier", || {
            rt.handle().handoff(0) | rt.handle().handoff(1)
        });
        release.store(true, SeqCst);
        busy.join().unwrap();
        work(&rt);
        wait_for("a resting carrier", || rt.metrics().carriers_spare > 0);
        rt
    }

    fn with_deadlines() -> Runtime {
        let rt = start("deadline");
        work(&rt);
        let hour = Duration::from_secs(3600);
        let far = rt.spawn(move || drop(indent::spawn(park::park).join_timeout(hour)));
        let past: Vec<_> = (0..50)
            .map(|i| {
                let soon = Duration::from_micros(i * 10);
                rt.spawn(move || indent::spawn(park::park).join_timeout(soon).is_err())
            })
            .collect();
        for fiber in past {
            assert!(fiber.join().unwrap(), "nobody unparks it");
        }
        wait_for("a far deadline", || far.fiber().phase() == Phase::Parked);
        rt
    }

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
        let pages = text.split_whitespace().nth(1).expect("a second number");
        pages.parse::<usize>().expect("a number") * 4096
    }

    /// Starts a runtime with idle connections, and a fiber for each that waits for the next
    /// message.
    ///
    /// The other sides of the connections stay open.
    fn with_connections(driver: &str) -> Runtime {
        const CONNECTIONS: usize = 200;
        let name = format!("{driver}-calm");
        let builder = sockets::builder(driver).workers(2).thread_name(name);
        let rt = builder.build().unwrap();
        work(&rt);
        common::wait_for_the_survey();
        let before = resident();
        let address = sockets::serve_echoes(&rt);
        for _ in 0..CONNECTIONS {
            let mut client = std::net::TcpStream::connect(address).unwrap();
            client.write_all(b"hello").unwrap();
            client.read_exact(&mut [0; 5]).unwrap();
            std::mem::forget(client);
        }
        sockets::wait_for_waiters(&rt, CONNECTIONS + 1);
        let each = resident().saturating_sub(before) / CONNECTIONS;
        println!("{driver}: {each} bytes for each of {CONNECTIONS} connections at rest");
        rt
    }

    fn all() -> Vec<Runtime> {
        let runtimes = vec![
            never_used(),
            after_work(),
            with_parked_fibers(),
            with_a_spare_carrier(),
            with_deadlines(),
            with_connections("epoll"),
            with_connections("uring"),
        ];
        std::thread::sleep(SETTLE);
        runtimes
    }

    fn own_tid() -> u64 {
        let link = std::fs::read_link("/proc/thread-self").expect("/proc/thread-self");
        let name = link
            .file_name()
            .expect("a number")
            .to_string_lossy()
            .into_owned();
        name.parse().expect("a number")
    }

    /// Returns how often each thread of this process except the caller was switched to and from.
    fn switches() -> BTreeMap<(u64, String), u64> {
        let me = own_tid();
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir("/proc/self/task").unwrap() {
            let entry = entry.unwrap();
            let tid: u64 = entry.file_name().to_string_lossy().parse().unwrap();
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap();
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_whitespace().nth(1).unwrap().to_owned()
            };
            let count = |name| field(name).parse::<u64>().unwrap();
            if tid != me {
                let sum = count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:");
                all.insert((tid, field("Name:")), sum);
            }
        }
        all
    }

    #[test]
    #[ignore = "needs a process where nothing else happens"]
    fn count_switches() {
        let runtimes = all();
        let before = switches();
        std::thread::sleep(WATCH);
        let after = switches();
        println!("{after:#?}");
        assert!(
            before.len() >= 2 * runtimes.len() + 2,
            "{} threads",
            before.len()
        );
        assert_eq!(before, after, "somebody woke up");
        drop(runtimes);
    }

    #[test]
    #[ignore = "waits until its standard input ends"]
    fn wait_for_strace() {
        let runtimes = all();
        println!("\nwaiter {}", own_tid());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(runtimes);
    }
}
