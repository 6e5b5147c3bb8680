//! The look at a parked fiber's stack: an address of a thread-local binds it even if no frame shows
//! one.
//!
//! Here code that is called through pointers returns addresses, and the survey is made to assume
//! that such code does not. So the frames count as movable, and only the look can bind the fiber.

use std::cell::Cell;
use std::collections::HashMap;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use indent::runtime::{BindingCause, BindingRow, Builder, Runtime};
use indent::task::{self, Mobility};
use indent::time;

mod common;

/// Reports that a test cannot run where thread-locals belong to threads, and returns.
macro_rules! needs_own_locals {
    () => {
        if common::sanitizer_forbids("thread-locals are the threads' there") {
            return;
        }
        if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
            return common::skip("the C library is linked statically");
        }
    };
}

/// An address at an odd offset.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Packed {
    tag: u8,
    address: usize,
    end: u16,
}

thread_local! {
    static VARIABLE: Cell<u64> = const { Cell::new(0) };
    static SAVED: Cell<usize> = const { Cell::new(0) };
    static PACKED: Cell<Packed> = const { Cell::new(Packed { tag: 0, address: 0, end: 0 }) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

type Hidden<T> = OnceLock<Box<dyn Fn() -> T + Send + Sync>>;

static SAVE: Hidden<()> = OnceLock::new();
static CLEAR: Hidden<()> = OnceLock::new();
static SAVE_PACKED: Hidden<()> = OnceLock::new();

fn address() -> usize {
    VARIABLE.with(|variable| std::ptr::from_ref(variable).addr())
}

/// Sets up closures before any fiber starts, by code that no fiber refers to.
#[expect(unsafe_code, reason = "lets the look be the only net")]
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        drop(CLEAR.set(Box::new(|| SAVED.set(0))));
        let save = || {
            SAVED.with(|saved| {
                saved.set(address());
                black_box(saved); // the compiler must assume that other code reads it
            });
        };
        drop(SAVE.set(Box::new(save)));
        let packed = || {
            PACKED.with(|packed| {
                packed.set(Packed {
                    tag: 1,
                    address: address(),
                    end: 2,
                });
                black_box(packed);
            });
        };
        drop(SAVE_PACKED.set(Box::new(packed)));
        // SAFETY: no fiber uses after a park what the code behind pointers leaves on its stack.
        unsafe { indent_sysmon::frames::trust_pointers() };
    });
}

fn runtime() -> Runtime {
    prepare();
    let rt = Builder::new().workers(2).build().expect("a runtime");
    rt.wait_until_surveyed(None);
    rt
}

/// Calls a closure that no frame refers to.
#[inline(never)]
fn hidden<T>(f: &'static Hidden<T>) -> T {
    black_box(f.get().expect("prepared"))()
}

/// Overwrites the remains of earlier calls: a frame may contain room that it does not write to.
#[inline(never)]
fn wipe() {
    black_box([1_u8; 4096]);
}

/// Returns the runtime's verdict on the calling fiber now, and after a park.
#[inline(never)]
fn judged() -> (Mobility, bool) {
    let binding = task::current().expect("on a fiber").binding();
    time::sleep(Duration::from_micros(100));
    (binding.mobility(), binding.has_address())
}

const FOUND: (Mobility, bool) = (Mobility::Bound, true);
const NOTHING: (Mobility, bool) = (Mobility::Movable, false);

/// Returns the report's rows about addresses found on stacks.
fn rows(rt: &Runtime) -> Vec<BindingRow> {
    let rows = rt.binding().rows;
    let rows = rows.into_iter();
    rows.filter(|row| row.cause == BindingCause::Address)
        .collect()
}

fn runs(rt: &Runtime, f: impl FnOnce() -> (Mobility, bool) + Send + 'static) -> (Mobility, bool) {
    rt.spawn(f).join().expect("no panic")
}

#[test]
fn an_address_in_another_thread_local_binds_and_the_report_names_that() {
    needs_own_locals!();
    for (save, name) in [(&SAVE, "look::SAVED"), (&SAVE_PACKED, "look::PACKED")] {
        let rt = runtime();
        let found = runs(&rt, move || {
            #[inline(never)]
            fn saves(save: &'static Hidden<()>) {
                hidden(save);
            }
            saves(save);
            wipe();
            judged()
        });
        assert_eq!(found, FOUND);
        let rows = rows(&rt);
        let named = rows.iter().find(|row| row.variable.is_some());
        let variable = named.and_then(|row| row.variable.as_deref());
        assert!(variable.is_some_and(|v| v.starts_with(name)), "{rows:?}");
    }
}

#[test]
fn a_fiber_is_movable_again_when_the_address_is_gone() {
    needs_own_locals!();
    let rt = runtime();
    let (with, without) = rt
        .spawn(|| {
            hidden(&SAVE);
            let with = judged();
            hidden(&CLEAR);
            (with, judged())
        })
        .join()
        .expect("no panic");
    assert_eq!(with, FOUND);
    assert_eq!(without, NOTHING);
}

#[test]
fn a_dump_names_what_binds() {
    needs_own_locals!();
    let rt = runtime();
    let fiber = rt.spawn(|| {
        hidden(&SAVE);
        indent::park::park();
    });
    common::wait_for("it is parked", || {
        let text = rt.handle().dump();
        text.contains("by the address of a thread-local in look::SAVED")
    });
    fiber.unparker().unpark();
    fiber.join().expect("no panic");
}

/// Uses thread-locals in many ways and leaves nothing of them behind.
#[inline(never)]
fn ordinary(n: u64) -> u64 {
    let mut map = HashMap::new();
    for i in 0..20 {
        map.insert(i, format!("{i} of {n}"));
    }
    COUNT.set(COUNT.get() + n);
    let name = std::thread::current().name().map(str::len);
    map.len() as u64 + name.unwrap_or(0) as u64 + COUNT.get()
}

/// Has stack room that it never writes to, so the remains of other frames are still there.
#[inline(never)]
fn with_room(depth: u32) -> (Mobility, bool) {
    let mut room = [MaybeUninit::<u8>::uninit(); 700];
    black_box(&mut room);
    let judged = match depth {
        0 => judged(),
        _ => with_room(depth - 1),
    };
    black_box(&mut room);
    judged
}

#[test]
fn ordinary_code_stays_movable() {
    needs_own_locals!();
    if cfg!(debug_assertions) {
        return common::skip("without optimization it loses the address of its own counter");
    }
    let rt = runtime();
    let fibers: Vec<_> = (0..200)
        .map(|n| {
            rt.spawn(move || {
                let mut bound = 0;
                for turn in 0..10 {
                    black_box(ordinary(n));
                    bound += u32::from(judged() != NOTHING);
                    black_box(ordinary(n + turn));
                    bound += u32::from(with_room(turn as u32) != NOTHING);
                }
                bound
            })
        })
        .collect();
    let all = 200 * 20;
    let bound: u32 = fibers
        .into_iter()
        .map(|f| f.join().expect("no panic"))
        .sum();
    // The C library sometimes leaves its thread pointer on a stack.
    assert!(bound <= all / 100, "{bound} of {all}\n{}", rt.binding());
}
