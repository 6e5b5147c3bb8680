//! Which functions may have been left with the address of a thread-local.
//!
//! For the runtime's second look at a stack whose frames are movable: where no function that the
//! outermost one leads to has an address at all, there is nothing to look for. These are the
//! functions that have one, if only between two instructions (`escapes`), all that lead to those, and
//! all that call through a pointer which may lead to one of them, whatever was found of what those
//! leave behind. Functions on a list of harmless ones have nothing left when they return, so their
//! callers are not among these.

use super::Judge;
use super::graph::{Graph, Listed, Pointers};

impl Judge {
    /// Whether a call of the function that begins at this address may have left the address of a
    /// thread-local behind, as far as that is known. Only where
    /// [`assumes_own_thread_locals`](Judge::assumes_own_thread_locals); else true.
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

/// All functions that lead to one of those that have addresses.
pub(super) fn all(
    graph: &Graph,
    having: &[u32],
    calling_pointers: &[u32],
    pointers: &impl Pointers,
    listed: impl Fn(u32) -> Listed,
) -> Vec<u32> {
    let near = graph.all_leading_to(having, &listed);
    if !near.iter().any(|&node| pointers.lead_to(graph, node)) {
        return near;
    }
    let calling = calling_pointers.iter().copied();
    let calling = calling.filter(|&node| listed(node) != Listed::Runtime);
    let ends: Vec<u32> = having.iter().copied().chain(calling).collect();
    graph.all_leading_to(&ends, listed)
}

#[cfg(test)]
mod tests {
    use super::super::How;
    use super::*;

    struct To(u32);

    impl Pointers for To {
        fn lead_to(&self, _: &Graph, node: u32) -> bool {
            node == self.0
        }
        fn are_private_to(&self, _: &Graph, _: u32) -> bool {
            false
        }
    }

    /// 0 calls 1, which has an address; 2 calls 3, which calls through a pointer.
    fn near(pointer: u32, runtime: u32) -> Vec<u32> {
        let mut graph = Graph::default();
        graph.add(0, 1, How::Call);
        graph.add(2, 3, How::Call);
        graph.sort(4);
        let listed = |node| match node == runtime {
            true => Listed::Runtime,
            false => Listed::Nowhere,
        };
        let none = std::iter::empty();
        let pointers = To(pointer);
        graph.settle([false; 4].into_iter(), none, listed, &pointers);
        let mut near = all(&graph, &[1], &[3], &pointers, listed);
        near.sort_unstable();
        near
    }

    #[test]
    fn pointers_count_if_they_lead_to_a_function_that_has_an_address() {
        assert_eq!(near(2, 9), [0, 1]);
        assert_eq!(near(0, 9), [0, 1, 2, 3]);
        assert_eq!(near(0, 3), [0, 1], "the runtime's own calls leave nothing");
    }
}
