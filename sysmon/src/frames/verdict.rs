//! The verdict on every function: what is touched, handed back along all edges.
//!
//! A function has two sides. *As a frame* of a suspended stack it counts with everything it touches
//! and reaches. *As a callee* it counts the same, unless it is on a list of harmless ones: then
//! nothing thread-bound outlives a call of it, and the search ends there. `_print` as a callee is
//! harmless; as a frame, under a `Display` that parks, it holds a lock of its thread and is Alone.
//! Functions of the runtime itself count as frames with their own instructions only: they know that
//! they switch, and read everything anew afterwards.
//!
//! All code is read at once, on the first demand: every edge has to be known backwards, and where
//! constants end depends on all references to them (`constants`). Then what is touched is handed
//! back along the edges, nearest first, Alone before Home; what is left is Free. For every function
//! the next step of a shortest way is kept, so that it can be told why.
//!
//! Nodes are functions, then pieces of constants.
//!
//! Rejected: deciding function by function on demand. The first question about any real program
//! reads most of its code anyway (formatting alone leads to a third of the standard library).

mod explain;
mod graph;

pub use explain::{Binding, Step};

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Verdict;
use super::constants::{Constants, Rule};
use super::edges::{How, Reach, Reader, Touch, Use};
use super::harmless::{self, LISTS};
use super::image::{Image, Target, symbols};
use super::objects::{Object, Objects};
use graph::Graph;

/// Why a function is bound by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// It is not.
    Not,
    Variable(i64),
    Unknown(&'static str),
    /// Hands out something of the thread, or comes from who knows where.
    Import(u32),
    Foreign(usize),
    /// Code without an unwind entry.
    Uncovered(usize),
}

/// What a function is by itself.
#[derive(Clone, Debug)]
struct Own {
    verdict: Verdict,
    why: Why,
}

/// A function or a piece of constants.
#[derive(Clone, Copy, Debug)]
enum Place {
    Function { image: u32, index: u32 },
    Constant { image: u32, start: usize },
}

/// Knows the verdict on every function of the executable.
///
/// Made once, from the memory of the process and, for names, the file of the executable; takes some
/// milliseconds for each megabyte of code, and allocates. What it says holds for ever.
///
/// ```
/// use indent_sysmon::frames::{Judge, Verdict};
/// use std::cell::Cell;
///
/// thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
///
/// #[inline(never)]
/// fn counts() -> u32 {
///     COUNT.replace(std::hint::black_box(7))
/// }
/// #[inline(never)]
/// fn adds(a: u32, b: u32) -> u32 {
///     a.wrapping_add(b)
/// }
///
/// let judge = Judge::survey();
/// assert_eq!(judge.verdict(counts as fn() -> u32 as usize), Verdict::Alone);
/// assert_eq!(judge.verdict(adds as fn(u32, u32) -> u32 as usize), Verdict::Free);
/// assert_eq!(judge.verdict(0), Verdict::Alone); // no code of ours
/// ```
pub struct Judge {
    images: Vec<Image>,
    /// The number of each image's first function.
    first: Vec<u32>,
    places: Vec<Place>,
    own: Vec<Own>,
    graph: Graph,
    statistics: Statistics,
}

/// What a survey has seen.
///
/// ```
/// use indent_sysmon::frames::Judge;
///
/// let seen = Judge::survey().statistics();
/// assert!(seen.touching <= seen.functions);
/// assert!(seen.alone + seen.home <= seen.functions);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Objects whose code was read.
    pub objects: usize,
    /// Functions in them.
    pub functions: usize,
    /// Functions that touch a thread-local themselves.
    pub touching: usize,
    /// Functions that are Home as frames.
    pub home: usize,
    /// Functions that are Alone as frames.
    pub alone: usize,
    /// Functions on a list of harmless ones.
    pub harmless: usize,
    /// Bytes of code read.
    pub text: usize,
    /// Edges found.
    pub edges: usize,
    /// Bytes kept.
    pub memory: usize,
    /// How long it took.
    pub time: Duration,
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut judge = f.debug_struct("Judge");
        judge.field("statistics", &self.statistics).finish()
    }
}

