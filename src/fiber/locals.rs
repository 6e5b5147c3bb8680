#![expect(
    unsafe_code,
    reason = "exchanges the thread-locals of the calling thread"
)]
//! Thread-locals of a fiber: their bytes are exchanged when the fiber is switched in and out.
//!
//! Rust code assumes that a thread-local belongs to the one flow of control that uses
//! it. So the bytes of the program's thread-locals are exchanged when a fiber is switched in and
//! out. What is exchanged is called the *block*: the thread-locals of Rust code in the executable,
//! by their symbols, without the runtime's own and without those on a list ([`PER_THREAD`]). C's
//! stay with the thread.
//!
//! **I33** *Between fibers the block of a thread that runs fibers is pristine*: it has the values
//! that a new thread has. The thread's own values are put aside when it begins to run fibers, and
//! put back before it ends. Only an allocator in Rust can change it meanwhile, since the scheduler
//! allocates: in such a program the block is made pristine again before a fiber begins.
//!
//! **I34** *A fiber that keeps its thread keeps its values in place.* A fiber that is bound to its
//! thread may have the address of a thread-local, or have passed it on. It has the thread
//! to itself (`sched/threads/tenant.rs`), so its values stay in the block, and it does not go to
//! another thread before it has run again ([`stay`]), or before they are fetched: a fiber that
//! parked before the program's code had been read may be found to be movable later
//! ([`Block::fetch`]).
//!
//! A movable fiber that leaves the block as it found it costs a comparison, and has no image. If
//! the block differs, it is copied into the fiber's image and made pristine, and the image is
//! copied back when the fiber is switched in.
//!
//! Destructors of thread-locals come to `__cxa_thread_atexit_impl`, which is defined here. It keeps
//! those of the block in a list of the fiber, and passes all others on to the C library. They run
//! on the fiber when its closure has ended, last registered first, and with them those that are
//! registered meanwhile. `std::thread::current` has no destructor there; see
//! [`end_current_thread`].
//!
//! Where this cannot be had ([`prepare`] says why), thread-locals are the threads', and a fiber
//! that uses one is bound (S5).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use indent_sysmon::names::nearest;
use indent_sysmon::thread_locals::{ThreadLocals, Variable};

use crate::fiber::record::FiberRef;
use crate::fiber::stack::StackHead;
use crate::sys::arch;
use crate::util::loom::atomic::{AtomicUsize, Ordering::Relaxed};

mod hook;
mod layout;
mod memory;
mod scan;

pub(crate) use hook::{has_destructors, run_destructors};
use layout::Layout;

const WORD: usize = size_of::<u64>();

/// Thread-locals that stay with the thread, by name prefix, each with the reason. What a function
/// gets out of one of these is worth the same on every thread, or it is used up before the function
/// returns; or it is about threads.
const PER_THREAD: [(&str, &str); 10] = [
    ("indent::", "the runtime's own"),
    ("indent_sysmon::", "the runtime's own"),
    (
        "std::hash::random::RandomState::new::KEYS",
        "a seed: any thread's will do",
    ),
    ("fastrand::", "a seed: any thread's will do"),
    (
        "sharded_slab::tid::",
        "the index, below 4,096, of the shard to use; memory of other shards is freed remotely",
    ),
    (
        "arc_swap::debt::list::THREAD_HEAD",
        "every `store` visits the nodes of all owners; debts are paid from any thread",
    ),
    (
        "std::io::stdio::OUTPUT_CAPTURE",
        "what a test harness gives to all threads that its test starts",
    ),
    (
        "std::sync::mpmc::context::",
        "how a channel wakes a thread, with the thread's address; made for the thread by `warm_up`",
    ),
    (
        "std::thread::spawnhook::",
        "what a thread gives to those that it starts",
    ),
    (
        "std::sys::thread_local::destructors::list::",
        "unused where the C library takes destructors",
    ),
];

