#![expect(unsafe_code, reason = "loads a plug-in and calls it")]
//! A shared library that is loaded while the program runs.

use std::ffi::{CStr, CString, c_long, c_void};
use std::sync::OnceLock;

use super::prepared;
use crate::body::{Me, Outcome, ensure};
use crate::step::{step, thread};

type Callback = unsafe extern "C" fn(*mut c_void);

type Set = unsafe extern "C" fn(c_long);
type Get = unsafe extern "C" fn() -> c_long;
type Address = unsafe extern "C" fn() -> *mut c_long;
type Call = unsafe extern "C" fn(c_long, Callback, *mut c_void) -> c_long;

/// Functions of the plug-in.
struct Plugin {
    set: Set,
    get: Get,
    address: Address,
    call: Call,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Loads it before any fiber starts, by code that no fiber refers to.
pub(super) fn prepare() {
    drop(PLUGIN.set(load()));
}

fn load() -> Plugin {
    let path = CString::new(env!("INDENT_PLUGIN")).expect("a path without zeros");
    // SAFETY: the plug-in has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "no plug-in at {path:?}");
    let find = |name: &CStr| {
        // SAFETY: the library is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null(), "no function {name:?}");
        found
    };
    Plugin {
        // SAFETY: the function of this name has this type, in `plugin.c`.
        set: unsafe { std::mem::transmute::<*mut c_void, Set>(find(c"plugin_set")) },
        // SAFETY: as above.
        get: unsafe { std::mem::transmute::<*mut c_void, Get>(find(c"plugin_get")) },
        // SAFETY: as above.
        address: unsafe { std::mem::transmute::<*mut c_void, Address>(find(c"plugin_address")) },
        // SAFETY: as above.
        call: unsafe { std::mem::transmute::<*mut c_void, Call>(find(c"plugin_call")) },
    }
}

/// State that a plug-in keeps for the thread, between two calls.
pub(crate) fn thread_local(me: &Me) -> Outcome {
    for i in 0..20 {
        let n = (me.n * 100 + i) as c_long;
        // SAFETY: the function takes any number.
        unsafe { (prepared(&PLUGIN).set)(n) };
        step();
        // SAFETY: the call has no conditions.
        let found = unsafe { (prepared(&PLUGIN).get)() };
        ensure!(found == n, "another's value");
    }
    Ok(me.n)
}

/// The address of that state.
pub(crate) fn address(me: &Me) -> Outcome {
    for _ in 0..20 {
        // SAFETY: the call has no conditions.
        let before = unsafe { (prepared(&PLUGIN).address)() };
        step();
        // SAFETY: the call has no conditions.
        let after = unsafe { (prepared(&PLUGIN).address)() };
        ensure!(before == after, "moved with the address");
    }
    Ok(me.n)
}

unsafe extern "C" fn called_back(stayed: *mut c_void) {
    let before = thread();
    step();
    // SAFETY: `callback` passes one that outlives the call.
    unsafe { *stayed.cast::<bool>() = thread() == before };
}

pub(crate) fn callback(me: &Me) -> Outcome {
    for i in 0..20 {
        let (n, mut stayed) = ((me.n * 100 + i) as c_long, false);
        // SAFETY: the callback takes a `bool`.
        let found = unsafe { (prepared(&PLUGIN).call)(n, called_back, (&raw mut stayed).cast()) };
        ensure!(found == n, "another's value");
        ensure!(stayed, "moved with frames of C on the stack");
    }
    Ok(me.n)
}
