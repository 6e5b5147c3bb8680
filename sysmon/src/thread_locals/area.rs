#![expect(unsafe_code, reason = "reads a number of the C library's")]
//! Where a thread keeps the thread-locals of the executable.
//!
//! The area lies right below the thread pointer, above the areas of other objects; at the thread
//! pointer begins the thread's control block. The C library's own thread-locals are not part of the
//! area: `malloc` and others leave their addresses on every stack, and they hold nothing that is
//! exchanged when a fiber changes threads.

use std::ops::Range;

use super::ThreadLocals;
use crate::frames::objects;

/// Bytes of a thread's control block, if the C library does not report its size.
const CONTROL_BLOCK: usize = 2304;
/// Plausible sizes; others are ignored.
const BELIEVED: Range<usize> = 64..16_384;

impl ThreadLocals {
    /// Returns the memory that every thread has for these thread-locals and its control block.
    ///
    /// The range is in bytes from the thread pointer.
    ///
    /// ```
    /// use indent_sysmon::thread_locals::ThreadLocals;
    ///
    /// let all = ThreadLocals::of_executable().unwrap();
    /// let area = all.area();
    /// let inside = |range: &std::ops::Range<isize>| area.start <= range.start && range.end <= 0;
    /// assert!(all.variables.iter().all(|v| inside(&v.range)) && area.end > 0);
    /// ```
    pub fn area(&self) -> Range<isize> {
        self.tls.offset() as isize..control_block() as isize
    }
}

/// Returns the size of a thread's control block; glibc has a variable for debuggers.
fn control_block() -> usize {
    let size = objects::find("_thread_db_sizeof_pthread");
    let size = size.map(std::ptr::with_exposed_provenance::<u32>);
    // SAFETY: a number of that size in the C library, which is never written to or unloaded.
    let size = size.map(|size| unsafe { *size } as usize);
    size.filter(|size| BELIEVED.contains(size))
        .unwrap_or(CONTROL_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local!(static MINE: Cell<u8> = const { Cell::new(0) });

    #[test]
    fn thread_locals_and_the_control_block_are_inside_on_every_thread() {
        let all = ThreadLocals::of_executable().expect("tests have symbols");
        let area = all.area();
        let inside = move || {
            // SAFETY: asks for a number, which glibc makes of the address of the control block.
            let own = unsafe { libc::pthread_self() } as usize;
            let mine = MINE.with(|mine| std::ptr::from_ref(mine).addr());
            let from = |address: usize| address.wrapping_sub(own) as isize;
            area.contains(&from(mine)) && area.contains(&0)
        };
        assert!(inside());
        assert!(std::thread::spawn(inside).join().expect("no panic"));
    }
}
