#![expect(unsafe_code, reason = "reads the initial values where they are mapped")]
//! The thread-locals of the executable: where each is, what it is called, and its initial value.
//!
//! Names come from the symbols of the file. A thread-local counts as Rust's if the Rust compiler
//! made its name: `_R…`, or `_ZN…17h<16 hexadecimal digits>E`. A bare `_ZN` is C++, too.

use std::ops::Range;
use std::path::Path;

use crate::frames::objects::{Objects, Tls};
use crate::frames::{is_vouched_for, is_within, symbols_of_thread_locals, written_plainly};
use crate::names;

mod area;

/// The thread-locals of the executable.
///
/// ```
/// use indent_sysmon::thread_locals::ThreadLocals;
///
/// let all = ThreadLocals::of_executable().unwrap();
/// assert!(all.variables.iter().any(|v| v.name.starts_with("std::thread::current::CURRENT")));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ThreadLocals {
    /// In the order of their addresses.
    pub variables: Vec<Variable>,
    tls: Tls,
}

/// One thread-local.
///
/// See [`ThreadLocals`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its bytes, counted from the thread pointer.
    pub range: Range<isize>,
    /// Demangled, without hashes and angle brackets.
    pub name: String,
    /// The Rust compiler made it.
    pub is_rust: bool,
    /// Its address is known to stay inside the functions that use it, by a list.
    pub is_vouched_for: bool,
}

impl Variable {
    /// Whether its path is this one, or below it.
    ///
    /// ```
    /// use indent_sysmon::thread_locals::ThreadLocals;
    ///
    /// let all = ThreadLocals::of_executable().unwrap();
    /// assert!(all.variables.iter().any(|v| v.is_within("std::thread")));
    /// assert!(!all.variables.iter().any(|v| v.is_within("std::thre")));
    /// ```
    pub fn is_within(&self, path: &str) -> bool {
        is_within(&self.name, path)
    }

    /// Its path as it is written in the source, without what the compiler adds below it.
    ///
    /// ```
    /// use indent_sysmon::thread_locals::ThreadLocals;
    ///
    /// thread_local!(static MINE: u8 = const { 7 });
    ///
    /// MINE.with(|mine| assert_eq!(*mine, std::hint::black_box(7)));
    /// let all = ThreadLocals::of_executable().unwrap();
    /// assert!(all.variables.iter().any(|v| v.path().ends_with("::MINE")));
    /// ```
    pub fn path(&self) -> &str {
        names::of_variable(&self.name)
    }
}

impl ThreadLocals {
    /// Those of the executable.
    ///
    /// # Errors
    /// If the code of this crate is in a shared library, or if the executable has no symbols.
    ///
    /// See [`ThreadLocals`] for an example.
    pub fn of_executable() -> Result<ThreadLocals, &'static str> {
        let objects = Objects::now();
        let executable = objects.list.first().ok_or("the loader names no program")?;
        if !executable.contains(ThreadLocals::of_executable as *const () as usize) {
            return Err("the runtime is in a shared library");
        }
        let tls = executable.tls.ok_or("the program has no thread-locals")?;
        let path = Path::new("/proc/self/exe");
        let symbols = symbols_of_thread_locals(executable, path);
        let symbols = symbols.ok_or("the program has no symbols")?;
        let first = tls.offset() as isize;
        let variable = |(start, size, name): (usize, usize, String)| Variable {
            range: first + start as isize..first + (start + size) as isize,
            is_rust: is_rust(&name),
            is_vouched_for: is_vouched_for(&written_plainly(&name), size),
            name: written_plainly(&name).replace(['<', '>'], ""),
        };
        Ok(ThreadLocals {
            variables: symbols.into_iter().map(variable).collect(),
            tls,
        })
    }

    /// The value of each byte of a range of thread-locals in a new thread; zero outside of them.
    ///
    /// ```
    /// use indent_sysmon::thread_locals::ThreadLocals;
    ///
    /// let all = ThreadLocals::of_executable().unwrap();
    /// let first = all.variables[0].range.clone();
    /// assert_eq!(all.initial(first.clone()).len(), first.len());
    /// ```
    pub fn initial(&self, range: Range<isize>) -> Vec<u8> {
        let first = self.tls.offset() as isize;
        let start = std::ptr::with_exposed_provenance::<u8>(self.tls.start);
        // SAFETY: the loader mapped these bytes, never writes to them once the program runs, and
        // never unmaps the executable.
        let filled = unsafe { std::slice::from_raw_parts(start, self.tls.filled) };
        let byte = |offset: isize| {
            let inside = usize::try_from(offset - first).ok();
            inside.and_then(|inside| filled.get(inside).copied())
        };
        range.map(|offset| byte(offset).unwrap_or(0)).collect()
    }
}

/// Whether the Rust compiler made a name. Optimization may have added something after a dot; but
/// dots are in names themselves, too.
pub(crate) fn is_rust(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("_R") {
        return rest.starts_with(|c: char| c.is_ascii_uppercase());
    }
    let Some(path) = name.strip_prefix("_ZN") else {
        return false;
    };
    let ends_with_hash = |(at, _): (usize, &str)| {
        let hash = path[at..].get(3..19);
        let after = path[at..].get(19..).and_then(|rest| rest.strip_prefix('E'));
        hash.is_some_and(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()))
            && after.is_some_and(|after| after.is_empty() || after.starts_with('.'))
    };
    path.match_indices("17h").any(ends_with_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[repr(C)]
    struct Three(Cell<u8>, Cell<u32>, Cell<u8>);

    thread_local! {
        static FILLED: Three = const { Three(Cell::new(7), Cell::new(0x01020304), Cell::new(9)) };
    }

    fn thread_pointer() -> usize {
        let here: usize;
        // SAFETY: the first word of a thread's control block is its own address.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) here, options(nostack, readonly)) };
        here
    }

    #[test]
    fn a_thread_local_is_found_where_it_is_with_its_initial_value() {
        let all = ThreadLocals::of_executable().expect("tests have symbols");
        let mut named = all.variables.iter().filter(|v| v.name.contains("FILLED"));
        let found = named.next().expect("it is there");
        FILLED.with(|here| {
            here.1.set(5); // the initial value stays what it is
            let offset = std::ptr::from_ref(here) as isize - thread_pointer() as isize;
            assert!(found.range.contains(&offset), "{offset} in {found:?}");
            let bytes = all.initial(offset..offset + 12);
            assert_eq!((bytes[0], &bytes[4..9]), (7, &[4, 3, 2, 1, 9][..]));
        });
        assert!(found.is_rust);
    }

    #[test]
    fn only_names_of_the_rust_compiler_count_as_rust() {
        for name in [
            "_ZN4rand3KEY17h0123456789abcdefE",
            "_ZN4rand3KEY17h0123456789abcdefE.llvm.123",
            "_ZN9_$LT$a..b$GT$3BUF17h0123456789abcdefE",
            "_RNvNtCs1234_4rand3KEY",
        ] {
            assert!(is_rust(name), "{name}");
        }
        for name in [
            "errno",
            "_ZN3foo3barE",
            "_ZN3foo17hxE",
            "_Rust",
            "_Unwind",
            "",
        ] {
            assert!(!is_rust(name), "{name}");
        }
    }
}
