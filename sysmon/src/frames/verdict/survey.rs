//! Reads all code and all referenced constants once, and puts them into the graph.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use super::escapes::{Escapes, Keeps};
use super::graph::{Graph, Listed};
use super::pointers::Pointers;
use super::within::Within;
use super::{CodeLocation, Judge, Nearness, Statistics, Why, near};
use crate::frames::Mobility;
use crate::frames::constants::{Constants, Rule};
use crate::frames::edges::{How, Reach, Reader, SYSCALL, Touch, Use};
use crate::frames::harmless::declared::Declared;
use crate::frames::harmless::{self, LISTS, Whose, kernel, paths};
use crate::frames::image::memory::Kind;
use crate::frames::image::{Image, Target, symbols};
use crate::frames::objects::{self, Object};
use crate::frames::study;

/// Functions that change a thread and that the runtime itself calls.
const OURS: [&str; 4] = ["nice", "prctl", "sched_setaffinity", SYSCALL];

/// Whether and how something imported binds.
#[derive(Clone, Copy)]
enum Import {
    Nothing,
    Inside(u32, Target),
    Binds,
}

/// A survey under way.
pub(super) struct Survey {
    images: Vec<Image>,
    first: Vec<u32>,
    places: Vec<CodeLocation>,
    /// What binds each node by itself.
    own: Vec<Option<Why>>,
    /// What binds a frame of a function, but not its callers.
    held: BTreeMap<u32, Why>,
    /// How functions lose track of the address of a thread-local.
    lost: BTreeMap<u32, &'static str>,
    /// The standard library's functions that look up a thread-local by its key.
    asking: BTreeSet<u32>,
    /// Those of them that find their thread-local without a key.
    knowing: BTreeSet<u32>,
    /// Functions that find thread-locals by their keys, each with one such thread-local.
    finds: BTreeMap<u32, Why>,
    /// Functions that use a thread-local whose address matters, and whether it is vouched for.
    uses: Vec<(u32, Why, bool)>,
    /// Functions that use a thread-local of their crate.
    within: Within,
    /// Functions that use a thread-local that stays with the thread.
    staying: Vec<u32>,
    /// Whether fibers have thread-locals of their own.
    own_locals: bool,
    /// What the program vouches for.
    declared: Declared,
    /// For pieces of constants: whether every reference passes one to the functions for
    /// thread-locals.
    given: BTreeMap<u32, bool>,
    graph: Graph,
    /// Nodes that change attributes of their thread themselves.
    changers: Vec<u32>,
    /// Functions that call through a pointer, if the program vouches for these calls.
    calling_pointers: Vec<u32>,
    /// References to constants: the referring node, and the place.
    references: Vec<Vec<(u32, Use)>>,
    /// What is known of the imports of each image, with the value that it holds for.
    ///
    /// Most imports are referred to many times.
    imports: Vec<Vec<Option<(usize, Import)>>>,
    /// Every mapped object, and whether it is part of the C library.
    libraries: Vec<(Object, bool)>,
    text: usize,
}

impl Survey {
    pub(super) fn new(images: Vec<Image>, objects: &[Object], own_locals: bool) -> Survey {
        let file = |o: &Object| PathBuf::from(&o.name).file_name().map(|n| n.to_owned());
        let is_libc = |o: &Object| file(o).is_some_and(|n| harmless::is_libc(&n.to_string_lossy()));
        let mut survey = Survey {
            first: Vec::new(),
            places: Vec::new(),
            own: Vec::new(),
            held: BTreeMap::new(),
            lost: BTreeMap::new(),
            asking: BTreeSet::new(),
            knowing: BTreeSet::new(),
            finds: BTreeMap::new(),
            uses: Vec::new(),
            within: Within::default(),
            staying: Vec::new(),
            own_locals,
            declared: Declared::fixed(),
            given: BTreeMap::new(),
            graph: Graph::default(),
            changers: Vec::new(),
            calling_pointers: Vec::new(),
            references: images.iter().map(|_| Vec::new()).collect(),
            imports: images
                .iter()
                .map(|i| vec![None; i.slots.imports()])
                .collect(),
            libraries: objects.iter().map(|o| (o.clone(), is_libc(o))).collect(),
            text: 0,
            images: Vec::new(),
        };
        for (number, image) in images.iter().enumerate() {
            survey.first.push(survey.places.len() as u32);
            let image_number = number as u32;
            let places = (0..image.functions.len() as u32).map(|index| CodeLocation::Function {
                image: image_number,
                index,
            });
            survey.places.extend(places);
        }
        survey.images = images;
        survey
    }

