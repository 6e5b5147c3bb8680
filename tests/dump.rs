//! The dump: a text that shows what every fiber does and waits for.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

use indent::runtime::{Builder, Runtime};
use indent::sync::Mutex;
use indent::task::{JoinHandle, Phase};

fn runtime() -> Runtime {
    let rt = Builder::new().workers(2).build().unwrap();
    rt.wait_until_surveyed(None);
    rt
}

fn wait_until_parked<T>(fiber: &JoinHandle<T>) {
    common::wait_for("it parks", || fiber.fiber().phase() == Phase::Parked);
}

/// Returns the dump's line of a fiber.
fn line_of<T>(dump: &str, fiber: &JoinHandle<T>) -> String {
    let begin = format!("  fiber {}, ", fiber.id());
    let line = dump.lines().find(|line| line.starts_with(&begin));
    line.unwrap_or_else(|| panic!("no {begin:?} in {dump}"))
        .to_owned()
}

#[test]
fn a_dump_names_the_fiber_that_is_joined_and_since_when() {
    let rt = runtime();
    let child = rt.spawn(indent::park::park);
    let (id, unparker) = (child.id(), child.unparker());
    let parent = rt.spawn(move || child.join().unwrap());
    wait_until_parked(&parent);
    std::thread::sleep(std::time::Duration::from_millis(30));
    let line = line_of(&rt.handle().dump(), &parent);
    assert!(line.contains(&format!("(join of fiber {id})")), "{line}");
    let waited = line.split_once("parked for ").unwrap().1;
    let waited: u64 = waited.split_once("ms").unwrap().0.parse().unwrap();
    assert!((15..60_000).contains(&waited), "{line}");
    unparker.unpark();
    parent.join().unwrap();
}

#[test]
fn fibers_that_wait_for_one_lock_name_the_same_lock() {
    let rt = runtime();
    let locks = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
    let held = [locks[0].lock(), locks[1].lock()];
    let wait = |lock: &Arc<Mutex<i32>>| {
        let lock = lock.clone();
        rt.spawn(move || *lock.lock().unwrap() += 1)
    };
    let waiting = [wait(&locks[0]), wait(&locks[0]), wait(&locks[1])];
    waiting.iter().for_each(wait_until_parked);
    let dump = rt.handle().dump();
    let address = |fiber: &JoinHandle<()>| {
        let line = line_of(&dump, fiber);
        let address = line.split_once("(lock at ").unwrap().1;
        address.split_once(')').unwrap().0.to_owned()
    };
    assert_eq!(address(&waiting[0]), address(&waiting[1]));
    assert_ne!(address(&waiting[0]), address(&waiting[2]));
    drop(held);
    waiting.into_iter().for_each(|fiber| fiber.join().unwrap());
}

thread_local! {
    static BORROWED: std::cell::RefCell<u64> = const { std::cell::RefCell::new(0) };
}

#[inline(never)]
fn holds_a_borrow() {
    BORROWED.with_borrow_mut(|count| {
        indent::park::park();
        *count += 1;
    });
}

#[test]
fn a_dump_says_what_binds_a_fiber_and_lists_it_before_those_that_hold_no_thread() {
    if common::all_fibers_are_bound() {
        return;
    }
    let rt = runtime();
    let movable = rt.spawn(indent::park::park);
    wait_until_parked(&movable);
    let bound = rt.spawn(holds_a_borrow);
    // A fiber counts as parked shortly before it has been judged.
    common::wait_for("it is bound", || {
        line_of(&rt.handle().dump(), &bound).contains("(park), bound, on thread ")
    });
    let dump = rt.handle().dump();
    let line = line_of(&dump, &bound);
    // Sanitizer builds do not read the stacks of other fibers.
    let named = line.contains("holds_a_borrow") || line.contains("BORROWED");
    assert!(named || cfg!(indent_sanitize), "{line}");
    let line = line_of(&dump, &movable);
    assert!(line.ends_with("(park)"), "{line}");
    let place = |fiber: &JoinHandle<()>| dump.find(&line_of(&dump, fiber)).unwrap();
    assert!(place(&bound) < place(&movable), "{dump}");
    for fiber in [movable, bound] {
        fiber.unparker().unpark();
        fiber.join().unwrap();
    }
}

#[test]
fn a_dump_tells_fibers_that_were_interrupted_or_block_their_thread_from_others() {
    if common::sanitizer_forbids("preemption is not measured there") {
        return;
    }
    let rt = runtime();
    let stop = Arc::new(AtomicBool::new(false));
    let computing: Vec<_> = (0..6)
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocking = rt.spawn(move || blocked.recv().is_ok());
    let says =
        |fiber: &JoinHandle<_>, what: &str| line_of(&rt.handle().dump(), fiber).contains(what);
    common::wait_for("one is interrupted", || {
        rt.handle()
            .dump()
            .contains("interrupted, waiting for its turn")
    });
    common::wait_for("one is detached", || {
        says(&blocking, "blocks its thread in the kernel")
    });
    stop.store(true, SeqCst);
    release.send(()).unwrap();
    assert!(blocking.join().unwrap());
    computing
        .into_iter()
        .for_each(|fiber| fiber.join().unwrap());
}
