//! The signals a runtime may use, and their names.
//!
//! Such a signal must be unused in most programs, must not be fatal by nature (a fault is raised by
//! an instruction, and to return from its handler repeats that), and must be one that can be
//! caught. Real-time signals are numbered from the first one that the C library leaves free, since
//! it keeps some of them to itself. That first one stays free as well, for a program that relies on
//! it.
//!
//! Rejected: all other signals. Most of them have a meaning (a child ended, a terminal is gone),
//! and a runtime that takes those breaks other code.

use libc::c_int;

/// The runtime's default: ignored by default, and hardly any program has out-of-band data on
/// sockets.
pub(crate) const URG: c_int = libc::SIGURG;

const NAMED: [(&str, c_int); 5] = [
    ("URG", URG),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("IO", libc::SIGIO),
    ("WINCH", libc::SIGWINCH),
];

/// Prefix of a real-time signal's name; its index among them follows.
const REAL_TIME: &str = "RTMIN+";

/// The last index among real-time signals.
fn last_place() -> c_int {
    libc::SIGRTMAX() - libc::SIGRTMIN()
}

/// Returns the name of a signal, if a runtime may use it.
pub(crate) fn name(number: c_int) -> Option<String> {
    if let Some((name, _)) = NAMED.iter().find(|(_, named)| *named == number) {
        return Some((*name).to_owned());
    }
    let place = number.checked_sub(libc::SIGRTMIN())?;
    (1..=last_place())
        .contains(&place)
        .then(|| format!("{REAL_TIME}{place}"))
}

/// Describes any signal: its name, or its number.
pub(crate) fn describe(number: c_int) -> String {
    match number {
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGBUS => "SIGBUS".to_owned(),
        _ => name(number).map_or(format!("signal {number}"), |name| format!("SIG{name}")),
    }
}

/// Returns the signal of this name, with or without `SIG`, if a runtime may use it.
pub(crate) fn number(text: &str) -> Option<c_int> {
    let text = text.strip_prefix("SIG").unwrap_or(text);
    all().find(|signal| name(*signal).as_deref() == Some(text))
}

/// All signals that a runtime may use.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    let real_time = (1..=last_place()).map(|place| libc::SIGRTMIN() + place);
    NAMED.into_iter().map(|(_, number)| number).chain(real_time)
}

/// Their names, for messages.
pub(crate) fn list() -> String {
    let named = NAMED.map(|(name, _)| name).join(", ");
    let last = last_place();
    format!("{named} or {REAL_TIME}1 to {REAL_TIME}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_that_may_be_taken_has_a_name_of_its_own() {
        for signal in all() {
            let text = name(signal).expect("a name");
            assert_eq!(number(&text), Some(signal), "{text}");
            assert_eq!(number(&format!("SIG{text}")), Some(signal), "{text}");
        }
    }

    #[test]
    fn signals_that_mean_something_else_have_none() {
        let taken = [
            libc::SIGKILL,
            libc::SIGSTOP,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGCHLD,
            libc::SIGTERM,
            libc::SIGRTMIN(),
            libc::SIGRTMAX() + 1,
        ];
        for signal in taken.into_iter().chain([0, -1, i32::MIN, i32::MAX]) {
            assert_eq!(name(signal), None, "{signal}");
        }
        for text in [
            "", "SIG", "KILL", "urg", "23", "RTMIN", "RTMIN+0", "RTMIN+01", "RTMAX",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
