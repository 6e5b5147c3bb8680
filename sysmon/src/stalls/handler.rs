#![expect(unsafe_code, reason = "a signal handler, and the stack it runs on")]
//! The signal that makes a thread copy its own stack, and its handler.
//!
//! The handler runs between any two instructions, perhaps inside the allocator: no allocation, no
//! lock, no thread-local, and `errno` stays as it was. The detector's signals carry the address of
//! a record. The handler looks that address up in the list of all records, so it dereferences a
//! record and nothing else. If the record is not that of the thread it runs on (the thread has
//! left, and its number is another thread's), nothing happens. Any other signal goes to the handler
//! that was there before.
//!
//! Signal stacks: the kernel pushes all registers (11 KiB where there are tile registers), and
//! std's signal stack has 8 KiB or just what the kernel needs. So a thread that enlists gets one of
//! [`ROOM`] bytes, unless its own is that large already, and keeps it until it ends.
//!
//! Handlers are never removed: a signal that is under way would end the process.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock};

use libc::{c_int, c_void, siginfo_t};

use super::record::Record;
use crate::frames::{Registers, Stack};
use crate::own_stack;

/// Sizes of a signal stack, and of the guard below it, in bytes.
const ROOM: usize = 64 * 1024;
const GUARD: usize = 4096;
/// One more than the last signal.
const SIGNALS: usize = 65;

const NAMED: [c_int; 5] = [
    libc::SIGURG,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGIO,
    libc::SIGWINCH,
];

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The action that was installed for each signal before the detector's.
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS] = [const { OnceLock::new() }; SIGNALS];

/// The default signal: the last real-time signal but one.
pub(super) fn usual_signal() -> c_int {
    libc::SIGRTMAX() - 1
}

/// Installs the handler for a signal, once in a process.
pub(super) fn prepare(signal: c_int) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let real_time = libc::SIGRTMIN() + 1..=libc::SIGRTMAX();
    if !NAMED.contains(&signal) && !real_time.contains(&signal) {
        let last = libc::SIGRTMAX() - libc::SIGRTMIN();
        let allowed = format!("URG, USR1, USR2, IO, WINCH or RTMIN+1 to RTMIN+{last}");
        let message = format!("cannot use signal {signal}: allowed are {allowed}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let before = &BEFORE[signal as usize];
    if before.get().is_none() {
        let _ = before.set(action(signal, None)?); // before the first signal can come
        // SAFETY: zeros are a valid action; what matters is set below.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = on_signal as Handler as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        action(signal, Some(&ours))?;
    }
    Ok(())
}

/// Returns the installed action, and installs a new one if there is one.
fn action(signal: c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: reads `new`, and fills in `old`; a new handler is ours, of the type its flags ask
    // for.
    match unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) } {
        // SAFETY: filled in.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: takes nothing and cannot fail.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    let kept = unsafe { *errno };
    // SAFETY: the argument of a running handler.
    match unsafe { record_in(info) } {
        // SAFETY: as above.
        Some(record) => unsafe { interrupted(record, context) },
        None => pass_on(signal, info, context),
    }
    // SAFETY: the thread's own.
    unsafe { *errno = kept };
}

/// Returns the record whose address the signal carries.
///
/// # Safety
/// The argument of a running handler.
unsafe fn record_in(info: *mut siginfo_t) -> Option<&'static Record> {
    // SAFETY: by the caller's promise it points to a siginfo.
    let info = unsafe { &*info };
    if info.si_code != libc::SI_QUEUE {
        return None;
    }
    // SAFETY: for this code the field is filled in.
    Record::at(unsafe { info.si_value() }.sival_ptr.addr())
}

/// Copies the stack if the monitor still wants it.
///
/// # Safety
/// The argument of a running handler.
unsafe fn interrupted(record: &Record, context: *mut c_void) {
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::gettid() };
    let request = record.request.load(SeqCst);
    if record.thread.number() != Some(own) || request == 0 || !record.is_in(request) {
        return;
    }
    // SAFETY: the kernel's, for the time of the handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let register = |which: i32| context.uc_mcontext.gregs[which as usize] as usize;
    let [ip, sp, bp] = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP].map(register);
    let [low, high] = [0, 1].map(|end: usize| record.stack[end].load(SeqCst));
    // SAFETY: this thread's own stack, which is there as long as it runs.
    let stack = unsafe { Stack::new(low..high) };
    if record
        .snapshot()
        .take(&Registers::interrupted(ip, sp, bp), &stack)
    {
        record.request.store(0, SeqCst);
        record.answer.store(request, SeqCst);
    }
}