    /// Reads all functions.
    pub(super) fn read_code(&mut self) {
        let mut reader = Reader::default();
        let images = std::mem::take(&mut self.images);
        for (number, image) in images.iter().enumerate() {
            for (index, function) in image.functions.iter().enumerate() {
                let from = self.first[number] + index as u32;
                self.text += function.range.len();
                reader.read(image, function);
                self.note(&images, number as u32, from, &reader);
            }
        }
        self.images = images;
    }

    /// Records what was found in one function.
    fn note(&mut self, images: &[Image], number: u32, from: u32, reader: &Reader) {
        let image = &images[number as usize];
        let first = self.first[number as usize];
        let facts = &reader.facts;
        self.own.push(None);
        for (_, touch) in &facts.touches {
            if let Touch::Kernel(number) = *touch
                && kernel::changes_thread(number)
            {
                self.note_changer(image, from, kernel::is_ours(number));
            }
            match binds(touch) {
                Some(Why::Variable(offset)) => self.note_variable(image, from, offset),
                // An address like any other, which is followed to the callers.
                Some(why) if *touch == Touch::Returned && self.own_locals => {
                    self.uses.push((from, why, false));
                }
                Some(why) => self.bind(from, why),
                None => {}
            }
        }
        for &(address, how) in &facts.code {
            self.lead(images, number, from, Target::Code(address), how);
        }
        for &(name, value, how) in &facts.imports {
            self.lead(images, number, from, Target::Import(name, value), how);
        }
        for &address in &facts.foreign {
            self.lead(images, number, from, Target::Foreign(address), How::Refer);
        }
        if facts.pointers.any() {
            match study::trusts_pointers() {
                true => self.calling_pointers.push(from),
                false => self.graph.add_through_pointer(from),
            }
        }
        if self.own_locals && reader.knows_variable(image, from - first) {
            self.knowing.insert(from);
        }
        let uses = facts.constants.iter().map(|&u| (from, u));
        self.references[number as usize].extend(uses);
    }

    /// Records that a node changes its thread, or may.
    ///
    /// What the runtime does itself, or the standard library, counts only in functions with a name:
    /// without names theirs cannot be distinguished, and every fiber would end its thread.
    fn note_changer(&mut self, image: &Image, node: u32, ours: bool) {
        let named = match self.places[node as usize] {
            CodeLocation::Function { index, .. } => {
                let start = image.functions[index as usize].range.start;
                image.name(start).is_some()
            }
            CodeLocation::Constant { .. } => false,
        };
        if named || !ours {
            self.changers.push(node);
        }
    }

    /// Records that a function uses a thread-local of the executable.
    fn note_variable(&mut self, image: &Image, node: u32, offset: i64) {
        let why = Why::Variable(offset);
        let Some((mangled, size)) = image.variable(offset) else {
            return self.bind(node, why);
        };
        let name = symbols::plain(mangled);
        let goes_along = self.own_locals && study::is_taken_along(offset);
        if !goes_along {
            self.staying.push(node);
        }
        let whose = match self.declared.has_thread_local(&name) {
            true => Some(Whose::Any),
            false => LISTS.variables.whose(&name, size),
        };
        match whose {
            Some(Whose::Crate) => self.within.add(node, &name, why),
            Some(Whose::Any) => self.uses.push((node, why, true)),
            Some(Whose::Own) if goes_along => self.uses.push((node, why, true)),
            None if goes_along => self.uses.push((node, why, false)),
            _ => self.bind(node, why),
        }
    }

    /// Binds a node; of several reasons the first is kept.
    fn bind(&mut self, node: u32, why: Why) {
        self.own[node as usize].get_or_insert(why);
    }

