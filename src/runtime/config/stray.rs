//! A warning about variables with names similar to those of settings.
//!
//! Other programs may use names with the same prefix (an editor's `INDENT_SIZE`), so an unknown
//! name is no error, and most are ignored. A name that is nearly that of a setting is probably a
//! typing error, which is hard to find.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent_sysmon::names::distance;

use super::ALL;
use crate::sys::stderr;

/// The prefix of all variables.
pub(super) const PREFIX: &str = "INDENT_";

/// Names reserved for later features.
pub(super) const LATER: [&str; 3] = ["INDENT_DEBUG_ADDR", "INDENT_DUMP_SIGNAL", "INDENT_SEED"];

/// Reports variables that are similar to a setting but are none, once in a process.
pub(crate) fn report() {
    static SAID: AtomicBool = AtomicBool::new(false); // relaxed: no thread waits for the report
    if SAID.swap(true, Relaxed) {
        return;
    }
    let names = std::env::vars_os().map(|(name, _)| name);
    for line in names.filter_map(|name| stray(name.to_str()?)) {
        stderr::print(&format!("indent: {line}\n"));
    }
}

/// The line about a variable of this name, if it is similar to a setting but is none.
pub(super) fn stray(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    if ALL.iter().any(|setting| setting.variable == Some(name)) {
        return None;
    }
    if LATER.contains(&name) {
        return Some(format!("{name} is not supported yet by this version"));
    }
    // Users also derive the name of a variable from its method.
    let guesses = ALL.iter().flat_map(|setting| {
        let guess = format!("{PREFIX}{}", setting.method.to_uppercase());
        let names = [Some(guess), setting.variable.map(str::to_owned)];
        names
            .into_iter()
            .flatten()
            .map(move |guess| (distance(name, &guess), setting))
    });
    let (letters, nearest) = guesses.min_by_key(|(letters, _)| *letters)?;
    let alike = letters <= rest.len() / 4;
    alike.then(|| match nearest.variable {
        Some(variable) => format!("{name} is not a setting; did you mean {variable}?"),
        None => format!(
            "{name} is not a setting; there is only Builder::{}",
            nearest.method
        ),
    })
}
