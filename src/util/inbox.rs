#![expect(
    unsafe_code,
    reason = "intrusive links: members are borrowed by pointer while they are in"
)]
//! A mailbox: any thread posts, without locks or allocation; the owner takes everything at once.
//!
//! Posting pushes on a stack (Treiber); taking swaps the whole stack out and reverses it, so
//! members come out in the order they went in. Members are never popped singly, so a member that
//! leaves and comes back during a post (ABA) does no harm: `post` only needs `head` to be what it
//! linked to.
//!
//! The post is sequentially consistent: what follows it (reading whether the owner sleeps) pairs
//! with the owner's "announce sleep, then look here" (`docs/wake-and-sleep.md`).

use std::ptr::{self, NonNull};

use crate::util::list::{Linked, List};
use crate::util::loom::atomic::{
    AtomicPtr,
    Ordering::{Relaxed, SeqCst},
};

pub(crate) struct Inbox<T: Linked> {
    head: AtomicPtr<T>,
}

impl<T: Linked> Inbox<T> {
    pub(crate) fn new() -> Self {
        Inbox {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// # Safety
    /// `member` stays valid until it is taken and is in no list.
    pub(crate) unsafe fn post(&self, member: NonNull<T>) {
        let mut head = self.head.load(Relaxed);
        loop {
            // SAFETY: valid and ours by the caller's promise, until the exchange below succeeds.
            unsafe { member.as_ref() }.link().store(head, Relaxed);
            match self
                .head
                .compare_exchange_weak(head, member.as_ptr(), SeqCst, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(SeqCst).is_null()
    }

    /// Takes everything posted so far, oldest first. Preemption must be disabled on a fiber's
    /// thread (S6): no other thread can reach the members meanwhile.
    #[track_caller]
    pub(crate) fn take(&self) -> List<T> {
        crate::util::preempt_check::expect_disabled();
        let mut list = List::new();
        if self.head.load(Relaxed).is_null() {
            return list;
        }
        let mut newest = self.head.swap(ptr::null_mut(), SeqCst);
        let mut oldest: *mut T = ptr::null_mut();
        while let Some(member) = NonNull::new(newest) {
            // SAFETY: members are valid until taken, and the swap made them ours.
            let link = unsafe { member.as_ref() }.link();
            newest = link.load(Relaxed);
            link.store(oldest, Relaxed);
            oldest = member.as_ptr();
        }
        while let Some(member) = NonNull::new(oldest) {
            // SAFETY: as above.
            oldest = unsafe { member.as_ref() }.link().load(Relaxed);
            // SAFETY: ours, and its old link is already read.
            unsafe { list.push(member) };
        }
        list
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    struct Node {
        value: usize,
        link: AtomicPtr<Node>,
    }

    // SAFETY: the field is written by the lists alone.
    unsafe impl Linked for Node {
        fn link(&self) -> &AtomicPtr<Self> {
            &self.link
        }
    }

    fn post(inbox: &Inbox<Node>, value: usize) {
        let node = Box::new(Node {
            value,
            link: AtomicPtr::new(ptr::null_mut()),
        });
        // SAFETY: freed by `drain` only, after it was taken.
        unsafe { inbox.post(NonNull::from(Box::leak(node))) };
    }

    fn drain(inbox: &Inbox<Node>, into: &mut Vec<usize>) {
        let mut list = inbox.take();
        while let Some(node) = list.pop() {
            // SAFETY: leaked by `post`, taken once.
            into.push(unsafe { Box::from_raw(node.as_ptr()) }.value);
        }
    }

    #[test]
    fn loom_every_post_is_taken_once_and_in_order() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            let posters: Vec<_> = [[1, 2], [11, 12]]
                .map(|values| {
                    let inbox = inbox.clone();
                    loom::thread::spawn(move || values.map(|v| post(&inbox, v)))
                })
                .into();
            let mut got = Vec::new();
            drain(&inbox, &mut got);
            for poster in posters {
                poster.join().unwrap();
            }
            drain(&inbox, &mut got);
            assert_eq!(got.iter().sum::<usize>(), 26, "{got:?}");
            for pair in [[1, 2], [11, 12]] {
                let at = pair.map(|v| got.iter().position(|&g| g == v).unwrap());
                assert!(at[0] < at[1], "{got:?}");
            }
        });
    }
}
