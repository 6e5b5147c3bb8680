//! The promises of the public types: which of them may cross threads, and that all can be named.
//!
//! The half that must not compile (closures that borrow or are not `Send`, a guard that leaves its
//! fiber) lives in `compile_fail` doctests of `spawn`, `pin` and `block_on`.

use std::cell::Cell;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::time::{Duration, Instant};

use indent::chan;
use indent::park::{ParkReason, Unparker, Woken};
use indent::runtime::{Abandoned, Handle, Metrics, ShutdownReport, StackGuard, WorkerMetrics};
use indent::select::{Fired, Select, Token};
use indent::sync::{
    AcquireError, Barrier, BarrierWaitResult, Condvar, Event, LazyLock, Member, Mutex, MutexGuard,
    Notify, Once, OnceLock, OnceState, OwnedSemaphorePermit, RwLock, RwLockReadGuard,
    RwLockWriteGuard, Semaphore, SemaphorePermit, SpinLock, SpinLockGuard, TryAcquireError,
    WaitGroup,
};
use indent::task::{Fiber, Phase, PinGuard};
use indent::{JoinError, JoinHandle, NoRuntime, Runtime, SpawnError, StartError};

/// Compiles only if the type has none of the traits: with one of them `some_item` is ambiguous.
macro_rules! assert_not {
    ($type:ty: $($trait:path),+) => {
        const _: fn() = || {
            trait AmbiguousIfImpl<A> {
                fn some_item() {}
            }
            impl<T: ?Sized> AmbiguousIfImpl<()> for T {}
            $({
                struct Invalid;
                impl<T: ?Sized + $trait> AmbiguousIfImpl<Invalid> for T {}
            })+
            let _ = <$type as AmbiguousIfImpl<_>>::some_item;
        };
    };
}

/// Compiles only if the type has all of the traits.
macro_rules! assert_has {
    ($($type:ty: $($trait:path),+;)+) => {
        const _: fn() = || {
            $({
                fn has<T: ?Sized $(+ $trait)+>() {}
                has::<$type>();
            })+
        };
    };
}

assert_has! {
    Runtime: Send, Sync, Debug;
    Handle: Send, Sync, Clone, Debug;
    indent::runtime::Builder: Send, Sync, Clone, Debug, Default;
    Metrics: Send, Sync, Clone, Debug;
    WorkerMetrics: Send, Sync, Clone, Debug;
    ShutdownReport: Send, Sync, Clone, Debug, Default, Display;
    Abandoned: Send, Sync, Clone, Debug;
    StackGuard: Send, Sync, Copy, Debug, Eq;
    indent::task::Builder: Send, Sync, Clone, Debug, Default;
    Fiber: Send, Sync, Clone, Debug;
    Phase: Send, Sync, Copy, Debug, Eq;
    PinGuard: Debug;
    Unparker: Send, Sync, Clone, Debug;
    Woken: Send, Sync, Copy, Debug, Eq;
    ParkReason: Send, Sync, Copy, Debug, Display, Eq;
    JoinHandle<u32>: Send, Sync, Debug;
    StartError: Send, Sync, Error;
    SpawnError: Send, Sync, Error, Clone, Eq;
    NoRuntime: Send, Sync, Error, Copy, Eq;
    JoinError: Send, Sync, Error;
}