impl Judge {
    /// Reads the code of the executable, and of the library this code is in if it is another one.
    ///
    /// See [`Judge`] for an example.
    pub fn survey() -> Judge {
        Judge::survey_with(Rule::Certain)
    }

    /// The same with every referenced address as a boundary (1), or with less (2): to compare.
    #[doc(hidden)]
    pub fn survey_by_rule(rule: u8) -> Judge {
        Judge::survey_with(match rule {
            1 => Rule::Every,
            2 => Rule::Shapes,
            _ => Rule::Certain,
        })
    }

    fn survey_with(rule: Rule) -> Judge {
        let begun = Instant::now();
        let objects = Objects::now();
        let own = Judge::survey as fn() -> Judge as usize;
        let mut images = Vec::new();
        if let Some(executable) = objects.list.first() {
            let path = Path::new("/proc/self/exe");
            images.push(Image::read(executable, path, true));
        }
        let library = objects.list.iter().skip(1).find(|o| o.contains(own));
        images.extend(library.map(|library| Image::read(library, &library.name, false)));
        let mut survey = Survey::new(images, &objects.list);
        survey.read_code();
        survey.read_constants(rule);
        survey.conclude(begun)
    }

    /// The verdict on a frame of the function around an address.
    ///
    /// An address outside of what was read, or in code without an unwind entry: Alone. Mind that a
    /// return address may be the first one behind its function: ask for the one before.
    ///
    /// See [`Judge`] for an example.
    pub fn verdict(&self, ip: usize) -> Verdict {
        self.number(ip)
            .map_or(Verdict::Alone, |function| self.graph.verdict(function))
    }

    fn number(&self, ip: usize) -> Option<u32> {
        let inside = |image: &Image| image.range.contains(&ip);
        let image = self.images.iter().position(inside)?;
        let index = self.images[image].function_at(ip)?;
        Some(self.first[image] + index as u32)
    }

    /// What was seen.
    ///
    /// See [`Statistics`] for an example.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The address of a function, by its name or a part of it; needs symbols.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.find("panicking::panic_fmt").is_some());
    /// assert!(judge.find("no such function").is_none());
    /// ```
    pub fn find(&self, name: &str) -> Option<usize> {
        let suffix = format!("::{name}");
        let fit = |whole: &str| match whole {
            _ if whole == name => 3,
            _ if whole.ends_with(&suffix) => 2,
            _ if whole.contains(name) => 1,
            _ => 0,
        };
        let fits = self
            .functions()
            .filter_map(|f| Some((fit(&f.name()?), f.start)));
        // The first of the best.
        let best = fits.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (best.0 > 0).then_some(best.1)
    }

    /// All functions, in the order of their addresses.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// let longest = judge.functions().max_by_key(|f| f.end - f.start).unwrap();
    /// assert_eq!(judge.verdict(longest.start), longest.verdict);
    /// ```
    pub fn functions(&self) -> impl Iterator<Item = Function<'_>> {
        let images = self.images.iter().zip(&self.first);
        images.flat_map(move |(image, &first)| {
            let functions = (first..).zip(&image.functions);
            functions.map(move |(number, function)| Function {
                start: function.range.start,
                end: function.range.end,
                verdict: self.graph.verdict(number),
                touches: self.own[number as usize].verdict,
                image,
            })
        })
    }
}

/// A function and the verdict on it.
///
/// See [`Judge::functions`] for an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Function<'a> {
    /// Its first address.
    pub start: usize,
    /// The first address behind it.
    pub end: usize,
    /// As a frame.
    pub verdict: Verdict,
    /// By its own instructions alone.
    pub touches: Verdict,
    image: &'a Image,
}

impl Function<'_> {
    /// Its name, demangled, if there are symbols.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.functions().any(|f| f.name().is_some_and(|name| name == "main")));
    /// ```
    pub fn name(&self) -> Option<String> {
        self.image.name(self.start)
    }
}

/// Whether and how something imported binds.
enum Import {
    Nothing,
    Inside(u32, Target),
    Binds,
}

