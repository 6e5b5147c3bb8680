#![expect(unsafe_code, reason = "calls C")]
//! C code: it does not know fibers, calls back, holds the loader's lock, or returns only after
//! long.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind};
use std::time::Duration;

use super::Program;
use crate::noise::{bytes, checksum, compute_for, mix, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("qsort", "C sorts and asks Rust which is less", qsort).pure(),
    Program::new(
        "loader-lock",
        "a slow callback under the loader's lock while others panic",
        loader_lock,
    )
    .unwinds(),
    Program::new("compressor", "long calls into zlib", compressor).pure(),
    Program::new(
        "libc-loops",
        "sixteen fibers hardly ever outside libc and zlib",
        libc_loops,
    ),
];

const FIBERS: usize = 6;

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: `qsort` passes pointers to elements of the array, which are numbers.
    let a = unsafe { *a.cast::<u64>() };
    // SAFETY: as above.
    let b = unsafe { *b.cast::<u64>() };
    (a % 1000).cmp(&(b % 1000)).then(a.cmp(&b)) as c_int
}

fn qsort(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, sorted_by_c);
}

fn sorted_by_c(seed: u64) -> u64 {
    let mut numbers: Vec<u64> = (0..10_000).map(|i| stir(seed + i)).collect();
    let (start, count) = (numbers.as_mut_ptr().cast(), numbers.len());
    // SAFETY: the array has that many numbers, and the function compares two.
    unsafe { libc::qsort(start, count, size_of::<u64>(), Some(compare)) };
    numbers.iter().fold(seed, |sum, &number| mix(sum, number))
}

/// Counts objects, slowly.
///
/// # Safety
/// `data` points to a counter.
unsafe extern "C" fn count(_: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    compute_for(Duration::from_micros(700));
    // SAFETY: the caller's promise.
    unsafe { *data.cast::<u64>() += 1 };
    0
}

fn objects() -> u64 {
    let mut number = 0_u64;
    // SAFETY: the callback gets the counter it wants.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut number).cast()) };
    number
}

fn loader_lock(stage: &'static Stage) {
    let expected = objects();
    stage.crew(FIBERS, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            if i % 2 == 0 {
                stage.same("the number of objects", objects(), expected);
            } else {
                let result = catch_unwind(|| {
                    drop(black_box(std::backtrace::Backtrace::force_capture()));
                    resume_unwind(Box::new(turn))
                });
                let payload = result.err().and_then(|payload| payload.downcast().ok());
                stage.same("a payload", payload, Some(Box::new(turn)));
            }
        }
    });
}

/// Compresses and decompresses, by one call each.
fn squeeze(data: &[u8], level: c_int) -> (Vec<u8>, Vec<u8>) {
    // SAFETY: a pure function of a number.
    let most = unsafe { libz_sys::compressBound(data.len() as libz_sys::uLong) };
    let (mut small, mut length) = (vec![0; most as usize], most);
    // SAFETY: there is room for `length` bytes, and there are as many bytes to read as the call
    // says.
    let status = unsafe {
        libz_sys::compress2(
            small.as_mut_ptr(),
            &mut length,
            data.as_ptr(),
            data.len() as _,
            level,
        )
    };
    assert_eq!(status, libz_sys::Z_OK, "zlib");
    small.truncate(length as usize);
    let (mut back, mut length) = (vec![0; data.len()], data.len() as libz_sys::uLong);
    // SAFETY: as above.
    let status = unsafe {
        libz_sys::uncompress(
            back.as_mut_ptr(),
            &mut length,
            small.as_ptr(),
            small.len() as _,
        )
    };
    assert_eq!(
        (status, length as usize),
        (libz_sys::Z_OK, data.len()),
        "zlib"
    );
    (small, back)
}

fn compressor(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, compressed);
}

pub(super) fn compressed(seed: u64) -> u64 {
    let data = bytes(seed, 200_000);
    let (small, back) = squeeze(&data, 9);
    mix(checksum(&small), u64::from(back == data))
}

/// Runs fibers a third of which copy, a third use `malloc`, and a third compress.
fn libc_loops(stage: &'static Stage) {
    stage.crew(16, move |i| {
        let data = bytes(i as u64, 1 << 18);
        let mut copy = vec![0; data.len()];
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            match i % 3 {
                0 => {
                    copy.fill(0);
                    (0..40).for_each(|_| black_box(&mut copy).copy_from_slice(&data));
                    stage.same("a copy", copy == data, true);
                }
                1 => stage.same("memory of malloc", (0..2_000).all(malloced), true),
                _ => {
                    let (_, back) = squeeze(&data[..1 << 15], 6);
                    stage.same("a text after zlib", back == data[..1 << 15], true);
                }
            }
        }
    });
}

/// Takes a block from C's allocator, fills it, checks it and frees it.
fn malloced(number: usize) -> bool {
    let size = 16 + stir(number as u64) as usize % 3_000;
    // SAFETY: any size is allowed.
    let block = unsafe { libc::malloc(size) };
    assert!(!block.is_null(), "no memory");
    // SAFETY: a block of that size, owned by this function.
    unsafe { libc::memset(block, number as c_int & 0x7f, size) };
    // SAFETY: the last byte of the block.
    let last = unsafe { block.cast::<u8>().add(size - 1) };
    // SAFETY: within the block, which was just filled.
    let last = unsafe { *last };
    // SAFETY: from `malloc`, and not used afterwards.
    unsafe { libc::free(block) };
    usize::from(last) == number & 0x7f
}
