//! The waiters of one direction of a descriptor, reading or writing.
//!
//! A notifier takes all waiters that are listed when it begins, a batch at a time: between two
//! batches others may be added, and some may withdraw. Three rules keep the notifier from missing
//! one of its waiters:
//!
//! 1. A new waiter goes to the end.
//! 2. A batch is taken from the beginning.
//! 3. The place of a waiter that withdraws is filled from the end.
//!
//! Hence, of `n` waiters that were listed at some moment, and of which `k` have been taken from the
//! beginning since, those that are left are among the first `n - k`. A notifier that takes that
//! many has taken all of them. It may also have taken a waiter that came later, which then tries
//! again for nothing.

/// Waiters that are taken under one lock hold.
pub(super) const NOTIFY_BATCH: usize = 8;

/// Addresses of the waiters of one direction.
#[derive(Default)]
pub(super) struct Direction {
    /// The only one, mostly. If there is none, there are no others.
    first: Option<usize>,
    others: Vec<usize>,
}

/// Addresses of the waiters that were taken.
pub(super) struct Batch {
    taken: [usize; NOTIFY_BATCH],
    len: usize,
}

impl std::ops::Deref for Batch {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.taken[..self.len]
    }
}

impl Direction {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    pub(super) fn push(&mut self, waiter: usize) {
        match self.first {
            None => self.first = Some(waiter),
            Some(_) => self.others.push(waiter),
        }
    }

    /// Removes a waiter. False if a notifier has taken it.
    pub(super) fn withdraw(&mut self, waiter: usize) -> bool {
        if self.first == Some(waiter) {
            self.first = self.others.pop();
            return true;
        }
        let at = self.others.iter().position(|other| *other == waiter);
        at.map(|at| self.others.swap_remove(at)).is_some()
    }

    /// Takes the first waiters, `most` and [`NOTIFY_BATCH`] at most. Frees nothing.
    pub(super) fn take(&mut self, most: usize) -> Batch {
        let (mut taken, len) = ([0; NOTIFY_BATCH], most.min(NOTIFY_BATCH).min(self.len()));
        if let (1.., Some(first)) = (len, self.first) {
            taken[0] = first;
            taken[1..len].copy_from_slice(&self.others[..len - 1]);
            self.first = self.others.get(len - 1).copied();
            self.others.drain(..len.min(self.others.len()));
        }
        Batch { taken, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(waiters: impl IntoIterator<Item = usize>) -> Direction {
        let mut direction = Direction::default();
        waiters
            .into_iter()
            .for_each(|waiter| direction.push(waiter));
        direction
    }

    #[test]
    fn all_waiters_are_taken_once_and_in_order_a_batch_at_a_time() {
        for n in 0..3 * NOTIFY_BATCH {
            let (mut direction, mut taken) = (of(0..n), Vec::new());
            loop {
                let before = direction.others.capacity();
                let batch = direction.take(n - taken.len());
                assert_eq!(direction.others.capacity(), before, "nothing was freed");
                taken.extend_from_slice(&batch);
                if batch.len() < NOTIFY_BATCH {
                    break;
                }
            }
            assert!(taken.into_iter().eq(0..n), "{n}");
            assert_eq!(direction.len(), 0);
        }
    }

    #[test]
    fn no_more_waiters_are_taken_than_asked_for() {
        let mut direction = of(0..NOTIFY_BATCH);
        assert_eq!(*direction.take(0), []);
        assert_eq!(*direction.take(2), [0, 1]);
        assert_eq!(*direction.take(1), [2]);
        assert_eq!(direction.len(), NOTIFY_BATCH - 3);
    }

    #[test]
    fn waiters_listed_at_the_start_are_taken_though_others_come_and_some_withdraw() {
        const THERE: usize = 3 * NOTIFY_BATCH;
        for (seed, leaves) in (0..THERE).flat_map(|a| [(a, 0), (a, 1), (a, NOTIFY_BATCH)]) {
            let (mut direction, mut left, mut taken) = (of(0..THERE), THERE, Vec::new());
            let mut newcomer = THERE;
            while left > 0 {
                let batch = direction.take(left);
                taken.extend_from_slice(&batch);
                left -= batch.len();
                for _ in 0..3 {
                    direction.push(newcomer);
                    newcomer += 1;
                }
                direction.withdraw(newcomer - 2);
                direction.withdraw((seed + leaves) % THERE);
                direction.withdraw(seed);
            }
            let gone = [seed, (seed + leaves) % THERE];
            let missed =
                (0..THERE).find(|waiter| !gone.contains(waiter) && !taken.contains(waiter));
            assert_eq!(missed, None, "seed {seed}, {leaves}");
        }
    }
}
