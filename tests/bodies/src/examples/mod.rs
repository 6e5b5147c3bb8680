//! Bodies that follow the crates' own examples.

use crate::body::{Body, Me, Outcome, body};
use crate::step::step;

mod contexts;
#[cfg(feature = "c")]
mod foreign;
mod logs;
mod numbers;
mod standard;
mod sync;
mod text;

pub(crate) use logs::tracing_many;

/// All examples.
pub const ALL: &[Body] = &[
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
    #[cfg(feature = "c")]
    body("rustls-ring", foreign::rustls_ring),
    #[cfg(feature = "c")]
    body("rustls-aws-lc", foreign::rustls_aws_lc),
    #[cfg(feature = "c")]
    body("zstd", foreign::zstd),
    #[cfg(feature = "c")]
    body("rusqlite", foreign::rusqlite),
    body("nothing", nothing),
];

/// Switches, and uses no crate.
fn nothing(me: &Me) -> Outcome {
    (0..20).for_each(|_| step());
    Ok(me.n)
}

/// Returns the body with this name at compile time.
///
/// The others are not part of the program then.
pub const fn named(name: &str) -> Body {
    let mut n = 0;
    while n < ALL.len() {
        if is_same(ALL[n].name.as_bytes(), name.as_bytes()) {
            return ALL[n];
        }
        n += 1;
    }
    panic!("INDENT_BODY names no example")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut n = 0;
    while n < one.len() && n < other.len() && one[n] == other[n] {
        n += 1;
    }
    n == one.len() && n == other.len()
}
