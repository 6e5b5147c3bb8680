#![expect(unsafe_code, reason = "signal handlers and alternate stacks")]
//! Signal handlers in front of those that were there before, and the stack they run on.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use crate::sys::memory;

pub(crate) use libc::{SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};

/// A handler in the form the kernel calls it: signal, signal information, interrupted registers.
pub(crate) type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The action that was installed for a signal before the runtime's.
pub(crate) struct Previous(libc::sigaction);

// SAFETY: a plain value: a function address, a mask and flags.
unsafe impl Send for Previous {}
// SAFETY: as above, and never changed.
unsafe impl Sync for Previous {}

/// Installs `handler` on the alternate stack and returns what it replaced.
pub(crate) fn install(signal: c_int, handler: Handler) -> io::Result<Previous> {
    install_with(signal, handler, 0)
}

/// Installs `handler`; system calls that the signal interrupts restart where the kernel can.
pub(crate) fn install_restarting(signal: c_int, handler: Handler) -> io::Result<Previous> {
    install_with(signal, handler, libc::SA_RESTART)
}

fn install_with(signal: c_int, handler: Handler, flags: c_int) -> io::Result<Previous> {
    // SAFETY: all-zero is a valid `sigaction` (no handler, empty mask, no flags).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
    let mut old = action;
    // SAFETY: both point to valid values; the handler has the type SA_SIGINFO asks for.
    match unsafe { libc::sigaction(signal, &action, &mut old) } {
        0 => Ok(Previous(old)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the action installed for a signal now.
pub(crate) fn current(signal: c_int) -> io::Result<Previous> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: the kernel fills in `now`; nothing is changed.
    match unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } {
        // SAFETY: filled in, since the call succeeded.
        0 => Ok(Previous(unsafe { now.assume_init() })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this handler is installed.
pub(crate) fn is_installed(signal: c_int, handler: Handler) -> bool {
    current(signal).is_ok_and(|now| now.0.sa_sigaction == handler as *const () as usize)
}

/// Unblocks a signal for the calling thread, whatever mask it inherited.
pub(crate) fn unblock(signal: c_int) {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes an empty set of it.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialized above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: a valid set; an invalid signal is an error and changes nothing.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: reads the set.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) };
}

impl Previous {
    /// Does what would have happened without the runtime to a signal that no fault raised.
    pub(crate) fn pass_on(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let harmless = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD, libc::SIGCONT];
        match self.0.sa_sigaction {
            libc::SIG_IGN => {}
            libc::SIG_DFL if harmless.contains(&signal) => {}
            libc::SIG_DFL => {
                // The default action, which ends the process when this handler has returned.
                self.forward(signal, info, context);
                // SAFETY: takes a number only.
                unsafe { libc::raise(signal) };
            }
            _ => self.forward(signal, info, context),
        }
    }

    /// Does what would have happened without the runtime. The default action is reinstated: the
    /// faulting instruction runs again, and the default action follows.
    pub(crate) fn forward(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        match self.0.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: reinstates a value the kernel gave us.
                unsafe { libc::sigaction(signal, &self.0, ptr::null_mut()) };
            }
            address if self.0.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: SA_SIGINFO says that the address is a function of this type.
                let handler = unsafe { std::mem::transmute::<usize, Handler>(address) };
                handler(signal, info, context);
            }
            address => {
                // SAFETY: without SA_SIGINFO it is a function of one argument.
                let handler =
                    unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(address) };
                handler(signal);
            }
        }
    }
}

/// Whether a signal was sent with this value, by a queue or a timer.
///
/// # Safety
/// `info` is the argument of a running handler.
pub(crate) unsafe fn was_sent_with(info: *mut siginfo_t, value: usize) -> bool {
    // SAFETY: by the caller's promise it points to a siginfo.
    let info = unsafe { &*info };
    if info.si_code != libc::SI_QUEUE && info.si_code != libc::SI_TIMER {
        return false;
    }
    // SAFETY: for these codes the field is filled in.
    unsafe { info.si_value() }.sival_ptr.addr() == value
}

/// Whether the kernel had no room to store the sender and value of a signal.
///
/// At the limit of queued signals (`ulimit -i`) it delivers the signal without them.
///
/// # Safety
/// `info` is the argument of a running handler.
pub(crate) unsafe fn has_lost_its_value(info: *mut siginfo_t) -> bool {
    // SAFETY: by the caller's promise it points to a siginfo.
    let info = unsafe { &*info };
    // SAFETY: for this code the field is filled in.
    info.si_code == libc::SI_USER && unsafe { info.si_pid() } == 0
}

/// Returns the address whose access raised the signal.
///
/// # Safety
/// `info` is the argument of a running SIGSEGV or SIGBUS handler.
pub(crate) unsafe fn fault_address(info: *mut siginfo_t) -> usize {
    // SAFETY: by the caller's promise it points to a siginfo.
    let info = unsafe { &*info };
    // SAFETY: and for these signals the field is filled in.
    unsafe { info.si_addr() as usize }
}

/// A stack for signal handlers on the calling thread; std's is too small for an unwinder.
pub(crate) struct AlternateStack {
    at: NonNull<u8>,
    previous: libc::stack_t,
}

impl AlternateStack {
    /// Room for an unwinder, a symbolizer and the largest register file.
    const SIZE: usize = 256 * 1024;

    /// Its addresses.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let start = self.at.addr().get() + memory::PAGE;
        start..start + Self::SIZE
    }

    /// Switches the calling thread to a new alternate stack, with a guard page below it.
    pub(crate) fn install() -> io::Result<Self> {
        let at = memory::map(memory::PAGE + Self::SIZE)?;
        // SAFETY: no other code has the mapping yet.
        unsafe { memory::forbid(at, memory::PAGE)? };
        // SAFETY: the mapping is larger than a page.
        let usable = unsafe { at.add(memory::PAGE) };
        let stack = libc::stack_t {
            ss_sp: usable.as_ptr().cast(),
            ss_flags: 0,
            ss_size: Self::SIZE,
        };
        let mut previous = stack;
        // SAFETY: `usable` stays mapped until `drop` has reinstated the old one.
        if unsafe { libc::sigaltstack(&stack, &mut previous) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(AlternateStack { at, previous })
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: reinstates what the kernel gave us; we do not run on the alternate stack.
        unsafe { libc::sigaltstack(&self.previous, ptr::null_mut()) };
        // SAFETY: no longer in use by the line above.
        unsafe { memory::unmap(self.at, memory::PAGE + Self::SIZE) };
    }
}

/// Ends the process by SIGALRM after some seconds, whatever it is doing then.
pub(crate) fn end_process_in(seconds: u32) {
    // SAFETY: reinstates the default action, which needs no code of ours.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
    // SAFETY: takes a number only.
    unsafe { libc::alarm(seconds) };
}
