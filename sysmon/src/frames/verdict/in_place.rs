//! Decides in which functions an interrupted stack may be left in place, outside of regions (I35).
//!
//! A verdict on mobility is about a frame that waits for a call. An interrupted frame needs more:
//! between two instructions it may hold what no frame holds during a call. And other stacks run on
//! the thread before this one continues, so it must not stop inside an allocator: the scheduler
//! allocates, and would wait for a lock that only the stopped stack can release.
//!
//! - P1. Functions whose names are not Rust's are [`InPlace::Never`]: C may hold state of its
//!   thread that no instruction shows, and hand-written assembly may have wrong unwind rows.
//!   Without symbols, all functions are.
//! - P2. So are the runtime's own functions, and the allocator's: all that `__rust_alloc` and the
//!   related functions call or jump to.
//! - P3. If one of the allocator's functions in Rust has an atomic read-modify-write, it may hold a
//!   lock, and link-time optimization may have put that code into any function: then the whole
//!   program is refused ([`Judge::in_place_refusal`](super::Judge::in_place_refusal)). An allocator
//!   in C is behind a call, and there P1 holds.
//! - P4. A function that has the address of a thread-local between two instructions, and every
//!   other function of the crates that switch stacks, may wait for a call but not be interrupted
//!   itself.
//!
//! A function that leads to the runtime may be interrupted, unlike in a region that its fiber
//! leaves for another thread ([`Nearness::Leads`]). Code of the runtime that was inlined there may
//! have just read which carrier it is on. The check of the registers and the stack looks for that
//! address, which regions do not; otherwise no closure of a fiber that calls the runtime could be
//! left.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

use super::graph::Graph;
use super::{Judge, Nearness};
use crate::frames::edges::How;
use crate::frames::image::Image;
use crate::thread_locals::is_rust;

/// What a stack with a frame of this function may do when interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum InPlace {
    /// The stack stays on its thread.
    Never,
    /// The stack may be left in place if this frame waits for a call.
    Waiting,
    /// The stack may be left in place, also at an instruction of this frame.
    Anywhere,
}

/// The functions by which Rust code allocates and frees, as parts of their mangled names.
const ALLOCATOR: [&str; 4] = [
    "__rust_alloc",
    "__rust_dealloc",
    "__rust_realloc",
    "__rust_alloc_zeroed",
];
/// The crate that the compiler generates for them.
const SHIM: &str = "7___rustc";
/// Crates whose functions work with stacks and threads.
///
/// Functions of `indent` are the runtime's functions (P2), or generic ones with user code in them.
const SWITCHING: [&str; 2] = ["indent_sysmon", "corosensei"];

/// What the interrupted stacks of a program may do.
#[derive(Debug, Default)]
pub(super) struct InPlaces {
    /// The answer for each function.
    pub(super) of_functions: Vec<InPlace>,
    /// Why every answer is [`InPlace::Never`], if so.
    pub(super) refusal: Option<&'static str>,
}

impl InPlaces {
    /// Computes the answer for each function of the executable, which is the first image.
    pub(super) fn of(judge: &Judge) -> InPlaces {
        let Some(image) = judge.images.first() else {
            return InPlaces {
                of_functions: Vec::new(),
                refusal: Some("the program's code cannot be read"),
            };
        };
        let functions = image.functions.iter();
        let rust: Vec<bool> = functions
            .map(|function| image.symbols.are_all(function.range.start, is_rust))
            .collect();
        let mut all = vec![InPlace::Never; judge.nearness.len()];
        for (number, (place, is_rust)) in all.iter_mut().zip(&rust).enumerate() {
            *place = match judge.nearness[number] {
                _ if !is_rust => InPlace::Never,
                Nearness::Within => InPlace::Never,
                Nearness::Leads | Nearness::Apart => InPlace::Anywhere,
            };
        }
        for &node in &judge.having {
            if let Some(place) = all.get_mut(node as usize)
                && *place == InPlace::Anywhere
            {
                *place = InPlace::Waiting;
            }
        }
        // A value of the thread may be half changed, or be restored on another thread.
        for &node in &judge.staying {
            if let Some(place) = all.get_mut(node as usize) {
                *place = InPlace::Never;
            }
        }
        for name in SWITCHING {
            let begins = |plain: &str| {
                let path = plain.trim_start_matches('<').strip_prefix(name);
                path.is_some_and(|rest| rest.starts_with("::"))
            };
            for (start, plain) in image.symbols.functions_of(name) {
                if begins(&plain)
                    && let Some(index) = image.function_at(start)
                    && all[index] == InPlace::Anywhere
                {
                    all[index] = InPlace::Waiting;
                }
            }
        }
        let allocator = allocator(image, &rust, &judge.graph);
        for &function in &allocator {
            all[function as usize] = InPlace::Never;
        }
        let refusal = if allocator.is_empty() {
            Some("its allocator cannot be found")
        } else if allocator.iter().any(|&function| locks(image, function)) {
            Some("its allocator is written in Rust and may hold a lock")
        } else {
            None
        };
        InPlaces {
            of_functions: all,
            refusal,
        }
    }
}

/// Returns the functions of the allocator that are written in Rust.
fn allocator(image: &Image, rust: &[bool], graph: &Graph) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    let mut seen = vec![false; rust.len()];
    let is_entry = |name: &str| {
        let name = name.split('.').next().unwrap_or(name);
        let shim = name.find(SHIM).map(|at| &name[at + SHIM.len()..]);
        shim.is_some_and(|rest| ALLOCATOR.iter().any(|entry| rest.ends_with(entry)))
    };
    for (index, function) in image.functions.iter().enumerate() {
        let mut names = image.symbols.functions_at(function.range.start);
        if names.any(is_entry) {
            seen[index] = true;
            found.push(index as u32);
        }
    }
    if found.is_empty() {
        return found;
    }
    // There are few functions: most programs need two or three rounds.
    let mut done = 0;
    while done < found.len() {
        let round = done..found.len();
        done = found.len();
        for to in 0..rust.len() as u32 {
            if seen[to as usize] || !rust[to as usize] {
                continue;
            }
            let mut edges = graph.leading_there(to);
            if edges.any(|(from, how)| how != How::Refer && found[round.clone()].contains(&from)) {
                seen[to as usize] = true;
                found.push(to);
            }
        }
    }
    found
}

/// Whether a function has an atomic read-modify-write, as locks do.
fn locks(image: &Image, function: u32) -> bool {
    let range = image.functions[function as usize].range.clone();
    let Some(bytes) = image.memory.bytes(range.clone()) else {
        return true;
    };
    let mut decoder = Decoder::with_ip(64, bytes, range.start as u64, DecoderOptions::NONE);
    decoder.iter().any(|instruction| {
        let exchanges = instruction.mnemonic() == Mnemonic::Xchg
            && (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
        instruction.has_lock_prefix() || exchanges
    })
}
