//! Declarations of a program: thread-locals and functions that bind no fiber, and thread-locals
//! that stay with the thread.
//!
//! A process has one survey, and its first runtime fixes the declarations, so each configuration
//! runs in a process of its own.
#![expect(unsafe_code, reason = "declarations are unsafe, and so is calling C")]

mod common;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::{Builder, Runtime};
use indent::task::{self, Mobility, Phase};

thread_local! {
    static COUNTS: Cell<u64> = const { Cell::new(0) };
    static NOTES: RefCell<Vec<u64>> = RefCell::new(Vec::with_capacity(black_box(4)));
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static HIDDEN: Cell<u64> = const { Cell::new(0) };
}

/// Uses a variable in a way that the analysis cannot follow: its address is in memory briefly.
#[inline(never)]
fn counts() -> u64 {
    COUNTS.with(|counts| {
        let counts = black_box(counts);
        counts.set(counts.get() + 1);
        counts.get()
    })
}

/// Does the same with a variable that has an initializer and a destructor.
#[inline(never)]
fn notes(note: u64) -> usize {
    NOTES.with_borrow_mut(|notes| {
        let notes = black_box(notes);
        notes.push(note);
        notes.len()
    })
}

#[inline(never)]
fn takes() -> Vec<u8> {
    FREE.with(|free| black_box(free).borrow_mut().pop().unwrap_or_default())
}

#[inline(never)]
fn puts(buffer: Vec<u8>) {
    FREE.with(|free| black_box(free).borrow_mut().push(buffer));
    TAKEN.with(|taken| black_box(taken).set(taken.get() + 1));
}

#[inline(never)]
fn hidden() {
    HIDDEN.with(|hidden| black_box(hidden).set(7));
}

/// Parks in the middle of using a thread-local.
#[inline(never)]
fn parks_inside() {
    HIDDEN.with(|hidden| {
        let hidden = black_box(hidden);
        indent::park::park();
        hidden.set(8);
    });
}

#[inline(never)]
fn generic<T: Copy + Into<u64>>(value: T) -> u64 {
    HIDDEN.with(|hidden| black_box(hidden).replace(value.into()))
}

struct Codec(u64);

trait Encode {
    fn encode(&self);
}

impl Encode for Codec {
    #[inline(never)]
    fn encode(&self) {
        HIDDEN.with(|hidden| black_box(hidden).set(self.0));
    }
}

/// Calls a function of the C library that returns something of the thread.
#[inline(never)]
fn has_number() -> bool {
    // SAFETY: `gettid` takes no arguments and does not fail.
    unsafe { libc::gettid() > 0 }
}

#[cfg(target_env = "gnu")]
#[link(name = "resolv")]
unsafe extern "C" {
    fn ns_format_ttl(seconds: libc::c_ulong, text: *mut libc::c_char, size: usize) -> libc::c_int;
}

/// Calls a library other than the C library.
#[cfg(target_env = "gnu")]
#[inline(never)]
fn formats() -> usize {
    let mut text = [0_u8; 32];
    // SAFETY: the buffer has as many bytes to write to as the length says.
    let length = unsafe { ns_format_ttl(3600, text.as_mut_ptr().cast(), text.len()) };
    usize::try_from(length).expect("there is room")
}

#[cfg(not(target_env = "gnu"))]
fn formats() -> usize {
    2
}

/// Thread-locals that the tests declare harmless.
///
/// No function that uses one of them blocks meanwhile or keeps anything of it. Any thread may use
/// the free buffers.
const VARIABLES: [&str; 4] = [
    "declared::COUNTS",
    concat!(module_path!(), "::NOTES"),
    "declared::FREE",
    "declared::TAKEN",
];

/// Functions that the tests declare harmless.
///
/// Each only changes a number in a thread-local that is not read again, or asks the C library for
/// something that is not kept.
///
/// `puts` is in the list because in optimized builds the key of its list lies beside the table of
/// tests: the analysis then cannot tell which variable it uses.
const FUNCTIONS: [&str; 7] = [
    "declared::puts",
    "declared::hidden",
    "declared::parks_inside",
    "declared::generic",
    "<declared::Codec as declared::Encode>::encode",
    "gettid",
    "ns_format_ttl",
];

fn declare(variables: &[&str], functions: &[&str]) -> Builder {
    let mut builder = Builder::new();
    for name in variables {
        // SAFETY: the name is one of `VARIABLES`, or no variable of this program has it.
        builder = unsafe { builder.harmless_thread_local(*name) };
    }
    for name in functions {
        // SAFETY: the name is one of `FUNCTIONS`, or no function of this program has it.
        builder = unsafe { builder.harmless_function(*name) };
    }
    builder
}

/// Returns a builder with all variables and functions declared.
fn declaring() -> Builder {
    declare(&VARIABLES, &FUNCTIONS)
}

fn start(builder: Builder) -> Runtime {
    let rt = builder.workers(2).build().unwrap();
    rt.wait_until_surveyed(None);
    rt
}

