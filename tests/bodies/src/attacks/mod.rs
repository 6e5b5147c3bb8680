//! Bodies that keep something of their thread over a switch, where it is hard to see.
//!
//! A body returns an error if it finds another fiber's value, or if it continues on another thread
//! while it holds the address of a thread-local or the state of a foreign library. The functions
//! that a *hidden* one calls are known by pointers in writable memory alone, which `prepare` has
//! put there.

use std::hint::black_box;
use std::sync::OnceLock;

use crate::body::{Body, body};
use crate::examples::tracing_many;
use addresses::{seen, unseen};

mod addresses;
#[cfg(feature = "c")]
mod foreign;
mod libc;
mod owners;
#[cfg(plugin)]
mod plugin;

/// Returns all attacks.
pub fn all() -> Vec<Body> {
    let mut all = vec![
        body("hidden-rc", owners::hidden_rc),
        body("handler-table", owners::handler_table),
        body("handler-borrows", owners::handler_borrows),
        body("key-in-a-box", owners::key_in_a_box),
        body("reentrant-mutex", owners::reentrant_mutex),
        body("reentrant-mutex-hidden", owners::reentrant_mutex_hidden),
        body("seeded-generator", owners::seeded_generator),
        body("address-in-a-box", |me| addresses::in_a_box(me, seen)),
        body("address-stored-at-once", addresses::stored_at_once),
        body("address-in-a-packed-struct", |me| {
            addresses::in_a_packed_struct(me, seen)
        }),
        body("address-in-a-thread-local", |me| {
            addresses::in_a_thread_local(me, seen)
        }),
        body("address-in-a-packed-local", |me| {
            addresses::in_a_packed_local(me, seen)
        }),
        body("address-as-a-key", |me| addresses::as_a_key(me, seen)),
        body("address-in-a-box-hidden", |me| {
            addresses::in_a_box(me, unseen)
        }),
        body("address-in-a-packed-struct-hidden", |me| {
            addresses::in_a_packed_struct(me, unseen)
        }),
        body(
            "address-in-a-thread-local-hidden",
            addresses::in_a_thread_local_hidden,
        ),
        body("address-in-a-packed-local-hidden", |me| {
            addresses::in_a_packed_local(me, unseen)
        }),
        body("address-as-a-key-hidden", |me| {
            addresses::as_a_key(me, unseen)
        }),
        body("address-by-a-tail-call", addresses::by_a_tail_call),
        body(
            "address-by-a-tail-call-hidden",
            addresses::by_a_tail_call_hidden,
        ),
        body("errno-over-an-interrupt", libc::errno_over_an_interrupt),
        body("recursive-mutex", libc::recursive_mutex),
        body("recursive-mutex-hidden", libc::recursive_mutex_hidden),
        body("specific-value", libc::specific_value),
        body("specific-value-hidden", libc::specific_value_hidden),
        body("sorted-by-callback", libc::sorted_by_callback),
        body("pthread-self", libc::pthread_self),
        Body {
            fibers: 6_000, // the registry's slab has numbers for 4,095 threads
            plain: false,
            ..body("tracing-6000", tracing_many)
        },
    ];
    #[cfg(feature = "c")]
    all.extend([
        body("c-callback", foreign::callback),
        body("c-thread-local", foreign::thread_local),
        body("c-thread-local-hidden", foreign::thread_local_hidden),
        body("c-recursive-mutex", foreign::recursive_mutex),
    ]);
    #[cfg(plugin)]
    all.extend([
        body("plugin-thread-local", plugin::thread_local),
        body("plugin-address", plugin::address),
        body("plugin-callback", plugin::callback),
    ]);
    all
}

/// Fills tables before any fiber starts: no frame of a fiber refers to the code in them.
pub fn prepare() {
    owners::prepare();
    addresses::prepare();
    libc::prepare();
    #[cfg(feature = "c")]
    foreign::prepare();
    #[cfg(plugin)]
    plugin::prepare();
}

/// Returns what `prepare` has made.
#[inline(never)]
fn prepared<T>(cell: &OnceLock<T>) -> &T {
    match black_box(cell).get() {
        Some(value) => value,
        None => unreachable!("main prepares everything"),
    }
}
