#![expect(
    unsafe_code,
    reason = "declarations are promises that only the program can keep"
)]
//! What a program declares harmless: thread-locals and functions that bind no fiber.

use indent_sysmon::frames::{self, Declaration};

use crate::error::StartError;
use crate::runtime::{Builder, config};

impl Builder {
    /// Declares that a thread-local binds no fiber to its thread once a use of it is over.
    ///
    /// The runtime reads from the program's machine code which functions may leave something of
    /// their thread behind, such as the address of a thread-local. It is strict: code that it
    /// cannot follow counts as if it did, and a fiber that calls such a function keeps a thread
    /// while it is parked. [`Runtime::binding`](crate::runtime::Runtime::binding) names the
    /// variable. If the source shows that nothing is left, this method says so.
    ///
    /// The name is the path of the variable, such as `my_crate::pool::FREE`, or the symbol of a
    /// C variable that is linked into the executable. It stands for all variables of this path, of
    /// which there are several if two versions of a crate are in the program, and not for those of
    /// a module. A name that fits no variable is reported on standard error once the code has been
    /// read. A program without symbols has no names of variables.
    ///
    /// All runtimes of a process share what is known of its code. So the first runtime of the
    /// process declares everything. A later one may only repeat names; any other is an error.
    /// There is no environment variable for this.
    ///
    /// # Safety
    ///
    /// The fiber may change its thread at the next call that blocks, and the compiler and the
    /// runtime no longer check that this is right. For every use of the variable, in any code of
    /// the program, its initializer and its destructor included:
    ///
    /// 1. *No fiber blocks during a use.* While code has a reference or a pointer to the variable,
    ///    or into it, it calls no operation of the runtime that may block or yield. So the
    ///    closure given to `with` does none of these, and neither do closures and trait methods
    ///    that it calls.
    /// 2. *No address is left.* When the use is over there is no pointer or reference to the
    ///    variable, or into it, in what a function returns, in other variables or on the heap. An
    ///    address that serves as the identity of the thread counts, too.
    /// 3. *No value is left that is valid on one thread only.* What was copied or moved out of the
    ///    variable is as good on any other thread, and with any other thread's value of the
    ///    variable. The number of the thread, an `Rc` of which the variable keeps a clone, and a
    ///    guard that changes the variable when it is dropped are not.
    ///
    /// This must hold whether fibers have the variable of their own or that of the thread
    /// ([`thread_locals`](Self::thread_locals), [`per_thread`](Self::per_thread)): the environment
    /// may decide that.
    ///
    /// It holds for a list of free buffers from which whole buffers are taken:
    ///
    /// ```
    /// use std::cell::RefCell;
    ///
    /// thread_local!(static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) });
    ///
    /// /// A buffer that the caller owns. The list is not borrowed any more when this returns.
    /// fn take() -> Vec<u8> {
    ///     FREE.with_borrow_mut(|free| free.pop().unwrap_or_default())
    /// }
    ///
    /// /// Puts a buffer back, on whichever thread the fiber is then.
    /// fn put(buffer: Vec<u8>) {
    ///     FREE.with_borrow_mut(|free| free.push(buffer));
    /// }
    ///
    /// fn main() -> Result<(), indent::StartError> {
    ///     let free = concat!(module_path!(), "::FREE");
    ///     let builder = indent::runtime::Builder::new().per_thread(free);
    ///     // SAFETY: `take` and `put` alone use FREE. They do not block, and what they move out of
    ///     // it and into it is an ordinary buffer that any thread may own.
    ///     let rt = unsafe { builder.harmless_thread_local(free) }.build()?;
    ///     rt.block_on(|| {
    ///         let buffer = take();
    ///         indent::task::yield_now(); // perhaps goes on on another thread
    ///         put(buffer);
    ///     });
    ///     Ok(())
    /// }
    /// ```
    ///
    /// It does not hold for a variable of which a guard is handed out:
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
    ///
    /// struct Entered;
    ///
    /// /// The guard is left when this returns. If its fiber moves to a thread with another DEPTH,
    /// /// that one is counted down instead. To declare DEPTH harmless would be wrong.
    /// fn enter() -> Entered {
    ///     DEPTH.set(DEPTH.get() + 1);
    ///     Entered
    /// }
    ///
    /// impl Drop for Entered {
    ///     fn drop(&mut self) {
    ///         DEPTH.set(DEPTH.get() - 1);
    ///     }
    /// }
    /// # drop(enter());
    /// ```
    pub unsafe fn harmless_thread_local(mut self, name: impl Into<String>) -> Self {
        self.declared.push(Declaration::ThreadLocal(name.into()));
        self
    }