/// Returns true if a fiber that has called `what` and then parks is bound by its frames.
///
/// An address that has since remained in an unused place of the stack does not count: without
/// optimization that is usual.
fn binds(rt: &Runtime, what: impl FnOnce() + Send + 'static) -> bool {
    let fiber = rt.spawn(move || {
        what();
        let binding = task::current().unwrap().binding();
        indent::time::sleep(Duration::from_millis(1));
        binding.mobility() == Mobility::Bound && !binding.has_address()
    });
    fiber.join().unwrap()
}

/// Returns each kind of use, and whether it binds a fiber of its own.
fn uses(rt: &Runtime) -> [(&'static str, bool); 8] {
    [
        ("counts", binds(rt, || assert!(counts() > 0))),
        ("notes", binds(rt, || assert!(notes(1) > 0))),
        ("free", binds(rt, || puts(takes()))),
        ("hidden", binds(rt, hidden)),
        (
            "generic",
            binds(rt, || assert!(generic(1_u8) + generic(2_u32) < 100)),
        ),
        ("trait", binds(rt, || Codec(9).encode())),
        ("gettid", binds(rt, || assert!(has_number()))),
        ("library", binds(rt, || assert_eq!(formats(), 2))),
    ]
}

/// Returns the names of the uses that bind.
fn binding(rt: &Runtime) -> Vec<&'static str> {
    let binding = uses(rt).into_iter().filter(|(_, binds)| *binds);
    binding.map(|(name, _)| name).collect()
}

/// Runs a test of `child` with these variables.
///
/// Returns the runtime's lines on standard error.
fn child(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let output = common::in_child(&format!("child::{test}"), variables);
    let text = common::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no such test: {text}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours = text.lines().filter(|line| line.starts_with("indent: "));
    ours.map(str::to_owned).collect()
}

/// Reports that a test cannot run where code is not judged, and returns.
macro_rules! needs_verdicts {
    () => {
        if common::sanitizer_forbids("its own code binds") || common::all_fibers_are_bound() {
            return;
        }
    };
}

#[test]
fn what_is_not_declared_binds_and_the_report_names_the_remedy() {
    needs_verdicts!();
    let lines = child("undeclared", &[("INDENT_LOG_BOUND", "1")]);
    for method in [
        "Builder::harmless_thread_local",
        "Builder::harmless_function",
    ] {
        assert!(lines.iter().any(|line| line.contains(method)), "{lines:?}");
    }
}

#[test]
fn what_is_declared_binds_no_fiber() {
    needs_verdicts!();
    assert_eq!(child("declared", &[]), [""; 0]);
}

#[test]
fn what_is_declared_binds_no_fiber_where_thread_locals_are_the_threads() {
    needs_verdicts!();
    let lines = child("declared_for_threads", &[("INDENT_TLS", "thread")]);
    assert_eq!(lines, [""; 0]);
}

#[test]
fn a_fiber_that_is_parked_inside_a_declared_function_is_bound() {
    needs_verdicts!();
    child("parked_inside", &[]);
}

#[test]
fn declared_variables_have_the_right_values_after_moves() {
    needs_verdicts!();
    child("values", &[]);
}

#[test]
fn a_list_that_stays_with_the_thread_is_used_by_fibers_that_move() {
    needs_verdicts!();
    child("list_of_each_thread", &[]);
}