/// A survey under way.
struct Survey {
    images: Vec<Image>,
    first: Vec<u32>,
    places: Vec<Place>,
    own: Vec<Own>,
    graph: Graph,
    /// References to constants: who, where.
    uses: Vec<Vec<(u32, Use)>>,
    /// Every mapped object and whether it is part of the C library.
    libraries: Vec<(Object, bool)>,
    text: usize,
}

impl Survey {
    fn new(images: Vec<Image>, objects: &[Object]) -> Survey {
        let file = |o: &Object| PathBuf::from(&o.name).file_name().map(|n| n.to_owned());
        let is_libc = |o: &Object| file(o).is_some_and(|n| harmless::is_libc(&n.to_string_lossy()));
        let mut survey = Survey {
            first: Vec::new(),
            places: Vec::new(),
            own: Vec::new(),
            graph: Graph::default(),
            uses: images.iter().map(|_| Vec::new()).collect(),
            libraries: objects.iter().map(|o| (o.clone(), is_libc(o))).collect(),
            text: 0,
            images: Vec::new(),
        };
        for (number, image) in images.iter().enumerate() {
            survey.first.push(survey.places.len() as u32);
            let image_number = number as u32;
            let places = (0..image.functions.len() as u32).map(|index| Place::Function {
                image: image_number,
                index,
            });
            survey.places.extend(places);
        }
        survey.images = images;
        survey
    }

