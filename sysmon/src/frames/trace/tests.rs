use std::hint::black_box;
use std::time::Instant;

use super::super::probe::{Caught, catch, descend, within};
use super::super::rows::CallersBp;
use super::super::sites::{Site, resolve_in};
use super::super::walk::tests::{MadeUp, Random, site};
use super::super::walk::{judge_in, walk_in};
use super::*;

/// Returns what the cache remembers of this stack.
fn found<'a>(
    cache: &'a TraceCache,
    start: &Registers,
    stack: &Stack,
    root: usize,
) -> Option<&'a Trace> {
    let position = (root - start.sp) as u32;
    fitting(
        &cache.traces[set(start.pc, position)],
        start,
        stack,
        position,
    )
}

/// Resolves nothing on the spot.
const NOT_NOW: fn(&mut Unwinder, usize) -> Option<Site> = |_, _| None;

#[test]
fn a_stack_that_is_suspended_again_is_a_hit() {
    let sites = Sites::new();
    let mut cache = TraceCache::new();
    let mut look = |caught: &Caught| {
        let Caught { start, stack, root } = caught;
        let first = loop {
            let judgement = cache.judge_in(&sites, start, stack, *root, NOT_NOW);
            if judgement.complete {
                break judgement;
            }
            resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row));
        };
        assert!(found(&cache, start, stack, *root).is_some());
        assert_eq!(first.mobility, Mobility::Movable);
        assert_eq!(cache.judge_in(&sites, start, stack, *root, NOT_NOW), first);
    };
    for frames in 0..10 {
        within(|| descend(frames, &mut || catch(&mut look)));
    }
}

#[test]
fn frames_counted_from_rbp_are_remembered_too() {
    #[repr(align(64))]
    struct Line([u8; 64]);
    #[inline(never)]
    fn aligned(last: &mut dyn FnMut()) {
        let mut line = Line([1; 64]);
        black_box(&mut line.0);
        last();
        black_box(&mut line);
    }
    let sites = Sites::new();
    let mut cache = TraceCache::new();
    let mut look = |caught: &Caught| {
        let Caught { start, stack, root } = caught;
        while !cache
            .judge_in(&sites, start, stack, *root, NOT_NOW)
            .complete
        {
            resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row));
        }
        let trace = found(&cache, start, stack, *root).expect("it is remembered");
        assert!(trace.bases > 0 || trace.bp != ANY);
    };
    within(|| aligned(&mut || descend(1, &mut || catch(&mut look))));
}

#[test]
fn stacks_that_differ_only_further_up_do_not_drive_each_other_out() {
    let sites = Sites::new();
    for pc in [100, 200, 300, 400] {
        sites.insert(pc, site(Base::Sp, 2, CallersBp::Same));
    }
    let stacks = [200, 300, 400].map(|outer| MadeUp {
        words: vec![0, 101, 0, outer + 1, 0, 0],
    });
    let mut cache = TraceCache::new();
    for _ in 0..2 {
        for stack in &stacks {
            let start = stack.start(100, 0);
            let judgement = cache.judge_in(&sites, &start, &stack.stack(), stack.root(), NOT_NOW);
            assert!(judgement.complete);
        }
    }
    for stack in &stacks {
        let start = stack.start(100, 0);
        assert!(found(&cache, &start, &stack.stack(), stack.root()).is_some());
    }
}

#[test]
fn a_judgement_comes_with_the_frame_that_binds() {
    let sites = Sites::new();
    sites.insert(100, site(Base::Sp, 2, CallersBp::Same));
    sites.insert(200, Site::BOUND);
    let stack = MadeUp {
        words: vec![0, 101, 0, 201, 0, 0],
    };
    let mut cache = TraceCache::new();
    let start = stack.start(100, 0);
    for _ in 0..2 {
        let judgement = cache.judge_in(&sites, &start, &stack.stack(), stack.root(), NOT_NOW);
        assert_eq!(judgement.mobility, Mobility::Bound);
        assert_eq!(judgement.binding, Some(200));
    }
    assert!(found(&cache, &start, &stack.stack(), stack.root()).is_some());
}

#[test]
fn what_is_too_deep_or_too_far_away_is_not_remembered() {
    const FAR: usize = 1 << 40;
    let sites = Sites::new();
    sites.insert(100, site(Base::Sp, 1, CallersBp::Same));
    sites.insert(FAR, Site::BOUND);
    let mut cache = TraceCache::new();
    let mut hit = |words: Vec<usize>| {
        let stack = MadeUp { words };
        let start = stack.start(100, 0);
        let judgement = cache.judge_in(&sites, &start, &stack.stack(), stack.root(), NOT_NOW);
        assert!(judgement.complete);
        found(&cache, &start, &stack.stack(), stack.root()).is_some()
    };
    assert!(hit(vec![101; DEPTH + 1]));
    assert!(!hit(vec![101; DEPTH + 2]));
    assert!(!hit(vec![101, FAR + 1, 0]));
}

