//! Finds the functions that may still have the address of a thread-local.
//!
//! They serve the runtime's second look at a stack whose frames are movable: where no function that
//! the outermost one leads to has an address at all, there is nothing to look for. The set consists
//! of the functions that have an address, if only between two instructions (`escapes`), and all
//! functions that lead to those. Functions on a list of harmless functions have nothing left when
//! they return, so their callers are not in the set.
//!
//! If a pointer may lead to a function that leaves something of its thread behind, all functions
//! that call through pointers are bound (`pointers`), and no second look is needed. If they are not
//! bound, because the program vouches for its pointers, all functions that call through one are in
//! the set. Otherwise they are not: most functions of a program lead to such a call. So what
//! `pointers` does not see behind a pointer, the second look does not see either.

use super::Judge;
use super::graph::{Graph, Listed};

impl Judge {
    /// Whether a call of the function at this address may leave a thread-local's address behind.
    ///
    /// The address is where the function begins. The answer covers what is known, and only where
    /// [`assumes_own_thread_locals`](Judge::assumes_own_thread_locals) holds; otherwise it is true.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// let main = judge.find("main").unwrap();
    /// assert!(judge.nears_addresses(main)); // nothing is known
    /// ```
    pub fn nears_addresses(&self, function: usize) -> bool {
        !self.own_locals || self.near_addresses.binary_search(&function).is_ok()
    }
}

/// Returns all functions that lead to those that have addresses, or that are `calling`.
///
/// `calling` holds those that call through pointers which the program vouches for.
pub(super) fn all(
    graph: &Graph,
    having: &[u32],
    calling: &[u32],
    listed: impl Fn(u32) -> Listed,
) -> Vec<u32> {
    let calling = calling.iter().copied();
    let calling = calling.filter(|&node| listed(node) != Listed::Runtime);
    let ends: Vec<u32> = having.iter().copied().chain(calling).collect();
    graph.all_leading_to(&ends, listed)
}

#[cfg(test)]
mod tests {
    use super::super::How;
    use super::super::graph::Pointers;
    use super::*;

    struct Nowhere;

    impl Pointers for Nowhere {
        fn lead_to(&self, _: &Graph, _: u32) -> bool {
            false
        }
    }

    /// Function 0 calls 1, which has an address; 2 calls 3, which calls through a pointer.
    fn near(calling: &[u32], runtime: u32) -> Vec<u32> {
        let mut graph = Graph::default();
        graph.add(0, 1, How::Call);
        graph.add(2, 3, How::Call);
        graph.sort(4);
        let listed = |node| match node == runtime {
            true => Listed::Runtime,
            false => Listed::Nowhere,
        };
        let none = std::iter::empty();
        graph.settle([false; 4].into_iter(), none, listed, &Nowhere);
        let mut near = all(&graph, &[1], calling, listed);
        near.sort_unstable();
        near
    }

    #[test]
    fn who_leads_to_an_address_or_to_a_vouched_pointer_nears_addresses() {
        assert_eq!(near(&[], 9), [0, 1]);
        assert_eq!(near(&[3], 9), [0, 1, 2, 3]);
        assert_eq!(
            near(&[3], 3),
            [0, 1],
            "the runtime's own calls leave nothing"
        );
    }
}