static LAYOUT: OnceLock<Result<Layout, &'static str>> = OnceLock::new();
/// Name prefixes set by the program, in addition to [`PER_THREAD`].
static NAMED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Determines which bytes are exchanged, once. Variables with these names stay with the thread.
///
/// # Errors
/// Why thread-locals stay with the threads; or which name comes too late or fits no variable.
pub(crate) fn prepare(names: &[String]) -> Result<(), Unprepared<'_>> {
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Ok(_)) = LAYOUT.get() {
        let late = names.iter().find(|name| !named.contains(name));
        return late.map_or(Ok(()), |name| Err(Unprepared::TooLate(name)));
    }
    if LAYOUT.get().is_none() {
        let all = hook::is_in_place().and_then(|()| ThreadLocals::of_executable());
        if let Ok(all) = &all {
            check_names(all, names)?;
        }
        named.extend_from_slice(names);
        let layout = all.and_then(|all| Layout::new(&all, &named));
        LAYOUT.get_or_init(|| layout);
    }
    match LAYOUT.get() {
        Some(Err(why)) => Err(Unprepared::Impossible(why)),
        _ => Ok(()),
    }
}

/// Whether each of these names fits a variable.
fn check_names<'a>(all: &ThreadLocals, names: &'a [String]) -> Result<(), Unprepared<'a>> {
    let fits = |name: &str| all.variables.iter().any(|v| v.is_within(name));
    let Some(name) = names.iter().find(|name| !fits(name)) else {
        return Ok(());
    };
    let paths = all.variables.iter().map(|v| v.path().to_owned());
    let near = nearest(name, paths);
    Err(Unprepared::NoSuchVariable { name, near })
}

/// The variables that are exchanged, as distances from the thread pointer, sorted.
pub(crate) fn exchanged() -> Vec<Range<isize>> {
    let layout = LAYOUT.get().and_then(|layout| layout.as_ref().ok());
    layout.map_or_else(Vec::new, |layout| layout.variables.clone())
}

/// Why fibers get no thread-locals of their own, or not as requested.
#[derive(Clone, Debug)]
pub(crate) enum Unprepared<'a> {
    Impossible(&'static str),
    /// Fibers of another runtime have a variable of this name of their own.
    TooLate(&'a str),
    /// No variable has this name, but some have names like it.
    NoSuchVariable {
        name: &'a str,
        near: Vec<String>,
    },
}

/// Whether a thread-local stays with the thread, by its name.
fn is_per_thread(variable: &Variable, named: &[String]) -> bool {
    let listed = |row: &(&str, _)| variable.name.starts_with(row.0);
    PER_THREAD.iter().any(listed) || named.iter().any(|name| variable.is_within(name))
}

/// The thread-locals of one fiber, in the head of its stack. Touched only by the holder of the
/// fiber. The record has a flag for whether there is anything; a switch looks here only then.
pub(crate) struct Locals {
    /// Null: all have their initial values, and there are no destructors.
    own: Cell<*mut Own>,
}

/// What there is of thread-locals that a fiber has used.
struct Own {
    /// As many words as the layout has, or null.
    image: Cell<*mut u64>,
    destructors: Destructors,
    /// The values were left in the block of the fiber's thread (I34).
    stays: Cell<bool>,
}

impl Own {
    /// Copies the block of a thread into the image, and makes the block pristine.
    ///
    /// # Safety
    /// As for `Layout::save` and `Layout::load`.
    #[inline]
    unsafe fn move_out(&self, layout: &Layout, thread: usize) {
        if self.image.get().is_null() {
            self.image.set(layout.allocate());
        }
        // SAFETY: the image has as many words; the rest is the caller's promise.
        unsafe { layout.save(thread, self.image.get()) };
        // SAFETY: as above.
        unsafe { layout.load(thread, layout.pristine()) };
    }
}

impl Locals {
    pub(crate) fn none() -> Self {
        Locals {
            own: Cell::new(ptr::null_mut()),
        }
    }

    /// Returns the thread-locals a fiber has used, if any.
    ///
    /// # Safety
    /// The fiber is started and the caller's (I1), or the caller.
    #[inline]
    unsafe fn of<'a>(fiber: FiberRef) -> Option<&'a Own> {
        if !fiber.has_locals.load(Relaxed) {
            return None;
        }
        let head = fiber.stack.load(Relaxed);
        // SAFETY: by the caller's promise.
        let own = unsafe { (*head).locals.own.get() };
        // SAFETY: made by `make`, and freed by `clear` only.
        unsafe { own.as_ref() }
    }

    /// Returns the thread-locals of a fiber, and creates them if there are none.
    ///
    /// # Safety
    /// As for `of`.
    unsafe fn make<'a>(fiber: FiberRef) -> &'a Own {
        let head = fiber.stack.load(Relaxed);
        // SAFETY: by the caller's promise.
        let locals = unsafe { &(*head).locals };
        if locals.own.get().is_null() {
            locals.own.set(memory::put(Own {
                image: Cell::new(ptr::null_mut()),
                destructors: Destructors::none(),
                stays: Cell::new(false),
            }));
            fiber.has_locals.store(true, Relaxed);
        }
        // SAFETY: made above or earlier, and freed by `clear` only.
        unsafe { &*locals.own.get() }
    }

    /// Frees everything; the fiber has ended.
    #[cold]
    fn clear(&self, layout: &Layout) {
        let own = self.own.replace(ptr::null_mut());
        // SAFETY: `make` made it, and the pointer to it is gone.
        let own = unsafe { memory::take(own) };
        debug_assert!(own.destructors.is_empty(), "they have run");
        if !own.image.get().is_null() {
            // SAFETY: `leave` allocated it.
            unsafe { layout.free(own.image.get()) };
        }
    }
}

/// Whether values of a switched-out fiber are in the block of its thread, so that it has to run
/// there before it may go elsewhere.
///
/// # Safety
/// It is started, switched out and the caller's (I1).
pub(crate) unsafe fn stay(fiber: FiberRef) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { Locals::of(fiber) }.is_some_and(|own| own.stays.get())
}

