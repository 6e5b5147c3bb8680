//! What the program itself declares harmless: more rows of `variables` and `functions`.
//!
//! A declared variable counts like a row marked `any`, whatever its size. A declared function
//! counts like a row of `functions`; its name may also be that of an imported function. One name
//! stands for one variable or function: there are no stars, and a module does not stand for what is
//! in it. A declaration that matches nothing is kept with names that are like it.

use std::fmt;
use std::sync::OnceLock;

use super::paths::path;
use crate::frames::image::{Image, symbols};
use crate::names::{last_part, nearest, of_variable};

/// A thread-local or function that the program declares harmless.
///
/// See [`declare_harmless`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Declaration {
    /// A thread-local, by its path or symbol.
    ThreadLocal(String),
    /// A function, by its path or symbol.
    Function(String),
}

impl Declaration {
    /// Returns the name that was declared.
    ///
    /// ```
    /// use indent_sysmon::frames::Declaration;
    /// assert_eq!(Declaration::Function("a::f".to_owned()).name(), "a::f");
    /// ```
    pub fn name(&self) -> &str {
        match self {
            Declaration::ThreadLocal(name) | Declaration::Function(name) => name,
        }
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declaration::ThreadLocal(name) => write!(f, "thread-local {name}"),
            Declaration::Function(name) => write!(f, "function {name}"),
        }
    }
}

/// A declaration that matches nothing in the program.
///
/// See [`Judge::misfits`](crate::frames::Judge::misfits) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misfit {
    /// What was declared.
    pub declaration: Declaration,
    /// Similar names in the program, the most likely first.
    pub near: Vec<String>,
}

/// The declarations, fixed by the first call or survey.
static DECLARED: OnceLock<Vec<Declaration>> = OnceLock::new();

/// Declares thread-locals and functions harmless, for all surveys of the process.
///
/// The first call, or the first survey, fixes what is declared. A later call may only repeat it.
///
/// # Errors
/// Returns the first declaration that comes too late.
///
/// # Safety
/// No stack moves to another thread with something that one of these left behind.
///
/// Thread-local: after each use of it, by any code, no address of it or into it is left, and no
/// value out of it that is valid on one thread only; and no stack is suspended during a use.
///
/// Function: after each call of it nothing of the calling thread is left, neither in what it
/// returns nor elsewhere. That includes the effects of code that it calls.
///
/// ```
/// use indent_sysmon::frames::{Declaration, Judge, Mobility, declare_harmless};
/// use std::cell::Cell;
///
/// thread_local!(static CALLS: Cell<u32> = const { Cell::new(0) });
///
/// #[inline(never)]
/// fn counts() {
///     CALLS.set(CALLS.get() + 1);
/// }
/// #[inline(never)]
/// fn works() -> u64 {
///     counts();
///     std::hint::black_box(7)
/// }
///
/// fn main() {
///     let calls = Declaration::ThreadLocal(concat!(module_path!(), "::CALLS").to_owned());
///     // SAFETY: the number is read and written at once, and nothing of it is kept.
///     unsafe { declare_harmless(&[calls]) }.unwrap();
/// #   // Where thread-locals are the threads', keys of thread-locals are pointers that bind.
/// #   unsafe { indent_sysmon::frames::trust_pointers() };
///     let judge = Judge::survey();
///     assert_eq!(judge.mobility(works as fn() -> u64 as usize), Mobility::Movable);
///
///     let late = Declaration::Function("other".to_owned());
///     // SAFETY: there is no function of this name.
///     assert_eq!(unsafe { declare_harmless(&[late.clone()]) }, Err(late));
/// }
/// ```
#[expect(
    unsafe_code,
    reason = "the caller vouches for code that is not followed"
)]
pub unsafe fn declare_harmless(declarations: &[Declaration]) -> Result<(), Declaration> {
    let declared = DECLARED.get_or_init(|| declarations.to_vec());
    let late = declarations.iter().find(|one| !declared.contains(one));
    late.map_or(Ok(()), |late| Err(late.clone()))
}

/// The declarations, ready to be compared with names.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    thread_locals: Vec<String>,
    /// As written, and as paths.
    functions: Vec<(String, String)>,
}

impl Declared {
    /// Returns what the program has declared, and fixes it for good.
    pub(crate) fn fixed() -> Declared {
        Declared::new(DECLARED.get_or_init(Vec::new))
    }

    fn new(declarations: &[Declaration]) -> Declared {
        let mut declared = Declared::default();
        for declaration in declarations {
            match declaration {
                Declaration::ThreadLocal(name) => {
                    let name = name.replace(['<', '>'], "");
                    declared.thread_locals.push(name);
                }
                Declaration::Function(name) => {
                    declared.functions.push((name.clone(), path(name)));
                }
            }
        }
        declared
    }

    /// Whether a thread-local is declared, by its demangled name.
    pub(crate) fn has_thread_local(&self, name: &str) -> bool {
        let name = || name.replace(['<', '>'], "");
        !self.thread_locals.is_empty() && {
            let name = name();
            self.thread_locals.iter().any(|row| is_variable(&name, row))
        }
    }

