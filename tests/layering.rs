//! The shape of the source: imports point down, files stay small, dangerous code stays in its
//! place.
//!
//! The tests read the plain text, without comments, strings and tests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders (or files) of `src`, lowest layer first.
///
/// Members of one layer do not import each other, except for those in `NEIGHBOURS`.
const LAYERS: [&[&str]; 7] = [
    &["sys", "util", "error"],
    &["fiber"],
    &["queue", "driver"],
    &["sched"],
    &["park"],
    &[
        "chan", "sync", "time", "io", "net", "fs", "blocking", "compute",
    ],
    &["runtime", "task", "select"],
];

/// Imports that are allowed between neighbours of one layer: importer, imported.
const NEIGHBOURS: [(&str, &str); 9] = [
    ("util", "sys"),
    ("error", "sys"),
    ("compute", "blocking"),
    ("fs", "blocking"),
    ("net", "blocking"),
    ("net", "io"),
    ("runtime", "task"),
    ("select", "task"),
    ("task", "runtime"),
];

/// Folders of `src/sched`, lowest first.
///
/// The parts of the scheduler call each other through `Shared`, whose methods are in all of them.
/// Their imports point down, except for those in `UPWARD`.
const PARTS: [&str; 8] = [
    "threads",
    "workers",
    "block",
    "mobility",
    "preempt",
    "diag",
    "io",
    "background",
];

/// Imports between parts of the scheduler that point up. The list may only become shorter.
const UPWARD: [(&str, &str); 12] = [
    ("threads", "workers"),
    ("threads", "block"),
    ("threads", "mobility"),
    ("threads", "preempt"),
    ("threads", "diag"),
    ("workers", "block"),
    ("workers", "mobility"),
    ("workers", "preempt"),
    ("block", "mobility"),
    ("block", "preempt"),
    ("mobility", "background"),
    ("preempt", "diag"),
];

/// The most lines a file may have, tests not counted, and the number from which the test names the
/// file.
const MOST_LINES: usize = 600;
const MANY_LINES: usize = 500;
/// Lines above an unsafe block within which its comment must stand.
const SAFETY_WITHIN: usize = 6;

struct Source {
    /// Path below `src`.
    path: String,
    /// The text as it is.
    lines: Vec<String>,
    /// The text without comments, strings and tests, line by line.
    code: Vec<String>,
}

impl Source {
    /// Returns the folder of `src` the file is in, or the file's own name.
    fn folder(&self) -> &str {
        let first = self.path.split('/').next().unwrap();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let below = path.strip_prefix(&root).unwrap();
                sources.push(Source {
                    path: below.to_str().unwrap().to_owned(),
                    lines: text.lines().map(str::to_owned).collect(),
                    code: without_tests(&without_comments(&text)),
                });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 20, "read {} files only", sources.len());
    sources
}

/// Blanks comments and the insides of strings and character literals; keeps the line breaks.
fn without_comments(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::new();
    let starts = |at: usize, what: &str| {
        what.chars()
            .enumerate()
            .all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    let mut at = 0;
    while at < chars.len() {
        let skipped = if starts(at, "//") {
            chars[at..].iter().take_while(|c| **c != '\n').count()
        } else if starts(at, "/*") {
            let (mut depth, mut end) = (1, at + 2);
            while depth > 0 && end < chars.len() {
                match (starts(end, "/*"), starts(end, "*/")) {
                    (true, _) => (depth, end) = (depth + 1, end + 2),
                    (_, true) => (depth, end) = (depth - 1, end + 2),
                    _ => end += 1,
                }
            }
            end - at
        } else if let Some(hashes) = raw_string(&chars, at) {
            let close: String = std::iter::once('"')
                .chain((0..hashes).map(|_| '#'))
                .collect();
            let open = at + 1 + hashes + 1;
            let end = (open..chars.len()).find(|&i| starts(i, &close));
            end.map_or(chars.len(), |end| end + close.len()) - at
        } else if chars[at] == '"' {
            1 + quoted(&chars[at + 1..], '"')
        } else if chars[at] == '\'' && is_character(&chars, at) {
            1 + quoted(&chars[at + 1..], '\'')
        } else {
            0
        };
        if skipped == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            let inside = &chars[at..at + skipped];
            code.push(' ');
            code.extend(inside.iter().filter(|c| **c == '\n'));
            at += skipped;
        }
    }
    code
}

