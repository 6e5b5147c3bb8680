//! Verdicts on functions of this very program. Run in debug and release: in the one everything is
//! called through pointers and constants, in the other most of it is inlined.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::{LazyLock, Mutex};
use std::thread::{Thread, ThreadId};

use Mobility::{Bound, Movable};
use indent_sysmon::frames::{self, Judge, Mobility};

static JUDGE: LazyLock<Judge> = LazyLock::new(survey);

/// Reads the code of this program, in which some functions bind those that call through pointers:
/// the program vouches for its pointers, so that each sample is judged by its own code.
#[expect(unsafe_code, reason = "vouches for calls through pointers")]
fn survey() -> Judge {
    // SAFETY: no stack of this program goes to another thread.
    unsafe { frames::trust_pointers() };
    Judge::survey()
}

thread_local! {
    static CONSTANT: Cell<u32> = const { Cell::new(0) };
    static LAZY: RefCell<String> = RefCell::new(String::from("lazy"));
}

/// Where a sample would park.
#[inline(never)]
fn opaque() {
    black_box(());
}

macro_rules! verdict {
    ($function:expr) => {{
        let ip = $function as fn() as usize;
        let mobility = JUDGE.mobility(ip);
        if mobility == Bound {
            println!("{}: {:?}", stringify!($function), JUDGE.explain(ip));
        }
        mobility
    }};
}

#[inline(never)]
fn sets_before_and_after() {
    CONSTANT.set(black_box(1));
    opaque();
    CONSTANT.set(black_box(2));
}

#[inline(never)]
fn borrows_around() {
    LAZY.with_borrow_mut(|text| {
        opaque();
        text.push('x');
    });
}

#[inline(never)]
fn saves_and_restores() {
    let old = CONSTANT.replace(black_box(9));
    opaque();
    CONSTANT.set(old);
}

#[test]
fn a_thread_local_binds() {
    assert_eq!(verdict!(sets_before_and_after), Bound);
    assert_eq!(verdict!(borrows_around), Bound);
    assert_eq!(verdict!(saves_and_restores), Bound);
}

#[inline(never)]
fn counts_references() {
    let one = Rc::new(black_box(5));
    let two = Rc::clone(&one);
    opaque();
    black_box(*two);
}

#[inline(never)]
fn collects() {
    let mut list: Vec<String> = Vec::new();
    for i in 0..black_box(3) {
        list.push(format!("{i:>4}"));
    }
    list.sort();
    opaque();
    black_box(list.concat());
}

#[inline(never)]
fn panics_perhaps() {
    let list = black_box(vec![1, 2, 3]);
    opaque();
    assert!(black_box(list[1]) == 2, "two is {}", list[1]);
}

#[inline(never)]
fn maps_in_order() {
    let mut map = BTreeMap::new();
    map.insert(black_box(1), "one");
    opaque();
    black_box(map.get(&1));
}

#[inline(never)]
fn maps_with_fixed_keys() {
    let mut map: HashMap<u32, u32, BuildHasherDefault<DefaultHasher>> = HashMap::default();
    map.insert(black_box(1), 2);
    opaque();
    black_box(map.len());
}

#[inline(never)]
fn locks() {
    static LOCK: Mutex<u32> = Mutex::new(0);
    let mut guard = LOCK.lock().unwrap_or_else(|poison| poison.into_inner());
    opaque();
    *guard += 1;
}

#[inline(never)]
fn prints() {
    opaque();
    println!("{}", black_box(3));
}

#[inline(never)]
fn reads_a_file() {
    let bytes = std::fs::read(black_box("/proc/self/comm"));
    opaque();
    black_box(bytes.ok());
}

#[inline(never)]
fn reads_the_clock() {
    let begun = std::time::Instant::now();
    opaque();
    black_box(begun.elapsed());
}

#[inline(never)]
fn computes() {
    let mut sum = black_box(1_u64);
    for i in 0..black_box(100) {
        sum = sum.wrapping_mul(31).wrapping_add(i);
    }
    black_box(sum);
}

