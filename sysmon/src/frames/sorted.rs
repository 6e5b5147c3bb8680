//! Sorts and searches, fast even without optimization.
//!
//! The standard library makes some calls for every comparison, which a program's debug build does
//! not inline. This file uses plain loops.

/// Number of bits that one pass looks at.
const BITS: u32 = 11;

/// Sorts by key; equal entries keep their order.
pub(crate) fn sort<T: Copy>(list: &mut Vec<T>, key: impl Fn(&T) -> u64) {
    let mut keys = vec![0; list.len()];
    let mut different = 0;
    let (entries, filled) = (list.as_slice(), keys.as_mut_slice());
    let mut at = 0;
    while at < entries.len() {
        filled[at] = key(&entries[at]);
        different |= filled[at] ^ filled[0];
        at += 1;
    }
    let mut other = (list.clone(), keys.clone());
    let mut shift = 0;
    while shift < u64::BITS && different >> shift != 0 {
        if different >> shift & ((1 << BITS) - 1) != 0 {
            pass(list, &keys, &mut other.0, &mut other.1, shift);
            std::mem::swap(list, &mut other.0);
            std::mem::swap(&mut keys, &mut other.1);
        }
        shift += BITS;
    }
}

/// Returns the index of the first entry of a sorted list that is not below a number.
pub(crate) fn first_from(list: &[usize], number: usize) -> usize {
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = (low + high) / 2;
        if list[middle] < number {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the index of a number in a sorted list.
pub(crate) fn index_of(list: &[usize], number: usize) -> Option<usize> {
    let index = first_from(list, number);
    (index < list.len() && list[index] == number).then_some(index)
}

/// Copies a list in the order of some bits of its keys.
fn pass<T: Copy>(from: &[T], keys: &[u64], to: &mut [T], to_keys: &mut [u64], shift: u32) {
    const MASK: usize = (1 << BITS) - 1;
    let mut places = [0_usize; MASK + 2];
    let mut at = 0;
    while at < keys.len() {
        places[(keys[at] >> shift) as usize % (MASK + 1) + 1] += 1;
        at += 1;
    }
    at = 1;
    while at <= MASK {
        places[at] += places[at - 1];
        at += 1;
    }
    at = 0;
    while at < keys.len() {
        let digit = (keys[at] >> shift) as usize % (MASK + 1);
        to[places[digit]] = from[at];
        to_keys[places[digit]] = keys[at];
        places[digit] += 1;
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_sorted_list_is_found() {
        let list = [2, 3, 5, 5, 9];
        assert_eq!(
            [0, 2, 4, 5, 9, 10].map(|n| first_from(&list, n)),
            [0, 0, 2, 2, 4, 5]
        );
        assert_eq!(
            [2, 4, 9, 10].map(|n| index_of(&list, n)),
            [Some(0), None, Some(4), None]
        );
        assert_eq!(index_of(&[], 1), None);
    }

    #[test]
    fn it_sorts_like_the_standard_library_and_keeps_the_order_of_equals() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 20
        };
        for bits in [0, 1, 10, 11, 12, 33, 64] {
            for length in [0, 1, 2, 1000] {
                let cut = |n: u64| if bits == 0 { 7 } else { n << 20 >> (64 - bits) };
                let mut list: Vec<(u64, u32)> = (0..length).map(|i| (cut(random()), i)).collect();
                let mut expected = list.clone();
                expected.sort_by_key(|entry| entry.0);
                sort(&mut list, |entry| entry.0);
                assert_eq!(list, expected, "{bits} bits");
            }
        }
    }
}
