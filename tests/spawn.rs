//! Spawning and joining.

use indent::runtime::Builder;

#[test]
fn a_hundred_fibers_yield_exactly_a_thousand_times_each() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    for workers in [1, 2] {
        let rt = Builder::new().workers(workers).build().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..100)
            .map(|_| {
                let count = count.clone();
                rt.spawn(move || {
                    for _ in 0..1000 {
                        indent::task::yield_now();
                        count.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        for fiber in fibers {
            fiber.join().unwrap();
        }
        assert_eq!(count.load(Relaxed), 100_000);
    }
}

#[test]
fn spawns_inside_fibers_join() {
    let rt = Builder::new().workers(2).build().unwrap();
    let n = rt.block_on(|| {
        let hs: Vec<_> = (0..100_000u64).map(|i| indent::spawn(move || i)).collect();
        hs.into_iter().map(|h| h.join().unwrap()).sum::<u64>()
    });
    assert_eq!(n, 100_000 * 99_999 / 2);
}
