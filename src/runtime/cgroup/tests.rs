//! Trees as they are found in the world, random ones against a model, and rubbish.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

use proptest::prelude::*;

use super::*;

/// Files by path, as one process sees them.
#[derive(Debug, Default)]
struct Tree(HashMap<PathBuf, Vec<u8>>);

impl Tree {
    fn new(groups: &str, mounts: &str) -> Self {
        Tree::default()
            .file("/proc/self/cgroup", groups)
            .file("/proc/self/mountinfo", mounts)
    }

    fn file(mut self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref().to_owned();
        self.0.insert(path.as_ref().to_owned(), text);
        self
    }

    /// A group of version 1, where -1 is no limit.
    fn v1(self, dir: &str, time: i64, period: u64) -> Self {
        self.file(format!("{dir}/cpu.cfs_quota_us"), format!("{time}\n"))
            .file(format!("{dir}/cpu.cfs_period_us"), format!("{period}\n"))
    }

    /// A group of version 2.
    fn v2(self, dir: &str, max: &str) -> Self {
        self.file(format!("{dir}/cpu.max"), format!("{max}\n"))
    }

    fn quota(&self) -> Option<Quota> {
        quota(|path| self.0.get(path).cloned())
    }

    /// Time and period of the limit found.
    fn limit(&self) -> Option<(u64, u64)> {
        self.quota().map(|quota| (quota.time, quota.period))
    }
}

/// A machine with the controllers apart, and version 2 beside them without any.
const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

/// A desktop or server with version 2 and nothing else.
const UNIFIED: &str = "\
23 29 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
35 23 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

/// What a container of version 1 sees of the host: its own group, mounted at the usual place.
fn contained(group: &str) -> String {
    format!(
        "\
1160 1158 0:27 {group} /sys/fs/cgroup/systemd ro,nosuid master:11 - cgroup cgroup rw,name=systemd
1163 1158 0:31 {group} /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:15 - cgroup cgroup rw,cpu,cpuacct
1164 1158 0:32 {group} /sys/fs/cgroup/cpuset ro,nosuid master:16 - cgroup cgroup rw,cpuset
"
    )
}

#[test]
fn a_host_without_limits_has_none() {
    let tree = Tree::new("3:cpuset:/\n2:cpuacct:/\n1:cpu:/\n0::/\n", HYBRID);
    assert_eq!(tree.limit(), None);
    let tree = tree.v1("/sys/fs/cgroup/cpu", -1, 100_000);
    assert_eq!(tree.limit(), None);
}

#[test]
fn a_group_of_a_hybrid_host_is_limited_by_version_one() {
    let tree = Tree::new("3:cpuset:/\n2:cpuacct:/\n1:cpu:/jobs\n0::/jobs\n", HYBRID)
        .v1("/sys/fs/cgroup/cpu", -1, 100_000)
        .v1("/sys/fs/cgroup/cpu/jobs", 150_000, 100_000);
    assert_eq!(tree.limit(), Some((150_000, 100_000)));
}

#[test]
fn the_tighter_version_of_a_hybrid_counts() {
    // No kernel has the controller in both, but files could say so.
    let both = |one, two| {
        Tree::new("1:cpu:/a\n0::/b\n", HYBRID)
            .v1("/sys/fs/cgroup/cpu/a", one, 100_000)
            .v2("/sys/fs/cgroup/unified/b", two)
            .limit()
    };
    assert_eq!(both(300_000, "200000 100000"), Some((200_000, 100_000)));
    assert_eq!(both(100_000, "200000 100000"), Some((100_000, 100_000)));
    assert_eq!(both(100_000, "max 100000"), Some((100_000, 100_000)));
    assert_eq!(both(-1, "200000 100000"), Some((200_000, 100_000)));
}

