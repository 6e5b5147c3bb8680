//! Follows the addresses of thread-locals through all functions.
//!
//! The analysis begins with the functions that use a thread-local that stacks take along, and asks
//! of each what becomes of its address (`edges::escape`). From then on, functions that are given an
//! address are followed too, and so are the callers of a function that hands one out. Knowledge
//! about a function only grows; whenever it grows, the functions that depend on it are looked at
//! again, so the analysis terminates.
//!
//! | the address | then |
//! |---|---|
//! | is only used between calls | nothing is bound |
//! | is there during a call | frames of the function are bound |
//! | is lost, or handed out by a function that may be called through a pointer | its callers, too |
//!
//! Nothing is left of a *vouched* thread-local (`Whose` in `harmless`) when a function returns:
//! then the third row is as the second.
//!
//! Where it is not inlined, a thread-local is found through its *key*, a constant: one of the
//! standard library's functions for keys calls the pointer in it, which leads to the *accessor* of
//! the thread-local. So each call through a pointer in those functions hands out an address, and if
//! one of them loses it, the functions that gave it a key count as functions that lose it. If the
//! address of an accessor is only in keys, and those are given only to these functions, nothing
//! else calls it.

#[cfg(test)]
#[expect(unsafe_code, reason = "samples in assembly")]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Graph;
use super::{CodeLocation, Why};
use crate::frames::edges::escape::{Answer, Arguments, Callee, Escape, Follower, Results};
use crate::frames::edges::is_of_key;
use crate::frames::image::Image;
use crate::frames::image::symbols;

/// What a function does with addresses of thread-locals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Has an address at most between two calls.
    Briefly,
    /// Has an address during a call.
    Held,
    /// May leave an address behind when it returns.
    Lost(&'static str),
}

/// Functions of the C library that keep none of their arguments. The first ones return one.
const RETURNING: [&str; 3] = ["memcpy", "memmove", "memset"];
const PLAIN: [&str; 6] = [
    "memcmp",
    "bcmp",
    "strlen",
    "__cxa_thread_atexit_impl",
    "_Unwind_Resume",
    "abort",
];
/// Where the standard library registers the destructor of a thread-local.
///
/// The destructor is later called with the address of the same variable of the same fiber; or the
/// list is the runtime's own.
const DESTRUCTORS: &str = "std::sys::thread_local::destructors::";
/// Where the standard library keeps a thread-local.
///
/// It returns the address of the value in it, and calls initializers, which get no address.
const STORAGE: &str = "std::sys::thread_local::native::";

/// The knowledge gathered so far.
pub(super) struct Escapes<'a> {
    images: &'a [Image],
    first: &'a [u32],
    places: &'a [CodeLocation],
    graph: &'a Graph,
    /// For pieces of constants: whether every reference passes one to the functions for keys.
    given: &'a BTreeMap<u32, bool>,
    known: BTreeMap<u32, Known>,
    queue: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    given: Arguments,
    escape: Escape,
    /// What it uses, itself or through a function that hands it out.
    why: Option<Why>,
    /// Whether something it uses is not vouched for.
    strange: bool,
    /// Whether it is one of the standard library's functions for keys.
    takes_key: bool,
    /// Whether one of those functions handed out what it has.
    by_key: bool,
    /// Where its arguments may come back, if its name shows that it keeps none; once computed.
    trusted: Option<Option<Results>>,
    /// Functions that pass it an address.
    givers: Vec<u32>,
    queued: bool,
}

impl Known {
    /// Returns where its own addresses come back to its callers.
    ///
    /// The addresses of a function that loses one are not followed: if the variable is not vouched
    /// for, the function binds its callers as a whole; if it is, its entry in the list says that no
    /// function which uses it hands its address out.
    fn hands_out(&self) -> Results {
        match self.escape.own.lost {
            Some(_) => 0,
            None => self.escape.own.returns,
        }
    }

    /// Records that it uses a thread-local. Returns whether this is new knowledge.
    fn use_one(&mut self, why: Why, strange: bool) -> bool {
        if self.why.is_some() && (self.strange || !strange) {
            return false;
        }
        self.why = Some(why);
        self.strange = strange;
        true
    }
}

