#![expect(unsafe_code, reason = "installs a filter of system calls")]
//! A seccomp filter by which one system call fails.

use std::ffi::{c_int, c_long};
use std::io;

/// Whose calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub(crate) enum Whose {
    /// Those of the calling thread, and of threads and processes it starts from now on.
    CallersOnly,
    /// Those of all threads of the process.
    AllThreads,
}

/// Makes a system call fail with `errno` from now on, always or with this first argument only.
///
/// # Errors
/// The system does not let this process install a filter.
pub(crate) fn refuse(
    call: c_long,
    first_argument: Option<u32>,
    errno: c_int,
    whose: Whose,
) -> io::Result<()> {
    const NUMBER: u32 = 0; // in `seccomp_data`
    const FIRST_ARGUMENT: u32 = 16;
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf, // steps to skip if it is not equal
        k,
    };
    let load = |from| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, from);
    let is = |what, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jf, what);
    let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, what);
    let mut steps = vec![load(NUMBER)];
    match first_argument {
        None => steps.push(is(call as u32, 1)),
        Some(argument) => {
            steps.extend([is(call as u32, 3), load(FIRST_ARGUMENT), is(argument, 1)]);
        }
    }
    steps.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    steps.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: takes numbers only.
    let gives_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if gives_up != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = match whose {
        Whose::CallersOnly => 0,
        Whose::AllThreads => libc::SECCOMP_FILTER_FLAG_TSYNC,
    };
    let (mode, at) = (libc::SECCOMP_SET_MODE_FILTER, &raw const program);
    // SAFETY: the kernel copies the program, which is there until then.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, at) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