#[test]
fn other_controllers_do_not_count() {
    // Neither `cpuset` nor `cpuacct` is `cpu`, and a name is not a controller.
    let tree = Tree::new("3:cpuset:/a\n2:cpuacct:/a\n9:name=cpu:/a\n", HYBRID)
        .v1("/sys/fs/cgroup/cpu/a", 1000, 100_000)
        .v1("/sys/fs/cgroup/cpuset/a", 1000, 100_000)
        .v1("/sys/fs/cgroup/cpuacct/a", 1000, 100_000)
        .v1("/sys/fs/cgroup/systemd/a", 1000, 100_000);
    assert_eq!(tree.limit(), None);
}

#[test]
fn a_container_of_version_one_finds_itself_at_the_mount_point() {
    let group = "/docker/3601745b3bd54d9780436faa5f0e4f72";
    let groups = format!("11:cpuset:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:{group}\n");
    let tree =
        Tree::new(&groups, &contained(group)).v1("/sys/fs/cgroup/cpu,cpuacct", 250_000, 100_000);
    assert_eq!(tree.limit(), Some((250_000, 100_000)));
}

#[test]
fn a_group_below_the_containers_own_is_found_below_the_mount_point() {
    let tree = Tree::new(
        "4:cpuacct,cpu:/docker/36/jobs/a\n",
        &contained("/docker/36"),
    )
    .v1("/sys/fs/cgroup/cpu,cpuacct", 300_000, 100_000)
    .v1("/sys/fs/cgroup/cpu,cpuacct/jobs", 80_000, 50_000)
    .v1("/sys/fs/cgroup/cpu,cpuacct/jobs/a", 200_000, 100_000);
    assert_eq!(tree.limit(), Some((80_000, 50_000)));
}

#[test]
fn a_container_whose_mount_shows_the_whole_host_finds_its_own_group() {
    let group = "/lxc/web";
    let mounts = contained("/");
    let tree = Tree::new(&format!("4:cpu,cpuacct:{group}\n"), &mounts)
        .v1("/sys/fs/cgroup/cpu,cpuacct", -1, 100_000)
        .v1("/sys/fs/cgroup/cpu,cpuacct/lxc", 400_000, 100_000)
        .v1("/sys/fs/cgroup/cpu,cpuacct/lxc/web", 200_000, 100_000);
    assert_eq!(tree.limit(), Some((200_000, 100_000)));
}

#[test]
fn a_path_of_the_host_that_is_not_there_ends_at_the_mount_point() {
    // The mount says it shows everything, but only the container's own group is behind it.
    let tree = Tree::new("4:cpu,cpuacct:/ecs/task/container\n", &contained("/")).v1(
        "/sys/fs/cgroup/cpu,cpuacct",
        50_000,
        100_000,
    );
    assert_eq!(tree.limit(), Some((50_000, 100_000)));
}

#[test]
fn a_pod_of_version_one_limits_its_containers() {
    let pod = "/kubepods/burstable/podc1a6";
    let container = format!("{pod}/77e3");
    // The node's view: all levels.
    let node = Tree::new(&format!("8:cpu,cpuacct:{container}\n"), &contained("/"))
        .v1("/sys/fs/cgroup/cpu,cpuacct", -1, 100_000)
        .v1("/sys/fs/cgroup/cpu,cpuacct/kubepods", -1, 100_000)
        .v1("/sys/fs/cgroup/cpu,cpuacct/kubepods/burstable", -1, 100_000)
        .v1(
            "/sys/fs/cgroup/cpu,cpuacct/kubepods/burstable/podc1a6",
            150_000,
            100_000,
        )
        .v1(
            "/sys/fs/cgroup/cpu,cpuacct/kubepods/burstable/podc1a6/77e3",
            -1,
            100_000,
        );
    assert_eq!(node.limit(), Some((150_000, 100_000)));
    // The container's view: its own level alone.
    let own = Tree::new(
        &format!("8:cpu,cpuacct:{container}\n"),
        &contained(&container),
    )
    .v1("/sys/fs/cgroup/cpu,cpuacct", 100_000, 100_000);
    assert_eq!(own.limit(), Some((100_000, 100_000)));
}

