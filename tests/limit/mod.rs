//! Threads that the system refuses.
#![allow(unreachable_pub, reason = "each test binary uses a part of it")]
#![expect(unsafe_code, reason = "limits threads by system calls")]

/// A limit on the threads of this process.
pub enum Limit {
    /// A group of processes with a limit of its own.
    Group(std::path::PathBuf),
    /// A limit on the threads of the user, which is not root then.
    User,
}

impl Limit {
    /// `None`, after saying why, if this process cannot be limited.
    pub fn new() -> Option<Limit> {
        let root = std::path::Path::new("/sys/fs/cgroup");
        let me = std::process::id().to_string();
        for hierarchy in [root.join("pids"), root.to_owned()] {
            let group = hierarchy.join(format!("indent-test-{me}"));
            if std::fs::create_dir(&group).is_err() {
                continue;
            }
            let limited = group.join("pids.max").exists()
                && std::fs::write(group.join("cgroup.procs"), &me).is_ok();
            if limited {
                return Some(Limit::Group(group));
            }
            let _ = std::fs::remove_dir(&group);
        }
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: takes no arguments.
        if unsafe { libc::getuid() } != 0 {
            return Some(Limit::User);
        }
        // SAFETY: a child process of its own gives up its rights.
        if unsafe { libc::setuid(NOBODY) } == 0 {
            return Some(Limit::User);
        }
        crate::common::skip("neither a pids group nor another user can be had");
        None
    }

    /// No more than `more` threads beside those there are.
    pub fn allow(&self, more: usize) {
        self.set(Some(crate::common::threads() + more));
    }

    pub fn lift(&self) {
        self.set(None);
    }

    fn set(&self, most: Option<usize>) {
        match self {
            Limit::Group(group) => {
                let most = most.map_or("max".to_owned(), |n| n.to_string());
                std::fs::write(group.join("pids.max"), most).unwrap();
            }
            Limit::User => {
                let mut limit = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                // SAFETY: writes the struct it is given.
                let got = unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit) };
                assert_eq!(got, 0);
                limit.rlim_cur = most.map_or(limit.rlim_max, |n| n as libc::rlim_t);
                // SAFETY: reads the struct it is given.
                let set = unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) };
                assert_eq!(set, 0);
            }
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.lift();
        if let Limit::Group(group) = self {
            let parent = group.parent().unwrap().join("cgroup.procs");
            let _ = std::fs::write(parent, std::process::id().to_string());
            let _ = std::fs::remove_dir(group);
        }
    }
}
