//! Writes a function's name as a path that is the same in both manglings.
//!
//! The older mangling writes `indent::task::join::JoinHandle<T>::join`, the newer one
//! `<indent::task::join::JoinHandle<u64>>::join`. Without arguments, and without the brackets
//! around a type whose own method it is, both are `indent::task::join::JoinHandle::join`.
//!
//! Methods of traits keep their brackets: `<Type as Trait>::method`. This matters because such a
//! name begins with the type, whichever crate implements the trait, so an entry that begins with a
//! type's path must not match it. A path without brackets can only be made by the crate it begins
//! with: methods of a type are written where the type is, and an implementation elsewhere begins
//! with *its* module (`user::<impl Trait for Type>::method`).

/// Returns the path without arguments.
pub(crate) fn path(name: &str) -> String {
    let name = without_arguments(name);
    let Some(inside) = name.strip_prefix('<') else {
        return name;
    };
    match inside.split_once('>') {
        Some((own, rest)) if own.chars().all(is_in_path) => format!("{own}{rest}"),
        _ => name,
    }
}

fn is_in_path(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == ':'
}

/// Leaves out the brackets behind a name, with their contents. Names are long and many: a plain
/// loop over bytes is fast in builds without optimization.
fn without_arguments(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut kept = String::with_capacity(name.len());
    let (mut from, mut at) = (0, 0);
    while at < bytes.len() {
        let byte = bytes[at];
        if byte >= 0x80 {
            return without_arguments_in_any_script(name);
        }
        if byte != b'<' {
            at += 1;
            continue;
        }
        kept.push_str(&name[from..at]);
        from = at;
        let behind_name = kept.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let turbofish = kept.ends_with("::") && !name[at..].starts_with("<impl ");
        if behind_name || turbofish {
            if turbofish {
                kept.truncate(kept.len() - 2);
            }
            at += arguments(&name[at..]).len();
            from = at;
        } else {
            at += 1;
        }
    }
    kept.push_str(&name[from..]);
    kept
}

/// Does the same for any name.
fn without_arguments_in_any_script(name: &str) -> String {
    let mut kept = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        let behind_name = kept.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let turbofish = kept.ends_with("::") && !rest.starts_with("<impl ");
        if next == '<' && (behind_name || turbofish) {
            if turbofish {
                kept.truncate(kept.len() - 2);
            }
            rest = &rest[arguments(rest).len()..];
        } else {
            kept.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    kept
}

/// Returns the text from an opening bracket up to the one that closes it.
fn arguments(text: &str) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut before, mut at) = (0_u32, b' ', 0);
    while at < bytes.len() {
        let byte = bytes[at];
        if byte == b'<' {
            depth += 1;
        } else if byte == b'>' && before != b'-' {
            depth -= 1;
        }
        if depth == 0 {
            return &text[..=at];
        }
        before = byte;
        at += 1;
    }
    text
}

/// Whether a name contains a part of a foreign crate. These are crates other than std and the one
/// the name begins with. Only the newer mangling shows this.
pub(crate) fn has_strangers(name: &str) -> bool {
    let own = crates(name).next().unwrap_or_default();
    crates(name).any(|found| found != own && !["core", "std", "alloc"].contains(&found))
}

/// The first segment of each path in a name.
fn crates(name: &str) -> impl Iterator<Item = &str> {
    let starts = name.match_indices("::").map(|(at, _)| at);
    starts.filter_map(|end| {
        let before = &name[..end];
        let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_');
        let start = start.map_or(0, |at| at + 1);
        let inner = before[..start].ends_with([':', '}', '#']);
        (start < end && !inner).then_some(&before[start..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_of_a_type_has_one_path_in_both_manglings() {
        let same = "indent::task::join::JoinHandle::join";
        assert_eq!(path("indent::task::join::JoinHandle<T>::join"), same);
        assert_eq!(path("<indent::task::join::JoinHandle<u64>>::join"), same);
        assert_eq!(path("<a::B>::c::{closure#0}"), "a::B::c::{closure#0}");
        assert_eq!(path("a::f::<fn(u8) -> c::D<u8>, u64>"), "a::f");
        assert_eq!(
            path("a::f::<<b::C as d::E>::F>::{closure#0}"),
            "a::f::{closure#0}"
        );
        assert_eq!(path("main"), "main");
    }

    #[test]
    fn a_method_of_a_trait_keeps_its_brackets() {
        let same = "<a::B as c::D>::e";
        assert_eq!(path("<a::B<T> as c::D>::e"), same);
        assert_eq!(path("<a::B<u8> as c::D<x::Y>>::e::<z::{closure#0}>"), same);
        assert_eq!(path("<&a::B as c::D>::e"), "<&a::B as c::D>::e");
        assert_eq!(path("<[T]>::sort"), "<[T]>::sort");
        assert_eq!(
            path("u::<impl c::D for a::B<T>>::e"),
            "u::<impl c::D for a::B>::e"
        );
    }

    #[test]
    fn both_ways_to_leave_out_arguments_agree() {
        let names = [
            "a::f::<b::g::{closure#0}>",
            "<a::B<u8, a::D> as c::D<x::Y>>::e::<z>",
            "u::<impl c::D for a::B<T>>::e",
            "a::f::<fn(u8) -> c::D<u8>, u64>::g<h>",
            "<[T]>::sort",
            "<<a::B as c::D>::E<u8>>::f",
            "core::ptr::drop_in_place<a::B<c::D>>",
            "a<",
            "a::f::<b",
            "",
        ];
        for name in names {
            assert_eq!(
                without_arguments(name),
                without_arguments_in_any_script(name)
            );
        }
        assert_eq!(path("größe::f::<u8>"), "größe::f");
        assert_eq!(path("a::f::<größe::B>::g"), "a::f::g");
    }

    #[test]
    fn strangers_are_seen_in_arguments() {
        assert!(has_strangers("a::f::<b::g::{closure#0}>"));
        assert!(has_strangers("<a::B<u8, c::D>>::e"));
        assert!(!has_strangers("<a::B<u8, a::D>>::e"));
        assert!(!has_strangers(
            "a::f::<core::option::Option<alloc::string::String>>"
        ));
        assert!(!has_strangers("a::f::{closure#0}::g::{closure#1}"));
    }
}
