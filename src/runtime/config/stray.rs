//! Variables that look like ours and do nothing.
//!
//! Others may own names that begin like ours (an editor's `INDENT_SIZE`), so an unknown name is no
//! error, and most get no word. One that is nearly a known name is a slip somebody will search for
//! a long time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent_sysmon::names::distance;

use super::ALL;
use crate::base::os;

/// What all variables begin with.
pub(super) const PREFIX: &str = "INDENT_";

/// Names kept for features to come.
pub(super) const LATER: [&str; 3] = ["INDENT_DEBUG_ADDR", "INDENT_DUMP_SIGNAL", "INDENT_SEED"];

/// Says, once in a process, which variables look like ours and do nothing.
pub(crate) fn report() {
    static SAID: AtomicBool = AtomicBool::new(false); // nobody waits for whoever says it
    if SAID.swap(true, Relaxed) {
        return;
    }
    let names = std::env::vars_os().map(|(name, _)| name);
    for line in names.filter_map(|name| stray(name.to_str()?)) {
        os::complain(&format!("indent: {line}\n"));
    }
}

/// What to say about a variable of this name, if it looks like one of ours but is none.
pub(super) fn stray(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    if ALL.iter().any(|setting| setting.variable == Some(name)) {
        return None;
    }
    if LATER.contains(&name) {
        return Some(format!("{name} is not supported yet by this version"));
    }
    // People guess a variable from its method, too.
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