/// Destructors that were registered, the last one first.
struct Destructors(Cell<*mut Node>);

struct Node {
    destructor: Destructor,
    /// Distance from the thread pointer.
    variable: isize,
    next: *mut Node,
}

type Destructor = unsafe extern "C" fn(*mut c_void);

impl Destructors {
    const fn none() -> Self {
        Destructors(Cell::new(ptr::null_mut()))
    }

    fn is_empty(&self) -> bool {
        self.0.get().is_null()
    }

    fn add(&self, destructor: Destructor, variable: isize) {
        self.0.set(memory::put(Node {
            destructor,
            variable,
            next: self.0.get(),
        }));
    }

    fn take(&self) -> Option<Node> {
        let first = self.0.get();
        if first.is_null() {
            return None;
        }
        // SAFETY: `add` made it, and it is in the list once.
        let node = unsafe { memory::take(first) };
        self.0.set(node.next);
        Some(node)
    }

    /// Runs all destructors, on the thread whose block has their variables.
    fn run(&self) {
        while let Some(node) = self.take() {
            // Computed each time: the previous destructor may have done anything.
            let variable = address(node.variable).cast::<c_void>();
            // SAFETY: registered for this variable, whose value is in place; called once.
            unsafe { (node.destructor)(variable) };
        }
    }
}

/// Returns the address of a variable of the calling thread.
fn address(variable: isize) -> *mut u8 {
    at(arch::thread_pointer(), variable)
}

/// Returns the address of a variable of the thread with this thread pointer.
#[inline]
fn at(thread: usize, variable: isize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(thread.wrapping_add_signed(variable))
}

/// Where a fiber that has switched out will run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// On any thread.
    Leaves,
    /// On this thread, for certain; no other fiber runs here before it.
    Bound,
    /// On this thread, unless it is found to be movable; no other fiber runs here before it.
    Perhaps,
}

