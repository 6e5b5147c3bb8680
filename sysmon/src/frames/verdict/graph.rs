//! The graph of which function leads to which, and which functions are bound by that.
//!
//! A function that ends with a jump into another function leaves its frame to it: nothing remains
//! of its frame, but what it held may have been passed on. If it was itself called through a
//! pointer, no remaining frame refers to it. So a *frame* also counts as all functions that may
//! have jumped to it, and as those that may have jumped to those. As a callee it does not.
//!
//! The list that a node is on is computed only where the search reaches the node: names are
//! expensive to produce.

use super::{How, Mobility};
use crate::frames::sorted;

/// No next step: the node is bound by itself, or not at all.
const NOBODY: u32 = u32::MAX;
/// Shift of the edge kind, which the upper bits of an edge's end hold.
const SHIFT: u32 = 30;

/// Which list a node is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Nowhere,
    /// As a callee, it contributes nothing.
    Harmless,
    /// The same; as a frame, it counts with its own instructions only.
    Runtime,
}

/// Answers questions about calls through pointers.
pub(super) trait Pointers {
    /// Whether a call through a pointer may lead to a function.
    fn lead_to(&self, graph: &Graph, node: u32) -> bool;
}

/// Edges between nodes, and once settled, which nodes are bound.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Start node, and end node with the kind of edge.
    edges: Vec<(u32, u32)>,
    /// Index of the first edge that leads to each node.
    first: Vec<u32>,
    /// Whether nodes are bound as callees.
    bound: Vec<bool>,
    /// The next node towards what binds this node.
    next: Vec<u32>,
    /// Jumps: start node and end node.
    jumps: Vec<(u32, u32)>,
    /// Whether nodes are bound as frames.
    frames: Vec<bool>,
    /// The function whose place a frame may have taken, if only that binds it.
    instead: Vec<u32>,
    /// Functions that call through a pointer.
    through_pointer: Vec<u32>,
    /// A function that a pointer may lead to and that is bound as a callee.
    behind_pointer: Option<u32>,
}

impl Graph {
    pub(super) fn add(&mut self, from: u32, to: u32, how: How) {
        let edge = (from, to | (how as u32) << SHIFT);
        if from != to && self.edges.last() != Some(&edge) {
            self.edges.push(edge);
        }
    }

    /// Records that a function calls through a pointer that cannot be followed.
    pub(super) fn add_through_pointer(&mut self, from: u32) {
        self.through_pointer.push(from);
    }

    /// Records that the first function may leave its frame to the second.
    pub(super) fn add_jump(&mut self, from: u32, to: u32) {
        if from != to && self.jumps.last() != Some(&(from, to)) {
            self.jumps.push((from, to));
        }
    }

    /// Returns the function that binds all functions that call through a pointer, if any.
    pub(super) fn behind_pointer(&self) -> Option<u32> {
        self.behind_pointer
    }

    /// Returns the verdict on the node as a frame.
    pub(super) fn mobility(&self, node: u32) -> Mobility {
        match self.frames[node as usize] {
            true => Mobility::Bound,
            false => Mobility::Movable,
        }
    }

    /// Returns the function whose place the frame may have taken, if that is why it is bound.
    pub(super) fn instead_of(&self, node: u32) -> Option<u32> {
        let instead = self.instead[node as usize];
        (instead != NOBODY).then_some(instead)
    }

    pub(super) fn edges(&self) -> usize {
        self.edges.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.edges.capacity() * size_of::<(u32, u32)>()
            + self.first.capacity() * 4
            + self.next.capacity() * 4
            + self.bound.capacity()
            + self.frames.capacity()
            + self.instead.capacity() * 4
    }

    /// Returns the nodes that lead directly to a node.
    pub(super) fn leading_to(&self, node: u32) -> impl Iterator<Item = u32> {
        self.into(node).iter().map(|edge| edge.0)
    }