#[test]
fn ordinary_code_is_free() {
    assert_eq!(verdict!(computes), Movable);
    assert_eq!(verdict!(counts_references), Movable);
    assert_eq!(verdict!(collects), Movable);
    assert_eq!(verdict!(panics_perhaps), Movable);
    assert_eq!(verdict!(maps_in_order), Movable);
    assert_eq!(verdict!(maps_with_fixed_keys), Movable);
    assert_eq!(verdict!(locks), Movable);
    assert_eq!(verdict!(prints), Movable);
    assert_eq!(verdict!(reads_a_file), Movable);
    assert_eq!(verdict!(reads_the_clock), Movable);
}

#[inline(never)]
fn maps_with_random_keys() {
    let mut map = HashMap::new();
    map.insert(black_box(1), 2);
    opaque();
    black_box(map.len());
}

/// Where `RandomState::new` is called it is a harmless function; how much of it is inlined without
/// optimization is up to the compiler.
#[test]
fn random_keys_bind_where_they_are_inlined() {
    let mobility = verdict!(maps_with_random_keys);
    assert!(mobility == Bound || cfg!(debug_assertions));
    if mobility == Bound {
        let binding = JUDGE.explain(maps_with_random_keys as fn() as usize);
        assert!(binding.variable().is_some_and(|name| name.contains("KEYS")));
    }
}

fn adds() -> u32 {
    black_box(1) + 1
}
fn counts() -> u32 {
    CONSTANT.replace(black_box(7))
}

static MIXED: [fn() -> u32; 3] = [adds, adds, counts];

#[inline(never)]
fn calls_from_a_table() {
    black_box(MIXED[black_box(0)]());
}

#[inline(never)]
fn calls_from_the_middle_of_a_table() {
    for function in &MIXED[1..] {
        black_box(function());
    }
}

/// Promoted: it has no name.
const UNNAMED: &[fn() -> u32] = &[adds, adds, adds, counts];

#[inline(never)]
fn calls_from_an_unnamed_table() {
    black_box(UNNAMED[black_box(1)]());
}

#[inline(never)]
fn calls_from_the_middle_of_an_unnamed_table() {
    for function in &UNNAMED[2..] {
        black_box(function());
    }
}

#[inline(never)]
fn calls_from_the_end_of_a_table() {
    for function in MIXED.iter().rev() {
        black_box(function());
    }
}

#[inline(never)]
fn calls_a_box() {
    let boxed: Box<dyn Fn() -> u32> = black_box(Box::new(counts));
    black_box(boxed());
}

#[inline(never)]
fn calls_a_plain_box() {
    let boxed: Box<dyn Fn() -> u32> = black_box(Box::new(adds));
    black_box(boxed());
}

trait Speak {
    fn speak(&self) -> u32;
}
struct Quiet(u32);
struct Loud(u32);
struct Holding(u32);
struct Other(u32);
impl Speak for Quiet {
    fn speak(&self) -> u32 {
        black_box(self.0) + 1
    }
}
impl Speak for Loud {
    fn speak(&self) -> u32 {
        black_box(self.0) + 2
    }
}
impl Speak for Holding {
    fn speak(&self) -> u32 {
        CONSTANT.replace(self.0)
    }
}
impl Speak for Other {
    fn speak(&self) -> u32 {
        black_box(self.0) + 3
    }
}

/// The optimizer makes a table of distances to the vtables out of this.
#[inline(never)]
fn chosen(which: u32) -> &'static dyn Speak {
    match which {
        0 => &Quiet(1),
        1 => &Loud(2),
        2 => &Holding(3),
        3 => &Other(4),
        4 => &Quiet(5),
        _ => &Loud(6),
    }
}

#[inline(never)]
fn calls_a_chosen_one() {
    let speaker = chosen(black_box(1));
    opaque();
    black_box(speaker.speak());
}

