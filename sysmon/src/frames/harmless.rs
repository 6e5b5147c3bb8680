//! Lists of what is known to leave nothing of a thread behind, with a reason for each entry.
//!
//! What an entry of each list says:
//!
//! - `functions`: nothing thread-bound outlives a *call* of it. It ends the search; a frame of it
//!   that is itself suspended gets no exemption.
//! - `runtime`: a function of the runtime on the way to a switch, which reads everything anew
//!   afterwards. It is harmless as a callee, and as a frame judged by its own instructions alone.
//! - `libc`: the reverse, a function of the C library that hands out or changes something of the
//!   calling thread. All others of its functions are harmless.
//! - `crates`: more of `functions`, for what popular crates need.
//! - `variables`: a thread-local of which nothing is left when the functions that use it, or its
//!   crate's, return.
//! - `attributes`: a function of any library that changes what the kernel keeps for the calling
//!   thread. Its thread ends with the fiber.
//! - `beginnings`: a function whose address is taken, and that is called only by the code that
//!   receives this address. The process, threads and fibers begin or end with it.
//! - `allocation`: harmless by name, whichever library or allocator has it.
//! - `declared` (in code): more of `functions` and `variables`, for what the program vouches for.
//! - `kernel` (numbers, in code): a system call of this number neither reports nor changes anything
//!   of the calling thread.
//!
//! Entries are names as `rustc-demangle` prints them without hashes. They are compared as paths
//! without arguments (`paths`), so that one entry serves both manglings; an entry with arguments
//! (`::<`) means exactly these arguments. A `*` at the end stands for anything. A function with
//! several names (merged by the compiler) is on a list only if all of them are. Without symbols
//! nothing is on `functions` and `runtime`.
//!
//! No entry that begins with `<` has a star: `<indent::task::Fiber as *` would match any crate's
//! trait for that type, with any code in it. The methods of traits are listed one by one. And what
//! a star of `runtime` matches has no arguments of other crates: a generic function of the runtime
//! with code of users inside has to be listed itself, after a review.
//!
//! Why these are trusted by name while everything else is decoded: the code of a listed function
//! does touch thread-locals, and only its source says that what it touches is not kept.

pub(crate) mod declared;
pub(crate) mod kernel;
pub(crate) mod paths;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::LazyLock;

/// One list of names.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Names with arguments.
    exact: HashSet<&'static str>,
    paths: HashSet<String>,
    beginnings: Vec<&'static str>,
}

/// All lists.
#[derive(Debug)]
pub(crate) struct Lists {
    pub(crate) functions: List,
    pub(crate) beginnings: List,
    pub(crate) runtime: List,
    pub(crate) libc: List,
    pub(crate) attributes: List,
    pub(crate) allocation: List,
    pub(crate) variables: Variables,
}

/// Thread-locals whose address stays inside the functions that use them.
#[derive(Debug, Default)]
pub(crate) struct Variables(Vec<Variable>);

#[derive(Debug)]
struct Variable {
    name: &'static str,
    size: usize,
    whose: Whose,
}

/// Says on which thread, or for which code, a thread-local's value is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The value of any thread will do.
    Any,
    /// The value must be the fiber's own.
    Own,
    /// The value is the thread's. Only functions of the crate that the variable's name begins with
    /// use it.
    Crate,
}

impl Variables {
    fn read(text: &'static str) -> Variables {
        let row = |(name, reason): (&'static str, &'static str)| {
            let (when, _) = reason.split_once(':').expect("a reason after a colon");
            let (whose, size) = when.split_once(' ').expect("whose, and the size");
            Variable {
                name,
                size: size.parse().expect("a number of bytes"),
                whose: match whose {
                    "any" => Whose::Any,
                    "own" => Whose::Own,
                    "crate" => Whose::Crate,
                    other => panic!("{name}: {other}?"),
                },
            }
        };
        Variables(entries(text).map(row).collect())
    }

    /// Finds the row of a variable with this demangled name and this size.
    pub(crate) fn whose(&self, name: &str, size: usize) -> Option<Whose> {
        let mut of_size = self.0.iter().filter(|row| row.size == size).peekable();
        of_size.peek()?; // demangling names is slow
        let name = paths::path(name);
        let is = |row: &&Variable| is_within(&name, row.name);
        of_size.find(is).map(|row| row.whose)
    }
}

/// Whether a path is this one, or below it.
pub(crate) fn is_within(path: &str, this: &str) -> bool {
    let rest = path.strip_prefix(this);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

const FUNCTIONS: &str = include_str!("lists/functions.txt");
const CRATES: &str = include_str!("lists/crates.txt");
const BEGINNINGS: &str = include_str!("lists/beginnings.txt");
const RUNTIME: &str = include_str!("lists/runtime.txt");
const ATTRIBUTES: &str = include_str!("lists/attributes.txt");
const LIBC: &str = include_str!("lists/libc.txt");
const VARIABLES: &str = include_str!("lists/variables.txt");
const ALLOCATION: &str = include_str!("lists/allocation.txt");

/// The lists, read once.
pub(crate) static LISTS: LazyLock<Lists> = LazyLock::new(|| Lists {
    functions: List::read(FUNCTIONS).and(CRATES),
    beginnings: List::read(BEGINNINGS),
    runtime: List::read(RUNTIME),
    libc: List::read(LIBC),
    attributes: List::read(ATTRIBUTES),
    allocation: List::read(ALLOCATION),
    variables: Variables::read(VARIABLES),
});

/// Name and reason of each entry. A line that begins with `#` is a heading.
fn entries(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| match line.split_once("  # ") {
        Some((name, reason)) => (name.trim(), reason.trim()),
        None => (line, ""),
    })
}

impl List {
    fn read(text: &'static str) -> List {
        List::default().and(text)
    }

    fn and(self, text: &'static str) -> List {
        let mut list = self;
        for (name, _) in entries(text) {
            match name.strip_suffix('*') {
                Some(beginning) => list.beginnings.push(beginning),
                None if name.contains("::<") => {
                    list.exact.insert(name);
                }
                None => {
                    list.paths.insert(paths::path(name));
                }
            }
        }
        list
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let path = paths::path(name);
        self.names(name, &path) || self.begins(name, &path)
    }

    /// Whether the list has a function that is trusted as a frame. Such a function contains no code
    /// of other crates.
    pub(crate) fn has_as_frame(&self, name: &str) -> bool {
        let path = paths::path(name);
        self.names(name, &path) || self.begins(name, &path) && !paths::has_strangers(name)
    }

    fn names(&self, name: &str, path: &str) -> bool {
        self.exact.contains(name) || self.paths.contains(path)
    }

    fn begins(&self, name: &str, path: &str) -> bool {
        let fits = |b: &str| path.starts_with(b) || b.contains('<') && name.starts_with(b);
        self.beginnings.iter().any(|b| fits(b))
    }
}

/// Whether a library is part of the C library and judged by `libc`. `file` is its file name. Whole
/// names are compared, because any library may be called `libutil.so`.
pub(crate) fn is_libc(file: &str) -> bool {
    const GLIBC: [&str; 8] = [
        "libc.so.6",
        "libm.so.6",
        "ld-linux-x86-64.so.2",
        "libgcc_s.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libutil.so.1",
    ];
    const MUSL: [&str; 2] = ["ld-musl-x86_64.so.1", "libc.musl-x86_64.so.1"];
    GLIBC.contains(&file) || MUSL.contains(&file)
}
