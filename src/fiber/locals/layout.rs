#![expect(unsafe_code, reason = "reads and writes thread-locals as bytes")]
//! The layout: which bytes of a thread's memory are exchanged, and how.
//!
//! Whole words are copied as such, in runs. Of a word that only partly belongs to variables that
//! are exchanged, only those bytes are written: other code may write to the rest at any time.

use std::alloc;
use std::hint::black_box;

use super::{Range, ThreadLocals, Variable, WORD, arch, at, is_per_thread, memory, ptr};

/// Consecutive whole words.
struct Run {
    /// Distance from the thread pointer.
    offset: isize,
    words: usize,
}

/// Consecutive bytes of one word, fewer than the word has.
struct Part {
    /// The word's distance from the thread pointer.
    offset: isize,
    mask: u64,
    /// Index of the first exchanged byte in the word.
    first: usize,
    bytes: usize,
}

/// The bytes that are exchanged. An image has the words of all runs, then a word for each part.
pub(super) struct Layout {
    runs: Vec<Run>,
    parts: Vec<Part>,
    pristine: Vec<u64>,
    /// The variables, sorted.
    pub(super) variables: Vec<Range<isize>>,
    /// The variables that are scanned for addresses (`scan.rs`).
    pub(super) searched: Vec<Range<isize>>,
    /// The variable in which `std::thread::current` keeps its handle.
    pub(super) current_thread: isize,
    /// The program's allocator uses some of the variables.
    pub(super) is_allocators: bool,
    /// Memory of a thread's thread-locals and control block, as distances from the thread pointer.
    pub(super) area: Range<isize>,
}

