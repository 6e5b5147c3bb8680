#![expect(unsafe_code, reason = "naked functions, and the C library's unwinder")]
//! Test support: catches real stacks, and asks an independent unwinder what is on them.
//!
//! [`within`] calls a body and records the root; [`catch`], anywhere below it, shows the stack as
//! it is at that call. What runs meanwhile runs further down, so the frames above stand still.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::ops::Range;

use super::Mobility;
use super::sites::{Site, Sites, resolve_in};
use super::walk::{End, Registers, Stack, walk_in};

thread_local! {
    static ROOT: Cell<usize> = const { Cell::new(0) };
}

/// Calls a function and first writes the stack pointer to `root`.
#[unsafe(naked)]
unsafe extern "C" fn enter(
    root: *mut usize,
    f: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        "pop rbp",
        "ret",
    )
}

/// Passes on the register values that the caller will have after this call.
#[unsafe(naked)]
unsafe extern "C" fn registers(
    data: *mut c_void,
    f: extern "C" fn(data: *mut c_void, ip: usize, sp: usize, bp: usize),
) {
    naked_asm!(
        "mov rax, rsi",
        "mov rsi, [rsp]",
        "lea rdx, [rsp + 8]",
        "mov rcx, rbp",
        "jmp rax",
    )
}

/// Calls `body` as the outermost function of a stack.
pub(crate) fn within(body: impl FnOnce()) {
    unsafe extern "C-unwind" fn call<F: FnOnce()>(body: *mut c_void) {
        // SAFETY: `start` passed it.
        let body = unsafe { &mut *body.cast::<Option<F>>() };
        body.take().unwrap()();
    }
    fn start<F: FnOnce()>(body: F) {
        let mut body = Some(body);
        let before = ROOT.get();
        // SAFETY: `call` takes a `F`, which is there until it returns.
        unsafe { enter(ROOT.with(Cell::as_ptr), call::<F>, (&raw mut body).cast()) };
        ROOT.set(before);
    }
    start(body);
}

/// A stack that stands still.
pub(crate) struct Caught {
    pub(crate) start: Registers,
    pub(crate) stack: Stack,
    pub(crate) root: usize,
}

/// Shows the stack it is called on.
#[inline(never)]
pub(crate) fn catch(look: &mut dyn FnMut(&Caught)) {
    extern "C" fn caught(look: *mut c_void, ip: usize, sp: usize, bp: usize) {
        // SAFETY: `catch` passed it.
        let look = unsafe { &mut *look.cast::<&mut dyn FnMut(&Caught)>() };
        let root = ROOT.get();
        look(&Caught {
            start: Registers::after_call(ip, sp, bp),
            // SAFETY: what lies above our caller's stack pointer stays while we run.
            stack: unsafe { Stack::new(sp..root) },
            root,
        });
    }
    let mut look = look;
    // SAFETY: `caught` takes what is passed here.
    unsafe { registers((&raw mut look).cast(), caught) };
    black_box(&mut look); // no tail call: our frame stays
}

/// Return address of a frame, and its stack pointer.
pub(crate) type CodeLocation = (usize, usize);

impl Caught {
    /// Walks until nothing is unknown any more.
    pub(crate) fn walk(&self, sites: &Sites) -> (Vec<CodeLocation>, End) {
        loop {
            let mut places = Vec::new();
            let end = walk_in(sites, &self.start, &self.stack, self.root, |address, sp| {
                places.push((address + 1, sp));
            });
            match end {
                End::Unknown { .. } => {
                    resolve_in(sites, |_, row| Site::new(Mobility::Movable, row))
                }
                end => return (places, end),
            };
        }
    }

    /// Returns the same from the C library's unwinder, up to the root.
    pub(crate) fn told(&self) -> Vec<CodeLocation> {
        let mut all = Told::new(self.start.sp..self.root);
        all.ask();
        all.places[..all.count].to_vec()
    }
}

/// Frames that the C library's unwinder reports. Allocates nothing.
pub(crate) struct Told {
    stack: Range<usize>,
    pub(crate) places: [CodeLocation; 256],
    pub(crate) count: usize,
}

impl Told {
    pub(crate) fn new(stack: Range<usize>) -> Told {
        Told {
            stack,
            places: [(0, 0); 256],
            count: 0,
        }
    }

    /// Records the frames of the calling thread that are on this stack.
    pub(crate) fn ask(&mut self) {
        // SAFETY: `tell` gets what it expects.
        unsafe { _Unwind_Backtrace(tell, (&raw mut *self).cast()) };
    }
}

extern "C" fn tell(context: *mut c_void, all: *mut c_void) -> i32 {
    // SAFETY: `ask` passed it.
    let all = unsafe { &mut *all.cast::<Told>() };
    // SAFETY: the unwinder's, for the time of this call.
    let ip = unsafe { _Unwind_GetIP(context) };
    // SAFETY: as before.
    let sp = unsafe { _Unwind_GetCFA(context) };
    if all.stack.contains(&sp) && all.count < all.places.len() {
        all.places[all.count] = (ip, sp);
        all.count += 1;
    }
    0
}

unsafe extern "C" {
    fn _Unwind_Backtrace(f: extern "C" fn(*mut c_void, *mut c_void) -> i32, d: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

/// Calls itself to make this many frames, then calls `last`.
#[inline(never)]
pub(crate) fn descend(frames: usize, last: &mut dyn FnMut()) {
    match frames {
        0 => last(),
        _ => descend(black_box(frames - 1), last),
    }
    black_box(frames);
}