    /// Whether a function is declared, by its demangled name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        !self.functions.is_empty() && {
            let path = path(name);
            let mut rows = self.functions.iter();
            rows.any(|row| is_function(name, &path, row))
        }
    }

    /// Whether a function of another library is declared. Some names end in a version.
    pub(crate) fn has_import(&self, name: &str) -> bool {
        let name = name.split('@').next().unwrap_or(name);
        self.functions.iter().any(|row| row.0 == name)
    }

    /// The declarations that match nothing. Without symbols only imported functions can be found,
    /// so no misfit is reported.
    pub(crate) fn misfits(images: &[Image]) -> Vec<Misfit> {
        let lacks_symbols = images.iter().any(|image| image.symbols.has_no_functions());
        let declarations = DECLARED.get().map_or(&[][..], Vec::as_slice);
        if lacks_symbols {
            return Vec::new();
        }
        let misfit = |declaration: &Declaration| {
            let near = match declaration {
                Declaration::ThreadLocal(name) => near_variables(images, name),
                Declaration::Function(name) => near_functions(images, name),
            };
            let declaration = declaration.clone();
            near.map(|near| Misfit { declaration, near })
        };
        declarations.iter().filter_map(misfit).collect()
    }
}

/// Whether a variable has this path. Optimization may have cut it into parts, and appended their
/// numbers.
fn is_variable(name: &str, declared: &str) -> bool {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let whole = match name.split_once('.') {
        Some((whole, parts)) if parts.split('.').all(is_number) => whole,
        _ => name,
    };
    of_variable(whole) == declared
}

/// Whether a function, by its name and path, is the declared one.
fn is_function(name: &str, path: &str, declared: &(String, String)) -> bool {
    match declared.0.contains("::<") {
        true => declared.0 == name,
        false => declared.1 == path,
    }
}

/// Variables with similar names; `None` if one has exactly this name.
fn near_variables(images: &[Image], declared: &str) -> Option<Vec<String>> {
    let declared = declared.replace(['<', '>'], "");
    let names = images.iter().flat_map(|i| i.symbols.thread_local_names());
    let names: Vec<String> = names
        .map(|name| symbols::plain(name).replace(['<', '>'], ""))
        .collect();
    if names.iter().any(|name| is_variable(name, &declared)) {
        return None;
    }
    let paths = names.iter().map(|name| of_variable(name).to_owned());
    Some(nearest(&declared, paths))
}

/// Functions with similar names; `None` if one has exactly this name.
fn near_functions(images: &[Image], declared: &str) -> Option<Vec<String>> {
    let row = (declared.to_owned(), path(declared));
    let is_it = |mangled: &str| {
        let name = symbols::plain(mangled);
        is_function(&name, &path(&name), &row)
    };
    let last = last_part(&row.1);
    let imports = || {
        let names = |image: &Image| {
            let names = (0..image.slots.imports() as u32).map(|n| image.slots.name(n).to_owned());
            names.collect::<Vec<_>>()
        };
        images.iter().flat_map(names)
    };
    let named = |part| {
        let names = images.iter();
        names.flat_map(move |image| image.symbols.function_names(part))
    };
    let is_import = |name: &String| name.split('@').next() == Some(declared);
    if imports().any(|name| is_import(&name)) || named(last).any(is_it) {
        return None;
    }
    let paths = named("").map(|name| path(&symbols::plain(name)));
    Some(nearest(&row.1, paths.chain(imports())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(thread_locals: &[&str], functions: &[&str]) -> Declared {
        let thread_locals = thread_locals.iter().map(|name| name.to_string());
        let functions = functions.iter().map(|name| name.to_string());
        let all = thread_locals.map(Declaration::ThreadLocal);
        let all: Vec<_> = all.chain(functions.map(Declaration::Function)).collect();
        Declared::new(&all)
    }

    #[test]
    fn a_thread_local_is_known_in_both_manglings_and_a_module_stands_for_none() {
        let declared = declared(&["a::KEYS", "<a::B>::new::SEED", "counter"], &[]);
        for name in [
            "a::KEYS",
            "a::KEYS::{{constant}}::{{closure}}::__RUST_STD_INTERNAL_VAL",
            "a::KEYS::{constant#0}::{closure#1}::__RUST_STD_INTERNAL_VAL",
            "<a::B>::new::SEED::{constant#0}::{closure#1}::VAL",
            "a::B::new::SEED::{{constant}}::{{closure}}::VAL",
            "counter",
            "a::KEYS::{{constant}}::{{closure}}::VAL.0.1",
        ] {
            assert!(declared.has_thread_local(name), "{name}");
        }
        for name in [
            "a::KEYS2",
            "a::KEYS::inner::X",
            "a",
            "b::a::KEYS",
            "a::KEYS::{{closure}}::X::{{constant}}::{{closure}}::VAL",
            "counters",
        ] {
            assert!(!declared.has_thread_local(name), "{name}");
        }
    }

    #[test]
    fn a_function_is_known_in_both_manglings_and_a_star_stands_for_nothing() {
        let declared = declared(&[], &["a::B::f", "g::<u8>", "deflate", "s::*"]);
        for name in ["a::B<T>::f", "<a::B<u64>>::f", "g::<u8>", "deflate"] {
            assert!(declared.has_function(name), "{name}");
        }
        for name in ["a::B::f2", "g", "g::<u64>", "<a::B as c::D>::f", "s::t"] {
            assert!(!declared.has_function(name), "{name}");
        }
        assert!(declared.has_import("deflate") && declared.has_import("deflate@V_1"));
        assert!(!declared.has_import("deflated"));
    }
}
