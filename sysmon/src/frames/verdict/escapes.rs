//! Where addresses of thread-locals go, over all functions.
//!
//! Begins with the functions that use a thread-local that stacks take along, and asks of each what
//! becomes of its address (`edges::escape`). Functions that are given one are followed from then on,
//! and so are the callers of one that hands one out. What is known of a function only grows, and
//! whenever it does, those are looked at again that it matters to; so it ends.
//!
//! | the address | then |
//! |---|---|
//! | is only used between calls | nothing is bound |
//! | is there during a call | frames of the function are bound |
//! | is lost, or handed out by a function that may be called through a pointer | its callers, too |

use std::collections::BTreeMap;

use super::graph::Graph;
use super::{Place, Why};
use crate::frames::edges::escape::{Answer, Arguments, Callee, Escape, Follower};
use crate::frames::image::Image;
use crate::frames::image::symbols;

/// What a function does with addresses of thread-locals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// It has one between two calls at most.
    Briefly,
    /// It has one during a call.
    Held,
    /// Something may be left of it when it returns.
    Lost(&'static str),
}

/// Functions of the C library that do not keep what they are given. The first ones return it.
const RETURNING: [&str; 3] = ["memcpy", "memmove", "memset"];
const PLAIN: [&str; 6] = [
    "memcmp",
    "bcmp",
    "strlen",
    "__cxa_thread_atexit_impl",
    "_Unwind_Resume",
    "abort",
];
/// Where std notes the destructor of a thread-local: it comes back with the address of the same
/// variable of the same fiber, or is our own list.
const DESTRUCTORS: &str = "std::sys::thread_local::destructors::";

/// What is known so far.
pub(super) struct Escapes<'a> {
    images: &'a [Image],
    first: &'a [u32],
    places: &'a [Place],
    graph: &'a Graph,
    known: BTreeMap<u32, Known>,
    queue: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    given: Arguments,
    escape: Escape,
    /// What it uses, itself or by way of a function that hands it out.
    why: Option<Why>,
    /// Whether it keeps nothing, by its name, if that was asked.
    trusted: Option<bool>,
    /// Functions that give it an address.
    givers: Vec<u32>,
    queued: bool,
}

