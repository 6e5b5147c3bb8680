#![expect(unsafe_code, reason = "asks the loader")]
//! The address range of the program's code: of the executable, or of the shared library that this
//! crate is part of.
//!
//! An instruction elsewhere belongs to libc, the loader, the kernel's page, or a foreign library.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Queries the loader, once. Called before `contains`.
pub(crate) fn find() {
    if END.load(Relaxed) == 0 {
        // SAFETY: the callback has the type asked for and keeps nothing.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }
}

/// Whether this address is in the program's code. May be called in a signal handler.
pub(crate) fn contains(address: usize) -> bool {
    (START.load(Relaxed)..END.load(Relaxed)).contains(&address)
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: valid during the call.
    let info = unsafe { &*info };
    for i in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: there are `dlpi_phnum` headers.
        let header = unsafe { info.dlpi_phdr.add(i) };
        // SAFETY: as above.
        let header = unsafe { &*header };
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        let range = start..start + header.p_memsz as usize;
        let is_code = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        if is_code && range.contains(&(find as *const () as usize)) {
            START.store(range.start, Relaxed);
            END.store(range.end, Relaxed);
            return 1;
        }
    }
    0
}

/// Looks up a symbol in the objects after the one with this code; null if there is none.
#[inline(never)]
pub(crate) fn find_next(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: a string that ends; it is only looked for.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    #[test]
    fn our_code_is_the_programs_and_libcs_is_not() {
        super::find();
        assert!(super::contains(super::find as *const () as usize));
        let linked_in = cfg!(target_feature = "crt-static"); // part of the program
        assert_eq!(
            super::contains(libc::getppid as *const () as usize),
            linked_in
        );
        assert!(!super::contains(&raw const super::START as usize));
    }
}