assert_has! {
    chan::Sender<Cell<u8>>: Send, Sync, Clone, Debug;
    chan::Receiver<Cell<u8>>: Send, Sync, Clone, Debug;
    chan::OneshotSender<Cell<u8>>: Send, Sync, Debug;
    chan::OneshotReceiver<Cell<u8>>: Send, Sync, Debug;
    chan::BroadcastSender<u8>: Send, Sync, Clone, Debug;
    chan::BroadcastReceiver<u8>: Send, Sync, Clone, Debug;
    chan::WatchSender<u8>: Send, Sync, Clone, Debug;
    chan::WatchReceiver<u8>: Send, Sync, Clone, Debug;
    chan::Ref<u8>: Send, Sync, Debug;
    chan::Iter<'static, u8>: Send, Sync, Debug, Iterator;
    chan::TryIter<'static, u8>: Send, Sync, Debug, Iterator;
    chan::IntoIter<u8>: Send, Sync, Debug, Iterator;
    chan::BroadcastIter<'static, u8>: Send, Sync, Debug, Iterator;
    chan::WatchIter<'static, u8>: Send, Sync, Debug, Iterator;
    chan::SendError<Rc<()>>: Debug, Error;
    chan::TrySendError<Rc<()>>: Debug, Error;
    chan::SendTimeoutError<Rc<()>>: Debug, Error;
    chan::RecvError: Send, Sync, Copy, Error, Eq;
    chan::TryRecvError: Send, Sync, Copy, Error, Eq;
    chan::RecvTimeoutError: Send, Sync, Copy, Error, Eq;
    chan::BroadcastError: Send, Sync, Copy, Error, Eq;
    Select<'static>: Debug, Default;
    Token<Rc<()>>: Send, Sync, Copy, Debug;
    Fired<'static, 'static>: Debug;
}

