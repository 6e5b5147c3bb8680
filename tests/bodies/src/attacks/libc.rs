#![expect(unsafe_code, reason = "calls the C library")]
//! State that the C library keeps for a thread.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use super::prepared;
use crate::body::{Me, Outcome, ensure};
use crate::step::{step, thread};

/// Checks that an interrupted fiber finds `errno` as it was.
///
/// A switch of its own may change it.
pub(crate) fn errno_over_an_interrupt(me: &Me) -> Outcome {
    for i in 0..10 {
        let value = (me.n + i) as c_int % 100 + 1;
        // SAFETY: the call has no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the calling thread's own variable, as there is no switch since.
        unsafe { *errno = value };
        let until = Instant::now() + Duration::from_micros(600);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        // SAFETY: the call has no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let found = unsafe { *errno };
        ensure!(found == value, "errno {found} instead of {value}");
        step();
    }
    Ok(me.n)
}

/// A lock of the C library that its owner may take again.
struct Recursive(Box<UnsafeCell<MaybeUninit<libc::pthread_mutex_t>>>);

// SAFETY: a mutex may be used by all threads.
unsafe impl Sync for Recursive {}
// SAFETY: it is in a box of its own and does not move.
unsafe impl Send for Recursive {}

impl Recursive {
    fn new() -> Self {
        let mutex = Box::new(UnsafeCell::new(MaybeUninit::uninit()));
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initializes the attributes.
        unsafe { libc::pthread_mutexattr_init(attributes.as_mut_ptr()) };
        // SAFETY: the attributes are initialized.
        unsafe {
            libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_RECURSIVE)
        };
        // SAFETY: the call initializes the mutex with initialized attributes.
        unsafe { libc::pthread_mutex_init(mutex.get().cast(), attributes.as_ptr()) };
        Recursive(mutex)
    }

    fn lock(&self) -> bool {
        // SAFETY: it was made by `new`.
        unsafe { libc::pthread_mutex_lock(self.0.get().cast()) == 0 }
    }

    fn unlock(&self) -> bool {
        // SAFETY: as above; the C library returns an error if another thread owns it.
        unsafe { libc::pthread_mutex_unlock(self.0.get().cast()) == 0 }
    }
}

/// Takes a lock twice over switches; the second time immediately.
pub(super) fn twice(
    owner: &AtomicU64,
    number: u64,
    lock: impl Fn() -> bool,
    unlock: impl Fn() -> bool,
) -> Outcome {
    for _ in 0..5 {
        ensure!(lock(), "not locked");
        let before = owner.swap(number, SeqCst);
        ensure!(before == 0, "the lock has two owners");
        step();
        ensure!(lock(), "not locked again");
        step();
        ensure!(unlock(), "the inner lock is another's");
        let now = owner.swap(0, SeqCst);
        ensure!(now == number, "the lock has two owners");
        ensure!(unlock(), "the lock is another's");
        step();
    }
    Ok(0)
}

pub(crate) fn recursive_mutex(me: &Me) -> Outcome {
    static LOCK: LazyLock<Recursive> = LazyLock::new(Recursive::new);
    static OWNER: AtomicU64 = AtomicU64::new(0);
    twice(&OWNER, me.number() + 1, || LOCK.lock(), || LOCK.unlock())
}

type Action = Box<dyn Fn() -> bool + Send + Sync>;
type Both = (
    Box<dyn Fn(u64) + Send + Sync>,
    Box<dyn Fn() -> u64 + Send + Sync>,
);

static ACTIONS: OnceLock<[Action; 2]> = OnceLock::new();
static BOTH: OnceLock<Both> = OnceLock::new();

/// Makes the lock before any fiber starts, by code that no fiber refers to.
pub(super) fn prepare() {
    static LOCK: LazyLock<Recursive> = LazyLock::new(Recursive::new);
    drop(ACTIONS.set([Box::new(|| LOCK.lock()), Box::new(|| LOCK.unlock())]));
    drop(BOTH.set((Box::new(set), Box::new(get))));
}

/// Does the same by closures in a static: no frame of the body refers to the C library.
pub(crate) fn recursive_mutex_hidden(me: &Me) -> Outcome {
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let [lock, unlock] = prepared(&ACTIONS);
    twice(&OWNER, me.number() + 1, lock, unlock)
}

/// The key of a value for each thread.
fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the call writes the key.
        unsafe { libc::pthread_key_create(&raw mut key, None) };
        key
    })
}

fn set(n: u64) {
    // SAFETY: a key that was made; its value is a number.
    unsafe { libc::pthread_setspecific(key(), ptr::without_provenance(n as usize)) };
}

fn get() -> u64 {
    // SAFETY: a key that was made.
    unsafe { libc::pthread_getspecific(key()) }.addr() as u64
}

pub(crate) fn specific_value(me: &Me) -> Outcome {
    for i in 1..=20 {
        set(me.n * 100 + i);
        step();
        let found = get();
        ensure!(found == me.n * 100 + i, "another's value");
    }
    set(0);
    Ok(me.n)
}

pub(crate) fn specific_value_hidden(me: &Me) -> Outcome {
    let (set, get) = prepared(&BOTH);
    for i in 1..=20 {
        set(me.n * 100 + i);
        step();
        ensure!(get() == me.n * 100 + i, "another's value");
    }
    set(0);
    Ok(me.n)
}

unsafe extern "C" fn compare(one: *const c_void, other: *const c_void) -> c_int {
    let before = thread();
    step();
    assert_eq!(thread(), before, "moved with frames of C on the stack");
    // SAFETY: elements of the array that is sorted.
    let one = unsafe { *one.cast::<u64>() };
    // SAFETY: as above.
    let other = unsafe { *other.cast::<u64>() };
    one.cmp(&other) as c_int
}

/// A function of the C library is on the stack.
pub(crate) fn sorted_by_callback(me: &Me) -> Outcome {
    let mut numbers = [5, 3, 9, 1, 7, 2].map(|number| number * (me.n + 1));
    // SAFETY: as many elements of this size.
    unsafe {
        libc::qsort(
            numbers.as_mut_ptr().cast(),
            numbers.len(),
            size_of::<u64>(),
            Some(compare),
        );
    }
    ensure!(numbers.is_sorted(), "not sorted");
    Ok(numbers[0])
}

pub(crate) fn pthread_self(me: &Me) -> Outcome {
    for _ in 0..20 {
        // SAFETY: the call has no conditions.
        let before = unsafe { libc::pthread_self() };
        step();
        // SAFETY: the call has no conditions.
        let after = unsafe { libc::pthread_self() };
        ensure!(before == after, "moved with the thread's handle");
    }
    Ok(me.n)
}
