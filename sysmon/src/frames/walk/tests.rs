use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use super::super::probe::{Caught, CodeLocation, catch, descend, within};
use super::super::rows::Row;
use super::super::sites::Site;
use super::*;

/// Walks a stack as it is inside a body, and asks the C library's unwinder about it.
fn both(body: impl FnOnce(&mut dyn FnMut())) -> (Vec<CodeLocation>, Vec<CodeLocation>, End) {
    both_in(&Sites::new(), body)
}

fn both_in(
    sites: &Sites,
    body: impl FnOnce(&mut dyn FnMut()),
) -> (Vec<CodeLocation>, Vec<CodeLocation>, End) {
    let mut seen = None;
    let mut look = |caught: &Caught| {
        let (walked, end) = caught.walk(sites);
        seen = Some((walked, caught.told(), end));
    };
    let mut here = || catch(&mut look);
    within(|| body(&mut here));
    seen.expect("the body never came to the point")
}

#[track_caller]
fn walks(body: impl FnOnce(&mut dyn FnMut())) -> usize {
    let (walked, told, end) = both(body);
    assert_eq!(end, End::Root, "{walked:x?} of {told:x?}");
    assert_eq!(walked, told);
    walked.len()
}

/// Checks that foreign code may end a walk, but never misleads it.
#[track_caller]
fn walks_or_stops(body: impl FnOnce(&mut dyn FnMut())) -> End {
    let (walked, told, end) = both(body);
    match end {
        End::Root => assert_eq!(walked, told),
        End::Bound { .. } => assert_eq!(walked, told[..walked.len()]),
        other => panic!("{other:?}"),
    }
    end
}

#[test]
fn plain_and_recursive_functions_are_climbed() {
    let shallow = walks(|here| descend(0, here));
    assert_eq!(walks(|here| descend(100, here)), shallow + 100);
}

#[test]
fn closures_and_trait_objects_are_climbed() {
    walks(|here| (0..1).map(|n| black_box(n) + 1).for_each(|_| here()));
    walks(|here| {
        let boxed: Box<dyn FnOnce() + '_> = Box::new(|| descend(2, here));
        black_box(boxed)();
    });
    walks(|here| {
        let mut once = Some(here);
        let mut numbers: Vec<u32> = (0..40).rev().collect();
        black_box(&mut numbers).sort_by(|a, b| {
            if let Some(here) = once.take() {
                here();
            }
            a.cmp(b)
        });
    });
    walks(|here| {
        let mut once = Some(here);
        let mut map: BTreeMap<u32, u32> = (0..100).map(|n| (n, n)).collect();
        map.retain(|_, _| {
            if let Some(here) = once.take() {
                here();
            }
            true
        });
    });
}

#[test]
fn formatting_machinery_is_climbed() {
    struct Shown<'a>(std::cell::RefCell<&'a mut dyn FnMut()>);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (self.0.borrow_mut())();
            f.pad("shown")
        }
    }
    walks(|here| {
        let shown = Shown(std::cell::RefCell::new(here));
        assert_eq!(black_box(format!("{shown:>8}|{}", 3)), "   shown|3");
    });
}

#[test]
fn large_and_aligned_frames_are_climbed() {
    #[inline(never)]
    fn large(here: &mut dyn FnMut()) {
        let mut bytes = [0u8; 20_000];
        black_box(&mut bytes);
        here();
        black_box(&mut bytes);
    }
    #[repr(align(64))]
    struct Line([u8; 64]);
    #[inline(never)]
    fn aligned(here: &mut dyn FnMut()) {
        let mut line = Line([1; 64]);
        black_box(&mut line.0);
        large(here);
        black_box(&mut line);
    }
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    #[inline(never)]
    fn page(here: &mut dyn FnMut(), again: usize) {
        let mut page_ = Page([1; 4096]);
        black_box(&mut page_.0);
        match again {
            0 => aligned(here),
            _ => page(here, again - 1),
        }
        black_box(&mut page_);
    }
    walks(large);
    walks(aligned);
    walks(|here| page(here, 3));
    let sites = Sites::new();
    let (walked, ..) = both_in(&sites, |here| page(here, 3));
    let rows = walked.iter().filter_map(|(ip, _)| sites.get(ip - 1)?.row());
    let by_bp = rows.filter(|row| row.base == Base::Bp).count();
    assert!(by_bp >= 4, "these frames are counted from rbp");
}

#[test]
fn frames_that_catch_panics_are_climbed() {
    // `catch_unwind` calls through compiler-made code that has rows of its own.
    walks(|here| {
        let caught = catch_unwind(AssertUnwindSafe(|| descend(1, here)));
        assert!(caught.is_ok());
    });
}

