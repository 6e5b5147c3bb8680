#![expect(unsafe_code, reason = "slots that are full or not")]
//! A list with inline room for a few elements; only longer ones allocate.
//!
//! The length is known when the list is made, so its elements do not move afterwards.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr;

/// Elements that fit without an allocation.
const INSIDE: usize = 16;

pub(crate) struct Few<T> {
    inside: [MaybeUninit<T>; INSIDE],
    /// All elements, if there may be more than fit inside.
    outside: Vec<T>,
    /// Number of elements inside.
    len: usize,
    most: usize,
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn new(most: usize) -> Self {
        let outside = if most > INSIDE { most } else { 0 };
        Few {
            inside: [const { MaybeUninit::uninit() }; INSIDE],
            outside: Vec::with_capacity(outside),
            len: 0,
            most,
        }
    }

    fn is_inside(&self) -> bool {
        self.most <= INSIDE
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        if self.is_inside() {
            self.inside[self.len].write(value);
            self.len += 1;
        } else {
            assert!(self.outside.len() < self.most, "more than {}", self.most);
            self.outside.push(value);
        }
    }
}

impl<T: Copy> Few<T> {
    /// Removes all but one of equal neighbours.
    pub(crate) fn dedup_by(&mut self, same: impl Fn(&T, &T) -> bool) {
        let mut kept = 0;
        for at in 0..self.deref().len() {
            if at == 0 || !same(&self[at], &self[kept - 1]) {
                self[kept] = self[at];
                kept += 1;
            }
        }
        if self.is_inside() {
            self.len = kept;
        } else {
            self.outside.truncate(kept);
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if !self.is_inside() {
            return &self.outside;
        }
        let full = &self.inside[..self.len];
        // SAFETY: so many were written, and the layout is the same.
        unsafe { &*(ptr::from_ref(full) as *const [T]) }
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.is_inside() {
            return &mut self.outside;
        }
        let full = &mut self.inside[..self.len];
        // SAFETY: so many were written, and the layout is the same.
        unsafe { &mut *(ptr::from_mut(full) as *mut [T]) }
    }
}

impl<T> Drop for Few<T> {
    fn drop(&mut self) {
        let full: &mut [MaybeUninit<T>] = &mut self.inside[..self.len];
        // SAFETY: `len` elements were written, and no code uses them after this.
        unsafe { ptr::drop_in_place(ptr::from_mut(full) as *mut [T]) };
    }
}

#[cfg(test)]
mod tests {
    use super::Few;
    use std::rc::Rc;

    #[test]
    fn few_and_many_are_kept_in_order_and_dropped_once() {
        for n in [0, 1, 15, 16, 17, 100] {
            let one = Rc::new(());
            let mut few = Few::new(n);
            (0..n).for_each(|i| few.push((i, one.clone())));
            assert!(few.iter().map(|(i, _)| *i).eq(0..n));
            assert_eq!(Rc::strong_count(&one), n + 1);
            drop(few);
            assert_eq!(Rc::strong_count(&one), 1);
        }
    }

    #[test]
    fn of_equal_neighbours_one_stays() {
        for n in [8, 20] {
            let mut few = Few::new(n);
            (0..n).for_each(|i| few.push(i / 2));
            few.dedup_by(|a, b| a == b);
            assert!(few.iter().copied().eq(0..n / 2));
        }
    }
}
