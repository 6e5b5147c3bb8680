//! The report on a piece of work that takes too long.

use std::fmt;
use std::time::Duration;

use crate::symbols::CodeLocation;
use crate::{SystemCall, ThreadState};

/// Places of the stack that are displayed.
const SHOWN: usize = 16;

/// A report on a piece of work that takes too long, or took.
///
/// Displays with the innermost places of its stack; `{:#}` shows all of them.
///
/// ```
/// use indent_sysmon::stalls::{Stage, Stalls};
/// use std::time::Duration;
///
/// let stalls = Stalls::start(Duration::from_millis(10), |stall| match stall.stage {
///     Stage::Found => eprint!("{stall}"),
///     _ => eprintln!("{} took {:?}", stall.label, stall.lasted),
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The label it was begun with.
    pub label: &'static str,
    /// The name of its thread, or its number if it has none.
    pub thread: String,
    /// How long it has lasted.
    pub lasted: Duration,
    /// How much of that its thread was on a CPU, if that is known.
    ///
    /// A small part, in a piece of work that does not sleep, means that other threads had the CPUs,
    /// and not that the work is slow. At the end of a piece of work the CPU time after it counts
    /// too, until the monitor looked.
    pub ran: Option<Duration>,
    /// Whether it continues.
    pub stage: Stage,
    /// What its thread was doing when the monitor looked.
    pub state: ThreadState,
    /// The system call it slept in, if it slept and the kernel reported one.
    pub call: Option<SystemCall>,
    /// Where it was, innermost first. Empty if the stack could not be read, and at the end of a
    /// piece of work that was reported before.
    pub stack: Vec<CodeLocation>,
}

/// At which point of a piece of work a report is made.
///
/// See [`Stall`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has lasted for the limit; its first report.
    Found,
    /// It was reported before, and has lasted ten times as long since.
    GoesOn,
    /// It has ended, and `lasted` is its whole length.
    Ended,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, thread, lasted) = (self.label, &self.thread, self.lasted.as_millis());
        if self.stage == Stage::Ended {
            write!(f, "{label} on {thread} ended after {lasted} ms")?;
            self.fmt_ran(f)?;
            writeln!(f)?;
        } else {
            write!(f, "{label} on {thread} has taken {lasted} ms so far")?;
            self.fmt_ran(f)?;
            f.write_str("; it ")?;
            self.fmt_state(f)?;
        }
        let shown = if f.alternate() { usize::MAX } else { SHOWN };
        for place in self.stack.iter().take(shown) {
            writeln!(f, "    {place}")?;
        }
        match self.stack.len().saturating_sub(shown) {
            0 => Ok(()),
            more => writeln!(f, "    … and {more} more"),
        }
    }
}

impl Stall {
    fn fmt_ran(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ran {
            Some(ran) => write!(f, " ({} on a CPU)", ran.as_millis()),
            None => Ok(()),
        }
    }

    fn fmt_state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            ThreadState::Running => return writeln!(f, "runs"),
            ThreadState::Sleeping => f.write_str("sleeps")?,
            ThreadState::Locked => f.write_str("waits for another thread")?,
            ThreadState::Unknown => return writeln!(f, "does not run"),
        }
        match self.call {
            Some(call) => writeln!(f, " in {call}"),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_who_how_long_how_and_where() {
        let place = |address| CodeLocation {
            address,
            function: None,
            file: None,
            line: None,
        };
        let mut stall = Stall {
            label: "GET /",
            thread: "worker".to_owned(),
            lasted: Duration::from_millis(12),
            ran: None,
            stage: Stage::Found,
            state: ThreadState::Sleeping,
            call: SystemCall::parse(b"0 0x0 0x0"),
            stack: vec![place(0x10)],
        };
        let first = "GET / on worker has taken 12 ms so far; it sleeps in read\n    0x10\n";
        assert_eq!(stall.to_string(), first);
        stall.state = ThreadState::Running;
        stall.stack = (0..SHOWN + 2).map(place).collect();
        let shown = stall.to_string();
        assert!(shown.contains("it runs\n    0x0\n"), "{shown}");
        assert!(shown.ends_with("    0xf\n    … and 2 more\n"), "{shown}");
        assert!(format!("{stall:#}").ends_with("    0x11\n"));
        stall.stage = Stage::Ended;
        stall.stack.clear();
        assert_eq!(stall.to_string(), "GET / on worker ended after 12 ms\n");
        stall.ran = Some(Duration::from_millis(3));
        let ended = "GET / on worker ended after 12 ms (3 on a CPU)\n";
        assert_eq!(stall.to_string(), ended);
    }
}