impl<'a> Escapes<'a> {
    pub(super) fn new(
        images: &'a [Image],
        first: &'a [u32],
        places: &'a [CodeLocation],
        graph: &'a Graph,
        given: &'a BTreeMap<u32, bool>,
    ) -> Escapes<'a> {
        Escapes {
            images,
            first,
            places,
            graph,
            given,
            known: BTreeMap::new(),
            queue: Vec::new(),
        }
    }

    /// Adds the standard library's functions for keys, except those that need no key.
    pub(super) fn add_keys(&mut self, knowing: &BTreeSet<u32>) {
        for (image, &first) in self.images.iter().zip(self.first) {
            let functions = image.symbols.functions_like(is_of_key);
            for index in functions.filter_map(|start| image.function_at(start)) {
                let node = first + index as u32;
                if !knowing.contains(&node) {
                    self.known.entry(node).or_default().takes_key = true;
                    self.add(node, Why::ByKey, true);
                }
            }
        }
    }

    /// Records that a function uses a thread-local, which is vouched for or not.
    pub(super) fn add(&mut self, node: u32, why: Why, vouched: bool) {
        let known = self.known.entry(node).or_default();
        known.use_one(why, !vouched);
        self.enqueue(node);
    }

    fn enqueue(&mut self, node: u32) {
        let known = self.known.entry(node).or_default();
        if !std::mem::replace(&mut known.queued, true) {
            self.queue.push(node);
        }
    }

    /// Follows all addresses until nothing new is found.
    pub(super) fn settle(&mut self) {
        let mut follower = Follower::default();
        while let Some(node) = self.queue.pop() {
            self.look_at(&mut follower, node);
        }
    }

    fn look_at(&mut self, follower: &mut Follower, node: u32) {
        let CodeLocation::Function { image, index } = self.places[node as usize] else {
            return;
        };
        let images = self.images;
        let number = image as usize;
        let image = &images[number];
        let known = self.known.entry(node).or_default();
        known.queued = false;
        let given = known.given;
        let takes_key = known.takes_key;
        let mut asked = Vec::new();
        let mut ask = |callee, arguments| {
            let mut answer = self.answer(number, callee, arguments);
            if let Some(callee) = answer.1 {
                asked.push((callee, arguments));
            }
            if takes_key && callee == Callee::Unknown {
                answer.0.hands_out |= 1;
            }
            answer.0
        };
        let function = &image.functions[index as usize];
        let escape = follower.follow(image, function, given, &mut ask);
        self.note_asked(node, &asked);
        let known = self.known.entry(node).or_default();
        let handed_out = known.hands_out();
        let before = std::mem::replace(&mut known.escape, escape);
        let given_changed = before.given != escape.given;
        let hands_out = known.hands_out() & !handed_out != 0;
        if given_changed {
            for giver in known.givers.clone() {
                self.enqueue(giver);
            }
        }
        if hands_out {
            self.enqueue_callers(node);
        }
    }

    fn enqueue_callers(&mut self, node: u32) {
        let callers: Vec<u32> = self.graph.calling(node).collect();
        for caller in callers {
            self.enqueue(caller);
        }
    }

    /// Records what a function passes to its callees, and what they hand out to it.
    fn note_asked(&mut self, node: u32, asked: &[(u32, Arguments)]) {
        for &(callee, arguments) in asked {
            let handed = self.known.get(&callee).and_then(|known| {
                let hands_out = known.hands_out() != 0;
                let by_key = known.takes_key || known.by_key;
                hands_out.then(|| (known.why.clone(), known.strange, by_key))
            });
            if let Some((Some(why), strange, by_key)) = handed {
                let known = self.known.entry(node).or_default();
                let more = by_key && !std::mem::replace(&mut known.by_key, true);
                if known.use_one(why, strange) || more {
                    self.enqueue_callers(node);
                }
            }
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

    /// Returns what a call does, as far as known, and the callee, if it is to be remembered.
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
            let hands_out = known.map_or(0, Known::hands_out);
            let answer = Answer {
                hands_out,
                ..Answer::default()
            };
            return (answer, (hands_out != 0).then_some(node));
        }
        let known = self.known.entry(node).or_default();
        let trusted = || trusted(image, address);
        if let Some(returns) = *known.trusted.get_or_insert_with(trusted) {
            let answer = Answer {
                returns,
                ..Answer::default()
            };
            return (answer, None);
        }
        let answer = Answer {
            loses: known.escape.given.lost.is_some(),
            returns: known.escape.given.returns,
            hands_out: known.hands_out(),
        };
        (answer, Some(node))
    }

    /// Returns what each function does with addresses it obtained itself, and of which variable.
    pub(super) fn found(&self) -> Vec<(u32, &Why, Keeps)> {
        const HANDED: &str = "it is handed out, perhaps through a pointer";
        let keys = self.keys();
        // If a key may come from memory, a function may use more keys than those it refers to.
        let loose = self.has_loose_key();
        let vouched = |node: u32, known: &Known| {
            let keys = || !loose && keys.get(&node).is_some_and(|uses| !uses.1);
            !known.strange && (!known.by_key || keys())
        };
        let mut found = Vec::new();
        for (&node, known) in &self.known {
            // Without a reason, it has only what is bound otherwise, or what belongs to its crate
            // (`within`).
            let Some(why) = &known.why else { continue };
            let own = &known.escape.own;
            let is_referred = self.graph.referring(node).next().is_some();
            let handed = own.returns != 0 && is_referred && !self.is_accessor(node);
            // What a function for keys loses is lost by the functions that gave it the key.
            let by_givers = known.takes_key && !known.strange && !is_referred;
            let keeps = match own.lost {
                Some(how) if !by_givers && !vouched(node, known) => Keeps::Lost(how),
                Some(_) => Keeps::Held,
                None if handed && !vouched(node, known) => Keeps::Lost(HANDED),
                None if own.held => Keeps::Held,
                None => Keeps::Briefly,
            };
            let named = keys
                .get(&node)
                .filter(|_| *why == Why::ByKey && !known.takes_key);
            found.push((node, named.map_or(why, |uses| uses.0), keeps));
        }
        for (node, how) in self.losing_by_key() {
            let (why, keeps) = match keys.get(&node) {
                Some((why, false)) if !loose => (*why, Keeps::Held),
                Some((why, _)) => (*why, Keeps::Lost(how)),
                None => (&Why::ByKey, Keeps::Lost(how)),
            };
            found.push((node, why, keeps));
        }
        found
    }

    /// Returns the standard library's functions for keys.
    pub(super) fn asking(&self) -> BTreeSet<u32> {
        let asking = self.known.iter().filter(|(_, known)| known.takes_key);
        asking.map(|(&node, _)| node).collect()
    }

    /// Returns functions that find thread-locals by their keys, each with one such thread-local.
    pub(super) fn finds(&self) -> BTreeMap<u32, Why> {
        let keys = self.keys().into_iter();
        keys.map(|(node, (why, _))| (node, why.clone())).collect()
    }

    /// Returns the functions that refer to keys.
    ///
    /// With each: one variable that it finds in this way, and whether any of them all is not
    /// vouched for.
    fn keys(&self) -> BTreeMap<u32, (&Why, bool)> {
        let mut keys = BTreeMap::new();
        for (&node, known) in &self.known {
            let Some(why) = &known.why else { continue };
            if known.escape.own.returns == 0 || !self.is_accessor(node) {
                continue;
            }
            for user in self.referring(node) {
                let uses = keys.entry(user).or_insert((why, known.strange));
                if known.strange && !uses.1 {
                    *uses = (why, true);
                }
            }
        }
        keys
    }

    /// Whether the key of a thread-local that is not vouched for has any other use.
    ///
    /// The expected use is to give it to the standard library's functions for keys.
    fn has_loose_key(&self) -> bool {
        let mut known = self.known.iter();
        known.any(|(&node, known)| {
            known.strange
                && known.escape.own.returns != 0
                && self.graph.referring(node).next().is_some()
                && !self.is_accessor(node)
        })
    }

    /// Whether only keys refer to a function.
    fn is_accessor(&self, node: u32) -> bool {
        let mut referring = self.graph.referring(node).peekable();
        referring.peek().is_some() && referring.all(|from| self.given.get(&from) == Some(&true))
    }

    /// Returns functions that call a function for keys which loses the address it finds, and how.
    fn losing_by_key(&self) -> Vec<(u32, &'static str)> {
        let takes_key = |node: &u32| self.known.get(node).is_some_and(|known| known.takes_key);
        let own = self.known.iter().filter(|(_, known)| known.takes_key);
        let mut next: Vec<(u32, &str)> = own
            .filter_map(|(&node, known)| Some((node, known.escape.own.lost?)))
            .collect();
        let mut seen: BTreeSet<u32> = next.iter().map(|lost| lost.0).collect();
        let mut callers = Vec::new();
        while let Some((node, how)) = next.pop() {
            for caller in self.graph.leading_to(node) {
                if !seen.insert(caller) {
                    continue;
                }
                match takes_key(&caller) {
                    true => next.push((caller, how)),
                    false => callers.push((caller, how)),
                }
            }
        }
        callers
    }

    /// Returns functions that refer to one, or to a constant that does.
    fn referring(&self, node: u32) -> Vec<u32> {
        let mut functions = Vec::new();
        let mut seen = BTreeSet::from([node]);
        let mut next = vec![node];
        while let Some(node) = next.pop() {
            for from in self.graph.referring(node) {
                match self.places[from as usize] {
                    _ if !seen.insert(from) => {}
                    CodeLocation::Function { .. } => functions.push(from),
                    CodeLocation::Constant { .. } => next.push(from),
                }
            }
        }
        functions
    }

    /// Returns functions that have an address between two instructions.
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

/// Returns where a function returns its arguments, if its name shows that it keeps none.
fn trusted(image: &Image, start: usize) -> Option<Results> {
    let begins = |name: &str, with: &str| {
        let plain = symbols::plain(name).replace(['<', '>'], "");
        plain.starts_with(with)
    };
    let keeps_nothing = |name: &str| PLAIN.contains(&name) || begins(name, DESTRUCTORS);
    if image.symbols.are_all(start, keeps_nothing) {
        return Some(0);
    }
    let is_storage = |name: &str| name.contains("thread_local") && begins(name, STORAGE);
    image.symbols.are_all(start, is_storage).then_some(1)
}