#[test]
fn a_slice_of_version_two_limits_what_is_nested_in_it() {
    let tree = Tree::new("0::/user.slice/user-1000.slice/app.scope\n", UNIFIED)
        // The topmost group of the machine has no such file.
        .v2("/sys/fs/cgroup/user.slice", "max 100000")
        .v2("/sys/fs/cgroup/user.slice/user-1000.slice", "150000 50000")
        .v2(
            "/sys/fs/cgroup/user.slice/user-1000.slice/app.scope",
            "400000 100000",
        );
    assert_eq!(tree.limit(), Some((150_000, 50_000)));
}

#[test]
fn a_container_of_version_two_in_its_own_namespace_is_at_the_top() {
    let mounts =
        "1710 1709 0:30 / /sys/fs/cgroup ro,nosuid,relatime - cgroup2 cgroup rw,nsdelegate\n";
    let tree = Tree::new("0::/\n", mounts).v2("/sys/fs/cgroup", "50000 100000");
    assert_eq!(tree.limit(), Some((50_000, 100_000)));
}

#[test]
fn a_pod_of_version_two_limits_its_containers() {
    let pod =
        "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9.slice";
    let tree = Tree::new(
        // Container runtimes like colons.
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9.slice/cri:x:1\n",
        UNIFIED,
    )
    .v2("/sys/fs/cgroup/kubepods.slice", "max 100000")
    .v2(pod, "200000 100000")
    .v2(&format!("{pod}/cri:x:1"), "1000000 100000");
    assert_eq!(tree.limit(), Some((200_000, 100_000)));
}

#[test]
fn a_group_outside_the_namespace_is_taken_for_the_mount_point() {
    for outside in ["0::/..\n", "0::/../..\n", "0::/../../other.scope\n"] {
        let tree = Tree::new(outside, UNIFIED)
            .v2("/sys/fs/cgroup", "300000 100000")
            .v2("/sys/fs", "100000 100000")
            .v2("/sys/fs/cgroup/..", "100000 100000")
            .v2("/sys/fs/cgroup/other.scope", "100000 100000");
        assert_eq!(tree.limit(), Some((300_000, 100_000)), "{outside}");
    }
}

#[test]
fn a_mount_from_outside_the_namespace_is_a_group_above_ours() {
    // The names between the two are known to nobody.
    let mounts = "35 23 0:30 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let tree = Tree::new("0::/\n", mounts).v2("/sys/fs/cgroup", "300000 100000");
    assert_eq!(tree.limit(), Some((300_000, 100_000)));
    // A sibling of the namespace's top: both begin with the same steps up.
    let mounts = "35 23 0:30 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let tree = Tree::new("0::/../b\n", mounts).v2("/sys/fs/cgroup/b", "200000 100000");
    assert_eq!(tree.limit(), Some((200_000, 100_000)));
}

#[test]
fn the_mount_that_shows_most_levels_is_asked() {
    let whole = "35 23 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let part = "36 23 0:30 /a/b /mnt/part rw - cgroup2 cgroup2 rw";
    let other = "37 23 0:30 /z /mnt/other rw - cgroup2 cgroup2 rw";
    for mounts in [[whole, part, other], [other, part, whole]] {
        let tree = Tree::new("0::/a/b/c\n", &mounts.join("\n"))
            .v2("/sys/fs/cgroup/a", "100000 100000")
            .v2("/sys/fs/cgroup/a/b", "200000 100000")
            .v2("/mnt/part", "200000 100000")
            .v2("/mnt/other", "1000 100000");
        assert_eq!(tree.limit(), Some((100_000, 100_000)));
    }
    // A name that merely begins like a root is not below it.
    let tree = Tree::new("0::/zz\n", &[other, whole].join("\n"))
        .v2("/sys/fs/cgroup/zz", "300000 100000")
        .v2("/mnt/other", "1000 100000");
    assert_eq!(tree.limit(), Some((300_000, 100_000)));
}

