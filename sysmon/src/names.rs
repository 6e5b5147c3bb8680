//! Finds the names nearest to one that was misspelt.

/// Returns the edit distance: letters to insert, remove or change to turn `a` into `b`.
///
/// ```
/// assert_eq!(indent_sysmon::names::distance("kernel", "kernels"), 1);
/// ```
pub fn distance(a: &str, b: &str) -> usize {
    // `row[j]`: from the part of `a` seen so far to the first `j` letters of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Returns the paths most similar to one that does not exist: at most three, best first.
///
/// Only paths whose last parts are nearly the same count.
///
/// ```
/// use indent_sysmon::names::nearest;
///
/// let paths = ["pool::free", "pool::FREED", "list::FREE", "pool::TAKEN"];
/// let near = nearest("pool::FRE", paths.map(str::to_owned));
/// assert_eq!(near, ["pool::free", "list::FREE", "pool::FREED"]);
/// ```
pub fn nearest(path: &str, paths: impl IntoIterator<Item = String>) -> Vec<String> {
    const MOST: usize = 3;
    let last = last_part(path).to_ascii_lowercase();
    let most = (last.len() / 4).max(2);
    let mut near: Vec<(usize, usize, String)> = Vec::new();
    for other in paths {
        let part = last_part(&other);
        if part.len().abs_diff(last.len()) > most {
            continue;
        }
        let letters = distance(&last, &part.to_ascii_lowercase());
        if letters <= most && letters < last.len() {
            near.push((letters, distance(path, &other), other));
        }
    }
    near.sort();
    near.dedup();
    near.into_iter().take(MOST).map(|(.., path)| path).collect()
}

/// Returns the path of a thread-local as the source has it.
///
/// Leaves out what `thread_local!` and the compiler add below it: `a::X` of
/// `a::X::{{constant}}::{{closure}}::VAL`.
pub(crate) fn of_variable(name: &str) -> &str {
    let value = name.rsplit_once("::").filter(|(above, last)| {
        let is_value = matches!(*last, "VAL" | "__RUST_STD_INTERNAL_VAL");
        is_value && above.ends_with('}')
    });
    let mut path = value.map_or(name, |(above, _)| above);
    while let Some((above, last)) = path.rsplit_once("::")
        && last.starts_with('{')
    {
        path = above;
    }
    path
}

/// Returns the last word of a path: `f` of `a::f::{closure#0}`.
pub(crate) fn last_part(path: &str) -> &str {
    let named = path.split("::{").next().unwrap_or(path);
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let end = named.trim_end_matches(|c| !is_part(c));
    let start = end.rfind(|c| !is_part(c));
    start.map_or(end, |at| end[at..].trim_start_matches(|c| !is_part(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_path_is_found() {
        for (path, last) in [
            ("a::b::C", "C"),
            ("C", "C"),
            ("<a::B as c::D>::e", "e"),
            ("a::f::{closure#0}", "f"),
            ("a::X::{{constant}}::{{closure}}::VAL", "X"),
            ("a::größe", "größe"),
            ("", ""),
            ("::", ""),
        ] {
            assert_eq!(last_part(path), last, "{path}");
        }
    }

    #[test]
    fn a_variable_has_the_path_that_is_written_in_the_source() {
        for (name, path) in [
            ("a::X", "a::X"),
            ("a::VAL", "a::VAL"),
            ("a::X::{{constant}}::{{closure}}::VAL", "a::X"),
            (
                "a::VAL::{constant#0}::{closure#1}::__RUST_STD_INTERNAL_VAL",
                "a::VAL",
            ),
            (
                "a::f::{{closure}}::X::{{constant}}::{{closure}}::VAL",
                "a::f::{{closure}}::X",
            ),
            ("", ""),
        ] {
            assert_eq!(of_variable(name), path, "{name}");
        }
    }

    #[test]
    fn nothing_is_near_to_a_name_unlike_all_others() {
        let paths = || ["a::COUNT", "a::LIST", "b::X"].map(str::to_owned);
        assert!(nearest("a::REQUESTS", paths()).is_empty());
        assert!(nearest("", paths()).is_empty());
        assert_eq!(nearest("crate::LIST", paths()), ["a::LIST"]);
        assert_eq!(nearest("COUNTS", paths()), ["a::COUNT"]);
    }
}
