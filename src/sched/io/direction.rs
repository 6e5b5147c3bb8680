//! Who waits for one way of a descriptor, reading or writing.
//!
//! Whoever has something to tell takes all who wait then, a few at a time: between two takes others may come, and
//! some withdraw. So there is an order. Who comes goes to the end; a take takes from the beginning; the place of who
//! withdraws is filled from the end. Hence of `n` who waited at some moment, and of which `k` have been taken from
//! the beginning since, those that are left are among the first `n - k`: whoever takes so many has taken
//! all of them, and perhaps somebody who came later, and looks in vain.

/// So many are taken at once.
pub(super) const NOTIFY_BATCH: usize = 8;

#[derive(Default)]
pub(super) struct Direction {
    /// Mostly there is one. If there is none, there are no others.
    first: Option<usize>,
    others: Vec<usize>,
}

/// Those that were taken.
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

    /// False if it is not there: somebody has taken it off to call it.
    pub(super) fn withdraw(&mut self, waiter: usize) -> bool {
        if self.first == Some(waiter) {
            self.first = self.others.pop();
            return true;
        }
        let at = self.others.iter().position(|other| *other == waiter);
        at.map(|at| self.others.swap_remove(at)).is_some()
    }

    /// Takes the first ones off, so many at most. Frees nothing.
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
    fn all_are_taken_once_and_in_order_a_few_at_a_time() {
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
    fn no_more_are_taken_than_were_asked_for() {
        let mut direction = of(0..NOTIFY_BATCH);
        assert_eq!(*direction.take(0), []);
        assert_eq!(*direction.take(2), [0, 1]);
        assert_eq!(*direction.take(1), [2]);
        assert_eq!(direction.len(), NOTIFY_BATCH - 3);
    }

    #[test]
    fn whoever_was_there_is_taken_though_others_come_and_some_withdraw() {
        const THERE: usize = 3 * NOTIFY_BATCH;
        for (seed, leaves) in (0..THERE).flat_map(|a| [(a, 0), (a, 1), (a, NOTIFY_BATCH)]) {
            let (mut direction, mut left, mut called) = (of(0..THERE), THERE, Vec::new());
            let mut newcomer = THERE;
            while left > 0 {
                let batch = direction.take(left);
                called.extend_from_slice(&batch);
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
            let forgotten = (0..THERE).find(|who| !gone.contains(who) && !called.contains(who));
            assert_eq!(forgotten, None, "seed {seed}, {leaves}");
        }
    }
}