#[test]
fn the_last_of_two_mounts_on_one_point_counts() {
    let first = "35 23 0:30 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let second = "36 35 0:30 /b /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let mounts = [first, second].join("\n");
    let tree = Tree::new("0::/c\n", &mounts).v2("/sys/fs/cgroup", "100000 100000");
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
    let tree = Tree::new("0::/b/c\n", &mounts).v2("/sys/fs/cgroup/c", "100000 100000");
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
}

#[test]
fn a_mount_hides_what_was_on_its_point_though_that_showed_more() {
    let first = "35 23 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let second = "36 35 0:30 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let tree = |mounts: [&str; 2]| {
        Tree::new("0::/a/b/c\n", &mounts.join("\n"))
            .v2("/sys/fs/cgroup/c", "100000 100000")
            .v2("/sys/fs/cgroup/a/b/c", "200000 100000")
    };
    assert_eq!(tree([first, second]).limit(), Some((100_000, 100_000)));
    assert_eq!(tree([second, first]).limit(), Some((200_000, 100_000)));
    let older = "34 23 0:31 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu";
    let tree = Tree::new("1:cpu:/\n", &[older, first].join("\n"));
    let tree = tree.v1("/sys/fs/cgroup", 100_000, 100_000);
    assert_eq!(
        tree.limit(),
        None,
        "of another version, and hidden all the same"
    );
}

#[test]
fn escaped_bytes_of_a_mount_point_are_put_back() {
    let mounts = "35 23 0:30 /a\\040b /mnt/c\\134d\\011e\\012f\\777g\\04 rw - cgroup2 none rw\n";
    let tree = Tree::new("0::/a b/x\\040y\n", mounts)
        .v2("/mnt/c\\d\te\nf\\777g\\04/x\\040y", "100000 100000");
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
    assert_eq!(*unescaped(b"\\377\\000\\"), *b"\xff\0\\");
}

#[test]
fn names_that_are_no_text_do_no_harm() {
    let mut mounts = b"34 23 0:31 / /mnt/\xff\xfe rw - ext4 /dev/vda rw\n".to_vec();
    mounts.extend(b"35 23 0:30 / /mnt/\xff rw - cgroup2 cgroup2 rw\n");
    let mut file = PathBuf::from(path(b"/mnt/\xff/\xfe"));
    file.push("cpu.max");
    let tree = Tree::default()
        .file("/proc/self/cgroup", b"0::/\xfe\n")
        .file("/proc/self/mountinfo", mounts)
        .file(file, "100000 100000\n");
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
}

#[test]
fn a_level_that_makes_no_sense_sets_no_limit() {
    let rubbish = [
        "",
        "\n",
        "max",
        "max 100000",
        "100000",
        "100000 0",
        "0 100000",
        "-1 100000",
        "100000 -1",
        "1e5 100000",
        "99999999999999999999999 100000",
        "100000 max",
        "\u{663} 100000",
    ];
    for text in rubbish {
        let tree = Tree::new("0::/a/b\n", UNIFIED).v2("/sys/fs/cgroup/a/b", text);
        assert_eq!(tree.limit(), None, "{text:?}");
        let tree = tree.v2("/sys/fs/cgroup/a", "200000 100000");
        assert_eq!(tree.limit(), Some((200_000, 100_000)), "{text:?}");
    }
    for (time, period) in [(-1, 100_000), (0, 100_000), (100_000, 0), (i64::MIN, 1)] {
        let tree = Tree::new("1:cpu:/a\n", HYBRID).v1("/sys/fs/cgroup/cpu/a", time, period);
        assert_eq!(tree.limit(), None, "{time} {period}");
    }
}

#[test]
fn a_file_that_is_missing_sets_no_limit() {
    assert_eq!(Tree::default().limit(), None);
    let groups = Tree::default().file("/proc/self/cgroup", "0::/\n");
    assert_eq!(groups.limit(), None);
    let mounts = Tree::default().file("/proc/self/mountinfo", UNIFIED);
    assert_eq!(mounts.limit(), None);
    // Version 1 needs both of its files.
    let half = Tree::new("1:cpu:/\n", HYBRID);
    let half = half.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000");
    assert_eq!(half.limit(), None);
}