    /// Reads all functions.
    fn read_code(&mut self) {
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

    /// Notes what was found in one function.
    fn note(&mut self, images: &[Image], number: u32, from: u32, reader: &Reader) {
        let image = &images[number as usize];
        let facts = &reader.facts;
        self.own.push(Own {
            verdict: Verdict::Free,
            why: Why::Not,
        });
        for (_, touch) in &facts.touches {
            let (verdict, why) = judge_touch(image, touch);
            self.bind(from, verdict, why);
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
        let uses = facts.constants.iter().map(|&u| (from, u));
        self.uses[number as usize].extend(uses);
    }

    /// The worst reason counts, and of several the first.
    fn bind(&mut self, node: u32, verdict: Verdict, why: Why) {
        let own = &mut self.own[node as usize];
        if verdict > own.verdict {
            *own = Own { verdict, why };
        }
    }

    /// Adds the edge from a node to what a word or instruction leads to.
    fn lead(&mut self, images: &[Image], number: u32, from: u32, target: Target, how: How) {
        let image = &images[number as usize];
        match target {
            Target::Code(address) => match image.function_at(address) {
                Some(index) => {
                    let to = self.first[number as usize] + index as u32;
                    self.graph.add(from, to, how);
                    let cold = image.functions[index].cold || is_named_cold(image, address);
                    if how == How::Jump && cold {
                        // Its frame is that of the function it is a part of.
                        self.graph.add(to, from, How::Jump);
                    }
                }
                None => match image.stub(address).and_then(|slot| image.pointer(slot)) {
                    Some(target) => self.lead(images, number, from, target, how),
                    None => self.bind(from, Verdict::Alone, Why::Uncovered(address)),
                },
            },
            Target::Import(name, value) => match self.import(images, image, name, value) {
                Import::Nothing => {}
                Import::Inside(number, target) => self.lead(images, number, from, target, how),
                Import::Binds => self.bind(from, Verdict::Alone, Why::Import(name)),
            },
            Target::Constant(address) => {
                let reference = Use {
                    address,
                    reach: Reach::default(),
                    distances: false,
                };
                self.uses[number as usize].push((from, reference));
            }
            Target::ThreadOffset(_) | Target::ThreadLocal => {
                self.bind(from, Verdict::Alone, Why::Unknown("a thread-local"));
            }
            Target::Foreign(address) => {
                self.bind(from, Verdict::Alone, Why::Foreign(address));
            }
        }
    }

    fn import(&self, images: &[Image], image: &Image, name: u32, value: usize) -> Import {
        let name = image.slots.name(name);
        if LISTS.allocation.has(name) {
            return Import::Nothing;
        }
        if let Some(number) = images.iter().position(|i| i.range.contains(&value)) {
            let same = std::ptr::eq(&images[number], image);
            return match images[number].address(value) {
                // Not bound yet, else it would not have come as an import.
                Some(Target::Code(_)) if same => Import::Binds,
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

    /// Cuts the constants and adds those that anybody refers to.
    fn read_constants(&mut self, rule: Rule) {
        let images = std::mem::take(&mut self.images);
        for (number, image) in images.iter().enumerate() {
            let uses = std::mem::take(&mut self.uses[number]);
            let referenced = uses.iter().map(|(_, reference)| reference.address);
            let referenced = referenced.collect();
            let constants = Constants::cut(image, referenced, rule);
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

    /// Hands back what is touched.
    fn conclude(mut self, begun: Instant) -> Judge {
        let (mut harmless, mut runtime) = (Vec::new(), Vec::new());
        for place in &self.places {
            let names = match *place {
                Place::Function { image, index } => {
                    let image = &self.images[image as usize];
                    let start = image.functions[index as usize].range.start;
                    listed(image, start)
                }
                Place::Constant { .. } => (false, false),
            };
            harmless.push(names.0);
            runtime.push(names.1);
        }
        self.graph
            .settle(self.places.len(), &harmless, &runtime, |node| {
                self.own[node as usize].verdict
            });
        let functions: usize = self.images.iter().map(|i| i.functions.len()).sum();
        let count = |what: &dyn Fn(u32) -> bool| (0..functions as u32).filter(|&f| what(f)).count();
        let graph = &self.graph;
        let statistics = Statistics {
            objects: self.images.len(),
            functions,
            touching: count(&|f| self.own[f as usize].verdict > Verdict::Free),
            home: count(&|f| graph.verdict(f) == Verdict::Home),
            alone: count(&|f| graph.verdict(f) == Verdict::Alone),
            harmless: count(&|f| harmless[f as usize] || runtime[f as usize]),
            text: self.text,
            edges: graph.edges(),
            memory: graph.memory()
                + self.places.capacity() * size_of::<Place>()
                + self.own.capacity() * size_of::<Own>()
                + self.images.iter().map(Image::memory_kept).sum::<usize>(),
            time: begun.elapsed(),
        };
        Judge {
            images: self.images,
            first: self.first,
            places: self.places,
            own: self.own,
            graph: self.graph,
            statistics,
        }
    }
}

/// The constants of one image on their way into the graph.
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
                }
            }
            if reference.distances {
                self.distances(survey, image, from, &reference);
            }
            // Pieces refer to pieces.
            uses.append(&mut survey.uses[self.number as usize]);
        }
    }

    /// The node of a piece; none if it leads nowhere.
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
        survey.places.push(Place::Constant {
            image: self.number,
            start: self.constants.range(piece).start,
        });
        survey.own.push(Own {
            verdict: Verdict::Free,
            why: Why::Not,
        });
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

fn judge_touch(image: &Image, touch: &Touch) -> (Verdict, Why) {
    match *touch {
        Touch::Unknown(what) => (Verdict::Alone, Why::Unknown(what)),
        Touch::Variable(offset) => {
            let name = image.variable(offset).map(symbols::plain);
            let harmless = name.is_some_and(|name| LISTS.variables.has(&name));
            let verdict = if harmless {
                Verdict::Home
            } else {
                Verdict::Alone
            };
            (verdict, Why::Variable(offset))
        }
    }
}

fn is_named_cold(image: &Image, address: usize) -> bool {
    let mut names = image.symbols.functions_at(address);
    names.any(|name| name.contains(".cold"))
}

/// Whether all names of a function are harmless, or of the runtime.
fn listed(image: &Image, start: usize) -> (bool, bool) {
    let mut listed = (false, false);
    let names = image.symbols.functions_at(start);
    for (count, name) in names.map(symbols::plain).enumerate() {
        let here = (
            LISTS.functions.has(&name) || LISTS.allocation.has(&name),
            LISTS.runtime.has(&name),
        );
        listed = match count {
            0 => here,
            _ => (listed.0 && here.0, listed.1 && here.1),
        };
    }
    listed
}