impl<'a> Escapes<'a> {
    pub(super) fn new(
        images: &'a [Image],
        first: &'a [u32],
        places: &'a [Place],
        graph: &'a Graph,
    ) -> Escapes<'a> {
        Escapes {
            images,
            first,
            places,
            graph,
            known: BTreeMap::new(),
            queue: Vec::new(),
        }
    }

    /// A function uses a thread-local.
    pub(super) fn add(&mut self, node: u32, why: Why) {
        self.known.entry(node).or_default().why.get_or_insert(why);
        self.enqueue(node);
    }

    fn enqueue(&mut self, node: u32) {
        let known = self.known.entry(node).or_default();
        if !std::mem::replace(&mut known.queued, true) {
            self.queue.push(node);
        }
    }

    /// Follows all addresses to their ends.
    pub(super) fn settle(&mut self) {
        let mut follower = Follower::default();
        while let Some(node) = self.queue.pop() {
            self.look_at(&mut follower, node);
        }
    }

    fn look_at(&mut self, follower: &mut Follower, node: u32) {
        let Place::Function { image, index } = self.places[node as usize] else {
            return;
        };
        let images = self.images;
        let number = image as usize;
        let image = &images[number];
        let known = self.known.entry(node).or_default();
        known.queued = false;
        let given = known.given;
        let mut asked = Vec::new();
        let mut ask = |callee, arguments| {
            let answer = self.answer(number, callee, arguments);
            if let Some(callee) = answer.1 {
                asked.push((callee, arguments));
            }
            answer.0
        };
        let function = &image.functions[index as usize];
        let escape = follower.follow(image, function, given, &mut ask);
        if !escape.is_lost(given) {
            self.note_asked(node, &asked); // else it does not matter what others do
        }
        let known = self.known.entry(node).or_default();
        let before = std::mem::replace(&mut known.escape, escape);
        let given_changed = before.given != escape.given;
        let hands_out = escape.hands_out() & !before.hands_out() != 0;
        if given_changed {
            for giver in known.givers.clone() {
                self.enqueue(giver);
            }
        }
        if hands_out {
            let callers: Vec<u32> = self.graph.calling(node).collect();
            for caller in callers {
                self.enqueue(caller);
            }
        }
    }

    /// Notes what a function gives to those that it calls, and what they hand out to it.
    fn note_asked(&mut self, node: u32, asked: &[(u32, Arguments)]) {
        for &(callee, arguments) in asked {
            let why = self.known.get(&callee).and_then(|known| {
                let hands_out = known.escape.hands_out() != 0;
                hands_out.then(|| known.why.clone()).flatten()
            });
            let known = self.known.entry(node).or_default();
            known.why = known.why.take().or(why);
            if arguments == 0 {
                continue;
            }
            let known = self.known.entry(callee).or_default();
            if !known.givers.contains(&node) {
                known.givers.push(node);
            }
            let before = known.given;
            known.given |= arguments;
            if known.given != before {
                self.enqueue(callee);
            }
        }
    }

    /// What a call does, as far as it is known; and the function, if it is to be remembered.
    fn answer(&mut self, number: usize, callee: Callee, given: Arguments) -> (Answer, Option<u32>) {
        let lost = Answer {
            loses: given != 0,
            returns: 3,
            hands_out: 0,
        };
        let image = &self.images[number];
        let address = match callee {
            Callee::Code(address) => address,
            Callee::Import(name) => return (imported(image.slots.name(name), given), None),
            Callee::Unknown => return (lost, None),
        };
        let Some(index) = image.function_at(address) else {
            return (lost, None);
        };
        let function = &image.functions[index];
        if function.range.start != address || function.cold {
            return (lost, None);
        }
        let node = self.first[number] + index as u32;
        if given == 0 {
            let known = self.known.get(&node);
            let hands_out = known.map_or(0, |known| known.escape.hands_out());
            let answer = Answer {
                hands_out,
                ..Answer::default()
            };
            return (answer, (hands_out != 0).then_some(node));
        }
        let known = self.known.entry(node).or_default();
        if *known
            .trusted
            .get_or_insert_with(|| is_trusted(image, address))
        {
            return (Answer::default(), None);
        }
        let answer = Answer {
            loses: known.escape.given.lost.is_some(),
            returns: known.escape.given.returns,
            hands_out: known.escape.hands_out(),
        };
        (answer, Some(node))
    }

    /// What each function does with addresses that it has of itself, and with which variable.
    pub(super) fn found(&self) -> impl Iterator<Item = (u32, &Why, Keeps)> {
        self.known.iter().filter_map(|(&node, known)| {
            let why = known.why.as_ref()?;
            let own = &known.escape.own;
            let handed = || own.returns != 0 && self.graph.referring(node).next().is_some();
            let keeps = match own.lost {
                Some(how) => Keeps::Lost(how),
                None if handed() => Keeps::Lost("it is handed out, perhaps through a pointer"),
                None if own.held => Keeps::Held,
                None => Keeps::Briefly,
            };
            Some((node, why, keeps))
        })
    }

    /// Functions that have an address between two instructions.
    pub(super) fn having(&self) -> impl Iterator<Item = u32> {
        let has = |known: &Known| known.escape.own.any || known.escape.given.any;
        let known = self.known.iter().filter(move |(_, known)| has(known));
        known.map(|(&node, _)| node)
    }
}

fn imported(name: &str, given: Arguments) -> Answer {
    // `memcpy@GLIBC_2.14`
    let name = name.split('@').next().unwrap_or(name);
    if RETURNING.contains(&name) {
        return Answer {
            returns: given & 1,
            ..Answer::default()
        };
    }
    Answer {
        loses: given != 0 && !PLAIN.contains(&name),
        ..Answer::default()
    }
}

/// Whether a function of the executable keeps nothing, by its name.
fn is_trusted(image: &Image, start: usize) -> bool {
    let trusted = |name: &str| {
        let plain = || symbols::plain(name).replace(['<', '>'], "");
        PLAIN.contains(&name) || plain().starts_with(DESTRUCTORS)
    };
    image.symbols.are_all(start, trusted)
}
