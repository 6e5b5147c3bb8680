//! Demangles names of the older mangling, fast without optimization.
//!
//! A survey asks for thousands of names. Names with unusual parts are left to the complete
//! demangler.

/// Demangles a name of the older mangling, without the hash; `None` for any other name.
pub(super) fn plain(name: &str) -> Option<String> {
    let bytes = name.strip_prefix("_ZN")?.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let (mut at, mut first) = (0, true);
    loop {
        let mut length = 0;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            length = 10 * length + (bytes[at] - b'0') as usize;
            if length > bytes.len() {
                return None;
            }
            at += 1;
        }
        let end = at + length;
        if length == 0 || end >= bytes.len() {
            return None;
        }
        let is_last = bytes[end] == b'E';
        if is_last && end + 1 != bytes.len() {
            return None; // has a suffix
        }
        let element = &bytes[at..end];
        if is_last && is_hash(element) {
            break;
        }
        if !first {
            plain.extend_from_slice(b"::");
        }
        unescape(element, &mut plain)?;
        if is_last {
            break;
        }
        (at, first) = (end, false);
    }
    String::from_utf8(plain).ok()
}

/// Whether an element is `h` and hexadecimal digits.
fn is_hash(element: &[u8]) -> bool {
    let mut at = 1;
    while at < element.len() {
        if !element[at].is_ascii_hexdigit() {
            return false;
        }
        at += 1;
    }
    element[0] == b'h'
}

/// Adds one element of a path; `None` if part of it is not known.
fn unescape(element: &[u8], plain: &mut Vec<u8>) -> Option<()> {
    let mut at = usize::from(element.starts_with(b"_$"));
    let mut from = at;
    while at < element.len() {
        let byte = element[at];
        if byte >= 0x80 {
            return None;
        }
        if byte != b'$' && byte != b'.' {
            at += 1;
            continue;
        }
        plain.extend_from_slice(&element[from..at]);
        if byte == b'.' {
            let double = at + 1 < element.len() && element[at + 1] == b'.';
            plain.extend_from_slice(if double { b"::" } else { b"." });
            at += if double { 2 } else { 1 };
        } else {
            let mut end = at + 1;
            while end < element.len() && element[end] != b'$' {
                end += 1;
            }
            if end == element.len() {
                return None;
            }
            plain.push(match &element[at + 1..end] {
                b"SP" => b'@',
                b"BP" => b'*',
                b"RF" => b'&',
                b"LT" => b'<',
                b"GT" => b'>',
                b"LP" => b'(',
                b"RP" => b')',
                b"C" => b',',
                b"u20" => b' ',
                b"u22" => b'"',
                b"u27" => b'\'',
                b"u2b" => b'+',
                b"u3b" => b';',
                b"u5b" => b'[',
                b"u5d" => b']',
                b"u7b" => b'{',
                b"u7d" => b'}',
                b"u7e" => b'~',
                _ => return None,
            });
            at = end + 1;
        }
        from = at;
    }
    plain.extend_from_slice(&element[from..]);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with these elements.
    fn mangled(elements: &[&str]) -> String {
        let elements = elements.iter().map(|e| format!("{}{e}", e.len()));
        format!("_ZN{}E", elements.collect::<String>())
    }

    #[test]
    fn names_are_demangled_as_by_the_complete_demangler() {
        const HASH: &str = "h0123456789abcdef";
        let usual = [
            mangled(&["core", "ptr", "drop_in_place$LT$a..B$LT$c..D$GT$$GT$", HASH]),
            mangled(&["_$LT$a..B$u20$as$u20$c..D$GT$", "drop", HASH]),
            mangled(&["a", "f", "_$u7b$$u7b$closure$u7d$$u7d$", HASH]),
            mangled(&["_$LT$$RF$$BP$$u5b$T$u5d$$GT$", "dot.s", HASH]),
            mangled(&["a", "hex"]),
            mangled(&["a", "hab"]),
        ];
        let others = [
            mangled(&["a", "b", HASH]) + ".llvm.123",
            mangled(&["a$u31", "b"]),
            mangled(&["a$u31$", "b"]),
            mangled(&["a$", "$b"]),
            mangled(&["_$", "..", "."]),
            mangled(&[]),
            mangled(&[""]),
            "_ZN3foo3ba".into(),
            "_ZN3foo".into(),
            "_ZN9999999999999999999999a1bE".into(),
            "_RNvC1a1b".into(),
            "main".into(),
            "".into(),
        ];
        for name in usual.iter().chain(&others) {
            if let Some(plain) = plain(name) {
                let complete = format!("{:#}", rustc_demangle::demangle(name));
                assert_eq!(plain, complete, "{name}");
            }
        }
        assert!(usual.iter().all(|name| plain(name).is_some()));
    }
}
