#![expect(unsafe_code, reason = "runs inside a signal handler")]
//! Reports a stack overflow: what happens when a fiber touches its guard.
//!
//! A fault at an address outside the runtime's stacks, or not in the guard of the fiber that runs
//! on this thread, goes to the handler that was there before. Otherwise the report is one line
//! with fiber, name and spawn site, then the innermost frames, then abort. The line is written
//! before anything that could fail. Symbolizing allocates, and may never return if the overflow
//! happened inside the allocator, so an alarm ends the process in that case.

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::error::StartError;
use crate::fiber::record::{FiberRef, Record};
use crate::fiber::stack;
use crate::sys::signal::{self, Previous, SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};
use crate::sys::stderr;

/// Frames printed; a runaway recursion repeats itself.
const FRAMES: usize = 48;
/// Seconds that the symbolizer may take.
const PATIENCE: u32 = 10;

static BEFORE: OnceLock<[Previous; 2]> = OnceLock::new();

/// The scheduler's function that returns the fiber on the calling thread.
static CURRENT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

type Current = fn() -> Option<FiberRef>;

/// Installs the handler, once per process.
pub(crate) fn prepare(current: Current) -> Result<(), StartError> {
    CURRENT.store(current as *mut (), Relaxed);
    static DONE: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(|e| e.into_inner());
    let each = |signal, step: fn(c_int) -> std::io::Result<Previous>| {
        step(signal).map_err(|source| StartError::OverflowHandler { signal, source })
    };
    if BEFORE.get().is_none() {
        // Stored before the first fault can come, and before a start that fails half-way.
        let now = |signal| each(signal, signal::current);
        let _ = BEFORE.set([now(SIGSEGV)?, now(SIGBUS)?]);
    }
    if !*done {
        let install = |signal| each(signal, |signal| signal::install(signal, on_fault));
        install(SIGSEGV)?;
        install(SIGBUS)?;
        *done = true;
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: we are that handler.
    let address = unsafe { signal::fault_address(info) };
    // The list of slabs is checked first: a thread that never ran a fiber has nothing to report.
    if stack::is_stack_address(address)
        && let Some(fiber) = current().filter(|fiber| hit_guard(fiber, address))
    {
        report(fiber);
    }
    match BEFORE.get() {
        Some(before) => before[usize::from(signal == SIGBUS)].forward(signal, info, context),
        // Noted before the handler is installed.
        None => std::process::abort(),
    }
}

fn current() -> Option<FiberRef> {
    let current = CURRENT.load(Relaxed);
    if current.is_null() {
        return None;
    }
    // SAFETY: stored by `prepare` from a function of this type.
    let current = unsafe { std::mem::transmute::<*mut (), Current>(current) };
    current()
}

fn hit_guard(fiber: &Record, address: usize) -> bool {
    let stack = fiber.stack.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the running fiber's stack is mapped and its head never moves.
    unsafe { stack.as_ref() }.is_some_and(|head| head.guards(address))
}

fn report(fiber: FiberRef) -> ! {
    let mut line = Line::default();
    let _ = line.write_str("\nindent: ");
    let _ = fiber.describe(&mut line);
    let _ = line.write_str(", overflowed its stack; give it more with task::Builder::stack_size\n");
    line.flush();
    signal::end_process_in(PATIENCE);
    let mut left = FRAMES;
    // SAFETY: the process ends here; no other thread's symbolizing matters any more.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            print_frame(FRAMES - left, frame);
            left -= 1;
            left > 0
        });
    }
    if left == 0 {
        stderr::print("      …\n");
    }
    std::process::abort()
}

fn print_frame(number: usize, frame: &backtrace::Frame) {
    let mut line = Line::default();
    let _ = write!(line, "{number:4}: ");
    let mut named = false;
    // SAFETY: as in `report`.
    unsafe {
        backtrace::resolve_frame_unsynchronized(frame, |symbol| {
            if std::mem::replace(&mut named, true) {
                let _ = line.write_str("\n      ");
            }
            match symbol.name() {
                Some(name) => drop(write!(line, "{name:#}")),
                None => drop(write!(line, "{:?}", frame.ip())),
            }
            if let (Some(file), Some(row)) = (symbol.filename(), symbol.lineno()) {
                let _ = write!(line, "\n             at {}:{row}", file.display());
            }
        });
    }
    if !named {
        let _ = write!(line, "{:?}", frame.ip());
    }
    let _ = line.write_str("\n");
    line.flush();
}

/// Text of bounded length without allocation; what does not fit is dropped.
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line {
            bytes: [0; 1024],
            len: 0,
        }
    }
}

impl Line {
    fn flush(&mut self) {
        stderr::print(&String::from_utf8_lossy(&self.bytes[..self.len]));
        self.len = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let n = text.len().min(room.len());
        room[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
