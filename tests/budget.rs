//! The budget: a fiber whose operations all succeed immediately still lets its siblings run, and
//! operations that cannot block never yield.

mod common;
mod sockets;

use std::io::{Read, Write};
use std::net;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::io::pipe;
use indent::net::{TcpListener, UdpSocket, UnixListener, UnixStream};
use indent::park::{self, ParkReason, Woken};
use indent::runtime::{Builder, Runtime, no_preempt};
use indent::sync::{
    Barrier, Condvar, Event, Mutex, Notify, Once, OnceLock, RwLock, Semaphore, SpinLock, WaitGroup,
};
use indent::task::{self, JoinHandle};

use sockets::fresh_path;

/// Operations a fiber may perform in one turn by default.
const BUDGET: u64 = 128;
/// Number of operations in each test.
const OPERATIONS: u64 = 10_000;

fn runtime(budget: Option<u32>) -> Runtime {
    // Without preemption, because a preempted fiber would yield at other places, too; only the
    // budget counts here.
    let builder = Builder::new().workers(1).preempt(false);
    match budget {
        Some(operations) => builder.coop_budget(operations),
        None => builder,
    }
    .build()
    .unwrap()
}

/// A fiber that counts its turns.
struct Sibling {
    turns: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    fiber: JoinHandle<()>,
}

impl Sibling {
    /// Starts the sibling from a fiber of the only worker, so that both share it.
    fn start() -> Self {
        let (turns, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, end) = (turns.clone(), over.clone());
        let fiber = indent::spawn(move || {
            while !end.load(SeqCst) {
                count.fetch_add(1, SeqCst);
                task::yield_now();
            }
        });
        while turns.load(SeqCst) == 0 {
            task::yield_now();
        }
        Sibling { turns, over, fiber }
    }

    fn turns(&self) -> u64 {
        self.turns.load(SeqCst)
    }

    fn end(self) {
        self.over.store(true, SeqCst);
        self.fiber.join().unwrap();
    }
}

/// Performs the operations beside a sibling.
///
/// Returns the number of the sibling's turns, and the most operations between two of them.
fn beside_a_sibling<T>(things: Vec<T>, mut operation: impl FnMut(T)) -> (u64, u64) {
    let sibling = Sibling::start();
    task::yield_now(); // a new turn, with its whole budget
    let before = sibling.turns();
    let (mut seen, mut row, mut longest) = (before, 0, 0);
    for thing in things {
        operation(thing);
        let now = sibling.turns();
        row = if now == seen { row + 1 } else { 1 };
        seen = now;
        longest = longest.max(row);
    }
    sibling.end();
    (seen - before, longest)
}

fn assert_shared(budget: u64, (turns, longest): (u64, u64)) {
    assert!(
        longest <= budget,
        "{longest} operations in one turn of {budget}"
    );
    let fewest = OPERATIONS / budget - 2;
    assert!(
        turns >= fewest,
        "the sibling ran {turns} times, not {fewest}"
    );
    // The budget must also be used: a yield at every operation would defeat its purpose.
    let most = 2 * OPERATIONS / budget + 2;
    assert!(
        turns <= most,
        "the sibling ran {turns} times, more than {most}"
    );
}

#[test]
fn checkpoints_share_the_worker() {
    common::within(60, || {
        let seen = runtime(None).block_on(|| {
            let things = (0..OPERATIONS).collect();
            beside_a_sibling(things, |_| task::checkpoint())
        });
        assert_shared(BUDGET, seen);
    });
}

/// Returns handles of fibers that have ended, with their results.
fn finished() -> Vec<JoinHandle<u64>> {
    let fibers: Vec<_> = (0..OPERATIONS).map(|i| indent::spawn(move || i)).collect();
    while !fibers.iter().all(|fiber| fiber.is_finished()) {
        task::yield_now();
    }
    fibers
}

#[test]
fn joins_of_finished_fibers_share_the_worker() {
    common::within(60, || {
        let rt = runtime(None);
        let seen =
            rt.block_on(|| beside_a_sibling(finished(), |fiber| assert!(fiber.join().is_ok())));
        assert_shared(BUDGET, seen);
        let seen = rt.block_on(|| {
            beside_a_sibling(finished(), |fiber| {
                let joined = fiber.join_timeout(Duration::from_secs(3600));
                assert!(joined.unwrap().is_ok());
            })
        });
        assert_shared(BUDGET, seen);
    });
}

#[test]
fn parks_whose_wake_came_first_share_the_worker() {
    common::within(60, || {
        let rt = runtime(None);
        let seen = rt.block_on(|| {
            let me = park::unparker();
            beside_a_sibling((0..OPERATIONS).collect(), |_| {
                me.unpark();
                park::park();
            })
        });
        assert_shared(BUDGET, seen);
        let seen = rt.block_on(|| {
            let me = park::unparker();
            let far = Some(Instant::now() + Duration::from_secs(3600));
            beside_a_sibling((0..OPERATIONS).collect(), |_| {
                me.unpark();
                assert_eq!(park::park_until(far, ParkReason::Park), Woken::ByWake);
            })
        });
        assert_shared(BUDGET, seen);
    });
}

