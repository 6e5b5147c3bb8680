//! The runtime's own frames: a suspended stack holds nothing of a thread in them (S5, S8).
//!
//! The analysis trusts the runtime's functions to read everything again after a switch, so they
//! count with their own instructions alone. These tests check those instructions, in this very
//! program.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use indent::sync;
use indent::task::{self, Mobility};
use indent_sysmon::frames::Judge;

mod common;

/// Functions that may touch thread-locals: they run on other stacks, or keep nothing on them.
const ELSEWHERE: [&str; 21] = [
    // On the scheduler's stack, and at the start of a thread.
    "indent::sys::redirect::clear_vectors",
    "indent::sched::workers::run::run_fibers",
    "indent::sched::preempt::anywhere::Identity::of",
    "indent::sys::thread::memory",
    "indent::sys::program::find_next",
    "indent::sched::workers::context::",
    "indent::fiber::locals::",
    "indent::sys::signal::AlternateStack",
    "indent::sched::threads::start::carrier_main",
    "indent::sys::thread::be_nicer",
    // In the signal handler, and in calls that do not switch.
    "indent::sys::thread::number",
    "indent::sys::alarm::Alarm",
    "indent::sys::memory::allow_arenas",
    "indent::sys::thread::is_current",
    "indent::sys::errno::get",
    "indent::sys::errno::set",
    "indent::sys::signal::unblock",
    "indent::sys::affinity::get",
    "indent::sys::affinity::set",
    // The keys of its hash map; in the helper, and at a start.
    "indent::sched::diag::overrun::reporter::Reporter::",
    // Outside the trusted runtime (`lists/runtime.txt`): a closure of this file, inlined.
    "indent::runtime::no_preempt::no_preempt",
];

/// Calls every blocking function, so that all of them are part of this program.
fn use_everything() {
    let fiber = indent::spawn(|| {
        task::yield_now();
        task::checkpoint();
        indent::park::park();
        indent::time::sleep(Duration::from_micros(10));
        let limit = Duration::from_secs(60);
        indent::time::timeout(limit, task::yield_now).unwrap();
        indent::time::interval(Duration::from_micros(10)).tick();
        indent::runtime::blocking(|| ());
        indent::runtime::compute(|| ());
        indent::runtime::handoff();
        indent::runtime::no_preempt(task::yield_now);
        indent::spawn(|| ()).join().unwrap();
    });
    fiber.unparker().unpark();
    let fiber = fiber.join_timeout(Duration::from_secs(60)).unwrap();
    fiber.unwrap();
}

#[test]
fn functions_of_the_runtime_touch_thread_locals_in_one_module_only() {
    if common::all_fibers_are_bound() {
        return;
    }
    if common::sanitizer_forbids("its code touches thread-locals everywhere") {
        return;
    }
    use_everything();
    let judge = Judge::survey();
    let ours = |name: &str| {
        let here = name.contains("frames::Counted"); // a trait of this file
        !here && (name.starts_with("indent::") || name.starts_with("<indent::"))
    };
    let own = judge.functions().filter_map(|f| Some((f, f.name()?)));
    let own: Vec<_> = own.filter(|(_, name)| ours(name)).collect();
    assert!(own.len() > 100, "{} functions found", own.len());
    let touching = own.iter().filter(|(f, _)| f.touches);
    let strangers: Vec<_> = touching
        .map(|(_, name)| name.as_str())
        .filter(|name| !ELSEWHERE.iter().any(|part| name.contains(part)))
        .collect();
    assert!(strangers.is_empty(), "{strangers:#?}");
}

thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });

/// A trait of this file that types of the runtime implement.
trait Counted {
    fn counted(&self);
}

/// Waits with the address of a thread-local, which the compiler cannot compute again.
#[inline(always)]
fn wait_with_address() {
    static NOTHING: AtomicUsize = AtomicUsize::new(0);
    let address = COUNT.with(std::ptr::from_ref);
    let address = address.wrapping_byte_add(NOTHING.load(Relaxed));
    task::yield_now();
    assert!(!address.is_null());
}
impl Counted for task::Fiber {
    #[inline(never)]
    fn counted(&self) {
        wait_with_address();
    }
}
impl<T> Counted for task::JoinHandle<T> {
    #[inline(never)]
    fn counted(&self) {
        wait_with_address();
    }
}

#[test]
fn a_trait_of_a_user_for_a_type_of_the_runtime_is_judged_like_any_code() {
    if common::sanitizer_forbids("its code touches thread-locals everywhere") {
        return;
    }
    let fiber = indent::spawn(|| task::current().map(|fiber| fiber.counted()));
    fiber.counted();
    fiber.join().unwrap();
    let judge = Judge::survey();
    let named = judge.functions().filter_map(|f| Some((f, f.name()?)));
    let traits = named.filter(|(_, name)| name.contains("Counted>::counted"));
    let traits: Vec<_> = traits.collect();
    // The linker may fold functions with equal code into one.
    assert!((1..=2).contains(&traits.len()), "{}", traits.len());
    for (function, name) in traits {
        assert_eq!(
            function.mobility,
            indent_sysmon::frames::Mobility::Bound,
            "{name}"
        );
    }
}