#[test]
fn callbacks_of_the_c_library_are_climbed_or_end_the_walk() {
    use std::cell::Cell;
    use std::ffi::c_void;
    thread_local! {
        static HERE: Cell<Option<*mut dyn FnMut()>> = const { Cell::new(None) };
    }
    unsafe extern "C" fn compare(a: *const c_void, b: *const c_void) -> i32 {
        if let Some(here) = HERE.take() {
            // SAFETY: set below, by the test, which waits for `qsort`.
            let here = unsafe { &mut *here };
            here();
        }
        (a as usize).cmp(&(b as usize)) as i32
    }
    let end = walks_or_stops(|here| {
        // SAFETY: only makes the pointer forget its lifetime; it is taken back before the end.
        let here = unsafe {
            std::mem::transmute::<*mut (dyn FnMut() + '_), *mut (dyn FnMut() + 'static)>(here)
        };
        HERE.set(Some(here));
        let mut numbers = [3u32, 1, 2];
        // SAFETY: as many elements as it says.
        unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 4, Some(compare)) };
    });
    println!("through qsort: {end:?}");
}

#[test]
fn a_destructor_of_a_panic_is_climbed_or_ends_the_walk() {
    struct Look<'a>(&'a mut dyn FnMut());
    impl Drop for Look<'_> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let end = walks_or_stops(|here| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _look = Look(here);
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(unwound.is_err());
    });
    println!("while unwinding: {end:?}");
}

#[test]
fn a_stack_of_another_thread_is_climbed() {
    let (caught, stacks) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut look = |at: &Caught| {
            let copy = Caught {
                start: at.start,
                stack: at.stack.clone(),
                root: at.root,
            };
            caught.send((copy, at.told())).unwrap();
            wait.recv().unwrap();
        };
        within(|| descend(5, &mut || catch(&mut look)));
    });
    let (stack, told) = stacks.recv().unwrap();
    let (walked, end) = stack.walk(&Sites::new());
    go_on.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!((walked, end), (told, End::Root));
}

/// Walks the frames of a coroutine that waits `calls` calls deep and captures `BYTES` bytes.
fn coroutine<const BYTES: usize>(calls: usize) -> usize {
    use corosensei::stack::{DefaultStack, Stack as _};
    use corosensei::{Coroutine, Yielder};
    #[inline(never)]
    fn deep(calls: usize, yielder: &Yielder<(), Registers>) {
        match calls {
            0 => yielder.suspend(Registers::here()),
            _ => deep(black_box(calls - 1), yielder),
        }
        black_box(calls);
    }
    let captured = [0u8; BYTES];
    let memory = DefaultStack::new(64 * 1024).unwrap();
    let range = memory.limit().get()..memory.base().get();
    // Above the frames: what the closure captured, the parent's stack pointer, the first function.
    let root = range.end - 2 * WORD - (size_of::<usize>() + BYTES).next_multiple_of(16);
    let mut coroutine = Coroutine::with_stack(memory, move |yielder, ()| {
        deep(calls, yielder);
        black_box(captured);
    });
    let start = coroutine.resume(()).as_yield().unwrap();
    // SAFETY: the coroutine is suspended and keeps its stack.
    let stack = unsafe { Stack::new(range) };
    let (walked, end) = Caught { start, stack, root }.walk(&Sites::new());
    assert_eq!(end, End::Root);
    assert!(coroutine.resume(()).as_return().is_some());
    walked.len()
}

#[test]
fn a_suspended_coroutine_is_climbed_from_where_it_noted_its_registers() {
    if cfg!(indent_sanitize) {
        let line =
            b"SKIPPED a_suspended_coroutine_is_climbed: sanitizer: its stacks begin elsewhere\n";
        // SAFETY: bytes of ours; past the harness, which would swallow it.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        return;
    }
    let shallow = coroutine::<0>(0);
    assert_eq!(coroutine::<0>(7), shallow + 7);
    assert_eq!(coroutine::<100>(9), shallow + 9);
}

/// A stack made up of words, and the registers to start from at its lower end.
pub(crate) struct MadeUp {
    pub(crate) words: Vec<usize>,
}

impl MadeUp {
    pub(crate) fn at(&self, word: usize) -> usize {
        self.words.as_ptr().expose_provenance() + word * WORD
    }

    pub(crate) fn root(&self) -> usize {
        self.at(self.words.len())
    }

    pub(crate) fn stack(&self) -> Stack {
        // SAFETY: valid as long as the words, which nothing changes while it is used.
        unsafe { Stack::new(self.at(0)..self.root()) }
    }

    pub(crate) fn start(&self, pc: usize, bp: usize) -> Registers {
        Registers::interrupted(pc, self.at(0), bp)
    }

    fn judge(&self, sites: &Sites, pc: usize) -> Judgement {
        judge_in(sites, &self.start(pc, 0), &self.stack(), self.root())
    }
}

pub(crate) fn site(base: Base, cfa: u32, bp: CallersBp) -> Site {
    Site::new(Mobility::Movable, Some(Row { base, cfa, bp }))
}

fn by_sp(cfa: u32) -> Site {
    site(Base::Sp, cfa, CallersBp::Same)
}