#[test]
fn different_operations_are_charged_together() {
    common::within(60, || {
        let seen = runtime(None).block_on(|| {
            let me = park::unparker();
            let fibers = finished().into_iter().enumerate().collect();
            beside_a_sibling(fibers, |(i, fiber)| match i % 3 {
                0 => task::checkpoint(),
                1 => assert!(fiber.join().is_ok()),
                _ => {
                    me.unpark();
                    park::park();
                }
            })
        });
        assert_shared(BUDGET, seen);
    });
}

#[test]
fn locks_that_are_free_share_the_worker() {
    common::within(120, || {
        let (mutex, lock, semaphore) = (Mutex::new(0), RwLock::new(0), Semaphore::new(1));
        let (event, notify, barrier) = (Event::new(), Notify::new(), Barrier::new(1));
        let (group, mut cell) = (WaitGroup::new(), OnceLock::new());
        event.set();
        let far = Duration::from_secs(3600);
        let rt = runtime(None);
        let check = |what: &str, operation: &mut (dyn FnMut() + Send)| {
            println!("{what}");
            let seen =
                rt.block_on(|| beside_a_sibling((0..OPERATIONS).collect(), |_: u64| operation()));
            assert_shared(BUDGET, seen);
        };
        check("a mutex", &mut || *mutex.lock().unwrap() += 1);
        check("with a deadline", &mut || {
            *mutex.lock_timeout(far).unwrap() += 1
        });
        check("reading", &mut || drop(lock.read()));
        check("writing", &mut || drop(lock.write()));
        check("a semaphore", &mut || drop(semaphore.acquire()));
        check("an event", &mut || event.wait());
        check("a word", &mut || {
            notify.notify_one();
            notify.notified();
        });
        check("a barrier", &mut || assert!(barrier.wait().is_leader()));
        check("a group", &mut || group.wait());
        check("a once", &mut || Once::new().call_once(|| ()));
        check("a cell", &mut || {
            cell.get_or_init(|| 1);
            cell.take();
        });
    });
}

#[test]
fn nothing_that_succeeds_at_once_yields_in_a_no_preempt_section() {
    common::within(60, || {
        let rt = runtime(Some(4));
        rt.block_on(|| {
            let sibling = Sibling::start();
            let (mutex, lock) = (Mutex::new(0), SpinLock::new(0));
            task::yield_now();
            let before = sibling.turns();
            no_preempt(|| {
                for _ in 0..100 {
                    *mutex.lock().unwrap() += 1;
                    task::checkpoint();
                    let mut section = lock.lock();
                    *section += *mutex.lock().unwrap();
                }
                assert_eq!(sibling.turns(), before);
            });
            drop(mutex.lock());
            assert!(sibling.turns() > before, "it is paid for after it");
            sibling.end();
        });
    });
}

#[test]
fn a_runtime_has_the_budget_it_was_given() {
    common::within(60, || {
        for budget in [1, 2, 7, 100, 1000] {
            let seen = runtime(Some(budget)).block_on(|| {
                let things = (0..OPERATIONS).collect();
                beside_a_sibling(things, |_| task::checkpoint())
            });
            assert_shared(u64::from(budget), seen);
        }
    });
}

#[test]
fn a_budget_of_all_operations_is_never_used_up() {
    common::within(60, || {
        let (turns, _) = runtime(Some(u32::MAX)).block_on(|| {
            let things = (0..OPERATIONS).collect();
            beside_a_sibling(things, |_| task::checkpoint())
        });
        assert_eq!(turns, 0);
    });
}

/// Checks that an I/O operation shares the worker.
///
/// Operations that succeed immediately do not reach a driver, so one test covers all drivers.
fn assert_io_shares<T>(operation: impl FnOnce() -> T + Send)
where
    T: FnMut(u64) + 'static,
{
    let seen = runtime(None).block_on(|| beside_a_sibling((0..OPERATIONS).collect(), operation()));
    assert_shared(BUDGET, seen);
}

