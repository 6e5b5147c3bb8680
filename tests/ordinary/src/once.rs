//! Values that are made once, by an initializer that sleeps, while other fibers wait for them.
//!
//! A fiber that waits for the initializer blocks its thread. So the fiber that runs it must be able
//! to continue, wherever it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use indent::runtime::Runtime;

/// Number of initializers that ran in this process.
static RUNS: AtomicUsize = AtomicUsize::new(0);

fn initialize() -> String {
    RUNS.fetch_add(1, SeqCst);
    indent::time::sleep(Duration::from_millis(20));
    "the one value".to_owned()
}

/// Has many fibers get a value at once, and again.
fn raced<T: AsRef<str>>(rt: &Runtime, fibers: usize, get: impl Fn() -> T + Send + Sync + 'static) {
    let get = Arc::new(get);
    let race = || {
        let get = get.clone();
        rt.spawn(move || {
            assert_eq!(get().as_ref(), "the one value");
            indent::task::yield_now();
            assert_eq!(get().as_ref(), "the one value");
        })
    };
    let racing: Vec<_> = (0..fibers).map(|_| race()).collect();
    racing.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(RUNS.load(SeqCst), 1);
}

pub(crate) fn lazy_lock(rt: &Runtime, fibers: usize) {
    static VALUE: LazyLock<String> = LazyLock::new(initialize);
    raced(rt, fibers, || VALUE.as_str());
}

pub(crate) fn once_lock(rt: &Runtime, fibers: usize) {
    static VALUE: OnceLock<String> = OnceLock::new();
    raced(rt, fibers, || VALUE.get_or_init(initialize).as_str());
}

pub(crate) fn once_cell_lazy(rt: &Runtime, fibers: usize) {
    static VALUE: once_cell::sync::Lazy<String> = once_cell::sync::Lazy::new(initialize);
    raced(rt, fibers, || VALUE.as_str());
}

pub(crate) fn once_cell(rt: &Runtime, fibers: usize) {
    static VALUE: once_cell::sync::OnceCell<String> = once_cell::sync::OnceCell::new();
    raced(rt, fibers, || VALUE.get_or_init(initialize).as_str());
}

pub(crate) fn moka(rt: &Runtime, fibers: usize) {
    let cache = moka::sync::Cache::new(100);
    raced(rt, fibers, move || cache.get_with("key", initialize));
}
