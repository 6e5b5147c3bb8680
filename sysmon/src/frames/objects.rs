#![expect(unsafe_code, reason = "asks the loader, and reads what it mapped")]
//! Lists what is mapped: the executable and its libraries, as the loader reports them.
//!
//! A list is a snapshot. The loader counts what it ever loaded and unloaded ([`Census`]): as long
//! as those counts are unchanged, the list is valid; after that it is built again, and what is gone
//! is forgotten.
//!
//! `dl_iterate_phdr` takes the loader's lock, so only threads that may wait call it.

use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// How many objects the loader has loaded and unloaded since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) loaded: u64,
    pub(crate) unloaded: u64,
}

/// A part of an object that is mapped as one.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) range: Range<usize>,
    /// The end of the segment, which is not in the file.
    pub(crate) zeroed: Range<usize>,
    pub(crate) executable: bool,
    pub(crate) writable: bool,
}

/// The executable or a shared library.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Name that the loader has for it; empty for the executable.
    pub(crate) name: PathBuf,
    /// Offset to add to an address in the file.
    pub(crate) bias: usize,
    pub(crate) segments: Vec<Segment>,
    /// Written by the loader, then made read-only: slots of the GOT, vtables.
    pub(crate) relro: Option<Range<usize>>,
    /// `.eh_frame_hdr`.
    pub(crate) unwind: Option<Range<usize>>,
    /// `.dynamic`.
    pub(crate) dynamic: Option<Range<usize>>,
    pub(crate) tls: Option<Tls>,
}

/// The thread-locals of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tls {
    /// Address of their initial image, and how much of it is not zero.
    pub(crate) start: usize,
    pub(crate) filled: usize,
    /// Size in the memory of each thread.
    pub(crate) size: usize,
    pub(crate) align: usize,
}

impl Tls {
    /// Returns the offset from the thread pointer to the variables of an executable.
    pub(crate) fn offset(&self) -> i64 {
        let align = self.align.max(1);
        let padding = self.start.wrapping_neg().wrapping_sub(self.size) & (align - 1);
        -((self.size + padding) as i64)
    }
}

impl Object {
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments.iter().any(|s| s.range.contains(&address))
    }
}

/// All objects, the executable first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) census: Census,
    pub(crate) list: Vec<Object>,
}

impl Objects {
    /// Reads the list from the loader.
    pub(crate) fn now() -> Objects {
        let mut objects = Objects::default();
        // SAFETY: `note` gets this very pointer and returns before the call does.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut objects).cast()) };
        objects
    }

    /// Returns the object an address belongs to.
    pub(crate) fn at(&self, address: usize) -> Option<&Object> {
        self.list.iter().find(|object| object.contains(address))
    }
}

/// Called by the loader once for every object.
unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    objects: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: `Objects::now` passed it.
    let objects = unsafe { &mut *objects.cast::<Objects>() };
    // SAFETY: the loader's, for the time of this call.
    let info = unsafe { &*info };
    // SAFETY: the loader says how many there are, and they are mapped with the object.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: a string of the loader's.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let bias = info.dlpi_addr as usize;
    let mut object = Object {
        name: PathBuf::from(OsStr::from_bytes(name.to_bytes())),
        bias,
        segments: Vec::new(),
        relro: None,
        unwind: None,
        dynamic: None,
        tls: None,
    };
    for header in headers {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        let range = start..start.wrapping_add(header.p_memsz as usize);
        match header.p_type {
            libc::PT_LOAD => object.segments.push(Segment {
                zeroed: range.end.min(start.wrapping_add(header.p_filesz as usize))..range.end,
                range,
                executable: header.p_flags & libc::PF_X != 0,
                writable: header.p_flags & libc::PF_W != 0,
            }),
            libc::PT_GNU_RELRO => object.relro = Some(range),
            libc::PT_GNU_EH_FRAME => object.unwind = Some(range),
            libc::PT_DYNAMIC => object.dynamic = Some(range),
            libc::PT_TLS => {
                object.tls = Some(Tls {
                    start,
                    filled: header.p_filesz as usize,
                    size: range.len(),
                    align: header.p_align as usize,
                });
            }
            _ => {}
        }
    }
    objects.census = Census {
        loaded: info.dlpi_adds,
        unloaded: info.dlpi_subs,
    };
    objects.list.push(object);
    0
}

/// Returns the address that the loader would find for a name.
///
/// Used for a slot that it has not filled in yet.
#[inline(never)]
pub(crate) fn find(name: &str) -> Option<usize> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a string that ends; it is only looked for.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_comes_first_and_holds_this_function() {
        let objects = Objects::now();
        let here = the_executable_comes_first_and_holds_this_function as fn() as usize;
        assert!(objects.list[0].contains(here));
        assert!(objects.list[0].unwind.is_some());
        // SAFETY: a name that ends with a zero byte; the default search order.
        let libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) };
        let libc = objects.at(libc.addr());
        assert!(libc.is_some_and(|libc| !libc.contains(here)));
        assert!(objects.at(8).is_none());
    }
}