#[test]
fn reads_and_writes_that_need_not_wait_share_the_worker() {
    common::within(60, || {
        // A pipe has room for everything that is written here.
        assert_io_shares(|| {
            let (reader, mut writer) = pipe().unwrap();
            move |_| {
                let _open = &reader;
                writer.write_all(b"x").unwrap();
            }
        });
        assert_io_shares(|| {
            let (mut reader, mut writer) = pipe().unwrap();
            writer.write_all(&[0; OPERATIONS as usize]).unwrap();
            move |_| reader.read_exact(&mut [0]).unwrap()
        });
        // std reads immediately what is written here, and the other way round.
        assert_io_shares(|| {
            let (mut one, other) = UnixStream::pair().unwrap();
            let mut other = other.into_std();
            move |_| {
                one.write_all(b"x").unwrap();
                other.read_exact(&mut [0]).unwrap();
            }
        });
        assert_io_shares(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut theirs = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut ours, _) = listener.accept().unwrap();
            theirs.write_all(&[0; OPERATIONS as usize]).unwrap();
            move |_| {
                let _open = &theirs;
                ours.read_exact(&mut [0]).unwrap();
            }
        });
    });
}

#[test]
fn datagrams_that_are_there_or_find_room_share_the_worker() {
    let pair = || {
        let theirs = net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        theirs.connect(ours.local_addr().unwrap()).unwrap();
        ours.connect(theirs.local_addr().unwrap()).unwrap();
        (ours, theirs)
    };
    common::within(60, || {
        assert_io_shares(|| {
            let (ours, theirs) = pair();
            move |_| {
                assert_eq!(ours.send(b"x").unwrap(), 1);
                assert_eq!(theirs.recv(&mut [0]).unwrap(), 1);
            }
        });
        assert_io_shares(|| {
            let (ours, theirs) = pair();
            move |_| {
                assert_eq!(theirs.send(b"x").unwrap(), 1);
                assert_eq!(ours.recv(&mut [0]).unwrap(), 1);
            }
        });
    });
}

#[test]
fn connections_that_wait_to_be_accepted_share_the_worker() {
    common::within(60, || {
        assert_io_shares(|| {
            // Not TCP: each connection would keep its port for a minute.
            let path = fresh_path();
            let listener = UnixListener::bind(&path).unwrap();
            move |_| {
                let guest = std::os::unix::net::UnixStream::connect(&path).unwrap();
                drop(listener.accept().unwrap());
                drop(guest);
            }
        });
    });
}

#[test]
fn a_yield_brings_a_new_budget() {
    common::within(60, || {
        let seen = runtime(Some(10)).block_on(|| {
            let sibling = Sibling::start();
            let mut extra = 0;
            for _ in 0..100 {
                task::yield_now();
                let before = sibling.turns();
                (0..9).for_each(|_| task::checkpoint());
                extra += sibling.turns() - before;
            }
            sibling.end();
            extra
        });
        assert_eq!(seen, 0);
    });
}

#[test]
fn operations_that_cannot_block_do_not_let_the_sibling_run() {
    common::within(60, || {
        runtime(Some(4)).block_on(|| {
            let parked = indent::spawn(park::park);
            while parked.fiber().phase() != task::Phase::Parked {
                task::yield_now();
            }
            let mut finished: Vec<_> = (0..1000).map(|i| indent::spawn(move || i)).collect();
            while !finished.iter().all(|fiber| fiber.is_finished()) {
                task::yield_now();
            }
            let (mutex, lock, semaphore) = (Mutex::new(0), RwLock::new(0), Semaphore::new(1));
            let (event, notify) = (Event::new(), Notify::new());
            let (condvar, group) = (Condvar::new(), WaitGroup::new());
            let sibling = Sibling::start();
            let unparker = parked.unparker();
            let mut spawned = Vec::new();
            task::yield_now();
            let before = sibling.turns();
            let check = |what: &str, operation: &mut dyn FnMut()| {
                (0..500).for_each(|_| operation());
                assert_eq!(sibling.turns(), before, "{what} let the sibling run");
            };
            check("unpark", &mut || unparker.unpark());
            check("unparking oneself", &mut || park::unparker().unpark());
            check("is_finished", &mut || assert!(!parked.is_finished()));
            check("dropping a finished handle", &mut || drop(finished.pop()));
            check("try_spawn", &mut || {
                spawned.push(task::Builder::new().try_spawn(|| 5))
            });
            check("dropping an unfinished handle", &mut || drop(spawned.pop()));
            check("spawn", &mut || drop(indent::spawn(|| 5)));
            check("id", &mut || assert!(task::id().is_some()));
            check("current", &mut || drop(task::current()));
            check("pin", &mut || drop(task::pin()));
            check("trying locks", &mut || {
                drop((mutex.try_lock(), lock.try_read(), semaphore.try_acquire()));
                drop(lock.try_write());
            });
            check("letting others go on", &mut || {
                notify.notify_one();
                notify.notify_waiters();
                event.set();
                condvar.notify_all();
                drop(group.member());
            });
            let mut guards: Vec<_> = (0..500).map(|_| lock.read()).collect();
            task::yield_now();
            let before = sibling.turns();
            drop(guards.drain(..));
            assert_eq!(
                sibling.turns(),
                before,
                "dropping guards let the sibling run"
            );
            sibling.end();
            parked.join().unwrap();
        });
    });
}