#[test]
fn lines_cut_short_are_passed_over() {
    let mounts = "\n35\n35 23 0:30 /\n35 23 0:30 / /x\n35 23 0:30 / /x rw -\n\
        35 23 0:30 / /x rw - cgroup2\n35 23 0:30 / /x rw - cgroup2 y\n\
        35 23 0:30 / relative rw - cgroup2 cgroup2 rw\n35 23 0:30 / /x rw cgroup2 cgroup2 rw\n";
    let groups = "\n0\n0:\n:\n::\n0:cpu\ncpu\n1:cpu\n";
    let files = |tree: Tree| {
        tree.v2("/x", "1000 100000")
            .v2("relative", "1000 100000")
            .v2("/sys/fs/cgroup", "100000 100000")
    };
    let tree = files(Tree::new(&format!("{groups}0::/\n"), mounts));
    assert_eq!(tree.limit(), None);
    let tree = files(Tree::new(
        &format!("{groups}0::/\n"),
        &format!("{mounts}{UNIFIED}"),
    ));
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
}

#[test]
fn a_source_without_a_name_leaves_the_options_in_their_place() {
    let mounts = "32 31 0:29 / /cpu rw shared:1 master:2 -  cgroup rw,cpu\n";
    let tree = Tree::new("1:cpu:/\n", mounts).v1("/cpu", 100_000, 100_000);
    assert_eq!(tree.limit(), None, "a type without a name is none");
    let mounts = "32 31 0:29 / /cpu rw shared:1 master:2 - cgroup  rw,cpu\n";
    let tree = Tree::new("1:cpu:/\n", mounts).v1("/cpu", 100_000, 100_000);
    assert_eq!(tree.limit(), Some((100_000, 100_000)));
}

#[test]
fn only_files_on_the_way_up_are_read() {
    let asked = RefCell::new(Vec::new());
    let found = quota(|path| {
        asked.borrow_mut().push(path.to_owned());
        match path.to_str().unwrap() {
            "/proc/self/cgroup" => Some(b"0::/a/b\n".to_vec()),
            "/proc/self/mountinfo" => Some(UNIFIED.into()),
            _ => None,
        }
    });
    assert_eq!(found, None);
    let expected = [
        "/proc/self/cgroup",
        "/proc/self/mountinfo",
        "/sys/fs/cgroup/a/b/cpu.max",
        "/sys/fs/cgroup/a/cpu.max",
        "/sys/fs/cgroup/cpu.max",
    ];
    assert_eq!(asked.into_inner(), expected.map(PathBuf::from));
}

#[test]
fn a_part_of_a_cpu_is_rounded_as_asked() {
    let cpus = |time, period| {
        let quota = Quota::new(time, period).unwrap();
        (quota.cpus(Rounding::Up), quota.cpus(Rounding::Down))
    };
    assert_eq!(cpus(100_000, 100_000), (1, 1));
    assert_eq!(cpus(150_000, 100_000), (2, 1));
    assert_eq!(cpus(200_000, 100_000), (2, 2));
    assert_eq!(cpus(200_001, 100_000), (3, 2));
    assert_eq!(cpus(1_000, 100_000), (1, 1));
    assert_eq!(cpus(850_000, 100_000), (9, 8));
    assert_eq!(cpus(u64::MAX, 1), (usize::MAX, usize::MAX));
    assert_eq!(cpus(1, u64::MAX), (1, 1));
}

