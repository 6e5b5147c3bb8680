//! A set of small numbers that many threads change concurrently, without locks.
//!
//! Clearing a bit that was set is a *claim*: exactly one thread gets `true` for each time the bit
//! was set, and with it a right (to wake that worker, to give that carrier a worker, …). Setting
//! releases what was written before, claiming acquires it. All operations are sequentially
//! consistent, because every user runs a "store mine, look at yours" protocol over it
//! (`docs/wake-and-sleep.md`).
//! No allocation after construction and no locks: a signal handler may use it.

use crate::util::loom::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

const BITS: usize = u64::BITS as usize;

pub(crate) struct Bitmap {
    words: Box<[AtomicU64]>,
}

impl Bitmap {
    pub(crate) fn new(capacity: usize) -> Self {
        let words = (0..capacity.div_ceil(BITS))
            .map(|_| AtomicU64::new(0))
            .collect();
        Bitmap { words }
    }

    /// Adds `i`; false if it was a member already.
    pub(crate) fn set(&self, i: usize) -> bool {
        let bit = 1 << (i % BITS);
        self.words[i / BITS].fetch_or(bit, SeqCst) & bit == 0
    }

    /// Removes `i`; true for the one thread that removed it. A claim is a duty, so preemption must
    /// be disabled on a fiber's thread (S6).
    #[track_caller]
    pub(crate) fn claim(&self, i: usize) -> bool {
        crate::util::preempt_check::expect_disabled();
        let bit = 1 << (i % BITS);
        let word = &self.words[i / BITS];
        word.load(SeqCst) & bit != 0 && word.fetch_and(!bit, SeqCst) & bit != 0
    }

    /// Removes any member, searching from `start` upwards and around.
    pub(crate) fn claim_any(&self, start: usize) -> Option<usize> {
        let n = self.words.len();
        let first = (start / BITS) % n;
        let above = !0u64 << (start % BITS);
        // The first word is searched twice: its upper part first, its lower part last.
        for step in 0..=n {
            let index = (first + step) % n;
            let mask = match step {
                0 => above,
                s if s == n => !above,
                _ => !0,
            };
            loop {
                let found = self.words[index].load(SeqCst) & mask;
                if found == 0 {
                    break;
                }
                let i = index * BITS + found.trailing_zeros() as usize;
                if self.claim(i) {
                    return Some(i);
                }
            }
        }
        None
    }

    pub(crate) fn contains(&self, i: usize) -> bool {
        self.words[i / BITS].load(SeqCst) & (1 << (i % BITS)) != 0
    }

    /// Members in the first `words` words, each of them at some moment of the iteration.
    fn members_in(&self, words: usize) -> impl Iterator<Item = usize> {
        let words = self.words.iter().take(words);
        words.enumerate().flat_map(|(index, word)| {
            let mut left = word.load(SeqCst);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(index * BITS + bit)
            })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| word.load(SeqCst) == 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.load(SeqCst).count_ones() as usize)
            .sum()
    }
}

/// A [`Bitmap`] with many numbers and few members: `is_empty` reads one word.
///
/// The count is raised before a bit is set and lowered after it is cleared, so it is never below
/// the number of members: a set that seems empty was empty at some moment of the call. Listing the
/// members reads as many words as the largest number that ever was a member needs.
pub(crate) struct SparseBitmap {
    bits: Bitmap,
    count: AtomicUsize,
    /// Words that have ever had a member, from the first one on; raised before the bit is set.
    used: AtomicUsize,
}

impl SparseBitmap {
    pub(crate) fn new(capacity: usize) -> Self {
        SparseBitmap {
            bits: Bitmap::new(capacity),
            count: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }

    /// Adds `i`; false if it was a member already.
    pub(crate) fn set(&self, i: usize) -> bool {
        if self.used.load(SeqCst) <= i / BITS {
            self.used.fetch_max(i / BITS + 1, SeqCst);
        }
        self.count.fetch_add(1, SeqCst);
        let added = self.bits.set(i);
        if !added {
            self.count.fetch_sub(1, SeqCst);
        }
        added
    }

    /// Removes `i`; see [`Bitmap::claim`].
    #[track_caller]
    pub(crate) fn claim(&self, i: usize) -> bool {
        let removed = self.bits.claim(i);
        if removed {
            self.count.fetch_sub(1, SeqCst);
        }
        removed
    }

    /// Removes the smallest member.
    pub(crate) fn claim_any(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let found = self.bits.claim_any(0);
        if found.is_some() {
            self.count.fetch_sub(1, SeqCst);
        }
        found
    }

    pub(crate) fn contains(&self, i: usize) -> bool {
        self.bits.contains(i)
    }

    /// Members, each of them at some moment of the iteration.
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> {
        let is_empty = self.is_empty();
        let words = if is_empty { 0 } else { self.used.load(SeqCst) };
        self.bits.members_in(words)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// The number of members; perhaps too large while other threads change the set.
    pub(crate) fn len(&self) -> usize {
        self.count.load(SeqCst)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::{Bitmap, SparseBitmap};

    #[test]
    fn a_sparse_set_counts_its_members() {
        let set = SparseBitmap::new(10_000);
        assert!(set.is_empty() && set.claim_any().is_none());
        assert!(set.set(9_999) && set.set(70) && !set.set(70));
        assert_eq!(
            (set.len(), set.members().collect::<Vec<_>>()),
            (2, vec![70, 9_999])
        );
        assert!(set.claim(70) && !set.claim(70) && set.contains(9_999));
        assert_eq!((set.claim_any(), set.len()), (Some(9_999), 0));
    }

    #[test]
    fn claims_go_round_from_the_start_given() {
        let set = Bitmap::new(200);
        for i in [3, 70, 130] {
            assert!(set.set(i));
        }
        assert!(!set.set(70));
        assert_eq!(set.len(), 3);
        assert_eq!(set.members_in(9).collect::<Vec<_>>(), [3, 70, 130]);
        assert_eq!(set.claim_any(71), Some(130));
        assert_eq!(set.claim_any(131), Some(3));
        assert!(set.contains(70));
        assert!(set.claim(70));
        assert!(!set.claim(70));
        assert_eq!(set.claim_any(0), None);
        assert!(set.is_empty());
    }

    #[test]
    fn a_member_below_the_start_in_the_same_word_is_found() {
        let set = Bitmap::new(64);
        set.set(2);
        assert_eq!(set.claim_any(40), Some(2));
    }
}
