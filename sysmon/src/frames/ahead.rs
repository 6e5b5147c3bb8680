#![expect(unsafe_code, reason = "looks at the code before a return address")]
//! Requests the sites that a walk will need next.
//!
//! A walk that meets an unknown site cannot continue: it does not know where the caller's return
//! address is. Requesting one site at a time would take the helper as many rounds as there are
//! frames. So the words between here and the root are searched for values that *may* be return
//! addresses: such a value points into the executable's text, and the instruction before it is a
//! call. Unknown sites among those are requested too. Nothing is taken as true: a word that is left
//! from an earlier call only costs the helper a look at a function that has run on this stack
//! before.
//!
//! The rules are those of `walk`: it runs in signal handlers.
//!
//! Rejected: handing the helper a copy of the stack (4 KiB for each request, and states of their
//! own); requesting without looking at the code (function pointers and their neighbours would be
//! requested too).

use std::ops::Range;

use super::rows::WORD;
use super::sites::Sites;
use super::walk::Stack;

/// Maximum number of words that are looked at.
const WORDS: usize = 1024;

/// Requests the sites of possible return addresses from `sp` to `root`.
///
/// Returns true if the caller must notify the helper.
#[cold]
pub(crate) fn ask_ahead(sites: &Sites, stack: &Stack, sp: usize, root: usize) -> bool {
    let Some(text) = sites.text() else {
        return false; // the helper has not run yet
    };
    let mut ring = false;
    for at in (sp..root).step_by(WORD).take(WORDS) {
        let Some(word) = stack.read(at) else { break };
        if follows_a_call(&text, word) && sites.get(word - 1).is_none() {
            ring |= sites.want(word - 1);
        }
    }
    ring
}

/// Length of the longest call: prefix, opcode, two bytes of operand, four of distance.
const LONGEST: usize = 8;

/// Whether the bytes before an address can be read as a call.
#[inline]
fn follows_a_call(text: &Range<usize>, address: usize) -> bool {
    let Some(before) = address.checked_sub(LONGEST) else {
        return false;
    };
    if before < text.start || address > text.end {
        return false;
    }
    let code = std::ptr::with_exposed_provenance::<[u8; LONGEST]>(before);
    // SAFETY: inside the executable's text, which is readable, stays for ever and is not written
    // to.
    let code = unsafe { code.read() };
    is_call(code)
}

/// Whether these bytes may end with a call.
#[inline]
fn is_call(code: [u8; LONGEST]) -> bool {
    let direct = code[LONGEST - 5] == 0xE8;
    // `ff /2`, followed by 0, 1, 2, 4 or 5 bytes of operand.
    let through = |length: usize| {
        let [opcode, operand] = [code[LONGEST - length], code[LONGEST - length + 1]];
        opcode == 0xFF && operand >> 3 & 7 == 2
    };
    direct || [2, 3, 4, 6, 7].into_iter().any(through)
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::super::Mobility;
    use super::super::probe::{Caught, catch, descend, within};
    use super::super::sites::{Site, resolve_in};
    use super::super::walk::judge_in;
    use super::*;

    #[test]
    fn calls_are_told_from_other_code() {
        let ends = |bytes: &[u8]| {
            let mut code = [0x90; LONGEST];
            code[LONGEST - bytes.len()..].copy_from_slice(bytes);
            is_call(code)
        };
        assert!(ends(&[0xE8, 1, 2, 3, 4]), "call there");
        assert!(ends(&[0xFF, 0xD3]), "call rbx");
        assert!(ends(&[0x41, 0xFF, 0xD4]), "call r12");
        assert!(ends(&[0xFF, 0x50, 0x18]), "call [rax+24]");
        assert!(ends(&[0xFF, 0x54, 0x24, 0x08]), "call [rsp+8]");
        assert!(ends(&[0xFF, 0x15, 1, 2, 3, 4]), "call [rip+there]");
        assert!(ends(&[0xFF, 0x94, 0x24, 1, 2, 3, 4]), "call [rsp+far]");
        assert!(!ends(&[0xFF, 0xE0]), "jmp rax");
        assert!(!ends(&[0xC3]), "ret");
        assert!(!ends(&[]));
    }

    #[test]
    fn a_deep_stack_is_known_after_a_few_rounds() {
        #[inline(never)]
        fn other(frames: usize, last: &mut dyn FnMut()) {
            let apart: [&mut dyn FnMut(); 1] = [last];
            for next in apart {
                descend(frames, next);
            }
            std::hint::black_box(frames);
        }
        let sites = Sites::new();
        resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row)); // finds the text
        let mut rounds = 0;
        let mut look = |caught: &Caught| {
            while !judge_in(&sites, &caught.start, &caught.stack, caught.root).complete {
                rounds += 1;
                resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row));
            }
        };
        within(|| {
            other(1, &mut || {
                other(2, &mut || other(3, &mut || catch(&mut look)))
            })
        });
        assert!(rounds <= 2, "{rounds} rounds");
    }
}