impl Layout {
    /// Selects the variables that are exchanged.
    ///
    /// # Errors
    /// If std's variables are not among them, or not as they are expected.
    #[inline(never)]
    pub(super) fn new(all: &ThreadLocals, named: &[String]) -> Result<Layout, &'static str> {
        const NOT_THERE: &str = "std's thread-locals are not in the executable";
        let is_exchanged = |v: &Variable| v.is_rust && !is_per_thread(v, named);
        let ours = all.variables.iter().filter(|v| is_exchanged(v));
        let variables: Vec<_> = ours.map(|v| v.range.clone()).collect();
        let current = (all.variables.iter())
            .find(|v| v.name == "std::thread::current::CURRENT")
            .ok_or(NOT_THERE)?;
        if current.range.len() != WORD || current.range.start % WORD as isize != 0 {
            return Err("std keeps the current thread in a way that is not known");
        }
        // Two symbols for one place: C's amid Rust's could not be distinguished.
        let overlaps = |v: &Variable| {
            let mut ours = variables.iter();
            ours.any(|o| o.start < v.range.end && v.range.start < o.end)
        };
        let mut others = all.variables.iter().filter(|v| !is_exchanged(v));
        if others.any(overlaps) {
            return Err("thread-locals of several languages share their memory");
        }
        let mut layout = Layout::of(variables);
        layout.current_thread = current.range.start;
        layout.area = all.area();
        let searched = all.variables.iter().filter(|v| is_exchanged(v));
        let searched = searched.filter(|v| !v.is_vouched_for);
        layout.searched = searched.map(|v| v.range.clone()).collect();
        layout.fill(all);
        layout.is_allocators = layout.changes_by_allocating();
        Ok(layout)
    }

    /// The layout of these variables, without their values.
    pub(super) fn of(variables: Vec<Range<isize>>) -> Layout {
        let mut layout = Layout {
            runs: Vec::new(),
            parts: Vec::new(),
            pristine: Vec::new(),
            current_thread: 0,
            is_allocators: false,
            searched: Vec::new(),
            area: 0..0,
            variables,
        };
        layout.cut();
        layout
    }

    /// Stores their initial values.
    pub(super) fn fill(&mut self, all: &ThreadLocals) {
        for run in &self.runs {
            let end = run.offset + (run.words * WORD) as isize;
            self.pristine.extend(words(&all.initial(run.offset..end)));
        }
        for part in &self.parts {
            let bytes = all.initial(part.offset..part.offset + WORD as isize);
            self.pristine
                .extend(words(&bytes).map(|word| word & part.mask));
        }
    }

    /// Cuts the variables into runs and parts.
    fn cut(&mut self) {
        let mut masks = std::collections::BTreeMap::<isize, u64>::new();
        for byte in self.variables.iter().cloned().flatten() {
            let inside = byte.rem_euclid(WORD as isize);
            *masks.entry(byte - inside).or_default() |= 0xFF << (inside * 8);
        }
        for (offset, mask) in masks {
            if mask != u64::MAX {
                self.cut_word(offset, mask);
                continue;
            }
            match self.runs.last_mut() {
                Some(run) if run.offset + (run.words * WORD) as isize == offset => run.words += 1,
                _ => self.runs.push(Run { offset, words: 1 }),
            }
        }
    }

    /// Cuts one word into parts; a byte of the mask is set for each of its bytes that are
    /// exchanged.
    fn cut_word(&mut self, offset: isize, mask: u64) {
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize / 8;
            let bytes = (rest >> (first * 8)).trailing_ones() as usize / 8;
            let mask = u64::MAX >> (64 - bytes * 8) << (first * 8);
            self.parts.push(Part {
                offset,
                mask,
                first,
                bytes,
            });
            rest &= !mask;
        }
    }

    /// Whether allocating or freeing changes the calling thread's block.
    fn changes_by_allocating(&self) -> bool {
        const SIZES: [usize; 4] = [16, 200, 1_000, 5_000];
        let images = [self.allocate(), self.allocate()];
        let [before, now] = images;
        let thread = arch::thread_pointer();
        // SAFETY: images of this layout.
        unsafe { self.save(thread, before) };
        let differs = || {
            // SAFETY: as above.
            unsafe { self.save(thread, now) };
            // SAFETY: both are filled, and so long.
            let [before, now] = [before, now]
                .map(|image| unsafe { std::slice::from_raw_parts(image, self.words()) });
            before != now
        };
        let changes = |size| {
            let memory = black_box(Vec::<u8>::with_capacity(size));
            let allocating = differs();
            drop(memory);
            allocating || differs()
        };
        let any = SIZES.into_iter().any(changes);
        for image in images {
            // SAFETY: allocated above, and not used any more.
            unsafe { self.free(image) };
        }
        any
    }

    /// Number of words of an image.
    pub(super) fn words(&self) -> usize {
        self.pristine.len()
    }

    /// The image of a new thread, with all initial values.
    pub(super) fn pristine(&self) -> *const u64 {
        self.pristine.as_ptr()
    }

    /// Whether an address, counted from the thread pointer, is exchanged.
    pub(super) fn has(&self, variable: isize) -> bool {
        is_in(&self.variables, variable)
    }

    /// Whether a word at an address, counted from the thread pointer, is searched.
    pub(super) fn searches(&self, offset: isize) -> bool {
        is_in(&self.searched, offset) && is_in(&self.searched, offset + WORD as isize - 1)
    }

    /// Whether the calling thread's block is pristine (I33).
    #[inline]
    pub(super) fn is_pristine(&self) -> bool {
        let base = arch::thread_pointer();
        let mut pristine = self.pristine.as_slice();
        let mut differ = 0;
        for run in &self.runs {
            let block = at(base, run.offset).cast::<u64>();
            // SAFETY: a run of variables of the calling thread, which does not write to them now.
            let block = unsafe { std::slice::from_raw_parts(block, run.words) };
            let (initial, rest) = pristine.split_at(run.words);
            pristine = rest;
            for (word, initial) in block.iter().zip(initial) {
                differ |= word ^ initial;
            }
        }
        for (part, initial) in self.parts.iter().zip(pristine) {
            // SAFETY: an aligned word of the calling thread's memory.
            differ |= unsafe { part.read(base) } ^ initial;
        }
        differ == 0
    }

    /// Copies the block of the thread with this thread pointer.
    ///
    /// # Safety
    /// There is room for `words` words. The thread is the calling one, or it neither ends nor
    /// writes to the block meanwhile.
    #[inline]
    pub(super) unsafe fn save(&self, base: usize, image: *mut u64) {
        let mut image = image;
        for run in &self.runs {
            let block = at(base, run.offset).cast::<u64>();
            // SAFETY: by the caller's promise, and inside the run.
            unsafe { ptr::copy_nonoverlapping(block, image, run.words) };
            // SAFETY: as above.
            image = unsafe { image.add(run.words) };
        }
        for part in &self.parts {
            // SAFETY: an aligned word of the thread's memory.
            let word = unsafe { part.read(base) };
            // SAFETY: by the caller's promise.
            unsafe { image.write(word) };
            // SAFETY: as above.
            image = unsafe { image.add(1) };
        }
    }

    /// Copies an image into the block of the thread with this thread pointer.
    ///
    /// # Safety
    /// The image has `words` words, and there is no reference into the block. The thread is the
    /// calling one, or it neither ends nor uses the block meanwhile.
    #[inline]
    pub(super) unsafe fn load(&self, base: usize, image: *const u64) {
        let mut image = image;
        for run in &self.runs {
            let block = at(base, run.offset).cast::<u64>();
            // SAFETY: by the caller's promise, and inside the run.
            unsafe { ptr::copy_nonoverlapping(image, block, run.words) };
            // SAFETY: as above.
            image = unsafe { image.add(run.words) };
        }
        for part in &self.parts {
            let from = image.cast::<u8>().wrapping_add(part.first);
            let to = at(base, part.offset).wrapping_add(part.first);
            // SAFETY: by the caller's promise; inside a word each.
            unsafe { ptr::copy_nonoverlapping(from, to, part.bytes) };
            // SAFETY: as above.
            image = unsafe { image.add(1) };
        }
    }

    fn memory(&self) -> alloc::Layout {
        alloc::Layout::array::<u64>(self.words()).expect("a few kilobytes")
    }

    /// Allocates room for an image, uninitialized.
    #[cold]
    pub(super) fn allocate(&self) -> *mut u64 {
        memory::room(self.memory()).cast()
    }

    /// # Safety
    /// `allocate` made it, and it is not used any more.
    pub(super) unsafe fn free(&self, image: *mut u64) {
        // SAFETY: by the caller's promise.
        unsafe { memory::free(image.cast(), self.memory()) };
    }
}

impl Part {
    /// Reads its bytes, at their place in the word, and zeros elsewhere. The others are read, too,
    /// and dropped: a write to them meanwhile does no harm.
    ///
    /// # Safety
    /// `base` is the thread pointer of a thread that does not end meanwhile.
    #[inline]
    unsafe fn read(&self, base: usize) -> u64 {
        // SAFETY: an aligned word of the thread's memory, some of whose bytes are variables.
        let word = unsafe { at(base, self.offset).cast::<u64>().read_volatile() };
        word & self.mask
    }
}

/// Whether one of the sorted `variables` contains `offset`.
fn is_in(variables: &[Range<isize>], offset: isize) -> bool {
    let after = variables.partition_point(|v| v.start <= offset);
    after > 0 && offset < variables[after - 1].end
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let whole = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    bytes.chunks_exact(WORD).map(whole)
}
