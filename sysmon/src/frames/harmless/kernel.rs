//! System calls that report and change nothing of the calling thread, by number.
//!
//! This is about system calls that code makes directly. A number is here if the function of the C
//! library with that name is harmless, too; a number that is not here binds. Notably missing:
//! `gettid`; masks, stacks and timers of signals; scheduling, priority, memory policy; credentials,
//! which the kernel keeps for each thread; `prctl`, `arch_prctl`, `rseq`, `set_robust_list`;
//! `clone` and its kin; `io_uring_enter`, whose requests belong to the thread that submits them;
//! `exit`, which ends the thread.
//!
//! Some system calls depend on another argument, and only their harmless use occurs: a `futex` lock
//! that knows its owner (PI) got the thread's number from another call; the clock of a thread's own
//! time continues for any thread.
//!
//! Rejected: a list of those that bind. A new kernel has new ones.

use libc::*;

/// Whether a system call leaves nothing of the thread behind.
pub(crate) fn is_harmless(number: i64) -> bool {
    HARMLESS.iter().any(|&(listed, _)| listed == number)
}

/// Whether a system call changes, or may change, a lasting attribute of the calling thread.
///
/// The kernel keeps such an attribute after the call, so code that runs on the thread later finds
/// it changed (S16). Masks and stacks of signals are not meant: code that changes those restores
/// them.
pub(crate) fn changes_thread(number: Option<i64>) -> bool {
    number.is_none_or(|number| CHANGES.contains(&number))
}

/// Whether the runtime itself makes this system call, or std does, which passes on numbers.
pub(crate) fn is_ours(number: Option<i64>) -> bool {
    number.is_none_or(|number| {
        [SYS_prctl, SYS_sched_setaffinity, SYS_sched_setattr].contains(&number)
    })
}

/// System calls that change an attribute of the calling thread. The C library makes `setuid` and
/// its kin change all threads; called directly they change one thread.
static CHANGES: &[c_long] = &[
    SYS_unshare,
    SYS_setns,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_prctl,
    SYS_seccomp,
    SYS_landlock_restrict_self,
    SYS_LSM_SET_SELF_ATTR,
    SYS_keyctl,
    SYS_personality,
    SYS_ioperm,
    SYS_iopl,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_setpriority,
    SYS_ioprio_set,
    SYS_set_mempolicy,
];

/// Newer than the numbers of the `libc` crate in use.
const SYS_LSM_SET_SELF_ATTR: c_long = 460;

const FILE: &str = "open files belong to the process";
const PATH: &str = "the file system is everybody's";
const MEMORY: &str = "memory belongs to the process";
const SOCKET: &str = "sockets belong to the process";
const WAIT: &str = "waits for files; a mask it is given holds for the call alone";
const CLOCK: &str = "time";
const PROCESS: &str = "of the process";

