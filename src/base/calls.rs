//! Names of system calls, of those in which threads wait.

/// The name of the call with this number, if it is a usual one.
pub(crate) fn name(number: i64) -> Option<&'static str> {
    macro_rules! names {
        ($($constant:ident = $name:literal),* $(,)?) => {
            match number {
                $(libc::$constant => Some($name),)*
                _ => None,
            }
        };
    }
    names![
        SYS_read = "read",
        SYS_write = "write",
        SYS_open = "open",
        SYS_openat = "openat",
        SYS_close = "close",
        SYS_poll = "poll",
        SYS_ppoll = "ppoll",
        SYS_select = "select",
        SYS_pselect6 = "pselect6",
        SYS_epoll_wait = "epoll_wait",
        SYS_epoll_pwait = "epoll_pwait",
        SYS_epoll_pwait2 = "epoll_pwait2",
        SYS_io_uring_enter = "io_uring_enter",
        SYS_io_getevents = "io_getevents",
        SYS_pread64 = "pread64",
        SYS_pwrite64 = "pwrite64",
        SYS_readv = "readv",
        SYS_writev = "writev",
        SYS_preadv = "preadv",
        SYS_pwritev = "pwritev",
        SYS_sendfile = "sendfile",
        SYS_splice = "splice",
        SYS_copy_file_range = "copy_file_range",
        SYS_connect = "connect",
        SYS_accept = "accept",
        SYS_accept4 = "accept4",
        SYS_sendto = "sendto",
        SYS_recvfrom = "recvfrom",
        SYS_sendmsg = "sendmsg",
        SYS_recvmsg = "recvmsg",
        SYS_sendmmsg = "sendmmsg",
        SYS_recvmmsg = "recvmmsg",
        SYS_futex = "futex",
        SYS_nanosleep = "nanosleep",
        SYS_clock_nanosleep = "clock_nanosleep",
        SYS_pause = "pause",
        SYS_rt_sigtimedwait = "rt_sigtimedwait",
        SYS_rt_sigsuspend = "rt_sigsuspend",
        SYS_wait4 = "wait4",
        SYS_waitid = "waitid",
        SYS_clone = "clone",
        SYS_clone3 = "clone3",
        SYS_vfork = "vfork",
        SYS_execve = "execve",
        SYS_flock = "flock",
        SYS_fcntl = "fcntl",
        SYS_ioctl = "ioctl",
        SYS_fsync = "fsync",
        SYS_fdatasync = "fdatasync",
        SYS_sync_file_range = "sync_file_range",
        SYS_syncfs = "syncfs",
        SYS_msync = "msync",
        SYS_ftruncate = "ftruncate",
        SYS_fallocate = "fallocate",
        SYS_stat = "stat",
        SYS_lstat = "lstat",
        SYS_newfstatat = "newfstatat",
        SYS_statx = "statx",
        SYS_getdents64 = "getdents64",
        SYS_rename = "rename",
        SYS_renameat2 = "renameat2",
        SYS_unlink = "unlink",
        SYS_unlinkat = "unlinkat",
        SYS_mkdir = "mkdir",
        SYS_mmap = "mmap",
        SYS_munmap = "munmap",
        SYS_mprotect = "mprotect",
        SYS_madvise = "madvise",
        SYS_mlock = "mlock",
        SYS_membarrier = "membarrier",
        SYS_msgsnd = "msgsnd",
        SYS_msgrcv = "msgrcv",
        SYS_semop = "semop",
        SYS_semtimedop = "semtimedop",
        SYS_mq_timedsend = "mq_timedsend",
        SYS_mq_timedreceive = "mq_timedreceive",
        SYS_getrandom = "getrandom",
        SYS_sched_yield = "sched_yield",
        SYS_process_vm_readv = "process_vm_readv",
        SYS_userfaultfd = "userfaultfd",
    ]
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    #[test]
    fn usual_calls_have_names() {
        assert_eq!(
            super::name(libc::SYS_clock_nanosleep),
            Some("clock_nanosleep")
        );
        assert_eq!(super::name(-1), None);
    }
}