/// The block of one thread that runs fibers. Used by its own thread only, unless a method says
/// otherwise.
pub(crate) struct Block {
    /// `None`: this thread exchanges nothing.
    layout: Cell<Option<&'static Layout>>,
    /// The thread pointer. Any thread reads it.
    thread: AtomicUsize,
    /// The fiber that runs now.
    fiber: Cell<Option<FiberRef>>,
    /// The thread's own values: an image.
    own: Cell<*mut u64>,
    /// Destructors registered by the scheduler's code, or by code it called.
    strays: Destructors,
}

thread_local! {
    /// The block of the calling thread, if it runs fibers.
    static BLOCK: Cell<*const Block> = const { Cell::new(ptr::null()) };
}

impl Block {
    pub(crate) fn new() -> Self {
        Block {
            layout: Cell::new(None),
            thread: AtomicUsize::new(0),
            fiber: Cell::new(None),
            own: Cell::new(ptr::null_mut()),
            strays: Destructors::none(),
        }
    }

    /// Called when the thread begins to run fibers; if `exchange`, with their own thread-locals.
    #[inline(never)]
    pub(crate) fn begin(&self, exchange: bool) {
        let layout = LAYOUT.get().filter(|_| exchange);
        let Some(Ok(layout)) = layout else {
            return;
        };
        let own = layout.allocate();
        // SAFETY: an image of this layout.
        unsafe { layout.save(arch::thread_pointer(), own) };
        self.own.set(own);
        // SAFETY: as above. There is no reference to a thread-local of this thread: its own code
        // is the runtime's.
        unsafe { layout.load(arch::thread_pointer(), layout.pristine()) };
        self.layout.set(Some(layout));
        self.thread.store(arch::thread_pointer(), Relaxed);
        BLOCK.set(self);
    }

    /// Called when the thread runs no fiber any more, and has no tenant.
    #[inline(never)]
    pub(crate) fn end(&self) {
        let Some(layout) = self.layout.get() else {
            return;
        };
        self.scrub(); // what its destructors register arrives here, too
        self.layout.set(None);
        BLOCK.set(ptr::null());
        let own = self.own.replace(ptr::null_mut());
        // SAFETY: `begin` saved it; no fiber is here.
        unsafe { layout.load(arch::thread_pointer(), own) };
        // SAFETY: `begin` allocated it.
        unsafe { layout.free(own) };
    }

    /// Undoes what the scheduler's code, or code it called, did to thread-locals. Called in the
    /// scheduler, while no fiber's values are in the block.
    #[cold]
    #[inline(never)]
    pub(crate) fn scrub(&self) {
        if let Some(layout) = self.layout.get() {
            self.strays.run();
            // SAFETY: the calling thread's own block, and no fiber's values are in it.
            unsafe { layout.load(arch::thread_pointer(), layout.pristine()) };
        }
    }

    /// Called before a fiber runs here. `in_place`: its values are in the block.
    ///
    /// # Safety
    /// The fiber is the caller's (I1), switched out, and has a stack.
    #[inline]
    pub(crate) unsafe fn enter(&self, fiber: FiberRef, in_place: bool) {
        let Some(layout) = self.layout.get() else {
            return;
        };
        if !self.strays.is_empty() && !in_place {
            self.scrub();
        }
        self.fiber.set(Some(fiber));
        // SAFETY: by the caller's promise.
        let own = unsafe { Locals::of(fiber) };
        if let Some(own) = own {
            debug_assert!(in_place || !own.stays.get(), "I34");
            own.stays.set(false);
        }
        let image = own.map_or(ptr::null_mut(), |own| own.image.get());
        if !in_place && !image.is_null() {
            // SAFETY: the image has as many words; the block is the calling thread's, and pristine.
            unsafe { layout.load(arch::thread_pointer(), image) };
        } else if !in_place && layout.is_allocators && !layout.is_pristine() {
            self.scrub(); // the scheduler has allocated or freed
        } else {
            debug_assert!(in_place || layout.is_pristine(), "I33");
        }
    }