    /// Returns the nodes that lead directly to a node, each with the kind of edge.
    pub(super) fn leading_there(&self, node: u32) -> impl Iterator<Item = (u32, How)> {
        self.into(node).iter().map(|edge| (edge.0, how(edge.1)))
    }

    /// Returns the functions that call this one, or jump to it.
    pub(super) fn calling(&self, node: u32) -> impl Iterator<Item = u32> {
        let edges = self.leading_there(node);
        edges.filter(|edge| edge.1 != How::Refer).map(|edge| edge.0)
    }

    /// Returns the nodes that take the address of a function.
    pub(super) fn referring(&self, node: u32) -> impl Iterator<Item = u32> {
        let edges = self.leading_there(node);
        edges.filter(|edge| edge.1 == How::Refer).map(|edge| edge.0)
    }

    /// Returns the next node towards what binds, and the kind of edge; no kind if by a pointer.
    pub(super) fn next(&self, node: u32) -> Option<(u32, Option<How>)> {
        let next = self.next[node as usize];
        if next == NOBODY {
            return None;
        }
        let into = self.into(next).iter();
        let mut edges = into.filter(|edge| edge.0 == node);
        Some((next, edges.next().map(|edge| how(edge.1))))
    }

    fn into(&self, node: u32) -> &[(u32, u32)] {
        let node = node as usize;
        &self.edges[self.first[node] as usize..self.first[node + 1] as usize]
    }

    /// Propagates backwards, along all edges, which nodes are bound by themselves.
    ///
    /// Sorts the edges. Nodes that are `held` are bound as frames only. Returns how many nodes were
    /// on a list.
    pub(super) fn settle<P: Pointers>(
        &mut self,
        own: impl Iterator<Item = bool>,
        held: impl Iterator<Item = u32>,
        listed: impl Fn(u32) -> Listed,
        pointers: &P,
    ) -> usize {
        self.bound = own.collect();
        let nodes = self.bound.len();
        self.next = vec![NOBODY; nodes];
        let mut lists = Lists {
            known: vec![None; nodes],
            listed,
        };
        let bound = |&node: &u32| self.bound[node as usize];
        let all = (0..nodes as u32).filter(bound).collect();
        self.spread(all, &mut lists, pointers);
        self.pass_on_frames(held, &mut lists);
        let exempt = |list: &&Option<Listed>| !matches!(list, None | Some(Listed::Nowhere));
        lists.known.iter().filter(exempt).count()
    }

    /// Returns these nodes and all that lead to them, by the rules for callees.
    ///
    /// Valid once the graph is settled.
    pub(super) fn all_leading_to(&self, ends: &[u32], listed: impl Fn(u32) -> Listed) -> Vec<u32> {
        let mut seen = vec![false; self.bound.len()];
        let mut found: Vec<u32> = ends.to_vec();
        found.sort_unstable();
        found.dedup();
        found.iter().for_each(|&node| seen[node as usize] = true);
        let mut done = 0;
        while let Some(&node) = found.get(done) {
            done += 1;
            if listed(node) != Listed::Nowhere {
                continue; // contributes nothing as a callee
            }
            for from in self.leading_to(node) {
                if !std::mem::replace(&mut seen[from as usize], true) {
                    found.push(from);
                }
            }
        }
        found
    }

    /// Binds frames whose place was left to them by a bound function's jump.
    fn pass_on_frames(
        &mut self,
        held: impl Iterator<Item = u32>,
        lists: &mut Lists<impl Fn(u32) -> Listed>,
    ) {
        self.frames = self.bound.clone();
        held.for_each(|node| self.frames[node as usize] = true);
        self.instead = vec![NOBODY; self.frames.len()];
        let mut jumps = std::mem::take(&mut self.jumps);
        jumps.sort_unstable();
        jumps.dedup();
        let mut changed = true;
        while changed {
            changed = false;
            for &(from, to) in &jumps {
                let passed = self.frames[from as usize] && !self.frames[to as usize];
                if passed && lists.ask(to) != Listed::Runtime {
                    self.frames[to as usize] = true;
                    self.instead[to as usize] = from;
                    changed = true;
                }
            }
        }
    }

