//! Documents and sources agree: invariant numbers, file names, links, and lengths.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Pages with a limit of lines: the front page and the index must stay short.
const LIMITS: [(&str, usize); 2] = [("README.md", 120), ("DESIGN.md", 200)];
/// Letters of identifiers that any comment of the sources may use without a file name.
///
/// Others look like other things (`L0` is a layer) and are used only next to their definition.
const CITED: &str = "IRSF";
/// Retired invariant numbers, which a test would otherwise report as missing.
const RETIRED: [&str; 2] = ["I17", "I18"];
const INVARIANTS: &str = "docs/invariants.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all files below a folder with this ending, as paths from the root.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == ending)
            {
                let below = path.strip_prefix(root()).unwrap();
                found.push(below.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Returns the pages: those at the top, those in `docs`, and the results.
fn pages() -> Vec<String> {
    let mut pages = files("docs", "md");
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(name);
        }
    }
    pages.push("benches/RESULTS.md".to_owned());
    pages.push("sysmon/README.md".to_owned());
    pages
}

/// Returns the identifiers in a text.
///
/// An identifier is a capital letter and one or two digits, with nothing joined to it.
fn identifiers(text: &str) -> Vec<String> {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for word in text.split(|c: char| !joins(c)) {
        let mut letters = word.chars();
        let Some('A'..='Z') = letters.next() else {
            continue;
        };
        let digits = letters.as_str();
        let fits = (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        if fits {
            found.push(word.to_owned());
        }
    }
    found
}

/// Returns a text without the parts between backticks: they are code, in which `R8` is a register.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Returns the identifier that each table row defines, with the file it names.
fn definitions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in read(INVARIANTS).lines() {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        let Some(name) = identifiers(cells[0]).pop() else {
            continue;
        };
        assert_eq!(cells.len(), 3, "a row has three cells: {line}");
        let file = cells[2].trim_end_matches('|').trim().trim_matches('`');
        found.push((name, file.to_owned()));
    }
    found
}

#[test]
fn every_invariant_is_defined_once_and_its_file_cites_it() {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (name, file) in definitions() {
        let path = match file.starts_with("sysmon/") {
            true => file.clone(),
            false => format!("src/{file}"),
        };
        match fs::read_to_string(root().join(&path)) {
            Err(_) => wrong.push(format!("{name}: there is no {path}")),
            Ok(text) if !identifiers(&text).contains(&name) => {
                wrong.push(format!("{name} does not occur in {path}"));
            }
            Ok(_) => {}
        }
        if RETIRED.contains(&name.as_str()) {
            wrong.push(format!("{name} is retired and must not be defined again"));
        }
        if !seen.insert(name.clone()) {
            wrong.push(format!("{name} is defined twice"));
        }
    }
    assert!(seen.len() > 60, "{INVARIANTS} is not read as it is written");
    assert!(wrong.is_empty(), "{INVARIANTS}:\n{}", wrong.join("\n"));
}

#[test]
fn every_invariant_that_a_comment_cites_is_defined() {
    let defined: BTreeSet<String> = definitions().into_iter().map(|(name, _)| name).collect();
    let mut wrong = BTreeMap::new();
    let mut cited = 0;
    for path in [files("src", "rs"), files("sysmon/src", "rs")].concat() {
        for (number, line) in read(&path).lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            for name in identifiers(&without_code(comment)) {
                if !CITED.contains(&name[..1]) {
                    continue;
                }
                cited += 1;
                if !defined.contains(&name) {
                    wrong.insert(format!("{path}:{}", number + 1), name);
                }
            }
        }
    }
    assert!(cited > 100, "comments are not read as they are written");
    assert!(wrong.is_empty(), "not in {INVARIANTS}: {wrong:#?}");
}

#[test]
fn front_page_and_index_stay_short() {
    for (page, most) in LIMITS {
        let lines = read(page).lines().count();
        assert!(
            lines <= most,
            "{page} has {lines} lines, at most {most} are allowed"
        );
    }
}

/// Returns the link anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the text of a page without its code blocks.
fn prose(page: &str) -> String {
    let text = read(page);
    let mut outside = true;
    let kept = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        if fence {
            outside = !outside;
        }
        outside && !fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page);
    let headings = headings.lines().filter_map(|line| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len() && text.starts_with(' ')).then(|| anchor(text))
    });
    headings.collect()
}

/// Returns the targets of the links in a page.
fn links(page: &str) -> Vec<String> {
    let text = without_code(&prose(page));
    let mut found = Vec::new();
    for rest in text.split("](").skip(1) {
        if let Some((target, _)) = rest.split_once(')') {
            found.push(target.to_owned());
        }
    }
    found
}

/// Returns a path with `.` and `..` resolved.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut followed = 0;
    for page in pages() {
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => PathBuf::from(&page),
                file => plain(&Path::new(&page).parent().unwrap().join(file)),
            };
            let target = target.to_str().unwrap();
            if !root().join(target).exists() {
                wrong.push(format!("{page}: no file {target}"));
            } else if !heading.is_empty() && !anchors(target).contains(heading) {
                wrong.push(format!("{page}: no heading #{heading} in {target}"));
            }
        }
    }
    assert!(followed > 30, "links are not read as they are written");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the texts between backticks in a page, outside code blocks.
fn spans(page: &str) -> Vec<String> {
    let text = prose(page);
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_source_file_and_model_that_a_document_names_exists() {
    let folders = ["src", "sysmon", "tests", "benches", "examples"];
    let sources: Vec<String> = folders.iter().flat_map(|at| files(at, "rs")).collect();
    let text: String = files("src", "rs").iter().map(|path| read(path)).collect();
    let mut wrong = Vec::new();
    for page in pages() {
        for span in spans(&page) {
            let is_file = span.ends_with(".rs") && !span.contains([' ', '*', '…']);
            let below = format!("/{span}");
            if is_file
                && !sources
                    .iter()
                    .any(|path| *path == span || path.ends_with(&below))
            {
                wrong.push(format!("{page}: no file {span}"));
            }
            let is_model = span.starts_with("loom_") && !span.contains('…');
            if is_model && !text.contains(&format!("fn {span}(")) {
                wrong.push(format!("{page}: no model {span}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn headings_and_identifiers_are_read_as_they_are_written() {
    assert_eq!(anchor("Freeze and thaw"), "freeze-and-thaw");
    assert_eq!(
        anchor("What `select!` does, in 3 steps"),
        "what-select-does-in-3-steps"
    );
    assert_eq!(
        identifiers("by I7, S12 (F1); not I7a, FA1 or R100"),
        ["I7", "S12", "F1"]
    );
    assert_eq!(without_code("by I7 and `R8`"), "by I7 and  ");
}