    /// Declares that a function leaves nothing of its thread behind when it returns.
    ///
    /// For functions that the runtime cannot follow or must take for harmful: functions of C
    /// libraries, and Rust functions that pass the address of a thread-local through memory or make
    /// a system call. Code that calls a declared function is not bound by it.
    /// [`Runtime::binding`](crate::runtime::Runtime::binding) names the functions that bind
    /// fibers.
    ///
    /// The name is one of these:
    /// - the path of a Rust function, as reports print it: `my_crate::codec::encode`,
    ///   `my_crate::Codec::encode`, or `<my_crate::Codec as my_crate::Encode>::encode` for a method
    ///   of a trait. It stands for all functions of this path: all instances of a generic one, and
    ///   those of all versions of a crate in the program. With arguments
    ///   (`my_crate::encode::<u8>`) it stands for one instance, if the symbols of the program have
    ///   arguments in them;
    /// - the symbol of a C function, `deflate`, in the executable or in a shared library that it is
    ///   linked with. A function that the program looks up by itself (`dlsym`) has no name.
    ///
    /// A function that the compiler inlines has no name either: mark it `#[inline(never)]`. A name
    /// that fits no function is reported on standard error once the code has been read. In a
    /// program without symbols only functions of shared libraries have names.
    ///
    /// The declaration counts for calls that have returned. A fiber that is parked *inside* the
    /// function, in a callback, is judged as before.
    ///
    /// As with [`harmless_thread_local`](Self::harmless_thread_local), the first runtime of the
    /// process declares everything; a later one may only repeat names.
    ///
    /// # Safety
    ///
    /// For every call of the function, by any code of the program, and for each instance of a
    /// generic one, when it has returned or unwound:
    ///
    /// 1. *It returns nothing of its thread.* No address of a thread-local or of the thread's
    ///    control block, no handle or number of the thread, nothing that must be used, released or
    ///    freed on the same thread. The same goes for what it writes through its arguments. If it
    ///    returns the address of a function, all this holds for that function, too.
    /// 2. *It leaves nothing behind.* No address of a thread-local in memory. No state of the
    ///    thread that the caller relies on later: no lock that the thread owns, no current context,
    ///    no error of the last call that is asked for after the fiber has blocked. No attribute
    ///    that the kernel keeps for the thread (name, priority, CPUs, credentials) is changed.
    /// 3. *It passes nothing on.* Both hold for all code that it calls, closures, trait methods and
    ///    callbacks of its callers included.
    ///
    /// It holds for a C function that uses a buffer of its thread while it runs:
    ///
    /// ```
    /// /// `strerror` formats into a buffer of the thread and returns its address.
    /// #[inline(never)]
    /// fn describe(error: i32) -> String {
    ///     // SAFETY: a number in, a string that ends with a zero byte out.
    ///     let text = unsafe { std::ffi::CStr::from_ptr(libc::strerror(error)) };
    ///     text.to_string_lossy().into_owned()
    /// }
    ///
    /// fn main() -> Result<(), indent::StartError> {
    ///     let builder = indent::runtime::Builder::new();
    ///     // SAFETY: the text is copied before `describe` returns, and nothing else is left.
    ///     let builder =
    ///         unsafe { builder.harmless_function(concat!(module_path!(), "::describe")) };
    ///     let rt = builder.build()?;
    ///     let text = rt.block_on(|| {
    ///         let text = describe(2);
    ///         indent::task::yield_now(); // perhaps goes on on another thread
    ///         text
    ///     });
    ///     assert_eq!(text, "No such file or directory");
    ///     Ok(())
    /// }
    /// ```
    ///
    /// It does not hold for `strerror` itself, which returns an address in memory of the thread;
    /// for `pthread_mutex_lock`, after which the thread owns the lock; nor for a C library that
    /// keeps its last error for the thread, if the program asks for it later.
    pub unsafe fn harmless_function(mut self, name: impl Into<String>) -> Self {
        self.declared.push(Declaration::Function(name.into()));
        self
    }
}

/// Has the declarations of the first runtime hold for the process.
///
/// # Errors
/// A declaration that another runtime, or the code that was read, came before.
pub(super) fn declare(declarations: &[Declaration]) -> Result<(), StartError> {
    // SAFETY: the caller of the builder's method promised it for each name.
    let declared = unsafe { frames::declare_harmless(declarations) };
    declared.map_err(|late| {
        let setting = match late {
            Declaration::ThreadLocal(_) => &config::HARMLESS_THREAD_LOCAL,
            Declaration::Function(_) => &config::HARMLESS_FUNCTION,
        };
        let allowed = "a name that the first runtime of the process declares, too: the code is read \
                       once for all; declare it there, before a fiber is spawned without a runtime";
        setting.refuse_beyond(late.name().to_owned(), allowed.to_owned())
    })
}