    /// Sorts the edges, once all of them are there.
    pub(super) fn sort(&mut self, nodes: usize) {
        let width = usize::BITS - nodes.leading_zeros(); // of the number of a node
        // Sorted by end without the kind, then by start, then by kind.
        sorted::sort(&mut self.edges, |&(from, to)| {
            let end = u64::from(to & !(3 << SHIFT));
            end << (width + 2) | u64::from(from) << 2 | u64::from(to >> SHIFT)
        });
        self.edges.dedup();
        self.edges.shrink_to_fit();
        self.first = vec![0; nodes + 1];
        for edge in &self.edges {
            self.first[(edge.1 & !(3 << SHIFT)) as usize + 1] += 1;
        }
        for node in 0..nodes {
            self.first[node + 1] += self.first[node];
        }
    }

    /// Walks from these bound nodes to the nodes that lead there, nearest first.
    fn spread(
        &mut self,
        bound: Vec<u32>,
        lists: &mut Lists<impl Fn(u32) -> Listed>,
        pointers: &impl Pointers,
    ) {
        let mut queue = bound;
        let mut done = 0;
        while let Some(&node) = queue.get(done) {
            done += 1;
            if lists.ask(node) != Listed::Nowhere {
                continue; // contributes nothing as a callee
            }
            let into = self.first[node as usize] as usize..self.first[node as usize + 1] as usize;
            for edge in into {
                let from = self.edges[edge].0;
                self.reach(from, node, lists, &mut queue);
            }
            let asked = self.behind_pointer.is_none() && !self.through_pointer.is_empty();
            if asked && pointers.lead_to(self, node) {
                self.behind_pointer = Some(node);
                for caller in std::mem::take(&mut self.through_pointer) {
                    self.reach(caller, node, lists, &mut queue);
                }
            }
        }
    }

    /// Handles a node that leads to one that is bound as a callee.
    fn reach(
        &mut self,
        from: u32,
        to: u32,
        lists: &mut Lists<impl Fn(u32) -> Listed>,
        queue: &mut Vec<u32>,
    ) {
        if !self.bound[from as usize] && lists.ask(from) != Listed::Runtime {
            self.bound[from as usize] = true;
            self.next[from as usize] = to;
            queue.push(from);
        }
    }
}

/// The list that each node is on, as far as computed.
struct Lists<F> {
    known: Vec<Option<Listed>>,
    listed: F,
}

impl<F: Fn(u32) -> Listed> Lists<F> {
    fn ask(&mut self, node: u32) -> Listed {
        *self.known[node as usize].get_or_insert_with(|| (self.listed)(node))
    }
}

