//! What the runtime says of the calling fiber's frames: the one place that asks it.

use std::fmt;

use indent::runtime::Handle;

/// As the runtime has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// May go on on another thread.
    Free,
    /// May share its thread, but not leave it.
    Home,
    /// Neither.
    Alone,
}

impl Verdict {
    /// By the word that [`fmt::Display`] writes.
    pub fn from_word(word: &str) -> Option<Verdict> {
        let all = [Verdict::Free, Verdict::Home, Verdict::Alone];
        all.into_iter().find(|verdict| verdict.to_string() == word)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Free => "free",
            Verdict::Home => "home",
            Verdict::Alone => "alone",
        })
    }
}

/// A verdict and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Noted {
    /// The word for the verdict; "unknown" while the runtime does not tell.
    pub verdict: String,
    /// The function that binds.
    pub function: Option<String>,
    /// The variable that binds.
    pub variable: Option<String>,
}

/// The verdict of the calling fiber's frames right now.
pub fn now() -> Noted {
    Noted {
        verdict: "unknown".to_owned(),
        function: None,
        variable: None,
    }
}

/// Lets every fiber of this runtime move, whatever its frames say; false if that cannot be had.
pub fn trust_everything(_runtime: &Handle) -> bool {
    false
}

/// What is known of the program's code: functions, how many touch and how many reach a thread-local;
/// lines for people.
pub fn image() -> Vec<String> {
    Vec::new()
}
