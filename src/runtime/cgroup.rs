//! How much CPU time control groups grant this process, read from the kernel's files.
//!
//! A *hierarchy* is a tree of groups, and a group is a directory. A process is in one group of each
//! hierarchy, and every group from there to the top may limit it: the lowest limit counts. The
//! steps:
//!
//! 1. `/proc/self/cgroup` names the group of the process in each hierarchy, as a path from the top.
//! 2. `/proc/self/mountinfo` shows which part of a hierarchy is visible: the directory at the
//!    *mount point* is the group called *root*.
//! 3. The group's path without the root, below the mount point, is its directory. From there up to
//!    the mount point each directory is read.
//!
//! In a container the top of either path may be that of a namespace, and a group outside it begins
//! with `/..`. Where the group is not below a root, the mount point itself is used: it is the
//! visible part of the hierarchy.
//!
//! Version 1 has a hierarchy for the `cpu` controller, alone or with `cpuacct`; version 2 has one
//! for everything; a hybrid has both. It need not be known which of them has a controller: its
//! files exist only there.
//!
//! What cannot be read or makes no sense sets no limit; nothing here fails. The files come from a
//! function, so that a test can supply its own, and as bytes, since a mount point need not be text.
//!
//! Rejected: reading only the group of the process (a slice or a pod limits its members from
//! above); keeping files open or paths in mind between two calls (a process can be moved to another
//! group); floating point (two fractions compare exactly by multiplying).

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::runtime::config::Rounding;

#[cfg(test)]
mod tests;

/// A quota: CPU time in each period, both in microseconds; neither is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    time: u64,
    period: u64,
}

impl Quota {
    /// None if one of them is zero: the kernel accepts neither.
    fn new(time: u64, period: u64) -> Option<Self> {
        (time > 0 && period > 0).then_some(Quota { time, period })
    }

    /// The number of CPUs that use it up, at least one.
    pub(crate) fn cpus(self, rounding: Rounding) -> usize {
        let cpus = match rounding {
            Rounding::Up => self.time.div_ceil(self.period),
            Rounding::Down => self.time / self.period,
        };
        usize::try_from(cpus).unwrap_or(usize::MAX).max(1)
    }

    fn compare(&self, other: &Self) -> Ordering {
        let cross = |a: &Self, b: &Self| u128::from(a.time) * u128::from(b.period);
        cross(self, other).cmp(&cross(other, self))
    }
}

/// The tightest limit of all groups this process is in, as far as it can see them. `read` returns
/// the contents of a file.
pub(crate) fn quota(read: impl Fn(&Path) -> Option<Vec<u8>>) -> Option<Quota> {
    let limits = limits(b"cpu", &read, |version, dir| version.quota(dir, &read));
    limits.into_iter().min_by(Quota::compare)
}

/// The most processes and threads that all groups of this process allow, in the same way.
pub(crate) fn most_processes(read: impl Fn(&Path) -> Option<Vec<u8>>) -> Option<u64> {
    // `max` is no limit, and no number.
    let limits = limits(b"pids", &read, |_, dir| {
        number(&read(&dir.join("pids.max"))?)
    });
    limits.into_iter().min()
}

/// What `limit` finds in the directories of all groups of this process that may have the
/// controller.
fn limits<T>(
    controller: &[u8],
    read: impl Fn(&Path) -> Option<Vec<u8>>,
    limit: impl Fn(Version, &Path) -> Option<T>,
) -> Vec<T> {
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let groups = lines(&groups).filter_map(|line| Group::parse(line, controller));
    groups
        .flat_map(|group| of_group(&group, controller, &mounts, &limit))
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The limit one directory sets, without those above it.
    fn quota(self, dir: &Path, read: impl Fn(&Path) -> Option<Vec<u8>>) -> Option<Quota> {
        match self {
            // -1 is no limit, and no unsigned number.
            Version::One => Quota::new(
                number(&read(&dir.join("cpu.cfs_quota_us"))?)?,
                number(&read(&dir.join("cpu.cfs_period_us"))?)?,
            ),
            // `max` is no limit, and no number.
            Version::Two => {
                let text = read(&dir.join("cpu.max"))?;
                let mut fields = text.trim_ascii().split(u8::is_ascii_whitespace);
                Quota::new(number(fields.next()?)?, number(fields.next()?)?)
            }
        }
    }
}