fn how(end: u32) -> How {
    match end >> SHIFT {
        0 => How::Call,
        1 => How::Jump,
        _ => How::Refer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    struct Nowhere;

    impl Pointers for Nowhere {
        fn lead_to(&self, _: &Graph, _: u32) -> bool {
            false
        }
    }

    struct To(u32);

    impl Pointers for To {
        fn lead_to(&self, _: &Graph, node: u32) -> bool {
            node == self.0
        }
    }

    const MOVABLE: bool = false;
    const BOUND: bool = true;

    fn settled(edges: &[(u32, u32)], own: &[bool], harmless: &[u32], runtime: &[u32]) -> Graph {
        let mut graph = Graph::default();
        for &(from, to) in edges {
            graph.add(from, to, How::Call);
        }
        let held = std::iter::empty();
        graph.sort(own.len());
        graph.settle(
            own.iter().copied(),
            held,
            |node| match node {
                _ if harmless.contains(&node) => Listed::Harmless,
                _ if runtime.contains(&node) => Listed::Runtime,
                _ => Listed::Nowhere,
            },
            &Nowhere,
        );
        graph
    }

    #[test]
    fn what_is_touched_counts_for_all_that_lead_there() {
        let graph = settled(
            &[(0, 1), (1, 2), (3, 0)],
            &[MOVABLE, MOVABLE, BOUND, MOVABLE],
            &[],
            &[],
        );
        assert_eq!(graph.bound, [BOUND; 4]);
        assert_eq!(graph.next(3), Some((0, Some(How::Call))));
        assert_eq!(graph.next(2), None);
    }

    #[test]
    fn the_search_ends_at_a_harmless_function_but_its_own_frame_counts() {
        let graph = settled(&[(0, 1), (1, 2)], &[MOVABLE, MOVABLE, BOUND], &[1], &[]);
        assert_eq!(graph.bound, [MOVABLE, BOUND, BOUND]);
    }

    #[test]
    fn what_is_held_binds_the_frame_and_those_it_was_left_to_but_no_caller() {
        let mut graph = Graph::default();
        graph.add(0, 1, How::Call);
        graph.add(1, 2, How::Jump);
        graph.add_jump(1, 2);
        let own = [MOVABLE; 3].into_iter();
        graph.sort(3);
        graph.settle(own, [1].into_iter(), |_| Listed::Nowhere, &Nowhere);
        let frames = [0, 1, 2].map(|node| graph.mobility(node));
        assert_eq!(
            frames,
            [Mobility::Movable, Mobility::Bound, Mobility::Bound]
        );
    }

    #[test]
    fn a_function_of_the_runtime_counts_with_its_own_instructions_only() {
        let graph = settled(
            &[(0, 1), (1, 2), (3, 4)],
            &[MOVABLE, MOVABLE, BOUND, BOUND, MOVABLE],
            &[],
            &[1, 3],
        );
        assert_eq!(graph.bound, [MOVABLE, MOVABLE, BOUND, BOUND, MOVABLE]);
    }

    #[test]
    fn what_leads_to_an_end_is_found_but_not_through_a_harmless_function() {
        let edges = [(0, 1), (1, 0), (1, 2), (4, 3), (3, 2), (5, 6)];
        let graph = settled(&edges, &[MOVABLE; 7], &[], &[]);
        let harmless = |node| match node {
            3 => Listed::Harmless,
            _ => Listed::Nowhere,
        };
        let mut found = graph.all_leading_to(&[2, 2], harmless);
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3]);
    }

    #[test]
    fn a_circle_is_bound_if_one_of_it_leads_to_what_is_touched() {
        let edges = [(0, 1), (1, 0), (1, 2), (0, 3)];
        let graph = settled(&edges, &[MOVABLE, MOVABLE, MOVABLE, BOUND], &[], &[]);
        assert_eq!(graph.bound, [BOUND, BOUND, MOVABLE, BOUND]);
        assert_eq!(graph.next(1), Some((0, Some(How::Call))));
    }

    #[test]
    fn who_calls_through_a_pointer_is_bound_by_any_bound_function_it_may_lead_to() {
        let bound_by = |target: u32| {
            let mut graph = Graph::default();
            graph.add(0, 1, How::Call);
            graph.add_through_pointer(1);
            graph.add(4, 2, How::Refer);
            graph.add(4, 3, How::Refer);
            graph.sort(5);
            let own = [MOVABLE, MOVABLE, BOUND, MOVABLE, MOVABLE].into_iter();
            let held = std::iter::empty();
            graph.settle(own, held, |_| Listed::Nowhere, &To(target));
            (graph.bound.clone(), graph.next(1), graph.behind_pointer())
        };
        let (bound, next, behind) = bound_by(2);
        assert_eq!(bound, [BOUND, BOUND, BOUND, MOVABLE, BOUND]);
        assert_eq!((next, behind), (Some((2, None)), Some(2)));
        let (bound, _, behind) = bound_by(3); // which is not bound
        assert_eq!(bound, [MOVABLE, MOVABLE, BOUND, MOVABLE, BOUND]);
        assert_eq!(behind, None);
    }
}
