//! Ordinary code that has finished using thread-locals binds no fiber.
//!
//! These tests have a program of their own: if a destructor or a closure leaves something with the
//! thread, every function that calls through a pointer is bound.

use std::time::Duration;

use indent::runtime::Builder;
use indent::time;

mod common;

/// Runs ordinary code before a park: maps with random keys.
#[test]
fn what_is_over_before_a_park_binds_no_fiber() {
    if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
        return common::skip("the C library is linked statically");
    }
    if common::sanitizer_forbids("thread-locals are the threads' there")
        || common::all_fibers_are_bound()
    {
        return;
    }
    #[inline(never)]
    fn uses_maps(key: u64) -> u64 {
        let mut map = std::collections::HashMap::new();
        map.insert(key, key);
        map.len() as u64 + std::collections::HashSet::from([key]).len() as u64
    }
    let rt = Builder::new().workers(2).build().unwrap();
    rt.wait_until_surveyed(None);
    let fibers: Vec<_> = (0..300)
        .map(|own| {
            rt.spawn(move || {
                let before = uses_maps(own);
                time::sleep(Duration::from_millis(50));
                before == uses_maps(own)
            })
        })
        .collect();
    time::sleep(Duration::from_millis(20));
    let occupied = rt.metrics().carriers_bound;
    assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
    assert_eq!(occupied, 0, "{}", rt.binding());
}