/// Numbers and reasons.
static HARMLESS: &[(c_long, &str)] = &[
    // What std and locks use
    (
        SYS_futex,
        "sleeps on an address, wakes whoever sleeps there",
    ),
    (SYS_futex_waitv, "sleeps on addresses"),
    (SYS_getrandom, "bytes, the same for all"),
    (SYS_membarrier, "registers and reaches all threads alike"),
    (SYS_sched_yield, "nothing is left of it"),
    (
        SYS_getcpu,
        "may be wrong as soon as it is told, on any thread",
    ),
    (SYS_exit_group, "ends the process"),
    // Time
    (SYS_clock_gettime, CLOCK),
    (SYS_clock_getres, CLOCK),
    (SYS_clock_nanosleep, "sleeps in one call"),
    (SYS_nanosleep, "sleeps in one call"),
    (SYS_gettimeofday, CLOCK),
    (SYS_time, CLOCK),
    // Bytes in and out
    (SYS_read, FILE),
    (SYS_write, FILE),
    (SYS_readv, FILE),
    (SYS_writev, FILE),
    (SYS_pread64, FILE),
    (SYS_pwrite64, FILE),
    (SYS_preadv, FILE),
    (SYS_pwritev, FILE),
    (SYS_preadv2, FILE),
    (SYS_pwritev2, FILE),
    (SYS_sendfile, FILE),
    (SYS_splice, FILE),
    (SYS_tee, FILE),
    (SYS_vmsplice, FILE),
    (SYS_copy_file_range, FILE),
    (SYS_lseek, FILE),
    // Files
    (SYS_open, FILE),
    (SYS_openat, FILE),
    (SYS_openat2, FILE),
    (SYS_creat, FILE),
    (SYS_close, FILE),
    (SYS_dup, FILE),
    (SYS_dup2, FILE),
    (SYS_dup3, FILE),
    (SYS_fcntl, FILE),
    (SYS_ioctl, "of an open file"),
    (SYS_flock, "belongs to the open file"),
    (SYS_pipe, FILE),
    (SYS_pipe2, FILE),
    (SYS_eventfd2, FILE),
    (SYS_memfd_create, FILE),
    (SYS_timerfd_create, FILE),
    (SYS_timerfd_settime, FILE),
    (SYS_timerfd_gettime, FILE),
    (SYS_inotify_init1, FILE),
    (SYS_inotify_add_watch, FILE),
    (SYS_inotify_rm_watch, FILE),
    (SYS_fsync, FILE),
    (SYS_fdatasync, FILE),
    (SYS_sync_file_range, FILE),
    (SYS_syncfs, FILE),
    (SYS_sync, PATH),
    (SYS_fallocate, FILE),
    (SYS_ftruncate, FILE),
    (SYS_truncate, PATH),
    (SYS_fadvise64, FILE),
    (SYS_readahead, FILE),
    (SYS_getdents64, FILE),
    (SYS_stat, PATH),
    (SYS_lstat, PATH),
    (SYS_fstat, FILE),
    (SYS_newfstatat, PATH),
    (SYS_statx, PATH),
    (SYS_statfs, PATH),
    (SYS_fstatfs, FILE),
    (SYS_access, PATH),
    (SYS_faccessat, PATH),
    (SYS_faccessat2, PATH),
    (SYS_mkdir, PATH),
    (SYS_mkdirat, PATH),
    (SYS_mknodat, PATH),
    (SYS_rmdir, PATH),
    (SYS_link, PATH),
    (SYS_linkat, PATH),
    (SYS_symlink, PATH),
    (SYS_symlinkat, PATH),
    (SYS_readlink, PATH),
    (SYS_readlinkat, PATH),
    (SYS_unlink, PATH),
    (SYS_unlinkat, PATH),
    (SYS_rename, PATH),
    (SYS_renameat, PATH),
    (SYS_renameat2, PATH),
    (SYS_chmod, PATH),
    (SYS_fchmod, FILE),
    (SYS_fchmodat, PATH),
    (SYS_fchmodat2, PATH),
    (SYS_chown, PATH),
    (SYS_fchown, FILE),
    (SYS_lchown, PATH),
    (SYS_fchownat, PATH),
    (SYS_utimensat, PATH),
    (SYS_getxattr, PATH),
    (SYS_lgetxattr, PATH),
    (SYS_fgetxattr, FILE),
    (SYS_setxattr, PATH),
    (SYS_lsetxattr, PATH),
    (SYS_fsetxattr, FILE),
    (SYS_listxattr, PATH),
    (SYS_llistxattr, PATH),
    (SYS_flistxattr, FILE),
    (SYS_removexattr, PATH),
    (SYS_lremovexattr, PATH),
    (SYS_fremovexattr, FILE),
    (SYS_getcwd, PROCESS),
    (SYS_chdir, PROCESS),
    (SYS_fchdir, PROCESS),
    (SYS_umask, PROCESS),
    // Waiting
    (SYS_poll, WAIT),
    (SYS_ppoll, WAIT),
    (SYS_select, WAIT),
    (SYS_pselect6, WAIT),
    (SYS_epoll_create, WAIT),
    (SYS_epoll_create1, WAIT),
    (SYS_epoll_ctl, WAIT),
    (SYS_epoll_wait, WAIT),
    (SYS_epoll_pwait, WAIT),
    (SYS_epoll_pwait2, WAIT),
    // Sockets
    (SYS_socket, SOCKET),
    (SYS_socketpair, SOCKET),
    (SYS_bind, SOCKET),
    (SYS_listen, SOCKET),
    (SYS_accept, SOCKET),
    (SYS_accept4, SOCKET),
    (SYS_connect, SOCKET),
    (SYS_shutdown, SOCKET),
    (SYS_getsockname, SOCKET),
    (SYS_getpeername, SOCKET),
    (SYS_getsockopt, SOCKET),
    (SYS_setsockopt, SOCKET),
    (SYS_sendto, SOCKET),
    (SYS_recvfrom, SOCKET),
    (SYS_sendmsg, SOCKET),
    (SYS_recvmsg, SOCKET),
    (SYS_sendmmsg, SOCKET),
    (SYS_recvmmsg, SOCKET),
    // Memory
    (SYS_mmap, MEMORY),
    (SYS_munmap, MEMORY),
    (SYS_mremap, MEMORY),
    (SYS_mprotect, MEMORY),
    (SYS_madvise, MEMORY),
    (SYS_msync, MEMORY),
    (SYS_mincore, MEMORY),
    (SYS_mlock, MEMORY),
    (SYS_mlock2, MEMORY),
    (SYS_munlock, MEMORY),
    (SYS_brk, MEMORY),
    // The process and others
    (SYS_getpid, PROCESS),
    (SYS_getppid, PROCESS),
    (SYS_prlimit64, PROCESS),
    (SYS_getrlimit, PROCESS),
    (SYS_rt_sigaction, "handlers belong to the process"),
    (SYS_kill, "says whom it is for"),
    (SYS_tkill, "says whom it is for"),
    (SYS_tgkill, "says whom it is for"),
    (SYS_wait4, "children belong to the process"),
    (SYS_waitid, "children belong to the process"),
    (SYS_pidfd_open, FILE),
    (SYS_pidfd_getfd, FILE),
    (SYS_pidfd_send_signal, "says whom it is for"),
    (SYS_uname, "of the machine"),
    (SYS_sysinfo, "of the machine"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_calling_thread_is_not_listed() {
        let of_the_thread = [
            SYS_gettid,
            SYS_set_tid_address,
            SYS_set_robust_list,
            SYS_get_robust_list,
            SYS_rseq,
            SYS_arch_prctl,
            SYS_prctl,
            SYS_rt_sigprocmask,
            SYS_rt_sigpending,
            SYS_rt_sigreturn,
            SYS_sigaltstack,
            SYS_sched_setaffinity,
            SYS_sched_getaffinity,
            SYS_sched_setattr,
            SYS_sched_setscheduler,
            SYS_setpriority,
            SYS_ioprio_set,
            SYS_set_mempolicy,
            SYS_setuid,
            SYS_setresgid,
            SYS_capset,
            SYS_unshare,
            SYS_setns,
            SYS_seccomp,
            SYS_perf_event_open,
            SYS_pkey_alloc,
            SYS_clone,
            SYS_clone3,
            SYS_fork,
            SYS_vfork,
            SYS_exit,
            SYS_ptrace,
            SYS_io_uring_enter,
            SYS_timer_create,
            -1,
        ];
        assert!(!of_the_thread.into_iter().any(is_harmless));
    }

    #[test]
    fn what_changes_a_thread_is_not_harmless() {
        assert!(!CHANGES.iter().any(|&number| is_harmless(number)));
        assert!(changes_thread(None));
        assert!(!changes_thread(Some(SYS_gettid)));
    }

    #[test]
    fn every_listed_number_has_a_reason_and_none_occurs_twice() {
        assert!(HARMLESS.iter().all(|(_, reason)| !reason.is_empty()));
        let mut numbers: Vec<_> = HARMLESS.iter().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