/// A directory below the system's temporary one, gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("indent-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn files_of_version_two_on_a_disk_are_found() {
    let scratch = Scratch::new("cgroup2");
    let write = |path: &str, text: &str| {
        let at = scratch.at(Path::new(path));
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    };
    let found = || quota(|path| fs::read(scratch.at(path)).ok());
    assert_eq!(found(), None);
    write("/proc/self/cgroup", "0::/machine.slice/job one.scope\n");
    write("/proc/self/mountinfo", UNIFIED);
    write(
        "/sys/fs/cgroup/machine.slice/job one.scope/cpu.max",
        "400000 100000\n",
    );
    assert_eq!(found(), Quota::new(400_000, 100_000));
    write("/sys/fs/cgroup/machine.slice/cpu.max", "200000 100000\n");
    assert_eq!(found(), Quota::new(200_000, 100_000));
    // A directory in a file's place cannot be read.
    fs::create_dir_all(scratch.at(Path::new("/sys/fs/cgroup/cpu.max"))).unwrap();
    assert_eq!(found(), Quota::new(200_000, 100_000));
    // Raised again: nothing is kept from call to call.
    write("/sys/fs/cgroup/machine.slice/cpu.max", "max 100000\n");
    assert_eq!(found(), Quota::new(400_000, 100_000));
}

/// What one level of a tree says.
#[derive(Clone, Debug)]
enum Level {
    Missing,
    Unlimited,
    Rubbish(Vec<u8>),
    Limit(u64, u64),
}

fn level() -> impl Strategy<Value = Level> {
    let any_numbers = (1..u64::MAX, 1..u64::MAX);
    let like_the_kernels = (1_000..2_000_000u64, 1_000..1_000_000u64);
    prop_oneof![
        Just(Level::Missing),
        Just(Level::Unlimited),
        "[a-z 0]{0,6}x".prop_map(|text| Level::Rubbish(text.into_bytes())),
        any_numbers.prop_map(|(time, period)| Level::Limit(time, period)),
        like_the_kernels.prop_map(|(time, period)| Level::Limit(time, period)),
    ]
}

/// Puts the levels of one hierarchy at their places: the first is at the top of all, `hidden` of
/// them are above what is mounted. Returns the lines that describe it and the limits in sight.
fn plant(
    tree: Tree,
    version: Version,
    levels: &[(String, Level)],
    hidden: usize,
) -> (Tree, [String; 2], Vec<(u64, u64)>) {
    let path = |levels: &[(String, Level)]| {
        let names: String = levels.iter().map(|(name, _)| format!("/{name}")).collect();
        if names.is_empty() {
            "/".to_owned()
        } else {
            names
        }
    };
    let escaped = |path: &str| path.replace('\\', "\\134").replace(' ', "\\040");
    let group = path(&levels[1..]);
    let root = escaped(&path(&levels[1..=hidden]));
    let (point, lines) = match version {
        Version::One => (
            "/sys/fs/cgroup/cpu",
            [
                format!("4:cpu,cpuacct:{group}\n"),
                format!("30 1 0:1 {root} /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n"),
            ],
        ),
        Version::Two => (
            "/mnt/a b",
            [
                format!("0::{group}\n"),
                format!("31 1 0:2 {root} /mnt/a\\040b rw - cgroup2 cgroup2 rw\n"),
            ],
        ),
    };
    let mut limits = Vec::new();
    let mut dir = point.to_owned();
    let mut tree = tree;
    for (at, (name, level)) in levels.iter().enumerate().skip(hidden) {
        if at > hidden {
            dir = format!("{dir}/{name}");
        }
        if let Level::Limit(time, period) = level {
            limits.push((*time, *period));
        }
        tree = match (version, level) {
            (_, Level::Missing) => tree,
            (Version::One, Level::Unlimited) => tree.v1(&dir, -1, 100_000),
            (Version::Two, Level::Unlimited) => tree.v2(&dir, "max 100000"),
            (Version::One, Level::Rubbish(text)) => tree
                .file(format!("{dir}/cpu.cfs_quota_us"), text)
                .file(format!("{dir}/cpu.cfs_period_us"), "100000\n"),
            (Version::Two, Level::Rubbish(text)) => tree.file(format!("{dir}/cpu.max"), text),
            (Version::One, Level::Limit(time, period)) => tree
                .file(format!("{dir}/cpu.cfs_quota_us"), format!("{time}\n"))
                .file(format!("{dir}/cpu.cfs_period_us"), format!("{period}\n")),
            (Version::Two, Level::Limit(time, period)) => {
                tree.v2(&dir, &format!("{time} {period}"))
            }
        };
    }
    (tree, lines, limits)
}