#[test]
fn tables_and_vtables_count_with_all_their_functions() {
    assert_eq!(verdict!(calls_from_a_table), Bound);
    assert_eq!(verdict!(calls_from_the_middle_of_a_table), Bound);
    assert_eq!(verdict!(calls_from_the_end_of_a_table), Bound);
    assert_eq!(verdict!(calls_from_an_unnamed_table), Bound);
    assert_eq!(verdict!(calls_from_the_middle_of_an_unnamed_table), Bound);
    assert_eq!(verdict!(calls_a_plain_box), Movable);
    assert_eq!(verdict!(calls_a_box), Bound);
    assert_eq!(verdict!(calls_a_chosen_one), Bound);
}

#[inline(never)]
fn keeps_its_thread() {
    let me: Thread = std::thread::current();
    opaque();
    black_box(me.name().is_some());
}

#[inline(never)]
fn keeps_its_number() {
    let me: ThreadId = std::thread::current().id();
    opaque();
    black_box(me);
}

#[inline(never)]
fn keeps_stdout() {
    let lock = std::io::stdout().lock();
    opaque();
    drop(black_box(lock));
}

#[inline(never)]
fn keeps_stderr() {
    let lock = std::io::stderr().lock();
    opaque();
    drop(black_box(lock));
}

#[inline(never)]
fn scopes() {
    std::thread::scope(|scope| {
        opaque();
        let _ = scope.spawn(opaque).join();
    });
}

#[inline(never)]
fn receives() {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<u32>(1);
    let _ = sender.send(black_box(1));
    opaque();
    black_box(receiver.recv().ok());
}

/// A user's trait for a type of the standard library whose own methods are listed.
trait Counted {
    fn counted(&self) -> u32;
}
impl<T> Counted for std::sync::mpsc::Receiver<T> {
    #[inline(never)]
    fn counted(&self) -> u32 {
        CONSTANT.replace(black_box(3))
    }
}

#[inline(never)]
fn calls_a_trait_of_a_listed_type() {
    static CHANNEL: Mutex<Option<std::sync::mpsc::Receiver<u32>>> = Mutex::new(None);
    if let Some(receiver) = &*CHANNEL.lock().unwrap_or_else(|poison| poison.into_inner()) {
        black_box(receiver.counted());
    }
}

/// A thread that waits for a message sleeps inside the call, and nothing of it is left behind.
#[test]
fn channels_leave_nothing_with_a_thread() {
    assert_eq!(verdict!(receives), Movable);
}

#[test]
fn a_trait_of_others_for_a_listed_type_is_not_listed() {
    assert_eq!(verdict!(calls_a_trait_of_a_listed_type), Bound);
}

#[test]
fn what_belongs_to_a_thread_binds() {
    assert_eq!(verdict!(keeps_its_thread), Bound);
    assert_eq!(verdict!(keeps_its_number), Bound);
    assert_eq!(verdict!(keeps_stdout), Bound);
    assert_eq!(verdict!(keeps_stderr), Bound);
    assert_eq!(verdict!(scopes), Bound);
}

#[test]
fn the_kernel_is_asked_by_numbers() {
    #[inline(never)]
    #[expect(unsafe_code, reason = "asks the kernel")]
    fn asks_for_its_thread() {
        // SAFETY: no conditions.
        black_box(unsafe { libc::syscall(libc::SYS_gettid) });
    }
    #[inline(never)]
    #[expect(unsafe_code, reason = "asks the kernel")]
    fn asks_for_anything() {
        // SAFETY: a number that does not exist.
        black_box(unsafe { libc::syscall(black_box(-1)) });
    }
    #[inline(never)]
    #[expect(unsafe_code, reason = "asks the kernel")]
    fn asks_for_its_process() {
        // SAFETY: no conditions.
        black_box(unsafe { libc::syscall(libc::SYS_getpid) });
        opaque();
        // SAFETY: no conditions.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
    }
    assert_eq!(verdict!(asks_for_its_thread), Bound);
    assert_eq!(verdict!(asks_for_anything), Bound);
    assert_eq!(verdict!(asks_for_its_process), Movable);
    let why = JUDGE.explain(asks_for_its_thread as fn() as usize);
    let last = why.path().last().expect("a reason");
    let number = libc::SYS_gettid.to_string();
    assert!(last.how().ends_with(&number), "{last}");
}

