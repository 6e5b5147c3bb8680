use super::*;

const ALL: [&str; 5] = [FUNCTIONS, CRATES, RUNTIME, LIBC, ALLOCATION];

#[test]
fn every_entry_has_a_reason() {
    for list in ALL {
        for (name, reason) in entries(list) {
            assert!(!name.is_empty());
            assert!(reason.len() > 4, "{name} has no reason");
            let stray = name.trim_end_matches('*').contains('*');
            assert!(!stray, "{name}: a star stands at the end only");
        }
    }
}

#[test]
fn no_entry_is_there_twice() {
    for list in ALL {
        let mut seen = HashSet::new();
        for (name, _) in entries(list) {
            assert!(seen.insert(name), "{name}");
        }
    }
}

#[test]
fn a_star_stands_for_anything() {
    let list = List::read("some::*  # reason\nexact  # reason\n");
    assert!(list.has("some::thing"));
    assert!(list.has("exact"));
    assert!(!list.has("exactly"));
    assert!(!list.has("other"));
}

/// A name that begins with a type may belong to any crate's trait for that type.
#[test]
fn no_star_stands_for_methods_of_traits() {
    for list in [FUNCTIONS, CRATES, RUNTIME] {
        for (name, _) in entries(list) {
            let type_first = name.starts_with('<') && name.ends_with('*');
            assert!(!type_first, "{name}");
        }
    }
    for name in [
        "<indent::task::Fiber as user::Trait>::method",
        "<indent::task::PinGuard as user::Trait>::method",
        "<indent::task::join::JoinHandle<T> as user::Trait>::method",
        "<indent::sched::workers::context::Entered as user::Trait>::method",
        "<std::sync::mpsc::Receiver<T> as user::Trait>::method",
        "<std::sync::mpsc::TryIter<u64> as core::iter::traits::iterator::Iterator>::fold::<_, user::f::{closure#0}>",
        "user::<impl user::Trait for indent::task::Fiber>::method",
    ] {
        assert!(!LISTS.functions.has(name), "{name}");
        assert!(!LISTS.runtime.has_as_frame(name), "{name}");
    }
}

#[test]
fn methods_are_known_in_both_manglings() {
    for name in [
        "<indent::task::Fiber>::name",
        "indent::task::Fiber::name",
        "<indent::sched::workers::context::Entered as core::ops::drop::Drop>::drop",
        "indent::park::scoped::run_on_pool::<user::f::{closure#0}, ()>",
    ] {
        assert!(LISTS.runtime.has_as_frame(name), "{name}");
    }
    for name in [
        "<indent::task::join::JoinHandle<user::Result>>::join",
        "<indent::task::join::JoinHandle<u64> as core::ops::drop::Drop>::drop",
        "<std::sync::mpsc::Receiver<u64>>::recv",
        "std::sync::mpmc::Sender<T>::send",
        "<std::sync::mpmc::Receiver<user::Message>>::recv",
        "<regex::regex::string::Regex>::is_match",
    ] {
        assert!(LISTS.functions.has(name), "{name}");
    }
}

/// With code of a user inside, such a function no longer belongs to the runtime alone.
#[test]
fn a_star_of_the_runtime_has_no_strangers_in_it() {
    let inside = "indent::sched::block::suspend::some::<user::f::{closure#0}>";
    assert!(LISTS.runtime.has(inside));
    assert!(!LISTS.runtime.has_as_frame(inside));
    let own = "indent::sched::block::suspend::some::<indent::fiber::record::Held>";
    assert!(LISTS.runtime.has_as_frame(own));
}

/// Names of functions that must never end the search, as std 1.95 has them.
#[test]
fn what_hands_out_the_thread_is_on_no_list() {
    let never = [
        "std::thread::current::current",
        "std::thread::current::current_or_unnamed",
        "std::thread::current::init_current",
        "std::thread::current::id::get_or_init",
        "std::thread::current::current_id",
        "<std::thread::id::ThreadId>::new",
        "<std::io::stdio::Stdout>::lock",
        "std::io::stdio::Stdout::lock",
        "<std::io::stdio::Stderr>::lock",
        "std::io::stdio::Stderr::lock",
        "<std::io::stdio::Stdin>::lock",
        "std::sync::reentrant_lock::ReentrantLock<T>::lock",
        "std::sync::reentrant_lock::current_id",
        "<std::sync::mpmc::context::Context>::new",
        "<std::sync::mpmc::Receiver<T> as core::ops::drop::Drop>::drop",
        "std::sync::mpmc::context::Context::with",
        "std::thread::scoped::scope",
        "std::thread::functions::park",
        "std::thread::functions::park_timeout",
        "std::thread::local::LocalKey<T>::with",
        "std::thread::local::LocalKey<T>::try_with",
        "std::sys::thread_local::native::lazy::Storage<T,D>::get_or_init_slow",
        "core::ops::function::FnOnce::call_once",
        "core::ops::function::Fn::call",
    ];
    for name in never {
        assert!(!LISTS.functions.has(name), "{name}");
        assert!(!LISTS.runtime.has(name), "{name}");
    }
}

#[test]
fn the_c_library_is_known_by_its_files() {
    for file in [
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "libgcc_s.so.1",
        "libm.so.6",
    ] {
        assert!(is_libc(file), "{file}");
    }
    for file in [
        "libcrypto.so.3",
        "libstdc++.so.6",
        "libz.so.1",
        "libutil.so",
        "librt.so.1.0.0",
        "libm.so",
        "",
    ] {
        assert!(!is_libc(file), "{file}");
    }
    for name in [
        "pthread_self",
        "arch_prctl",
        "dlsym",
        "__emutls_get_address",
    ] {
        assert!(LISTS.libc.has(name), "{name}");
    }
    assert!(!LISTS.libc.has("memcpy"));
    assert!(!LISTS.libc.has("_Unwind_Resume"));
}

#[test]
fn a_variable_is_known_in_both_manglings_and_no_other_is() {
    let whose = |name: &str, size| LISTS.variables.whose(name, size);
    let keys = "<std::hash::random::RandomState>::new::KEYS::{K#0}::{closure#1}::VAL";
    assert_eq!(whose(keys, 24), Some(Whose::Any));
    let keys = "std::hash::random::RandomState::new::KEYS::{{constant}}::{{closure}}::VAL";
    assert_eq!(whose(keys, 24), Some(Whose::Any));
    assert_eq!(whose("std::thread::current::id::ID", 8), Some(Whose::Own));
    assert_eq!(whose("std::thread::current::id::IDS", 8), None);
    assert_eq!(whose("other::std::thread::current::id::ID", 8), None);
    let random = "rand::rngs::thread::THREAD_RNG_KEY::{{constant}}::VAL";
    assert_eq!(whose(random, 16), Some(Whose::Own));
    assert_eq!(
        whose(random, 336),
        None,
        "as in rand 0.7, which hands out its address"
    );
}
