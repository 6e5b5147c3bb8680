//! How many CPUs this process may use now: the least of what the machine has, what its affinity
//! mask names and what its control groups grant.
//!
//! Each comes from its own source and anew with every call, because each can change while the
//! process runs. That rules out `num_cpus`: its `get` is affinity and quota in one number, of which
//! it keeps the quota's part from the first call on, so that a raised quota would never be seen;
//! and it knows no group above the process's own. `std::thread::available_parallelism` keeps
//! nothing, but always rounds down.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::fiber::stack::{self, StackGuard};
use crate::runtime::cgroup;
use crate::runtime::config::Rounding;

/// CPUs the calling thread may keep busy, at least one.
///
/// The mask is that of the calling thread, the groups are those of the process. So the thread that
/// asks must be one whose mask is the process's own: none that the scheduler has narrowed.
///
/// A few system calls and as many small buffers: not for hot paths, fine once a second.
pub(crate) fn allowed(rounding: Rounding) -> usize {
    let quota = cgroup::quota(|path| std::fs::read(path).ok());
    let granted = quota.map(|quota| quota.cpus(rounding));
    let limits = [online(), affinity(), granted];
    limits.into_iter().flatten().min().unwrap_or(1).max(1)
}

/// CPUs the machine was configured with, at least one: how large a table with an entry for each can
/// get. A machine may be given more while it runs, so whoever has such a table still has to look.
pub(crate) fn possible() -> usize {
    let configured = count(SysconfVar::_NPROCESSORS_CONF);
    configured.max(online()).unwrap_or(1).max(1)
}

/// How many threads for fibers the system suggests: half of what this user, or its control group,
/// may have, and not so many that their stacks use up the mappings of the process.
pub(crate) fn most_threads(guard: StackGuard) -> usize {
    const MOST: usize = 10_000;
    let user = getrlimit(Resource::RLIMIT_NPROC).map_or(u64::MAX, |(soft, _)| soft);
    let group = cgroup::most_processes(|path| std::fs::read(path).ok()).unwrap_or(u64::MAX);
    let half = usize::try_from(user.min(group) / 2).unwrap_or(MOST);
    half.min(stack::most_threads(guard)).min(MOST)
}

/// CPUs that are switched on.
fn online() -> Option<usize> {
    count(SysconfVar::_NPROCESSORS_ONLN)
}

fn count(what: SysconfVar) -> Option<usize> {
    usize::try_from(sysconf(what).ok()??).ok()
}

/// CPUs in the calling thread's mask. None if the mask does not fit into a [`CpuSet`], as on a
/// machine with more than its 1024 CPUs (the call says EINVAL): then the mask sets no limit.
fn affinity() -> Option<usize> {
    let calling_thread = Pid::from_raw(0);
    let mask = sched_getaffinity(calling_thread).ok()?;
    let is_set = |cpu: &usize| mask.is_set(*cpu).unwrap_or(false);
    Some((0..CpuSet::count()).filter(is_set).count())
}

#[cfg(test)]
mod tests {
    use nix::sched::sched_setaffinity;

    use super::*;

    /// Runs it on a thread of its own, whose mask is nobody else's.
    fn on_a_thread(f: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(f).join()).unwrap();
    }

    #[test]
    fn there_is_at_least_one_and_at_most_what_is_possible() {
        let allowed = allowed(Rounding::Up);
        assert!((1..=possible()).contains(&allowed), "{allowed} allowed");
        assert!(super::allowed(Rounding::Down) <= allowed);
    }

    #[test]
    fn a_mask_of_one_cpu_allows_one_until_it_is_widened() {
        on_a_thread(|| {
            let before = allowed(Rounding::Up);
            let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
            let mut one = CpuSet::new();
            one.set(first.expect("a CPU we run on")).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            assert_eq!(allowed(Rounding::Up), 1);
            sched_setaffinity(Pid::from_raw(0), &all).unwrap();
            assert_eq!(allowed(Rounding::Up), before);
        });
    }
}