#[test]
fn errno_is_not_handed_on_by_a_jump_unless_as_an_argument() {
    #[unsafe(naked)]
    extern "C" fn looks_and_closes() {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "call qword ptr [rip + __errno_location@GOTPCREL]",
            "cmp dword ptr [rax], 9",
            "je 2f",
            "mov edi, -1",
            "jmp qword ptr [rip + close@GOTPCREL]",
            "2: xor eax, eax",
            "ret",
            ".cfi_endproc",
        );
    }
    #[unsafe(naked)]
    extern "C" fn hands_on() {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "call qword ptr [rip + __errno_location@GOTPCREL]",
            "mov rdi, rax",
            "jmp qword ptr [rip + free@GOTPCREL]",
            ".cfi_endproc",
        );
    }
    let verdict = |function: extern "C" fn()| JUDGE.mobility(function as usize);
    assert_eq!(verdict(looks_and_closes), Movable);
    assert_eq!(verdict(hands_on), Bound);
}

/// Right with any linker: also where calls are bound lazily.
#[test]
fn functions_of_libc_bind_by_name() {
    #[inline(never)]
    #[expect(unsafe_code, reason = "calls libc")]
    fn asks_for_its_thread() {
        // SAFETY: no conditions.
        black_box(unsafe { libc::pthread_self() });
    }
    #[inline(never)]
    #[expect(unsafe_code, reason = "calls libc")]
    fn reads_a_key() {
        // SAFETY: a key that does not exist has no value.
        black_box(unsafe { libc::pthread_getspecific(black_box(9999)) });
    }
    #[inline(never)]
    #[expect(unsafe_code, reason = "calls libc")]
    fn looks_for_a_function() {
        // SAFETY: a string that ends; it is only looked for.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_self".as_ptr()) };
        black_box(found);
    }
    assert_eq!(verdict!(asks_for_its_thread), Bound);
    assert_eq!(verdict!(reads_a_key), Bound);
    assert_eq!(verdict!(looks_for_a_function), Bound);
}

#[test]
fn what_waits_with_its_thread_and_is_done_binds_nothing() {
    assert_eq!(verdict!(receives), Movable);
}

#[test]
fn an_explanation_names_function_and_variable() {
    let binding = JUDGE.explain(calls_a_box as fn() as usize);
    assert_eq!(binding.mobility(), Bound);
    assert!(binding.path().len() >= 2, "{binding:?}");
    assert!(binding.path()[0].function().contains("calls_a_box"));
    assert!(
        binding
            .variable()
            .is_some_and(|name| name.contains("CONSTANT"))
    );
    assert_eq!(JUDGE.explain(computes as fn() as usize).path(), []);
}

#[test]
fn functions_are_found_by_name() {
    let ip = JUDGE.find("calls_a_box");
    assert_eq!(ip, Some(calls_a_box as fn() as usize));
    assert_eq!(JUDGE.find("no such function"), None);
}

#[test]
#[expect(unsafe_code, reason = "calls libc")]
fn what_was_not_read_counts_as_bound() {
    assert_eq!(JUDGE.mobility(0), Bound);
    // SAFETY: a name that ends with a zero byte; the default search order.
    let foreign = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) };
    assert_eq!(JUDGE.mobility(foreign.addr()), Bound);
    assert_eq!(JUDGE.mobility((&raw const MIXED) as usize), Bound);
    assert_eq!(JUDGE.explain(8).mobility(), Bound);
}

#[test]
fn few_functions_are_bound() {
    let seen = JUDGE.statistics();
    println!("{seen:#?}");
    assert!(seen.functions > 1000);
    assert!(seen.bound * 4 < seen.functions, "{seen:#?}");
}