/// Returns the verdict on a fiber that waits in this way repeatedly, once it is known.
fn verdicts(mut wait: impl FnMut() + Send + 'static) -> Mobility {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let fiber = indent::spawn(move || {
        while !stopped.load(Relaxed) {
            wait();
        }
    });
    let noted = || fiber.fiber().binding().mobility();
    for _ in 0..10_000 {
        if noted() != Mobility::Unjudged {
            break; // until then the verdict may be unknown
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let (verdict, binding) = (noted(), fiber.fiber().binding());
    stop.store(true, Relaxed);
    fiber.join().unwrap();
    println!("{binding:?}");
    verdict
}

#[test]
fn a_fiber_that_holds_nothing_of_its_thread_may_move_wherever_it_waits() {
    if common::all_fibers_are_bound() {
        return;
    }
    if common::sanitizer_forbids("its code touches thread-locals everywhere") {
        return;
    }
    assert_eq!(verdicts(task::yield_now), Mobility::Movable);
    assert_eq!(
        verdicts(|| indent::time::sleep(Duration::from_micros(50))),
        Mobility::Movable
    );
    assert_eq!(
        verdicts(|| indent::spawn(|| ()).join().unwrap()),
        Mobility::Movable
    );
    assert_eq!(
        verdicts(|| indent::runtime::blocking(|| ())),
        Mobility::Movable
    );
    assert_eq!(
        verdicts(|| indent::runtime::no_preempt(task::yield_now)),
        Mobility::Movable
    );
    // The closure's own use still counts. (Optimized code compares the address before it waits.)
    if cfg!(debug_assertions) {
        assert_eq!(
            verdicts(|| indent::runtime::no_preempt(wait_with_address)),
            Mobility::Bound
        );
    }
}

#[test]
fn a_fiber_that_waits_at_a_channel_or_in_a_select_may_move() {
    use indent::{chan, select};
    if common::all_fibers_are_bound() {
        return;
    }
    if common::sanitizer_forbids("its code touches thread-locals everywhere") {
        return;
    }
    const SOON: Duration = Duration::from_micros(200);
    let (_tx, rx) = chan::bounded::<String>(0);
    let theirs = rx.clone();
    let receive = move || drop(theirs.recv_timeout(SOON));
    assert_eq!(verdicts(receive), Mobility::Movable);
    let (full, _rx) = chan::bounded(0);
    let send = move || drop(full.send_timeout("text".to_owned(), SOON));
    assert_eq!(verdicts(send), Mobility::Movable);
    let (_once, mut answer) = chan::oneshot::<String>();
    let receive = move || drop(answer.recv_timeout(SOON));
    assert_eq!(verdicts(receive), Mobility::Movable);
    let (_news, mut hears) = chan::broadcast::<String>(1);
    let hear = move || drop(hears.recv_timeout(SOON));
    assert_eq!(verdicts(hear), Mobility::Movable);
    let (_state, mut watches) = chan::watch(1);
    let watch = move || drop(watches.recv_timeout(SOON));
    assert_eq!(verdicts(watch), Mobility::Movable);
    let selects = move || {
        select! {
            recv(&rx) -> value => drop(value),
            after(SOON) => {}
        }
    };
    assert_eq!(verdicts(selects), Mobility::Movable);
}

/// Held by another fiber, or unavailable, for as long as the test runs.
static MUTEX: sync::Mutex<u32> = sync::Mutex::new(0);
static OTHER: sync::Mutex<u32> = sync::Mutex::new(0);
static LOCK: sync::RwLock<u32> = sync::RwLock::new(0);
static NONE: sync::Semaphore = sync::Semaphore::new(0);
static NEVER: sync::Event = sync::Event::new();
static NOBODY: sync::Notify = sync::Notify::new();
static CHANGE: sync::Condvar = sync::Condvar::new();
static BARRIER: sync::Barrier = sync::Barrier::new(2);
static UNDONE: sync::Once = sync::Once::new();
static EMPTY: sync::OnceLock<u32> = sync::OnceLock::new();
static GROUP: sync::LazyLock<sync::WaitGroup> = sync::LazyLock::new(|| {
    let group = sync::WaitGroup::new();
    group.add(1);
    group
});

#[test]
fn a_fiber_that_waits_for_a_lock_may_move() {
    if common::all_fibers_are_bound() {
        return;
    }
    if common::sanitizer_forbids("its code touches thread-locals everywhere") {
        return;
    }
    const SHORT: Duration = Duration::from_micros(50);
    let held = (MUTEX.lock().unwrap(), LOCK.write().unwrap(), &*GROUP);
    let waits: [(&str, fn()); 11] = [
        ("once", || assert!(!UNDONE.wait_timeout(SHORT))),
        ("cell", || assert!(EMPTY.wait_timeout(SHORT).is_none())),
        ("mutex", || drop(MUTEX.lock_timeout(SHORT))),
        ("read", || drop(LOCK.read_timeout(SHORT))),
        ("write", || drop(LOCK.write_timeout(SHORT))),
        ("semaphore", || drop(NONE.acquire_timeout(SHORT))),
        ("event", || assert!(!NEVER.wait_timeout(SHORT))),
        ("notify", || assert!(!NOBODY.notified_timeout(SHORT))),
        ("barrier", || assert!(BARRIER.wait_timeout(SHORT).is_none())),
        ("group", || assert!(!GROUP.wait_timeout(SHORT))),
        ("condvar", || {
            let guard = OTHER.lock().unwrap();
            drop(CHANGE.wait_timeout(guard, SHORT));
        }),
    ];
    for (name, wait) in waits {
        assert_eq!(verdicts(wait), Mobility::Movable, "{name}");
    }
    drop(held);
}