#[test]
fn one_bound_frame_binds_and_the_innermost_is_named() {
    use Mobility::{Bound, Movable};
    let sites = Sites::new();
    for (pc, site) in [(100, by_sp(2)), (200, Site::BOUND), (300, Site::BOUND)] {
        sites.insert(pc, site);
    }
    let judge = |callers: [usize; 3]| {
        let [a, b, c] = callers.map(|pc| pc + 1);
        let stack = MadeUp {
            words: vec![0, a, 0, b, 0, c, 0, 0],
        };
        let judgement = stack.judge(&sites, 100);
        (judgement.mobility, judgement.complete, judgement.binding)
    };
    assert_eq!(judge([100, 100, 100]), (Movable, true, None));
    assert_eq!(judge([100, 200, 300]), (Bound, true, Some(200)));
    assert_eq!(judge([300, 200, 9]), (Bound, true, Some(300)));
    assert_eq!(judge([100, 100, 9]), (Bound, false, Some(9)), "not known");
}

#[test]
fn what_cannot_be_walked_is_bound() {
    let sites = Sites::new();
    let none = Site::new(Mobility::Movable, None);
    let lost = site(Base::Sp, 2, CallersBp::Unknown);
    let bp = site(Base::Bp, 2, CallersBp::Same);
    let below = site(Base::Sp, 2, CallersBp::Saved(3));
    let beyond = by_sp(5);
    let rows = [
        (100, none),
        (200, bp),
        (300, lost),
        (400, below),
        (500, beyond),
    ];
    for (pc, site) in rows {
        sites.insert(pc, site);
    }
    let stack = MadeUp {
        words: vec![0, 201, 0, 0],
    };
    for pc in [100, 200, 300, 400, 500] {
        let judgement = stack.judge(&sites, pc);
        assert_eq!(judgement.mobility, Mobility::Bound, "from {pc}");
        assert!(judgement.complete && judgement.binding.is_some());
    }
    let odd = stack.start(100, 0);
    let odd = Registers::interrupted(500, odd.sp + 4, 0);
    let judgement = judge_in(&sites, &odd, &stack.stack(), stack.root());
    assert_eq!(judgement.mobility, Mobility::Bound);
}

#[test]
fn an_unknown_frame_is_asked_for_and_rings_once() {
    let sites = Sites::new();
    let stack = MadeUp { words: vec![0, 0] };
    assert!(stack.judge(&sites, 100).ring);
    assert!(!stack.judge(&sites, 100).ring);
    assert!(!stack.judge(&sites, 101).ring, "it has been rung");
    assert_eq!(sites.resolve(|_| by_sp(2)), 2);
    assert_eq!(stack.judge(&sites, 100).mobility, Mobility::Movable);
}

/// A xorshift generator: tests print the seed that failed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    pub(crate) fn site(&mut self) -> Site {
        let mobility = match self.below(10) {
            0 => Mobility::Bound,
            _ => Mobility::Movable,
        };
        let base = [Base::Sp, Base::Sp, Base::Bp][self.below(3)];
        let far = if self.below(40) == 0 { 1 << 27 } else { 6 };
        let bp = match self.below(6) {
            0 => CallersBp::Unknown,
            1 | 2 => CallersBp::Saved(2 + self.below(far) as u32),
            _ => CallersBp::Same,
        };
        let cfa = 1 + self.below(far) as u32;
        let row = Row { base, cfa, bp };
        Site::new(mobility, (self.below(30) != 0).then_some(row))
    }

    /// Makes a stack of words that are often places in the code or addresses of the stack itself.
    pub(crate) fn stack(&mut self, places: usize) -> MadeUp {
        let words = 1 + self.below(60);
        let mut stack = MadeUp {
            words: vec![0; words],
        };
        for word in 0..words {
            stack.words[word] = self.word(&stack, places);
        }
        stack
    }

    pub(crate) fn word(&mut self, stack: &MadeUp, places: usize) -> usize {
        match self.below(8) {
            0 => self.below(usize::MAX),
            1 | 2 => stack.at(self.below(stack.words.len() + 3)),
            _ => 2 + self.below(places),
        }
    }
}

#[test]
fn stress_garbage_is_walked_within_bounds_and_to_an_end() {
    for seed in 1..20_000 {
        let mut random = Random(seed);
        let sites = Sites::new();
        for pc in 1..40 {
            sites.insert(pc, random.site());
        }
        let stack = random.stack(41);
        let bp = random.word(&stack, 41);
        let start = stack.start(1 + random.below(40), bp);
        let mut sp = None;
        let mut frames = 0;
        // `Stack` refuses what is outside; a refusal is an end, so each frame shown is inside.
        let _ = walk_in(&sites, &start, &stack.stack(), stack.root(), |_, at| {
            assert!(sp < Some(at) && at < stack.root(), "seed {seed}");
            sp = Some(at);
            frames += 1;
        });
        assert!(frames <= stack.words.len(), "seed {seed}");
    }
}

#[test]
fn a_stack_refuses_what_is_not_inside_or_not_aligned() {
    let made_up = MadeUp {
        words: vec![7, 8, 9],
    };
    let stack = made_up.stack();
    assert_eq!(stack.read(made_up.at(0)), Some(7));
    assert_eq!(stack.read(made_up.at(2)), Some(9));
    let outside = [made_up.at(3), made_up.at(0) - WORD, made_up.at(1) + 4];
    for at in outside.into_iter().chain([0, usize::MAX - 7, usize::MAX]) {
        assert_eq!(stack.read(at), None);
    }
}