    /// Adds the edge from a node to what a word or instruction leads to.
    fn lead(&mut self, images: &[Image], number: u32, from: u32, target: Target, how: How) {
        let image = &images[number as usize];
        match target {
            Target::Code(address) => match image.function_at(address) {
                Some(index) => {
                    let to = self.first[number as usize] + index as u32;
                    self.graph.add(from, to, how);
                    if how == How::Jump {
                        self.graph.add_jump(from, to);
                    }
                    let is_cold = || image.functions[index].cold || is_named_cold(image, address);
                    if how == How::Jump && is_cold() {
                        // A part of a function shares the frame of that function.
                        self.graph.add(to, from, How::Jump);
                    }
                }
                None => match image.stub(address).and_then(|slot| image.pointer(slot)) {
                    Some(target) => self.lead(images, number, from, target, how),
                    None => self.bind(from, Why::Uncovered(address)),
                },
            },
            Target::Import(name, value) => match self.import(images, number, name, value) {
                Import::Nothing => {}
                Import::Inside(number, target) => self.lead(images, number, from, target, how),
                Import::Binds => {
                    self.bind(from, Why::Import(name));
                    let name = image.slots.name(name);
                    if name == SYSCALL || LISTS.attributes.has(name) {
                        self.note_changer(image, from, OURS.contains(&name));
                    }
                }
            },
            Target::Constant(address) => {
                let reference = Use {
                    address,
                    reach: Reach::default(),
                    distances: false,
                    given: false,
                };
                self.references[number as usize].push((from, reference));
            }
            Target::ThreadOffset(_) | Target::ThreadLocal => {
                self.bind(from, Why::Unknown("a thread-local"));
            }
            Target::Foreign(address) => {
                self.bind(from, Why::Foreign(address));
            }
        }
    }

    fn import(&mut self, images: &[Image], number: u32, name: u32, value: usize) -> Import {
        let known = self.imports[number as usize][name as usize];
        if let Some((_, import)) = known.filter(|known| known.0 == value) {
            return import;
        }
        let import = self.look_up(images, &images[number as usize], name, value);
        self.imports[number as usize][name as usize] = Some((value, import));
        import
    }

    fn look_up(&self, images: &[Image], image: &Image, name: u32, value: usize) -> Import {
        let name = image.slots.name(name);
        if LISTS.allocation.has(name) || self.declared.has_import(name) {
            return Import::Nothing;
        }
        let text = image.memory.kind(value) == Some(Kind::Text);
        let value = match text {
            // It is not bound yet, otherwise it would not be an import.
            true => objects::find(name).filter(|found| !image.range.contains(found)),
            false => Some(value),
        };
        let Some(value) = value else {
            return Import::Binds;
        };
        if let Some(number) = images.iter().position(|i| i.range.contains(&value)) {
            return match images[number].address(value) {
                Some(target) => Import::Inside(number as u32, target),
                None => Import::Nothing,
            };
        }
        let library = self.libraries.iter().find(|l| l.0.contains(value));
        match library {
            Some((_, true)) if !LISTS.libc.has(name) => Import::Nothing,
            _ => Import::Binds,
        }
    }

    /// Cuts the constants and adds those that are referred to.
    pub(super) fn read_constants(&mut self) {
        let images = std::mem::take(&mut self.images);
        for (number, image) in images.iter().enumerate() {
            let uses = std::mem::take(&mut self.references[number]);
            let references: Vec<Use> = uses.iter().map(|(_, reference)| *reference).collect();
            let constants = Constants::cut(image, &references, Rule::Certain);
            let mut pieces = Pieces {
                images: &images,
                number: number as u32,
                constants: &constants,
                nodes: vec![u32::MAX; constants.len()],
            };
            pieces.connect(self, uses);
        }
        self.images = images;
    }

    /// Follows the addresses of thread-locals.
    ///
    /// Returns the functions that have one between two instructions.
    fn follow_addresses(&mut self) -> Vec<u32> {
        let mut escapes = Escapes::new(
            &self.images,
            &self.first,
            &self.places,
            &self.graph,
            &self.given,
        );
        escapes.add_keys(&self.knowing);
        for (node, why, vouched) in self.uses.drain(..) {
            escapes.add(node, why, vouched);
        }
        escapes.settle();
        for (node, why, keeps) in escapes.found() {
            match keeps {
                Keeps::Briefly => {}
                Keeps::Held => drop(self.held.entry(node).or_insert_with(|| why.clone())),
                Keeps::Lost(how) => {
                    self.own[node as usize].get_or_insert_with(|| why.clone());
                    self.lost.insert(node, how);
                }
            }
        }
        let within = self
            .within
            .functions(&self.images, &self.places, &self.graph);
        for (node, why) in within {
            self.held.entry(node).or_insert(why);
        }
        self.asking = escapes.asking();
        self.finds = escapes.finds();
        escapes.having().collect()
    }