/// A line of `/proc/self/cgroup`: our group in a hierarchy that may have the controller.
#[derive(Debug)]
struct Group<'a> {
    version: Version,
    path: &'a Path,
}

impl<'a> Group<'a> {
    /// `4:cpu,cpuacct:/user.slice` or `0::/user.slice`; the path may contain colons.
    fn parse(line: &'a [u8], controller: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let version = match (fields.next()?, fields.next()?) {
            (b"0", b"") => Version::Two,
            (_, controllers) if lists(controllers, controller) => Version::One,
            _ => return None,
        };
        let path = path(fields.next()?);
        Some(Group { version, path })
    }
}

/// A line of `/proc/self/mountinfo`: where a part of such a hierarchy can be seen.
#[derive(Debug)]
struct Mount {
    version: Version,
    /// The group at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// `32 31 0:29 /root /mount/point rw,relatime shared:7 - cgroup cgroup rw,cpu`, with any number
    /// of fields before the dash.
    fn parse(line: &[u8], controller: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let root = fields.nth(3)?;
        let point = fields.next()?;
        fields.find(|field| *field == b"-")?;
        let kind = fields.next()?;
        let _source = fields.next()?;
        let version = match (kind, fields.next()?) {
            (b"cgroup2", _) => Version::Two,
            (b"cgroup", options) if lists(options, controller) => Version::One,
            _ => return None,
        };
        let [root, point] = [root, point].map(|field| path(&unescaped(field)).to_owned());
        let fine = root.is_absolute() && point.is_absolute();
        fine.then_some(Mount {
            version,
            root,
            point,
        })
    }

    /// The path of a group below the mount point, if the group is at or below our root.
    fn below<'a>(&self, group: &'a Path) -> Option<&'a Path> {
        let rest = group.strip_prefix(&self.root).ok()?;
        let leaves = rest.components().any(|part| part == Component::ParentDir);
        (!leaves).then_some(rest)
    }
}

/// The limits from this group to the topmost one that can be seen.
fn of_group<T>(
    group: &Group<'_>,
    controller: &[u8],
    mounts: &[u8],
    limit: impl Fn(Version, &Path) -> Option<T>,
) -> Vec<T> {
    // What is mounted later on the same point hides what was there. Of those left, the mount that
    // shows most of what is above the group.
    let mut visible: Vec<Mount> = Vec::new();
    for mount in lines(mounts).filter_map(|line| Mount::parse(line, controller)) {
        visible.retain(|hidden| hidden.point != mount.point);
        visible.push(mount);
    }
    let mount = visible
        .into_iter()
        .filter(|mount| mount.version == group.version)
        .max_by_key(|mount| {
            let shown = mount.below(group.path);
            shown.map(|_| Reverse(mount.root.components().count()))
        });
    let Some(mount) = mount else {
        return Vec::new();
    };
    let below = mount.below(group.path).unwrap_or(Path::new(""));
    let leaf = mount.point.join(below);
    leaf.ancestors()
        .take_while(|dir| dir.starts_with(&mount.point))
        .filter_map(|dir| limit(mount.version, dir))
        .collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// Whether `item` is one of those between the commas.
fn lists(list: &[u8], item: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|one| one == item)
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// Undoes what the kernel does to blanks, line ends and backslashes: `\040` is a space.
fn unescaped(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let byte;
        (byte, rest) = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                let [a, b, c] = [a, b, c].map(|digit| digit - b'0');
                (a << 6 | b << 3 | c, tail)
            }
            _ => (first, tail),
        };
        plain.push(byte);
    }
    Cow::Owned(plain)
}
