#![expect(
    unsafe_code,
    reason = "intrusive links: members are borrowed by pointer while they are in"
)]
//! A first-in first-out list threaded through its members: pushing allocates nothing.
//!
//! A member is in at most one list at a time (here or in an [`Inbox`](super::inbox::Inbox)). The
//! thread that pushes it gives up every other right to its link until it is popped.

use std::ptr::{self, NonNull};

use crate::util::loom::atomic::{AtomicPtr, Ordering::Relaxed};

/// A type with room for one link.
///
/// # Safety
/// `link` returns the same atomic each time, and nothing but the lists of this crate writes it
/// while the value is in one of them.
pub(crate) unsafe trait Linked: Sized {
    fn link(&self) -> &AtomicPtr<Self>;
}

pub(crate) struct List<T: Linked> {
    head: *mut T,
    tail: *mut T,
    len: usize,
}

// SAFETY: the list owns the right to its members (see the header), so moving it to another thread
// moves that right along; members are only handed out by `pop`, as pointers.
unsafe impl<T: Linked> Send for List<T> {}

impl<T: Linked> List<T> {
    pub(crate) const fn new() -> Self {
        List {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// # Safety
    /// `member` stays valid while it is in the list and is in no other list.
    pub(crate) unsafe fn push(&mut self, member: NonNull<T>) {
        // SAFETY: valid by the caller's promise.
        unsafe { member.as_ref() }
            .link()
            .store(ptr::null_mut(), Relaxed);
        match NonNull::new(self.tail) {
            None => self.head = member.as_ptr(),
            // SAFETY: the tail is a member, so its pusher promised that it is valid.
            Some(tail) => unsafe { tail.as_ref() }
                .link()
                .store(member.as_ptr(), Relaxed),
        }
        self.tail = member.as_ptr();
        self.len += 1;
    }

    /// Pushes a member that will be the next to be popped.
    ///
    /// # Safety
    /// As for `push`.
    pub(crate) unsafe fn push_front(&mut self, member: NonNull<T>) {
        // SAFETY: valid by the caller's promise.
        unsafe { member.as_ref() }.link().store(self.head, Relaxed);
        self.head = member.as_ptr();
        if self.tail.is_null() {
            self.tail = self.head;
        }
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<NonNull<T>> {
        let member = NonNull::new(self.head)?;
        // SAFETY: a member, valid by its pusher's promise.
        self.head = unsafe { member.as_ref() }.link().load(Relaxed);
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        }
        self.len -= 1;
        Some(member)
    }

    /// Moves all of `other` behind the members of this list.
    pub(crate) fn append(&mut self, other: List<T>) {
        if other.is_empty() {
            return;
        }
        match NonNull::new(self.tail) {
            None => self.head = other.head,
            // SAFETY: the tail is a member, so its pusher promised that it is valid.
            Some(tail) => unsafe { tail.as_ref() }.link().store(other.head, Relaxed),
        }
        self.tail = other.tail;
        self.len += other.len;
    }
}