    /// Propagates what is touched, and makes the judge.
    pub(super) fn conclude(mut self, begun: Instant) -> Judge {
        self.graph.sort(self.own.len());
        let having = self.follow_addresses();
        let own = self.own.iter().map(Option::is_some);
        let (places, images) = (&self.places, &self.images);
        let start = |node: u32| match places[node as usize] {
            CodeLocation::Function { image, index } => {
                let image = &images[image as usize];
                Some((image, image.functions[index as usize].range.start))
            }
            CodeLocation::Constant { .. } => None,
        };
        let declared = &self.declared;
        let listed = |node| match start(node) {
            Some((image, at)) => listed(image, at, declared),
            None => Listed::Nowhere,
        };
        let held = self.held.keys().copied();
        let pointers = Pointers {
            images,
            first: &self.first,
            places,
            own: &self.own,
            given: &self.given,
            starters: OnceCell::new(),
        };
        let harmless = self.graph.settle(own, held, listed, &pointers);
        // A function that refers to the entry of a fiber or thread starts it and does not call it.
        let is_entry = |node| start(node).is_some_and(|(image, at)| is_entry(image, at));
        let changers = self
            .graph
            .all_leading_to(&self.changers, |node| match is_entry(node) {
                true => Listed::Harmless,
                false => listed(node),
            });
        let changers = changers.into_iter().filter_map(|node| Some(start(node)?.1));
        let mut changers: Vec<usize> = changers.collect();
        changers.sort_unstable();
        let functions: usize = self.images.iter().map(|i| i.functions.len()).sum();
        let count = |what: &dyn Fn(u32) -> bool| (0..functions as u32).filter(|&f| what(f)).count();
        let graph = &self.graph;
        let statistics = Statistics {
            objects: self.images.len(),
            functions,
            touching: count(&|f| self.own[f as usize].is_some() || self.held.contains_key(&f)),
            bound: count(&|f| graph.mobility(f) == Mobility::Bound),
            harmless,
            text: self.text,
            edges: graph.edges(),
            memory: graph.memory()
                + functions
                + self.places.capacity() * size_of::<CodeLocation>()
                + self.own.capacity() * size_of::<Option<Why>>()
                + self.images.iter().map(Image::memory_kept).sum::<usize>(),
            time: begun.elapsed(),
        };
        // At a call, nothing is left of what these held; between two instructions there may be.
        let held: Vec<u32> = self.held.keys().copied().collect();
        let mut near_held = self.graph.all_leading_to(&held, listed);
        let all: Vec<u32> = having.iter().chain(&held).copied().collect();
        let calling = &self.calling_pointers;
        let near_addresses = near::all(&self.graph, &all, calling, listed);
        let near_addresses = near_addresses
            .into_iter()
            .filter_map(|node| Some(start(node)?.1));
        let mut near_addresses: Vec<usize> = near_addresses.collect();
        near_addresses.sort_unstable();
        near_held.extend(&having);
        let nearness = self.nearness(functions, &near_held);
        Judge {
            nearness,
            having,
            staying: self.staying,
            in_place: OnceLock::new(),
            misfits: Declared::misfits(&self.images),
            images: self.images,
            first: self.first,
            places: self.places,
            own: self.own,
            held: self.held,
            lost: self.lost,
            asking: self.asking,
            finds: self.finds,
            own_locals: self.own_locals,
            graph: self.graph,
            changers,
            near_addresses,
            statistics,
        }
    }
}

impl Survey {
    /// Returns how each function is related to the runtime, once the graph is settled.
    ///
    /// A function is one of the runtime's, or leads to one; through constants too, for what they
    /// hold may be called. A function that leads to one that holds something of its thread while it
    /// runs counts the same.
    fn nearness(&self, functions: usize, near_held: &[u32]) -> Vec<Nearness> {
        let mut nearness = vec![Nearness::Apart; functions];
        for &node in near_held {
            if let Some(place) = nearness.get_mut(node as usize) {
                *place = Nearness::Leads;
            }
        }
        let mut near = Vec::new();
        for (number, image) in self.images.iter().enumerate() {
            let ours = image.symbols.functions_of("indent");
            let ours = ours.filter(|(_, name)| LISTS.runtime.has_as_frame(name));
            let ours = ours.filter_map(|(start, _)| image.function_at(start));
            near.extend(ours.map(|index| self.first[number] + index as u32));
        }
        for &node in &near {
            nearness[node as usize] = Nearness::Within;
        }
        while let Some(node) = near.pop() {
            for from in self.graph.leading_to(node) {
                match nearness.get_mut(from as usize) {
                    Some(place) => *place = (*place).max(Nearness::Leads),
                    None => near.push(from), // a constant
                }
            }
        }
        nearness
    }
}