/// Makes a stack of a few words a frame that can be walked to its root, by random sites.
///
/// Returns it with the `rbp` to start with. The first frame stands at 1.
fn walkable(random: &mut Random, sites: &Sites) -> (MadeUp, usize) {
    const WORDS: usize = 100;
    let mut stack = MadeUp {
        words: vec![0; WORDS],
    };
    let (mut pc, mut sp, mut start_bp) = (1, 0, 0);
    // Where the current rbp came from, and what it is once that is settled.
    let (mut slot, mut bp): (Option<usize>, Option<usize>) = (None, None);
    for _ in 0..2 + random.below(12) {
        let Some(row) = sites.get(pc).and_then(|site| site.row()) else {
            break;
        };
        let least = match row.bp {
            CallersBp::Saved(below) => sp + below as usize,
            _ => sp + 1,
        };
        let cfa = match (row.base, bp) {
            (Base::Sp, _) => sp + row.cfa as usize,
            (Base::Bp, Some(bp)) => bp + row.cfa as usize,
            (Base::Bp, None) => {
                let cfa = least.max(row.cfa as usize) + random.below(3);
                let value = stack.at(cfa - row.cfa as usize);
                match slot {
                    Some(slot) => stack.words[slot] = value,
                    None => start_bp = value,
                }
                bp = Some(cfa - row.cfa as usize);
                cfa
            }
        };
        if cfa < least || cfa >= WORDS {
            break;
        }
        if let CallersBp::Saved(below) = row.bp {
            (slot, bp) = (Some(cfa - below as usize), None);
        }
        (pc, sp) = (1 + random.below(10), cfa);
        stack.words[cfa - 1] = pc + 1;
    }
    stack.words.truncate(sp.max(1)); // the root; stays where it is in memory
    (stack, start_bp)
}

/// Checks the proof's claim on random stacks and rows.
///
/// Whatever is changed on a stack, the cache returns what a walk returns.
#[test]
fn stress_a_cache_never_says_anything_but_what_a_walk_says() {
    let (mut hits, mut words, mut bases) = (0, 0, 0);
    for seed in 1..4_000 {
        let mut random = Random(seed);
        let sites = Sites::new();
        for pc in 1..11 {
            sites.insert(pc, random.site());
        }
        let mut cache = TraceCache::new();
        let (mut stack, start_bp) = walkable(&mut random, &sites);
        let (whole, mut bp) = (stack.words.clone(), start_bp);
        for _ in 0..60 {
            let start = stack.start(1, bp);
            let (memory, root) = (stack.stack(), stack.root());
            if let Some(trace) = found(&cache, &start, &memory, root) {
                hits += 1;
                words += u32::from(trace.depth);
                bases += u32::from(trace.bases) + u32::from(trace.bp != ANY);
            }
            let cached = cache.judge_in(&sites, &start, &memory, root, NOT_NOW);
            let fresh = judge_in(&sites, &start, &memory, root);
            let known = |judgement: Judgement| Judgement {
                ring: false,
                ..judgement
            };
            assert_eq!(known(cached), known(fresh), "seed {seed}");
            match random.below(8) {
                0 => bp = random.word(&stack, 11),
                1..4 => {
                    stack.words.copy_from_slice(&whole);
                    bp = start_bp;
                }
                _ => {
                    let word = random.below(stack.words.len());
                    stack.words[word] = random.word(&stack, 11);
                }
            }
        }
    }
    println!("{hits} hits, {words} return addresses, {bases} by rbp");
    assert!(words > hits && bases > 10_000, "too tame to mean much");
}

/// Checks that a trace is about positions: it fits the same frames on another stack.
#[test]
fn another_stack_with_the_same_frames_is_a_hit() {
    let sites = Sites::new();
    sites.insert(100, site(Base::Sp, 2, CallersBp::Saved(2)));
    sites.insert(200, site(Base::Bp, 2, CallersBp::Same));
    let make = || {
        let mut stack = MadeUp { words: vec![0; 5] };
        stack.words[0] = stack.at(3);
        stack.words[1] = 201;
        stack
    };
    let (one, other) = (make(), make());
    let mut cache = TraceCache::new();
    let start = one.start(100, 0);
    let judgement = cache.judge_in(&sites, &start, &one.stack(), one.root(), NOT_NOW);
    assert_eq!(judgement.mobility, Mobility::Movable);
    let start = other.start(100, 77);
    assert!(found(&cache, &start, &other.stack(), other.root()).is_some());
    let mut wrong = make();
    wrong.words[0] = one.words[0];
    let start = wrong.start(100, 0);
    assert!(found(&cache, &start, &wrong.stack(), wrong.root()).is_none());
}

/// Prints the cost of walks: `cargo test --release -p indent-sysmon -- --ignored --nocapture cost`.
#[test]
#[ignore = "prints figures"]
fn cost_of_walks_and_hits() {
    const ROUNDS: u32 = 2_000_000;
    let sites = Sites::new();
    let mut cache = TraceCache::new();
    let time = |what: &str, f: &mut dyn FnMut()| {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            f();
        }
        let each = begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
        println!("{what}: {each:.1} ns");
    };
    let mut look = |caught: &Caught| {
        let Caught { start, stack, root } = caught;
        let begin = Instant::now();
        let mut misses = 0;
        while !judge_in(&sites, start, stack, *root).complete {
            misses += resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row)) as u32;
        }
        if misses > 0 {
            let each = begin.elapsed() / misses;
            println!("{misses} sites missed, until found: {each:?} each");
        }
        let mut frames = 0;
        let _ = walk_in(&sites, start, stack, *root, |_, _| frames += 1);
        println!("{frames} frames:");
        time("judged by a walk", &mut || {
            let _ = black_box(judge_in(&sites, black_box(start), stack, *root));
        });
        time("judged by a cache, hit", &mut || {
            let _ = black_box(cache.judge_in(&sites, black_box(start), stack, *root, NOT_NOW));
        });
        time("walked and remembered", &mut || {
            let mut get = |pc| sites.get(pc);
            let _ = black_box(record(&sites, &mut get, black_box(start), stack, *root, 0));
        });
    };
    for frames in [5, 19] {
        within(|| descend(frames, &mut || catch(&mut look)));
    }
}
