//! Real control groups with a quota of CPU time, for tests that put a process into them.
//!
//! A test makes a [`Group`], starts a child process that [joins](Group::join) it by its path, and
//! drops the group when the child has ended. Where groups cannot be made (no permission, no `cpu`
//! controller, a read-only mount) every function returns an error with the reason: a reason to
//! skip.

use std::fmt;

use cgroups_rs::CgroupPid;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::{Cgroup, hierarchies};

/// Microseconds after which a quota is renewed: the kernel's default.
const PERIOD: u64 = 100_000;

/// A control group with the `cpu` controller; removed when dropped, if it was made here.
pub struct Group {
    cgroup: Cgroup,
    made_here: bool,
}

impl Group {
    /// Makes a group at the top of the hierarchy that this process sees.
    ///
    /// The id of the process completes the name.
    pub fn new(name: &str) -> Result<Self, String> {
        Group::make(format!("indent-{name}-{}", std::process::id()))
    }

    /// Makes a group in this one.
    pub fn nested(&self, name: &str) -> Result<Self, String> {
        Group::make(format!("{}/{name}", self.path()))
    }

    fn make(path: String) -> Result<Self, String> {
        let mut group = Group::open(&path);
        let failed = |error| format!("no control group {path}: {error}");
        group.cgroup.create().map_err(failed)?;
        group.made_here = true;
        // In some places a process may make a directory and nothing more.
        group.set_quota(None)?;
        Ok(group)
    }

    /// Opens a group that exists, by the result of [`Group::path`].
    pub fn open(path: &str) -> Self {
        let controllers = vec!["cpu".to_owned()];
        let hierarchy = hierarchies::auto();
        Group {
            cgroup: Cgroup::load_with_specified_controllers(hierarchy, path, controllers),
            made_here: false,
        }
    }

    /// Returns its path from the top, for a child process.
    pub fn path(&self) -> &str {
        self.cgroup.path()
    }

    /// Grants this many thousandths of a CPU, or as many CPUs as there are.
    ///
    /// Version 1 refuses more than a parent group has.
    pub fn set_quota(&self, thousandths: Option<u64>) -> Result<(), String> {
        let time = thousandths.map_or(-1, |cpus| (cpus * PERIOD / 1000) as i64);
        let quota = self
            .controller()?
            .set_cfs_quota_and_period(Some(time), Some(PERIOD));
        quota.map_err(|error| format!("no quota for {}: {error}", self.path()))
    }

    fn controller(&self) -> Result<&CpuController, String> {
        let found = self.cgroup.controller_of();
        found.ok_or_else(|| format!("no cpu controller for {}", self.path()))
    }

    /// Gives it the largest share of the time there is, up to its quota.
    ///
    /// By default all its threads together have the weight of one thread outside.
    pub fn favour(&self) -> Result<(), String> {
        let most = if self.cgroup.v2() { 10_000 } else { 262_144 };
        let shares = self.controller()?.set_shares(most);
        shares.map_err(|error| format!("no shares for {}: {error}", self.path()))
    }

    /// Changes the quota to each of these numbers of CPUs in turn, and calls back after each
    /// change.
    pub fn change(
        &self,
        cpus: impl IntoIterator<Item = usize>,
        mut changed: impl FnMut(usize),
    ) -> Result<(), String> {
        for cpus in cpus {
            self.set_quota(Some(1000 * cpus as u64))?;
            changed(cpus);
        }
        Ok(())
    }

    /// Moves the calling process into it, with all its threads.
    pub fn join(&self) -> Result<(), String> {
        let me = CgroupPid::from(u64::from(std::process::id()));
        self.cgroup
            .add_task_by_tgid(me)
            .map_err(|error| format!("cannot join {}: {error}", self.path()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.made_here
            && let Err(error) = self.cgroup.delete()
        {
            eprintln!("the control group {} stays: {error}", self.path());
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.path()).finish()
    }
}
