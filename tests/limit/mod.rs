//! Threads that the system refuses.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of it"
)]
#![expect(unsafe_code, reason = "limits threads by system calls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use indent::runtime::Runtime;

/// A limit on the threads of this process.
pub enum Limit {
    /// A group of processes with a limit of its own.
    Group(std::path::PathBuf),
    /// A limit on the threads of the user, who has none but ours then, and is not root.
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
        // SAFETY: takes no arguments.
        if unsafe { libc::getuid() } == 0 && !become_somebody() {
            crate::common::skip("neither a pids group nor another user can be had");
            return None;
        }
        if !Limit::User.is_ours_alone() {
            crate::common::skip("no pids group can be had, and the user has threads elsewhere");
            return None;
        }
        Some(Limit::User)
    }

    /// Whether the limit binds this process and counts its threads only: those of an ordinary user
    /// are all that run in his name, and they come and go as they like.
    fn is_ours_alone(&self) -> bool {
        let before = crate::common::threads();
        let starts = |more| {
            self.allow(more);
            let thread = std::thread::Builder::new().spawn(|| ());
            thread.map(|thread| thread.join().unwrap()).is_ok()
        };
        let alone = !starts(0) && starts(1);
        self.lift();
        // It is counted until the kernel has let go of it, a moment after the join.
        crate::common::wait_for("the probe to be gone", || {
            crate::common::threads() == before
        });
        alone
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

/// Turns this process, which is root's, into one of a user who has no other; false if it cannot.
fn become_somebody() -> bool {
    const UNUSED: libc::uid_t = 1 << 30;
    const NOBODY: libc::uid_t = 65534; // known where the numbers in use are few
    let users = [UNUSED + std::process::id(), NOBODY];
    // SAFETY: a child process of its own gives up its rights.
    users
        .into_iter()
        .any(|user| unsafe { libc::setuid(user) } == 0)
}

/// Waits until the runtime has a spare thread for each of its workers, which it makes when they are
/// awake: otherwise those might take what a limit leaves for others.
pub fn with_spares(rt: Runtime, workers: usize) -> Runtime {
    rt.wait_until_surveyed(None); // before, every fiber that parks takes a thread
    let enough = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..workers)
        .map(|_| {
            let enough = enough.clone();
            rt.spawn(move || crate::common::wait_for("spares", || enough.load(SeqCst)))
        })
        .collect();
    crate::common::wait_for("spare threads", || rt.metrics().carriers_spare >= workers);
    enough.store(true, SeqCst);
    busy.into_iter().for_each(|fiber| fiber.join().unwrap());
    rt
}