/// Returns the number of hashes of a raw string that begins here.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let in_a_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    if chars[at] != 'r' || (in_a_word && chars[at - 1] != 'b') {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// Returns true for a character literal, false for a lifetime.
fn is_character(chars: &[char], at: usize) -> bool {
    chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'')
}

/// Returns the length of the rest of a literal, its end included.
fn quoted(rest: &[char], end: char) -> usize {
    let mut at = 0;
    while at < rest.len() && rest[at] != end {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Blanks every item under an attribute that mentions `test`; keeps the line breaks.
fn without_tests(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().collect();
    let mut kept: Vec<String> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim();
        let is_test = line == "#[test]"
            || (line.starts_with("#[cfg(") && mentions(line, "test") && !line.contains("not(test"));
        if !is_test {
            kept.push(lines[at].to_owned());
            at += 1;
            continue;
        }
        // Up to the end of the item: its closing brace, or a semicolon before any brace.
        let (mut depth, mut opened) = (0, false);
        loop {
            let line = lines[at];
            if !line.trim_start().starts_with("#[") {
                for c in line.chars() {
                    match c {
                        '{' => (depth, opened) = (depth + 1, true),
                        '}' => depth -= 1,
                        _ => {}
                    }
                }
            }
            kept.push(String::new());
            at += 1;
            let ended = if opened {
                depth == 0
            } else {
                line.contains(';')
            };
            if ended || at == lines.len() {
                break;
            }
        }
    }
    kept
}

/// Returns true if `word` stands in `text` on its own.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Returns what follows `crate::` in a file, with the line: paths, and the members of `crate::{…}`.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = source.code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + "crate::".len()..];
        let word = |text: &str| -> String {
            text.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        match rest.strip_prefix('{') {
            None => found.push((line, word(rest))),
            Some(group) => {
                let (mut depth, mut start) = (0, true);
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && c.is_alphabetic() => {
                            found.push((line, word(&group[i..])));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

fn rank(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&folder))
}

fn assert_none(rule: &str, violations: &str) {
    assert!(violations.is_empty(), "{rule}:\n{violations}");
}

#[test]
fn every_folder_has_a_layer() {
    let mut without = String::new();
    for source in sources() {
        if source.path != "lib.rs" && rank(source.folder()).is_none() {
            writeln!(without, "  src/{}", source.path).unwrap();
        }
    }
    assert_none("no layer is known for", &without);
}

#[test]
fn imports_point_down() {
    let mut upward = String::new();
    for source in sources() {
        let here = source.folder();
        let Some(my_rank) = rank(here) else {
            continue; // lib.rs; the test above names all others
        };
        if source.is_test() {
            continue;
        }
        for (line, there) in imports(&source) {
            let fine = match rank(&there) {
                Some(rank) => {
                    there == here || rank < my_rank || NEIGHBOURS.contains(&(here, &there))
                }
                None => there.starts_with("__"), // a step of a macro, or a re-export of lib.rs
            };
            if !fine {
                writeln!(upward, "  src/{}:{line} uses crate::{there}", source.path).unwrap();
            }
        }
    }
    assert_none("these imports do not point down", &upward);
}

/// Returns the part of the scheduler that a path below `src` or `crate::sched` belongs to.
fn part(path: &str) -> Option<usize> {
    let name = path.split(['/', '.', ':']).next()?;
    PARTS.iter().position(|part| *part == name)
}

#[test]
fn imports_between_parts_of_the_scheduler_point_down_or_are_listed() {
    const PREFIX: &str = "crate::sched::";
    let (mut upward, mut seen) = (String::new(), BTreeSet::new());
    for source in sources().iter().filter(|source| !source.is_test()) {
        let Some(here) = source.path.strip_prefix("sched/").and_then(part) else {
            continue;
        };
        for (number, line) in source.code.iter().enumerate() {
            for (at, _) in line.match_indices(PREFIX) {
                let Some(there) = part(&line[at + PREFIX.len()..]).filter(|there| *there > here)
                else {
                    continue;
                };
                let edge = (PARTS[here], PARTS[there]);
                seen.insert(edge);
                if !UPWARD.contains(&edge) {
                    writeln!(upward, "  src/{}:{}: {edge:?}", source.path, number + 1).unwrap();
                }
            }
        }
    }
    assert_none("these imports do not point down", &upward);
    let gone = UPWARD.iter().filter(|edge| !seen.contains(*edge));
    let gone: String = gone.map(|edge| format!("  {edge:?}\n")).collect();
    assert_none("these edges are gone: take them off the list", &gone);
}

#[test]
fn files_are_small() {
    let mut large = String::new();
    for source in sources() {
        // Tests at the end of the file do not count.
        let tests =
            |line: &String| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        let end = source.lines.iter().rposition(tests);
        let opens = |at: usize| {
            let item = source.lines[at..]
                .iter()
                .find(|line| !line.starts_with("#["));
            item.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
        };
        let length = match end {
            Some(at) if opens(at) => at,
            _ => source.lines.len(),
        };
        if length > MOST_LINES && !source.is_test() {
            writeln!(large, "  src/{}: {length} lines", source.path).unwrap();
        } else if length > MANY_LINES {
            println!("src/{} grows: {length} lines", source.path);
        }
    }
    assert_none("larger than a file should be", &large);
}

/// Lists where `text` stands in the code of files for which `allowed` is false.
fn elsewhere(text: &str, allowed: impl Fn(&Source) -> bool) -> String {
    let mut found = String::new();
    for source in sources()
        .iter()
        .filter(|source| !source.is_test() && !allowed(source))
    {
        for (number, line) in source.code.iter().enumerate() {
            if line.contains(text) {
                writeln!(
                    found,
                    "  src/{}:{}: {}",
                    source.path,
                    number + 1,
                    line.trim()
                )
                .unwrap();
            }
        }
    }
    found
}

#[test]
fn thread_locals_are_in_known_files() {
    // The one in `loom.rs` exists in models only.
    let known = [
        "sched/workers/context.rs",
        "fiber/locals.rs",
        "fiber/locals/hook.rs",
        "util/loom.rs",
    ];
    let found = elsewhere("thread_local!", |source| {
        known.contains(&source.path.as_str())
    });
    assert_none("thread-locals in other files", &found);
}

#[test]
fn system_calls_are_in_sys_and_the_drivers() {
    let found = elsewhere("libc::", |source| {
        ["sys", "driver"].contains(&source.folder())
    });
    assert_none("libc outside sys and driver", &found);
}

#[test]
fn only_the_facade_and_tests_know_loom() {
    let found = elsewhere("indent_loom", |source| source.path == "util/loom.rs");
    assert_none("cfg(indent_loom) outside util/loom.rs", &found);
    let found = elsewhere("loom::sync", |source| source.path == "util/loom.rs");
    assert_none("loom outside util/loom.rs", &found);
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut without = String::new();
    for source in sources() {
        for (number, line) in source.code.iter().enumerate() {
            let opens = ["unsafe {", "unsafe impl"]
                .iter()
                .any(|text| line.contains(text));
            if !opens {
                continue;
            }
            let above = number.saturating_sub(SAFETY_WITHIN);
            let says = source.lines[above..=number]
                .iter()
                .any(|line| line.contains("SAFETY"));
            if !says {
                writeln!(
                    without,
                    "  src/{}:{}: {}",
                    source.path,
                    number + 1,
                    line.trim()
                )
                .unwrap();
            }
        }
    }
    assert_none("unsafe without a SAFETY comment", &without);
}

#[test]
fn the_reader_of_this_test_sees_code_and_nothing_else() {
    let text = r##"
use crate::sys::{arch, signal}; // crate::runtime
/* crate::task /* nested */ crate::park */
fn f<'a>(x: &'a str) -> char { let _ = "crate::net \" crate::fs"; '"' }
const R: &str = r#"crate::time " crate::sync"#;
use crate::{fiber::{job, state}, queue};
#[cfg(test)]
mod tests {
    use crate::runtime;
}
#[cfg(all(test, indent_loom))]
#[expect(unsafe_code, reason = "x")]
mod models {
    use crate::runtime;
}
#[cfg(test)]
mod more;
#[cfg(not(indent_loom))]
use crate::sched::Shared;
"##;
    let source = Source {
        path: "park/mod.rs".to_owned(),
        lines: Vec::new(),
        code: without_tests(&without_comments(text)),
    };
    let expected = [(2, "sys"), (6, "fiber"), (6, "queue"), (19, "sched")];
    let expected = expected.map(|(line, path)| (line, path.to_owned()));
    assert_eq!(imports(&source), expected);
}