#[test]
fn a_declaration_that_fits_nothing_is_reported_once_with_names_like_it() {
    needs_verdicts!();
    let lines = child("misspelt", &[]);
    let about = |name: &str| {
        let lines: Vec<_> = lines.iter().filter(|line| line.contains(name)).collect();
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        lines[0].clone()
    };
    assert!(about("declared::COUNT ").contains("did you mean declared::COUNTS?"));
    let line = about("declared::hiden");
    assert!(line.contains("did you mean declared::hidden"), "{line}");
    assert!(line.contains("#[inline(never)]"), "{line}");
    assert!(about("getid").contains("gettid"));
    let line = about("nothing::like_this_at_all");
    assert!(!line.contains("did you mean"), "{line}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn a_declaration_after_the_first_runtime_is_an_error_that_names_it() {
    child("late", &[]);
}

#[test]
fn a_declaration_after_a_fiber_of_the_default_runtime_is_an_error() {
    child("late_after_default", &[]);
}

#[test]
fn a_variable_to_stay_with_the_thread_that_does_not_exist_is_an_error_with_names_like_it() {
    needs_verdicts!();
    child("per_thread_misspelt", &[]);
}

mod child {
    use super::*;

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn undeclared() {
        let rt = start(Builder::new());
        let mut all = uses(&rt).map(|(name, _)| name).to_vec();
        if cfg!(not(target_env = "gnu")) {
            all.pop(); // there is no such library
        }
        assert_eq!(binding(&rt), all, "{}", rt.binding());
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn declared() {
        let rt = start(declaring());
        assert_eq!(binding(&rt), [""; 0], "{}", rt.binding());
        // Declaring the same again, or less, is no error.
        start(declaring());
        start(Builder::new());
    }

    /// Binds more of std with the thread's own thread-locals: some uses bind for other reasons.
    ///
    /// All fibers that call through pointers are bound, unless the program vouches for the callees.
    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    #[expect(unsafe_code, reason = "vouches for pointers")]
    fn declared_for_threads() {
        // SAFETY: no fiber of this test calls a function through a pointer that uses a
        // thread-local.
        unsafe { indent_sysmon::frames::trust_pointers() };
        let rt = start(declaring());
        let binding = binding(&rt);
        for name in ["counts", "hidden", "gettid", "library"] {
            assert!(!binding.contains(&name), "{name}: {}", rt.binding());
        }
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn parked_inside() {
        let rt = start(declaring());
        let fiber = rt.spawn(parks_inside);
        // The verdict comes once the fiber has switched out, shortly after it announces the park.
        let is_parked = || fiber.fiber().phase() == Phase::Parked;
        let is_bound = || fiber.fiber().binding().mobility() == Mobility::Bound;
        common::wait_for("it parks, bound", || is_parked() && is_bound());
        fiber.unparker().unpark();
        fiber.join().unwrap();
        let after = binds(&rt, || drop(indent::spawn(hidden).join()));
        assert!(!after, "{}", rt.binding());
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn values() {
        let rt = start(declaring());
        let fibers: Vec<_> = (0..200_u64)
            .map(|own| {
                rt.spawn(move || {
                    for turn in 1..=20 {
                        assert_eq!(counts(), turn);
                        assert_eq!(notes(own), turn as usize);
                        match (own + turn) % 3 {
                            0 => indent::time::sleep(Duration::from_micros(200)),
                            _ => task::yield_now(),
                        }
                    }
                    NOTES.with_borrow(|notes| notes.iter().all(|note| *note == own))
                })
            })
            .collect();
        assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn list_of_each_thread() {
        static ALL: AtomicU64 = AtomicU64::new(0);
        let builder = declaring()
            .per_thread("declared::FREE")
            .per_thread("declared::TAKEN")
            .on_thread_stop(|| _ = ALL.fetch_add(TAKEN.get(), SeqCst));
        let rt = start(builder);
        assert!(!binds(&rt, || puts(takes())), "{}", rt.binding());
        let fibers: Vec<_> = (0..100_u64)
            .map(|own| {
                rt.spawn(move || {
                    for turn in 0..20 {
                        let mut buffer = takes();
                        buffer.clear();
                        buffer.extend_from_slice(&own.to_le_bytes());
                        match (own + turn) % 3 {
                            0 => indent::time::sleep(Duration::from_micros(200)),
                            _ => task::yield_now(),
                        }
                        assert_eq!(buffer, own.to_le_bytes());
                        puts(buffer);
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        drop(rt); // waits for its threads
        assert_eq!(ALL.load(SeqCst), 100 * 20 + 1, "each use on one thread");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn misspelt() {
        let functions = ["declared::hiden", "getid", "nothing::like_this_at_all"];
        let builder = declare(&["declared::COUNT"], &functions);
        let rt = start(builder.clone());
        assert!(has_number() && counts() == 1);
        hidden();
        assert!(binds(&rt, || assert!(counts() > 0)), "nothing is declared");
        start(builder); // reported once
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn late() {
        let first = declare(&[], &["declared::hidden"]).workers(1);
        let _rt = first.clone().build().unwrap();
        first.build().unwrap();
        let late = declare(&[], &["declared::hidden", "declared::generic"]);
        let error = late.build().unwrap_err().to_string();
        let begin =
            "harmless_function = declared::generic: allowed is a name that the first runtime";
        assert!(error.starts_with(begin), "{error}");
        let late = declare(&["declared::COUNTS"], &[]);
        let error = late.build().unwrap_err().to_string();
        let begin = "harmless_thread_local = declared::COUNTS: ";
        assert!(error.starts_with(begin), "{error}");
        assert!(error.contains("declare it there"), "{error}");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn late_after_default() {
        indent::spawn(|| ()).join().unwrap();
        let late = declare(&[], &["declared::hidden"]);
        let error = late.build().unwrap_err().to_string();
        assert!(error.contains("declared::hidden"), "{error}");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn per_thread_misspelt() {
        let error = |name| {
            let refused = Builder::new().per_thread(name).build().unwrap_err();
            refused.to_string()
        };
        let begin = "per_thread = declared::COUNT: allowed is the path of a thread-local";
        let text = error("declared::COUNT");
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with("did you mean declared::COUNTS?"), "{text}");
        let text = error("nothing::like_this_at_all");
        assert!(text.ends_with("and there is none of this name"), "{text}");
        // Refused names do not fix the declarations.
        let rt = Builder::new()
            .per_thread("declared::COUNTS")
            .on_thread_start(|| COUNTS.set(40))
            .build()
            .unwrap();
        assert!(rt.block_on(counts) > 40);
    }
}