/// Levels from the top down, and how many of them the mount hides.
fn levels() -> impl Strategy<Value = (Vec<(String, Level)>, usize)> {
    // Names with what is special in one of the files.
    let name = "[a-z][a-z \\\\:,-]{0,5}";
    prop::collection::vec((name, level()), 1..7)
        .prop_flat_map(|levels| (0..levels.len()).prop_map(move |hidden| (levels.clone(), hidden)))
}

proptest! {
    #[test]
    fn the_tightest_of_all_levels_in_sight_counts(
        (one, hidden_one) in levels(),
        (two, hidden_two) in levels(),
        versions in 1..4u8,
    ) {
        let mut tree = Tree::default();
        let mut groups = "3:cpuset:/x\n".to_owned();
        let mut mounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n".to_owned();
        let mut limits = Vec::new();
        let hierarchies = [(Version::One, &one, hidden_one), (Version::Two, &two, hidden_two)];
        for (bit, (version, levels, hidden)) in hierarchies.into_iter().enumerate() {
            if versions & (1 << bit) != 0 {
                let (planted, [group, mount], found) = plant(tree, version, levels, hidden);
                tree = planted;
                groups += &group;
                mounts += &mount;
                limits.extend(found);
            }
        }
        let tree = tree.file("/proc/self/cgroup", groups).file("/proc/self/mountinfo", mounts);
        // a/b <= c/d without division.
        let at_most = |a: (u64, u64), b: (u64, u64)| {
            u128::from(a.0) * u128::from(b.1) <= u128::from(b.0) * u128::from(a.1)
        };
        match tree.limit() {
            None => prop_assert!(limits.is_empty(), "missed {limits:?} in {tree:?}"),
            Some(found) => {
                prop_assert!(limits.contains(&found), "{found:?} out of thin air: {tree:?}");
                prop_assert!(limits.iter().all(|one| at_most(found, *one)), "{found:?}: {tree:?}");
            }
        }
    }

    #[test]
    fn rounded_counts_enclose_the_quota(time in 1..u64::MAX, period in 1..u64::MAX) {
        let quota = Quota::new(time, period).unwrap();
        let (up, down) = (quota.cpus(Rounding::Up), quota.cpus(Rounding::Down));
        let used_by = |cpus: usize| cpus as u128 * u128::from(period);
        prop_assert!(used_by(up) >= u128::from(time) && up >= 1);
        prop_assert!(up == 1 || used_by(up - 1) < u128::from(time));
        prop_assert!(used_by(down) <= u128::from(time) || down == 1);
        prop_assert!(up - down <= 1);
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(
        groups in prop::collection::vec(any::<u8>(), 0..200),
        mounts in prop::collection::vec(any::<u8>(), 0..200),
        file in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let found = quota(|path| {
            let name = path.to_str()?;
            Some(if name.ends_with("cgroup") {
                groups.clone()
            } else if name.ends_with("mountinfo") {
                mounts.clone()
            } else {
                file.clone()
            })
        });
        prop_assert!(found.is_none_or(|quota| quota.cpus(Rounding::Down) >= 1));
    }

    #[test]
    fn lines_that_are_almost_right_do_no_harm(
        groups in "([0-2]?:(cpu|cpu,)?:[/.\\\\ :a\n]{0,12}\n?){0,4}",
        mounts in "([0-9 ]{0,6} [/.\\\\0-9a]{0,10} [/.\\\\0-9a]{0,10} -? ?- cgroup2? ?x? (rw,cpu)?\n?){0,4}",
        file in "[0-9 max\n-]{0,12}",
    ) {
        let found = quota(|path| {
            Some(match path.to_str()? {
                "/proc/self/cgroup" => groups.clone().into_bytes(),
                "/proc/self/mountinfo" => mounts.clone().into_bytes(),
                _ => file.clone().into_bytes(),
            })
        });
        prop_assert!(found.is_none_or(|quota| quota.cpus(Rounding::Up) >= 1));
    }
}
