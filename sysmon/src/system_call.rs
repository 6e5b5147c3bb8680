//! The system call a thread sleeps in, as the kernel reports it: number and call site.

use std::fmt;

/// A system call that has not returned.
///
/// Displays as its name, or as its number if it is not a common one.
///
/// ```
/// use indent_sysmon::SystemCall;
///
/// let call = SystemCall::parse(b"0 0x3 0x7f00 0x10 0x0 0x0 0x0 0x7ffe08 0x5505\n").unwrap();
/// assert_eq!((call.number, call.sp, call.pc), (libc::SYS_read, 0x7ffe08, 0x5505));
/// assert_eq!(call.to_string(), "read");
/// assert_eq!(SystemCall::parse(b"running\n"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number; -1 for a thread that waits in the kernel without a call, for example for a page
    /// to be read from disk.
    pub number: i64,
    /// The thread's stack pointer.
    pub sp: usize,
    /// Where the thread resumes: right behind the instruction that made the call.
    pub pc: usize,
}

/// The calls a thread is usually found in.
const USUAL: [(i64, &str); 41] = [
    (-1, "a page fault"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_close, "close"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_open, "open"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_rename, "rename"),
    (libc::SYS_select, "select"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_unlink, "unlink"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
];

impl SystemCall {
    /// Parses a line of `/proc/self/task/N/syscall`.
    ///
    /// Returns `None` if the thread runs, or if the line is from another file. Follows the
    /// monitor's rules.
    ///
    /// See [`SystemCall`] for an example.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|w| !w.is_empty());
        let number = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let pc = address(words.next_back()?)?;
        let sp = address(words.next_back()?)?;
        Some(SystemCall { number, sp, pc })
    }

    /// Returns the call's name if it is a common one.
    ///
    /// ```
    /// # use indent_sysmon::SystemCall;
    /// let call = |number| SystemCall { number, sp: 0, pc: 0 };
    /// assert_eq!(call(libc::SYS_futex).name(), Some("futex"));
    /// assert_eq!(call(libc::SYS_swapoff).name(), None);
    /// assert_eq!(call(libc::SYS_swapoff).to_string(), "system call 168");
    /// ```
    pub fn name(&self) -> Option<&'static str> {
        Self::name_of(self.number)
    }

    /// Returns the name of the call with a number.
    ///
    /// ```
    /// assert_eq!(indent_sysmon::SystemCall::name_of(libc::SYS_futex), Some("futex"));
    /// ```
    pub fn name_of(number: i64) -> Option<&'static str> {
        let usual = USUAL.iter().find(|(usual, _)| *usual == number);
        usual.map(|(_, name)| *name)
    }
}

impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "system call {}", self.number),
        }
    }
}

fn address(word: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(word.strip_prefix(b"0x")?).ok()?;
    usize::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_about_a_call_is_one() {
        let lines: [&[u8]; 6] = [
            b"",
            b"running\n",
            b"12 (worker) S 1 2 3\n",
            b"230\n",
            b"230 0x1\n",
            b"230 0x1 12\n",
        ];
        for line in lines {
            assert_eq!(SystemCall::parse(line), None, "{}", line.escape_ascii());
        }
        let (number, sp, pc) = (-1, 0x7ff0, 0x55);
        let waits = SystemCall { number, sp, pc };
        assert_eq!(SystemCall::parse(b"-1 0x7ff0 0x55\n"), Some(waits));
    }
}