/// Does what would have happened without the detector.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = BEFORE.get(signal as usize).and_then(OnceLock::get);
    let Some(before) = before else { return };
    let ignored = [libc::SIGURG, libc::SIGWINCH];
    match before.sa_sigaction {
        libc::SIG_IGN => {}
        libc::SIG_DFL if ignored.contains(&signal) => {}
        libc::SIG_DFL => {
            // The default is to end the process: it is reinstated, and takes the raised signal when
            // this handler has returned. SAFETY: a value the kernel gave us.
            unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            // SAFETY: takes a number only.
            unsafe { libc::raise(signal) };
        }
        address if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that the address is a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(address) };
            handler(signal, info, context);
        }
        address => {
            // SAFETY: without SA_SIGINFO it is a function of one argument.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(address) };
            handler(signal);
        }
    }
}

/// What the calling thread owns until it ends.
struct Own {
    records: Vec<&'static Record>,
    stack: Option<SignalStack>,
}

thread_local! {
    /// Not for the handler.
    static OWN: RefCell<Own> = const {
        RefCell::new(Own { records: Vec::new(), stack: None })
    };
}

/// Leaves all records when the thread ends without leaving.
impl Drop for Own {
    fn drop(&mut self) {
        self.records.iter().for_each(|record| record.leave());
    }
}

/// Whether the calling thread is enlisted in a record for which `is` returns true.
pub(super) fn is_enlisted_in(mut is: impl FnMut(&Record) -> bool) -> bool {
    let found = OWN.try_with(|own| own.borrow().records.iter().any(|record| is(record)));
    found.unwrap_or(false)
}

/// Prepares the calling thread, which took the record, for the signal: gives it a stack for the
/// handler, and unblocks the signal.
pub(super) fn prepare_here(record: &'static Record, signal: c_int) -> io::Result<()> {
    OWN.with(|own| {
        let mut own = own.borrow_mut();
        if own.stack.is_none() {
            own.stack = SignalStack::install()?;
        }
        unblock(signal);
        let stack = own_stack();
        record.enlist([stack.start, stack.end]);
        own.records.push(record);
        Ok(())
    })
}

/// Forgets a record that the calling thread has left.
pub(super) fn forget_here(record: &Record) {
    let forget = |own: &RefCell<Own>| own.borrow_mut().records.retain(|r| !ptr::eq(*r, record));
    let _ends = OWN.try_with(forget);
}

fn unblock(signal: c_int) {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes an empty set of it.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialized above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: a valid set and a valid signal.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: reads the set.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) };
}

/// A signal stack with a guard below it.
struct SignalStack {
    /// Start of the mapping, which is the guard.
    at: *mut c_void,
    before: libc::stack_t,
}

impl SignalStack {
    /// Installs one for the calling thread; `None` if its own is large enough.
    fn install() -> io::Result<Option<Self>> {
        let before = signal_stack(None)?;
        if before.ss_flags & libc::SS_DISABLE == 0 && before.ss_size >= ROOM {
            return Ok(None);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, wherever there is room.
        let at = unsafe { libc::mmap(ptr::null_mut(), GUARD + ROOM, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = SignalStack { at, before };
        // SAFETY: nobody has seen the mapping yet. Without a guard it would do as well.
        unsafe { libc::mprotect(at, GUARD, libc::PROT_NONE) };
        let usable = libc::stack_t {
            ss_sp: stack.usable(),
            ss_flags: 0,
            ss_size: ROOM,
        };
        signal_stack(Some(&usable))?;
        Ok(Some(stack))
    }

    fn usable(&self) -> *mut c_void {
        self.at.wrapping_byte_add(GUARD)
    }
}

/// Returns the calling thread's signal stack, and installs a new one if there is one.
fn signal_stack(new: Option<&libc::stack_t>) -> io::Result<libc::stack_t> {
    let mut old = MaybeUninit::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: reads `new`, whose memory stays until another one is installed, and fills in `old`.
    match unsafe { libc::sigaltstack(new, old.as_mut_ptr()) } {
        // SAFETY: filled in.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let now = signal_stack(None);
        let is_ours = now.as_ref().is_ok_and(|now| now.ss_sp == self.usable());
        let is_off = now.is_ok_and(|now| now.ss_flags & libc::SS_DISABLE != 0);
        // std frees its own when a thread ends, and switches off whichever is installed.
        if is_ours && signal_stack(Some(&self.before)).is_ok() || is_off {
            // SAFETY: in use no longer.
            unsafe { libc::munmap(self.at, GUARD + ROOM) };
        }
        // Otherwise other code has installed another one, and may put this one back: it stays.
    }
}
