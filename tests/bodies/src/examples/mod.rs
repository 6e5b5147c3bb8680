//! Bodies as the crates' own examples are.

use crate::body::{Body, body};

mod contexts;
#[cfg(feature = "c")]
mod foreign;
mod logs;
mod numbers;
mod standard;
mod sync;
mod text;

pub(crate) use logs::tracing_many;

/// All of them.
pub(crate) fn all() -> Vec<Body> {
    let mut all = vec![
        body("rand", numbers::rand),
        body("fastrand", numbers::fastrand),
        body("ahash", numbers::ahash),
        body("uuid", numbers::uuid),
        body("regex", text::regex),
        body("serde_json", text::serde_json),
        body("chrono", text::chrono),
        body("flate2", text::flate2),
        body("parking_lot", sync::parking_lot),
        body("arc-swap", sync::arc_swap),
        body("arc-swap-many", sync::arc_swap_many),
        body("once_cell", sync::once_cell),
        body("crossbeam-epoch", sync::crossbeam_epoch),
        body("crossbeam-channel", sync::crossbeam_channel),
        body("crossbeam-scope", sync::crossbeam_scope),
        body("dashmap", sync::dashmap),
        body("moka", sync::moka),
        body("thread_local", sync::thread_local),
        body("tracing", logs::tracing),
        body("log", logs::log),
        body("tokio-enter", contexts::tokio_enter),
        body("tokio-current-thread", contexts::tokio_current_thread),
        body("tokio-local-set", contexts::tokio_local_set),
        body("rayon", contexts::rayon),
        body("scoped-tls", contexts::scoped_tls),
        body("std-mpsc", standard::mpsc),
        body("std-scope", standard::scope),
        body("std-park", standard::park),
        body("std-stdout", standard::stdout),
        body("std-reentrant", standard::reentrant),
        body("std-locks", standard::locks),
        body("std-lazy", standard::lazy),
        body("std-hash-map", standard::hash_map),
        body("std-thread-local", standard::thread_local),
        #[cfg(panic = "unwind")]
        body("std-catch-unwind", standard::catch_unwind),
    ];
    #[cfg(feature = "c")]
    all.extend([
        body("rustls-ring", foreign::rustls_ring),
        body("rustls-aws-lc", foreign::rustls_aws_lc),
        body("zstd", foreign::zstd),
        body("rusqlite", foreign::rusqlite),
    ]);
    all.push(body("nothing", |me| {
        (0..20).for_each(|_| crate::step::step());
        Ok(me.n)
    }));
    all
}
