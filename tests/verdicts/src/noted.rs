//! The runtime's verdict on the calling fiber's frames; no other file asks for it.

use indent::runtime::Handle;
pub use indent::task::Mobility;

/// Returns the word for a verdict, for a line of the table.
pub fn word(mobility: Mobility) -> &'static str {
    match mobility {
        Mobility::Unjudged => "unjudged",
        Mobility::Bound => "bound",
        Mobility::Movable => "movable",
    }
}

/// Returns a verdict by its word.
pub fn from_word(text: &str) -> Option<Mobility> {
    let all = [Mobility::Unjudged, Mobility::Bound, Mobility::Movable];
    all.into_iter().find(|mobility| word(*mobility) == text)
}

/// A verdict and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Verdict on all frames.
    pub mobility: Mobility,
    /// The function that binds.
    pub function: Option<String>,
    /// The variable that binds.
    pub variable: Option<String>,
    /// Path from a frame to it, in readable form.
    pub path: Vec<String>,
}

/// Returns the verdict on the calling fiber's present frames; waits until it is known.
pub fn now() -> Noted {
    let binding = match indent::task::current() {
        Some(fiber) => fiber.binding(),
        None => panic!("only a fiber has a verdict"),
    };
    Noted {
        mobility: binding.mobility(),
        function: binding.function().map(str::to_owned),
        variable: binding.variable().map(str::to_owned),
        path: binding
            .path()
            .map(|(function, how)| format!("{function} {how}"))
            .collect(),
    }
}

/// Lets every fiber move, whatever its frames show.
#[expect(unsafe_code, reason = "shows that the test can fail")]
pub fn trust_everything(runtime: &Handle) {
    // SAFETY: none: this is for the program that must fail.
    unsafe { runtime.trust_everything(true) };
}

/// Returns lines about the program's code.
///
/// They say how many functions there are, and how many touch and reach a thread-local.
pub fn image() -> Vec<String> {
    let Some(judge) = indent_sysmon::frames::judge() else {
        return Vec::new();
    };
    let seen = judge.statistics();
    let share = |n: usize| 100.0 * n as f64 / seen.functions.max(1) as f64;
    vec![
        format!(
            "{} functions in {} KiB of code, read in {:.0?}",
            seen.functions,
            seen.text / 1024,
            seen.time
        ),
        format!(
            "{} touch a thread-local ({:.1} %); as frames {} are bound ({:.1} %)",
            seen.touching,
            share(seen.touching),
            seen.bound,
            share(seen.bound)
        ),
    ]
}