// A value that is sent to another thread must be `Send`.
assert_not!(chan::Sender<Rc<()>>: Send, Sync);
assert_not!(chan::Receiver<Rc<()>>: Send, Sync);
assert_not!(chan::OneshotSender<Rc<()>>: Send, Sync);
assert_not!(chan::OneshotReceiver<Rc<()>>: Send, Sync);
// A value that several receivers read must be readable from several threads.
assert_not!(chan::BroadcastSender<Cell<u8>>: Send, Sync);
assert_not!(chan::BroadcastReceiver<Cell<u8>>: Send, Sync);
assert_not!(chan::WatchSender<Cell<u8>>: Send, Sync);
assert_not!(chan::WatchReceiver<Cell<u8>>: Send, Sync);
assert_not!(chan::Ref<Cell<u8>>: Send, Sync);
// One value: one right to send it, and one right to receive it.
assert_not!(chan::OneshotSender<u8>: Clone);
assert_not!(chan::OneshotReceiver<u8>: Clone);
// Arms refer to the fiber they wait for.
assert_not!(Select<'static>: Send, Sync, Clone);
assert_not!(Fired<'static, 'static>: Send, Sync, Clone);
// The guard stays on its fiber's thread.
assert_not!(PinGuard: Send, Sync, Clone);
// The payload of a panic exists once.
assert_not!(JoinError: Clone);
// There is one right to a result, and one owner of a runtime.
assert_not!(JoinHandle<u32>: Clone);
assert_not!(Runtime: Clone);
// Checks the macro itself: a type that has the trait would not compile here.
assert_not!(Rc<()>: Send, Sync);

#[test]
fn everything_public_can_be_named_and_called() {
    type Body = fn() -> u32;
    let _: fn(Body) -> JoinHandle<u32> = indent::spawn;
    let _: fn(Body) -> JoinHandle<u32> = indent::task::spawn;
    let _: fn(Body) -> u32 = indent::block_on;
    let _: fn(Body) -> u32 = indent::runtime::block_on;
    let _: fn() = indent::task::yield_now;
    let _: fn() = indent::task::checkpoint;
    let _: fn() -> Option<u64> = indent::task::id;
    let _: fn() -> Option<Fiber> = indent::task::current;
    let _: fn() -> PinGuard = indent::task::pin;
    let _: fn() = indent::park::park;
    let _: fn() -> Unparker = indent::park::unparker;
    let _: fn(Option<Instant>, ParkReason) -> Woken = indent::park::park_until;

    let _: fn() -> Handle = Handle::current;
    let _: fn() -> Result<Handle, NoRuntime> = Handle::try_current;
    let _: fn(&Handle) -> Metrics = Handle::metrics;
    let _: fn(&Handle) -> Vec<Fiber> = Handle::fibers;
    let _: fn(&Handle, Body) -> JoinHandle<u32> = Handle::spawn;
    let _: fn(&Handle, Body) -> u32 = Handle::block_on;
    let _: fn(&Runtime) -> &Handle = Runtime::handle;
    let _: fn(&Runtime) = Runtime::wait_idle;
    let _: fn(&Runtime) -> Metrics = Runtime::metrics;
    let _: fn(&Runtime, Body) -> JoinHandle<u32> = Runtime::spawn;
    let _: fn(&Runtime, Body) -> u32 = Runtime::block_on;
    let _: fn(Runtime, Duration) -> ShutdownReport = Runtime::shutdown_timeout;
    let _: fn(&ShutdownReport) -> bool = ShutdownReport::is_clean;
    let _: fn(indent::runtime::Builder) -> Result<Runtime, StartError> =
        indent::runtime::Builder::build;

    type Task = indent::task::Builder;
    let _: fn(Task, &'static str) -> Task = Task::name;
    let _: [fn(Task, usize) -> Task; 3] = [Task::stack_size, Task::worker, Task::preferred_worker];
    let _: fn(Task) -> Task = Task::pinned;
    let _: fn(Task, Body) -> JoinHandle<u32> = Task::spawn;
    let _: fn(Task, Body) -> Result<JoinHandle<u32>, SpawnError> = Task::try_spawn;

    type Joined = Result<u32, JoinError>;
    let _: fn(JoinHandle<u32>) -> Joined = JoinHandle::join;
    let _: fn(JoinHandle<u32>, Duration) -> Result<Joined, JoinHandle<u32>> =
        JoinHandle::join_timeout;
    let _: fn(&JoinHandle<u32>) -> bool = JoinHandle::is_finished;
    let _: fn(&JoinHandle<u32>) -> u64 = JoinHandle::id;
    let _: fn(&JoinHandle<u32>) -> Fiber = JoinHandle::fiber;
    let _: fn(&JoinHandle<u32>) -> Unparker = JoinHandle::unparker;
    let _: [fn(&JoinError) -> bool; 3] = [
        JoinError::is_panic,
        JoinError::is_cancelled,
        JoinError::is_no_stack,
    ];
    let _: fn(&Unparker) = Unparker::unpark;

    let _: fn(&Fiber) -> u64 = Fiber::id;
    let _: fn(&Fiber) -> Option<&str> = Fiber::name;
    let _: fn(&Fiber) -> &'static Location<'static> = Fiber::location;
    let _: fn(&Fiber) -> Phase = Fiber::phase;
    let _: fn(&Fiber) -> ParkReason = Fiber::park_reason;
    let _: fn(&Fiber) -> bool = Fiber::is_cancelled;
}

/// `OnlySend` may be sent but not shared; `Neither` may be neither sent nor shared.
type OnlySend = std::cell::Cell<u8>;
type Neither = Rc<u8>;
/// May be shared but not sent.
type OnlySync = std::sync::MutexGuard<'static, u8>;

assert_has! {
    Mutex<OnlySend>: Send, Sync, UnwindSafe, RefUnwindSafe, Debug, Default, From<OnlySend>;
    MutexGuard<'static, OnlySend>: Send;
    MutexGuard<'static, u8>: Send, Sync, Debug, Display;
    MutexGuard<'static, OnlySync>: Sync;
    RwLock<u8>: Send, Sync, UnwindSafe, RefUnwindSafe, Debug, Default, From<u8>;
    RwLock<OnlySend>: Send;
    RwLockReadGuard<'static, OnlySync>: Send, Sync, Debug;
    RwLockReadGuard<'static, u8>: Display;
    RwLockWriteGuard<'static, u8>: Send, Sync, Debug, Display;
    Condvar: Send, Sync, Debug, Default;
    Semaphore: Send, Sync, Debug;
    SemaphorePermit<'static>: Send, Sync, Debug;
    OwnedSemaphorePermit: Send, Sync, Debug;
    AcquireError: Send, Sync, Copy, Eq, Error;
    TryAcquireError: Send, Sync, Copy, Eq, Error;
    Event: Send, Sync, Debug, Default;
    Notify: Send, Sync, Debug, Default;
    Barrier: Send, Sync, Debug;
    BarrierWaitResult: Send, Sync, Copy, Debug;
    Once: Send, Sync, Debug, Default;
    OnceState: Debug;
    OnceLock<u8>: Send, Sync, Clone, Eq, UnwindSafe, RefUnwindSafe, Debug, Default, From<u8>;
    OnceLock<OnlySend>: Send;
    LazyLock<u8>: Send, Sync, UnwindSafe, RefUnwindSafe, Debug, Default;
    WaitGroup: Send, Sync, Clone, Debug, Default;
    Member: Send, Sync, Debug;
    SpinLock<OnlySend>: Send, Sync, Debug, Default, From<OnlySend>;
    SpinLockGuard<'static, u8>: Sync, Debug, Display;
    SpinLockGuard<'static, OnlySync>: Sync;
}

// A guard may go to another thread only if the protected value may; sharing a guard shares the
// value.
assert_not!(Mutex<Neither>: Send, Sync);
assert_not!(MutexGuard<'static, Neither>: Send, Sync);
assert_not!(MutexGuard<'static, OnlySend>: Sync);
assert_not!(MutexGuard<'static, OnlySync>: Send);
assert_not!(RwLock<Neither>: Send, Sync);
assert_not!(RwLock<OnlySend>: Sync);
assert_not!(RwLock<OnlySync>: Send, Sync);
assert_not!(RwLockReadGuard<'static, OnlySend>: Send, Sync);
assert_not!(RwLockWriteGuard<'static, OnlySend>: Send, Sync);
assert_not!(RwLockWriteGuard<'static, OnlySync>: Send);
assert_not!(OnceLock<OnlySend>: Sync);
assert_not!(OnceLock<OnlySync>: Send, Sync);
assert_not!(LazyLock<Neither>: Send, Sync);
assert_not!(LazyLock<OnlySend>: Sync);
assert_not!(SpinLock<Neither>: Send, Sync);
assert_not!(SpinLockGuard<'static, u8>: Send);
assert_not!(SpinLockGuard<'static, OnlySend>: Sync);

#[test]
fn a_lock_returns_what_that_of_std_returns() {
    fn std_types(mutex: &Mutex<u8>) -> std::sync::LockResult<MutexGuard<'_, u8>> {
        let tried: indent::sync::TryLockResult<_> = mutex.try_lock();
        drop(tried.map_err(|error: std::sync::TryLockError<_>| drop(error)));
        let result: indent::sync::LockResult<_> = mutex.lock();
        result.map_err(|error: indent::sync::PoisonError<_>| error)
    }
    assert!(std_types(&Mutex::new(1)).is_ok());
}

#[test]
fn a_handle_crosses_threads_whatever_its_result_is() {
    // A result that is `Send` but not `Sync` leaves its handle `Sync`.
    fn is_sync<T: Sync + Send>(_: &T) {}
    let rt = indent::runtime::Builder::new().workers(1).build().unwrap();
    let fiber = rt.spawn(|| std::cell::Cell::new(5));
    is_sync(&fiber);
    assert_eq!(
        std::thread::spawn(move || fiber.join().unwrap().get())
            .join()
            .unwrap(),
        5
    );
}

#[test]
fn every_setting_of_a_runtime_can_be_given() {
    let rt = indent::runtime::Builder::new()
        .workers(1)
        .max_carriers(512)
        .stack_size(64 * 1024)
        .stack_guard(StackGuard::Page)
        .coop_budget(64)
        .local_queue(64)
        .global_interval(31)
        .thread_name("contract")
        .on_thread_start(|| ())
        .on_thread_stop(|| ())
        .build()
        .unwrap();
    assert_eq!(rt.metrics().stack_guard, StackGuard::Page);
    assert_eq!(rt.block_on(|| 5), 5);
}
