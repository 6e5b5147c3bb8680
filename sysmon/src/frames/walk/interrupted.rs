//! Tests of walks in a signal handler, of a stack that was interrupted anywhere.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use super::super::probe::{Caught, Told, catch, within};
use super::super::sites::{Site, Sites, resolve_in};
use super::*;

static KNOWN: Sites = Sites::new();
static TOP: AtomicUsize = AtomicUsize::new(0);
static ROOT: AtomicUsize = AtomicUsize::new(0);
static UNKNOWN: AtomicUsize = AtomicUsize::new(0);
static BOUND: AtomicUsize = AtomicUsize::new(0);
static BROKEN: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's, for the time of the handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let register = |which: i32| context.uc_mcontext.gregs[which as usize] as usize;
    let [ip, sp, bp] = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP].map(register);
    let top = TOP.load(SeqCst);
    // SAFETY: our own stack, above what was interrupted.
    let stack = unsafe { Stack::new(sp..top) };
    let mut told = Told::new(sp..top);
    told.ask();
    let (mut count, mut right) = (0, true);
    let end = walk_in(
        &KNOWN,
        &Registers::interrupted(ip, sp, bp),
        &stack,
        top,
        |address, sp| {
            let returns = usize::from(count > 0);
            right &= told.places[count] == (address + returns, sp);
            count += 1;
        },
    );
    if end == End::Root && !(right && count == told.count) {
        WRONG.fetch_add(1, SeqCst);
    }
    match end {
        End::Root => &ROOT,
        End::Unknown { .. } => &UNKNOWN,
        End::Bound { .. } => &BOUND,
        End::Broken { .. } => &BROKEN,
    }
    .fetch_add(1, SeqCst);
    SIGNALS.fetch_add(1, SeqCst);
}

/// Does a bit of everything: hashing, sorting, formatting, allocation.
fn work(rounds: usize) -> usize {
    let mut map = HashMap::new();
    let mut tree = BTreeMap::new();
    for n in 0..200 {
        let text = format!("{:>5}", n * rounds % 977);
        *map.entry(text.clone()).or_insert(0) += n;
        tree.insert(n * 31 % 199, text);
    }
    let mut all: Vec<_> = map.into_iter().collect();
    all.sort();
    all.len() + tree.values().filter(|text| text.ends_with('7')).count()
}

#[test]
fn stress_interrupted_stacks_are_climbed_from_a_handler() {
    const COUNT: usize = 4_000;
    let action = handler as extern "C" fn(_, _, _);
    // SAFETY: zeros are a valid action; what matters is set below.
    let mut set: libc::sigaction = unsafe { std::mem::zeroed() };
    set.sa_sigaction = action as usize;
    set.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler only walks, which a handler may do; no other test uses the signal.
    unsafe { libc::sigaction(libc::SIGUSR2, &set, std::ptr::null_mut()) };
    let worker = thread::spawn(|| {
        within(|| {
            catch(&mut |caught: &Caught| {
                caught.told(); // its first-time initialization is done
                TOP.store(caught.root, SeqCst);
            });
            let mut rounds = 0;
            while SIGNALS.load(SeqCst) < COUNT {
                rounds += black_box(work(rounds));
            }
        });
    });
    while TOP.load(SeqCst) == 0 {
        thread::yield_now();
    }
    use std::os::unix::thread::JoinHandleExt;
    let target = worker.as_pthread_t();
    while SIGNALS.load(SeqCst) < COUNT && !worker.is_finished() {
        let before = SIGNALS.load(SeqCst);
        // SAFETY: it is joined below.
        unsafe { libc::pthread_kill(target, libc::SIGUSR2) };
        while SIGNALS.load(SeqCst) == before && !worker.is_finished() {
            thread::yield_now();
        }
        resolve_in(&KNOWN, |_, row| Site::new(Mobility::Movable, row));
    }
    worker.join().unwrap();
    let (root, unknown) = (ROOT.load(SeqCst), UNKNOWN.load(SeqCst));
    let (bound, broken) = (BOUND.load(SeqCst), BROKEN.load(SeqCst));
    println!("{root} to the root, {unknown} unknown, {bound} bound, {broken} broken");
    assert_eq!(WRONG.load(SeqCst), 0, "led astray");
    // Bound: in another library, or in a stub of the linker, which has no row.
    assert!(root > COUNT / 4 && broken < COUNT / 10);
}
