//! Names of places in the code: function, file and line.
//!
//! A *place* is one function at one address. Where the compiler inlined functions into each other
//! an address has several places, innermost first. Names come from the symbol table, files and
//! lines from the debug information; line tables are enough for both, and without any of it there
//! is the address.
//!
//! The first lookup is slow: it reads the program's debug information. Allocates and takes locks:
//! for the helper's thread, never for a signal handler or the monitor.

use std::fmt;
use std::path::PathBuf;

/// A function at an address.
///
/// Displays as `function (file:line)`, with the file's name only and without long generic
/// arguments; `{:#}` shows all of it. Without a name it displays as the address.
///
/// ```
/// use indent_sysmon::symbols::CodeLocation;
///
/// let mut place = CodeLocation {
///     address: 0x4010,
///     function: Some("shop::pay".to_owned()),
///     file: Some("/src/shop.rs".into()),
///     line: Some(7),
/// };
/// assert_eq!(format!("{place}"), "shop::pay (shop.rs:7)");
/// assert_eq!(format!("{place:#}"), "shop::pay (/src/shop.rs:7)");
/// place.file = None;
/// assert_eq!(format!("{place}"), "shop::pay");
/// place.function = None;
/// assert_eq!(format!("{place}"), "0x4010");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeLocation {
    /// The address that was looked up.
    pub address: usize,
    /// Its path, demangled and without a hash.
    pub function: Option<String>,
    /// The path of its source at compile time.
    pub file: Option<PathBuf>,
    /// The line in that file; of a function that inlined another one, the line of that call.
    pub line: Option<u32>,
}

impl fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) if !f.alternate() => write_short(function, f)?,
            Some(function) => f.write_str(function)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        let Some(path) = &self.file else {
            return Ok(());
        };
        let name = path.file_name().filter(|_| !f.alternate());
        write!(f, " ({}", name.unwrap_or(path.as_os_str()).display())?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        f.write_str(")")
    }
}

/// Debug information spells out generic arguments, which may be a page of text.
fn write_short(function: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const LONG: usize = 60;
    match function.find('<') {
        Some(at) if at > 0 && function.ends_with('>') && function.len() > LONG => {
            write!(f, "{}<…>", &function[..at])
        }
        _ => f.write_str(function),
    }
}

/// Looks up the functions at these addresses, in their order.
///
/// For each address it returns the inlined functions, innermost first, and then the function whose
/// code it is. So there may be more places than addresses, and there is at least one for each.
///
/// An address is one *inside* an instruction, as
/// [`Snapshot::frames`](crate::frames::Snapshot::frames) gives them: a return address minus one.
///
/// ```
/// use indent_sysmon::symbols;
///
/// #[inline(never)]
/// fn pays() {}
///
/// let places = symbols::name(&[pays as fn() as usize, 0]);
/// let name = places[0].function.as_deref().unwrap();
/// assert!(name.ends_with("pays"), "{name}");
/// assert_eq!(places.last().unwrap().to_string(), "0x0", "nothing is there");
/// ```
pub fn name(addresses: &[usize]) -> Vec<CodeLocation> {
    let mut places = Vec::with_capacity(addresses.len());
    for &address in addresses {
        name_one(address, &mut places);
    }
    places
}

fn name_one(address: usize, places: &mut Vec<CodeLocation>) {
    let before = places.len();
    // `resolve` takes its argument for a return address, and looks one byte before it.
    let after = std::ptr::without_provenance_mut(address.wrapping_add(1));
    backtrace::resolve(after, |symbol| {
        places.push(CodeLocation {
            address,
            function: symbol.name().map(|name| format!("{name:#}")),
            file: symbol.filename().map(PathBuf::from),
            line: symbol.lineno(),
        });
    });
    if places.len() == before {
        places.push(CodeLocation {
            address,
            function: None,
            file: None,
            line: None,
        });
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use crate::frames::Registers;

    /// The address it is called at, inlined into its caller in every profile.
    #[inline(always)]
    fn is_inlined() -> usize {
        Registers::here().pc
    }

    #[inline(never)]
    fn inlines() -> usize {
        std::hint::black_box(is_inlined())
    }

    /// Line tables alone, as optimized builds have them, name functions without their paths.
    fn is_named(place: &CodeLocation, function: &str) -> bool {
        let full = format!("indent_sysmon::symbols::tests::{function}");
        place
            .function
            .as_deref()
            .is_some_and(|name| name == full || name == function)
    }

    #[test]
    fn inlined_functions_come_before_the_one_they_were_inlined_into() {
        let places = name(&[inlines()]);
        let named = |function: &str| {
            let is = |place: &CodeLocation| is_named(place, function);
            places
                .iter()
                .position(is)
                .unwrap_or_else(|| panic!("no {function} in {places:#?}"))
        };
        assert!(named("is_inlined") < named("inlines"), "{places:#?}");
        assert_eq!(named("inlines") + 1, places.len(), "{places:#?}");
    }

    #[test]
    fn a_place_has_file_and_line_and_no_hash() {
        let places = name(&[inlines()]);
        let outer = places.last().unwrap();
        assert!(is_named(outer, "inlines"), "{outer:?}");
        assert!(
            outer.file.as_ref().unwrap().ends_with("symbols.rs"),
            "{outer:?}"
        );
        assert!(outer.line.is_some_and(|line| line < line!()), "{outer:?}");
    }

    #[test]
    fn the_first_byte_of_a_function_is_the_functions_own() {
        let places = name(&[inlines as fn() -> usize as usize]);
        assert!(is_named(places.last().unwrap(), "inlines"), "{places:#?}");
    }

    #[test]
    fn long_generic_arguments_are_left_out_unless_all_is_asked_for() {
        let place = |function: String| CodeLocation {
            address: 1,
            function: Some(function),
            file: None,
            line: None,
        };
        let long = "Very".repeat(20);
        let generic = place(format!("poll<{long}, B<C>>"));
        assert_eq!(generic.to_string(), "poll<…>");
        assert!(format!("{generic:#}").contains(&long));
        for whole in [format!("<{long} as Future>::poll"), "poll<A>".to_owned()] {
            assert_eq!(place(whole.clone()).to_string(), whole);
        }
    }

    #[test]
    fn addresses_without_code_stay_addresses_in_their_order() {
        let shown: Vec<_> = name(&[1, usize::MAX, 2])
            .iter()
            .map(CodeLocation::to_string)
            .collect();
        assert_eq!(shown, ["0x1", "0xffffffffffffffff", "0x2"]);
    }
}