    /// Called after a fiber has switched out here. If it leaves, the block is pristine afterwards.
    ///
    /// # Safety
    /// As for `enter`.
    #[inline]
    pub(crate) unsafe fn leave(&self, fiber: FiberRef, stay: Stay) {
        let Some(layout) = self.layout.get() else {
            return;
        };
        self.fiber.set(None);
        if stay == Stay::Bound || !fiber.has_locals.load(Relaxed) && layout.is_pristine() {
            return;
        }
        // SAFETY: by the caller's promise.
        let own = unsafe { Locals::make(fiber) };
        if stay == Stay::Perhaps {
            own.stays.set(true);
            return;
        }
        // SAFETY: the block is the calling thread's; the fiber has no address of a thread-local,
        // being movable.
        unsafe { own.move_out(layout, arch::thread_pointer()) };
    }

    /// Any thread: moves the values of a fiber that were left in this block into the fiber's
    /// image. False if that has to wait until the fiber has run here again, since the scheduler of
    /// this thread may change the block by allocating.
    ///
    /// # Safety
    /// The fiber is the caller's (I1), switched out, movable, and the tenant of this block's
    /// thread. So the thread neither ends nor runs another fiber before the caller lets the tenant
    /// out.
    pub(crate) unsafe fn fetch(&self, fiber: FiberRef) -> bool {
        // SAFETY: by the caller's promise.
        let Some(own) = (unsafe { Locals::of(fiber) }).filter(|own| own.stays.get()) else {
            return true;
        };
        let thread = self.thread.load(Relaxed);
        let layout = LAYOUT.get().and_then(|layout| layout.as_ref().ok());
        let Some(layout) = layout.filter(|layout| thread != 0 && !layout.is_allocators) else {
            return false;
        };
        own.stays.set(false);
        // SAFETY: by the caller's promise; only fibers use the block, and the fiber has no address
        // of a thread-local.
        unsafe { own.move_out(layout, thread) };
        true
    }

    /// Called after a fiber has ended here, and its destructors have run.
    ///
    /// # Safety
    /// The fiber is the caller's, and the stack was its own until now.
    #[inline]
    pub(crate) unsafe fn finish(&self, fiber: FiberRef, stack: *mut StackHead) {
        let Some(layout) = self.layout.get() else {
            return;
        };
        self.fiber.set(None);
        if fiber.has_locals.load(Relaxed) {
            // SAFETY: by the caller's promise.
            unsafe { (*stack).locals.clear(layout) };
        } else if layout.is_pristine() {
            return;
        }
        // SAFETY: the calling thread's own block; the fiber is over.
        unsafe { layout.load(arch::thread_pointer(), layout.pristine()) };
    }
}

/// On a fiber, after its destructors: drops what `std::thread::current` has made for it. A
/// thread does this when it ends, and there is no destructor by which it could be seen.
#[inline(never)]
pub(crate) fn end_current_thread() {
    let layout = here().and_then(|block| block.layout.get());
    let Some(layout) = layout.filter(|layout| layout.has(layout.current_thread)) else {
        return;
    };
    /// Smaller values mean that there is no handle, or that it is being made.
    const LAST_STATE: usize = 2;
    let variable = address(layout.current_thread).cast::<usize>();
    // SAFETY: a word of the calling thread's block, which std reads and writes as a whole.
    if unsafe { variable.read() } <= LAST_STATE {
        return;
    }
    let thread = std::thread::current();
    // SAFETY: as above. From here on std does not know the handle any more.
    unsafe { variable.write(0) };
    // SAFETY: a copy of the handle that the variable owned, in its place.
    drop(unsafe { ptr::read(&raw const thread) });
}

/// On a new thread, before it runs fibers: std's channels make what they need to wake it, with a
/// handle of the thread and not of the fiber that happens to need it first.
pub(crate) fn warm_up() {
    let (_sender, receiver) = mpsc::sync_channel::<()>(0);
    let _nothing = receiver.recv_timeout(Duration::ZERO);
}

/// The block of the calling thread.
#[inline(never)]
fn here<'a>() -> Option<&'a Block> {
    // SAFETY: `begin` set it, `end` clears it, and both are called by the thread that owns it.
    unsafe { BLOCK.get().as_ref() }
}

#[cfg(all(test, not(indent_loom)))]
mod tests;
