//! How many CPUs this process may use now.
//!
//! That is the minimum of three numbers: the CPUs of the machine, of the affinity mask, and what
//! the control groups grant. Each is read from its own source with every call, because each can
//! change while the process runs.
//!
//! Rejected: `num_cpus`. Its `get` combines affinity and quota, and keeps the quota from the first
//! call, so that a raised quota would never be seen; and it ignores groups above the process's own.
//! `std::thread::available_parallelism` keeps nothing, but always rounds down.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::fiber::stack::{self, StackGuard};
use crate::runtime::cgroup;
use crate::runtime::config::Rounding;

/// Number of CPUs the process may keep busy, at least one.
///
/// The mask is that of the calling thread, the groups are those of the process. So the calling
/// thread must have the mask of the process: not one that the scheduler has narrowed.
///
/// Costs a few system calls and as many small buffers: not for hot paths, fine once a second.
pub(crate) fn allowed(rounding: Rounding) -> usize {
    let quota = cgroup::quota(|path| std::fs::read(path).ok());
    let granted = quota.map(|quota| quota.cpus(rounding));
    let limits = [online(), affinity(), granted];
    limits.into_iter().flatten().min().unwrap_or(1).max(1)
}

/// Number of CPUs the machine was configured with, at least one: the size of a table of CPUs.
///
/// A machine may get more while it runs, so the user of such a table still checks its bounds.
pub(crate) fn possible() -> usize {
    let configured = count(SysconfVar::_NPROCESSORS_CONF);
    configured.max(online()).unwrap_or(1).max(1)
}

/// How many threads for fibers the system's limits suggest.
///
/// Half of the threads that this user, or its control group, may have; and not so many that their
/// stacks use up the mappings of the process.
pub(crate) fn most_threads(guard: StackGuard) -> usize {
    const MOST: usize = 10_000;
    let user = getrlimit(Resource::RLIMIT_NPROC).map_or(u64::MAX, |(soft, _)| soft);
    let group = cgroup::most_processes(|path| std::fs::read(path).ok()).unwrap_or(u64::MAX);
    let half = usize::try_from(user.min(group) / 2).unwrap_or(MOST);
    half.min(stack::most_threads(guard)).min(MOST)
}

/// CPUs that are online.
fn online() -> Option<usize> {
    count(SysconfVar::_NPROCESSORS_ONLN)
}

fn count(what: SysconfVar) -> Option<usize> {
    usize::try_from(sysconf(what).ok()??).ok()
}

/// CPUs in the calling thread's mask.
///
/// `None` if the mask does not fit into a [`CpuSet`], as on a machine with more than 1024 CPUs (the
/// call fails with EINVAL): then the mask sets no limit.
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

    /// Runs `f` on a thread of its own, so that it can change that thread's mask.
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