/// The constants of one image while they are added to the graph.
struct Pieces<'a> {
    images: &'a [Image],
    number: u32,
    constants: &'a Constants,
    /// The node of each piece, once it has one.
    nodes: Vec<u32>,
}

impl Pieces<'_> {
    fn connect(&mut self, survey: &mut Survey, mut uses: Vec<(u32, Use)>) {
        let image = &self.images[self.number as usize];
        while let Some((from, reference)) = uses.pop() {
            for piece in self.constants.pieces(&reference) {
                let node = self.node(survey, image, piece);
                if let Some(node) = node {
                    survey.graph.add(from, node, How::Refer);
                    if reference.given {
                        survey.given.entry(node).or_insert(true);
                    } else {
                        survey.given.insert(node, false);
                    }
                }
            }
            if reference.distances {
                self.distances(survey, image, from, &reference);
            }
            // Pieces refer to pieces.
            uses.append(&mut survey.references[self.number as usize]);
        }
    }

    /// Returns the node of a piece; none if it leads nowhere.
    fn node(&mut self, survey: &mut Survey, image: &Image, piece: usize) -> Option<u32> {
        const NOWHERE: u32 = u32::MAX - 1;
        match self.nodes[piece] {
            NOWHERE => return None,
            u32::MAX => {}
            known => return Some(known),
        }
        let targets = self.constants.targets(image, piece);
        if targets.is_empty() {
            self.nodes[piece] = NOWHERE;
            return None;
        }
        let node = survey.places.len() as u32;
        self.nodes[piece] = node;
        survey.places.push(CodeLocation::Constant {
            image: self.number,
            start: self.constants.range(piece).start,
        });
        survey.own.push(None);
        for target in targets {
            survey.lead(self.images, self.number, node, target, How::Refer);
        }
        Some(node)
    }

    fn distances(&self, survey: &mut Survey, image: &Image, from: u32, reference: &Use) {
        for target in self.constants.distances(image, reference.address) {
            survey.lead(self.images, self.number, from, target, How::Refer);
        }
    }
}

/// Returns why a touch binds, if it does.
fn binds(touch: &Touch) -> Option<Why> {
    match *touch {
        Touch::Returned => Some(Why::Unknown("the thread pointer")),
        Touch::Errno => Some(Why::Unknown("the address of errno")),
        Touch::Kernel(Some(number)) if kernel::is_harmless(number) => None,
        Touch::Kernel(number) => Some(Why::Kernel(number)),
        Touch::Unknown(what) => Some(Why::Unknown(what)),
        Touch::Variable(offset) => Some(Why::Variable(offset)),
    }
}

fn is_named_cold(image: &Image, address: usize) -> bool {
    let mut names = image.symbols.functions_at(address);
    names.any(|name| name.contains(".cold"))
}

/// Whether only a scheduler calls a function, because it is the outermost one of a fiber.
fn is_entry(image: &Image, start: usize) -> bool {
    const ENTRY: &str = "indent::fiber::job::Of::run";
    let is_entry = |name: &str| paths::path(&symbols::plain(name)) == ENTRY;
    image.symbols.are_all(start, is_entry)
}

/// Returns the list that all names of a function are on.
fn listed(image: &Image, start: usize, declared: &Declared) -> Listed {
    let names = image.symbols.functions_at(start).map(symbols::plain);
    let lists = names.map(|name| match name {
        _ if LISTS.runtime.has_as_frame(&name) => Listed::Runtime,
        _ if LISTS.functions.has(&name) || LISTS.allocation.has(&name) => Listed::Harmless,
        _ if declared.has_function(&name) => Listed::Harmless,
        _ => Listed::Nowhere,
    });
    let same = |one, other| if one == other { one } else { Listed::Nowhere };
    lists.reduce(same).unwrap_or(Listed::Nowhere)
}
