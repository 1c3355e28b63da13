#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

mod real;

use podwright_core::cgroup::CpuQuota;
use tempfile::TempDir;

use super::*;
use crate::mounts;

pub(super) const SIZES: [u64; 2] = [2 << 20, 1 << 30];

/// A directory that stands in for `/sys/fs/cgroup`.
pub(super) struct Fixture {
    dir: TempDir,
    table: Vec<Mount>,
}

impl Fixture {
    /// v1 with the given hierarchies: `cpu,cpuacct` is two controllers on one mount.
    fn v1(hierarchies: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        let mut table = format!("31 23 0:28 / {root} rw - tmpfs tmpfs rw\n");
        for options in hierarchies {
            let name = options.rsplit('=').next().unwrap();
            let fs_type = if *options == "unified" { "cgroup2" } else { "cgroup" };
            std::fs::create_dir(dir.path().join(name)).unwrap();
            table +=
                &format!("32 31 0:29 / {root}/{name} rw - {fs_type} cgroup rw,xattr,{options}\n");
        }
        Self { dir, table: mounts::parse(table.as_bytes()) }
    }

    /// v2 with the given controllers at its root.
    pub(super) fn v2(controllers: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let table = format!("31 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", dir.path().display());
        let fixture = Self { dir, table: mounts::parse(table.as_bytes()) };
        fixture.file("cgroup.controllers", controllers);
        fixture.file("cgroup.subtree_control", "");
        fixture
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A file as the kernel would have created it.
    pub(super) fn file(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(super) fn files(&self, dir: &str, names: &[&str]) {
        for name in names {
            self.file(&format!("{dir}/{name}"), "");
        }
    }

    pub(super) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path().join(path)).expect(path)
    }

    pub(super) fn open(&self, owner: Owner) -> Cgroups {
        Cgroups::open(&self.table, self.path(), owner, SIZES.to_vec()).unwrap()
    }
}

pub(super) fn name(path: &str) -> CgroupName {
    CgroupName::parse(path).unwrap()
}

pub(super) fn config() -> CgroupConfig {
    CgroupConfig {
        cpu_shares: Some(1024),
        cpu_quota: Some(CpuQuota { micros: Some(25_000), period_micros: 100_000 }),
        memory_limit: Some(64 << 20),
        pids_limit: Some(100),
        cpus: Some("0-1".into()),
        hugepages: Hugepages::Only(BTreeMap::from([(2 << 20, 4 << 20)])),
    }
}

const HYBRID: [&str; 8] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "pids", "name=systemd", "unified"];

#[test]
fn mode_is_detected_from_the_mounts_at_the_root() {
    let table = |lines: &str| mounts::parse(lines.as_bytes());
    let root = Path::new("/sys/fs/cgroup");
    let v2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let tmpfs = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n";
    let cpu = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
    let unified = "33 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let elsewhere = "33 31 0:30 / /mnt/cgroup rw - cgroup cgroup rw,memory\n";
    for (case, lines, want) in [
        ("v2", v2.to_owned(), Some(Mode::V2)),
        ("v2 mounted over v1", [tmpfs, cpu, v2].concat(), Some(Mode::V2)),
        ("v1", [tmpfs, cpu].concat(), Some(Mode::V1)),
        ("hybrid", [tmpfs, cpu, unified].concat(), Some(Mode::Hybrid)),
        ("only elsewhere", elsewhere.to_owned(), None),
        ("a v2 tree below, without any v1", [tmpfs, unified].concat(), None),
        ("nothing", String::new(), None),
    ] {
        assert_eq!(detect(&table(&lines), root).ok(), want, "{case}");
    }
}

#[tokio::test]
async fn unreadable_group_does_not_count_as_missing() {
    let (v1, v2) = (Fixture::v1(&["memory"]), Fixture::v2("memory"));
    for (fixture, pods) in [(&v1, "memory/pods"), (&v2, "pods")] {
        let cgroups = fixture.open(Owner::Us);
        assert!(!cgroups.exists(&name("/pods/a")).await.unwrap());
        // The parent is not a directory: an error other than "not found".
        fixture.file(pods, "");
        let error = cgroups.exists(&name("/pods/a")).await.unwrap_err();
        assert!(matches!(error, CgroupError::Io { .. }), "{error}");
    }
}

#[tokio::test]
async fn process_joins_a_group_by_path_and_no_path_leaves_the_hierarchy() {
    let (v1, v2) = (Fixture::v1(&["cpu,cpuacct", "memory"]), Fixture::v2("cpu memory"));
    let file = |fixture: &Fixture, place: &str| {
        fixture.file(&format!("{place}/cgroup.procs"), "");
        fixture.file(&format!("{place}/cgroup.controllers"), "cpu memory");
    };
    for (fixture, places) in [
        (&v1, &["cpu,cpuacct/system.slice/us", "memory/system.slice/us"][..]),
        (&v2, &["system.slice/us"]),
    ] {
        places.iter().for_each(|place| file(fixture, place));
        let cgroups = fixture.open(Owner::Us);
        cgroups.join("/system.slice/us", 7).await.unwrap();
        for place in places {
            assert_eq!(fixture.read(&format!("{place}/cgroup.procs")), "7");
        }
        assert!(cgroups.made_at("/system.slice/us").await.unwrap().is_some());
        assert_eq!(cgroups.made_at("/none").await.unwrap(), None);
        for path in ["/../us", "/system.slice/../../us", "/."] {
            let error = cgroups.join(path, 7).await.unwrap_err();
            assert!(matches!(error, CgroupError::Entry { .. }), "{path}: {error}");
        }
    }
}

#[tokio::test]
async fn a_v1_group_is_made_and_set_in_every_hierarchy_with_a_controller() {
    let fixture = Fixture::v1(&[&HYBRID[..], &["hugetlb"]].concat());
    for (point, files) in [
        ("cpu", &["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"][..]),
        ("memory", &["memory.limit_in_bytes"]),
        ("pids", &["pids.max"]),
        (
            "hugetlb",
            &[
                "hugetlb.2MB.limit_in_bytes",
                "hugetlb.1GB.limit_in_bytes",
                "hugetlb.2MB.rsvd.limit_in_bytes",
            ],
        ),
    ] {
        fixture.files(&format!("{point}/pods/a"), files);
    }
    for level in ["", "/pods", "/pods/a"] {
        fixture.files(&format!("cpuset{level}"), &["cpuset.cpus", "cpuset.mems"]);
    }
    fixture.file("cpuset/cpuset.cpus", "0-3\n");
    fixture.file("cpuset/cpuset.mems", "0\n");

    let cgroups = fixture.open(Owner::Us);
    let group = name("/pods/a");
    assert_eq!((cgroups.version(), cgroups.missing_controllers().len()), (1, 0));
    assert!(!cgroups.exists(&group).await.unwrap(), "cpuacct is still missing");
    cgroups.ensure(&group, &config()).await.unwrap();

    assert!(cgroups.exists(&group).await.unwrap());
    for (file, want) in [
        ("cpu/pods/a/cpu.shares", "1024"),
        ("cpu/pods/a/cpu.cfs_quota_us", "25000"),
        ("cpu/pods/a/cpu.cfs_period_us", "100000"),
        ("memory/pods/a/memory.limit_in_bytes", "67108864"),
        ("pids/pods/a/pids.max", "100"),
        ("hugetlb/pods/a/hugetlb.2MB.limit_in_bytes", "4194304"),
        ("hugetlb/pods/a/hugetlb.2MB.rsvd.limit_in_bytes", "4194304"),
        ("hugetlb/pods/a/hugetlb.1GB.limit_in_bytes", "0"),
        ("cpuset/pods/cpuset.cpus", "0-3"),
        ("cpuset/pods/a/cpuset.cpus", "0-1"),
        ("cpuset/pods/a/cpuset.mems", "0"),
    ] {
        assert_eq!(fixture.read(file), want, "{file}");
    }
    assert!(fixture.path().join("devices/pods/a").is_dir(), "the runtime will use it");
    assert!(!fixture.path().join("systemd/pods").exists(), "that one is systemd's");
    assert!(!fixture.path().join("unified/pods").exists());
}

#[tokio::test]
async fn unset_config_values_are_not_written() {
    let fixture = Fixture::v1(&["cpu", "memory", "pids", "hugetlb"]);
    let cgroups = fixture.open(Owner::Us);
    // no file exists, so any write would fail
    cgroups.ensure(&name("/a"), &CgroupConfig::default()).await.unwrap();
    let unlimited = CgroupConfig {
        cpu_quota: Some(CpuQuota { micros: None, period_micros: 100_000 }),
        ..CgroupConfig::default()
    };
    fixture.files("cpu/a", &["cpu.cfs_quota_us", "cpu.cfs_period_us"]);
    cgroups.update(&name("/a"), &unlimited).await.unwrap();
    assert_eq!(fixture.read("cpu/a/cpu.cfs_quota_us"), "-1");
}

#[tokio::test]
async fn absent_hierarchies_are_skipped_and_named() {
    let fixture = Fixture::v1(&["cpu,cpuacct", "name=systemd"]);
    let cgroups = fixture.open(Owner::Us);
    fixture.files("cpu,cpuacct/a", &["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"]);
    cgroups.ensure(&name("/a"), &config()).await.unwrap();
    assert!(cgroups.exists(&name("/a")).await.unwrap());
    assert_eq!(cgroups.missing_controllers(), ["cpuset", "hugetlb", "memory", "pids"]);
    assert_eq!(cgroups.usage(&name("/a")).await.unwrap(), Usage::default());
}

#[tokio::test]
async fn a_value_that_cannot_be_set_names_file_and_value() {
    let fixture = Fixture::v1(&["cpu"]);
    let cgroups = fixture.open(Owner::Us);
    let error = cgroups.ensure(&name("/a"), &CgroupConfig::least_cpu()).await.unwrap_err();
    let want = format!("cannot set {}/cpu/a/cpu.shares to \"2\"", fixture.path().display());
    assert_eq!(error.to_string(), want);
    assert!(
        !fixture.path().join("cpu/a/cpu.shares").exists(),
        "only the kernel creates these files"
    );
}

#[tokio::test]
async fn v1_usage_and_settings_are_read() {
    let fixture = Fixture::v1(&HYBRID);
    fixture.file("cpuacct/a/cpuacct.usage", "162183187\n");
    fixture.file("pids/a/pids.current", "7\n");
    fixture.file("pids/a/pids.max", "max\n");
    fixture.file("memory/a/memory.usage_in_bytes", "1000000\n");
    fixture.file("memory/a/memory.memsw.usage_in_bytes", "1200000\n");
    fixture.file("memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    let stat = "inactive_file 1\nrss 2\npgfault 42\npgmajfault 1\ntotal_inactive_file 300000\n\
                total_rss 500000\ntotal_pgfault 43\ntotal_pgmajfault 2\n";
    fixture.file("memory/a/memory.stat", stat);
    fixture.file("cpu/a/cpu.shares", "256\n");
    fixture.file("cpu/a/cpu.cfs_quota_us", "-1\n");
    fixture.file("cpu/a/cpu.cfs_period_us", "100000\n");
    let cgroups = fixture.open(Owner::Us);

    let usage = cgroups.usage(&name("/a")).await.unwrap();
    assert_eq!((usage.cpu_nanos, usage.pids), (Some(162_183_187), Some(7)));
    assert_eq!(
        usage.memory.unwrap(),
        MemoryUsage {
            usage: 1_000_000,
            working_set: 700_000,
            rss: 500_000,
            page_faults: 42,
            major_page_faults: 1,
            limit: None,
            swap: Some(200_000),
        }
    );
    assert_eq!(cgroups.usage_of_child(&CgroupName::ROOT, "a").await.unwrap(), usage);
    assert_eq!(
        cgroups.settings(&name("/a")).await.unwrap(),
        CgroupConfig {
            cpu_shares: Some(256),
            cpu_quota: Some(CpuQuota { micros: None, period_micros: 100_000 }),
            ..CgroupConfig::default()
        }
    );
    for entry in ["", "..", "a/b", "/"] {
        cgroups.usage_of_child(&name("/"), entry).await.expect_err(entry);
    }
}

#[tokio::test]
async fn error_names_an_unreadable_value() {
    let fixture = Fixture::v1(&["cpuacct"]);
    fixture.file("cpuacct/a/cpuacct.usage", "many\n");
    let error = fixture.open(Owner::Us).usage(&name("/a")).await.unwrap_err();
    assert!(
        error.to_string().ends_with("cpuacct/a/cpuacct.usage does not hold a number"),
        "{error}"
    );
}

pub(super) const V2_FILES: [&str; 8] = [
    "cpu.weight",
    "cpu.max",
    "memory.max",
    "memory.oom.group",
    "pids.max",
    "cpuset.cpus",
    "hugetlb.2MB.max",
    "hugetlb.1GB.max",
];

#[tokio::test]
async fn a_v2_group_gets_controllers_from_every_group_above_and_its_values() {
    let fixture = Fixture::v2("cpuset cpu io memory hugetlb pids rdma misc\n");
    fixture.file("pods/cgroup.subtree_control", "cpu memory\n");
    fixture.file("pods/a/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n");
    fixture.files("pods/a", &V2_FILES);
    let cgroups = fixture.open(Owner::Us);
    assert_eq!((cgroups.version(), cgroups.missing_controllers().len()), (2, 0));
    cgroups.ensure(&name("/pods/a"), &config()).await.unwrap();

    for (file, want) in [
        ("cgroup.subtree_control", "+cpu +cpuset +hugetlb +io +memory +misc +pids +rdma"),
        ("pods/cgroup.subtree_control", "+cpuset +hugetlb +io +misc +pids +rdma"),
        ("pods/a/cpu.weight", "39"),
        ("pods/a/cpu.max", "25000 100000"),
        ("pods/a/memory.max", "67108864"),
        ("pods/a/pids.max", "100"),
        ("pods/a/cpuset.cpus", "0-1"),
        ("pods/a/hugetlb.2MB.max", "4194304"),
        ("pods/a/hugetlb.1GB.max", "0"),
    ] {
        assert_eq!(fixture.read(file), want, "{file}");
    }
    cgroups.set_oom_group(&name("/pods/a"), true).await.unwrap();
    assert_eq!(fixture.read("pods/a/memory.oom.group"), "1");
    let settings = cgroups.settings(&name("/pods/a")).await.unwrap();
    assert_eq!((settings.cpu_shares, settings.cpu_quota), (Some(998), config().cpu_quota));
    assert_eq!((settings.memory_limit, settings.pids_limit), (Some(64 << 20), Some(100)));
}

#[tokio::test]
async fn unlimited_values_are_written_as_max_on_v2() {
    let fixture = Fixture::v2("cpu hugetlb\n");
    fixture.file("a/cgroup.controllers", "cpu hugetlb\n");
    fixture.files("a", &V2_FILES);
    let unlimited = CgroupConfig {
        cpu_quota: Some(CpuQuota { micros: None, period_micros: 100_000 }),
        hugepages: Hugepages::Unlimited,
        memory_limit: Some(1),
        ..CgroupConfig::default()
    };
    let cgroups = fixture.open(Owner::Us);
    cgroups.ensure(&name("/a"), &unlimited).await.unwrap();
    assert_eq!(fixture.read("a/cpu.max"), "max 100000");
    assert_eq!(fixture.read("a/hugetlb.2MB.max"), (1u64 << 62).to_string());
    assert_eq!(fixture.read("a/memory.max"), "", "the machine has no memory controller");
}

#[tokio::test]
async fn v2_group_without_required_controllers_does_not_exist() {
    let fixture = Fixture::v2("cpu memory pids io\n");
    fixture.file("a/cgroup.controllers", "cpu io\n");
    let cgroups = fixture.open(Owner::Us);
    assert!(!cgroups.exists(&name("/a")).await.unwrap());
    assert!(!cgroups.exists(&name("/none")).await.unwrap());
    let error = cgroups.ensure(&name("/a"), &CgroupConfig::default()).await.unwrap_err();
    assert!(error.to_string().contains("/a lacks the controllers memory, pids;"), "{error}");
    fixture.file("a/cgroup.controllers", "cpu memory pids\n");
    assert!(cgroups.exists(&name("/a")).await.unwrap());
}

#[test]
fn swap_is_limited_if_the_kernel_supports_it() {
    let v2 = || Fixture::v2("cpu memory pids\n");
    for (case, fixture, files, want) in [
        ("version 1", Fixture::v1(&["memory"]), [].as_slice(), false),
        ("so started", Fixture::v1(&["memory"]), &["memory/memory.memsw.limit_in_bytes"], true),
        ("no group yet", v2(), &["memory.stat"], true),
        ("a group", v2(), &["a/cpu.max", "b/memory.max", "b/memory.swap.max"], true),
        ("without", v2(), &["a/cpu.max", "b/memory.max"], false),
    ] {
        for file in files {
            fixture.file(file, "");
        }
        assert_eq!(fixture.open(Owner::Us).limits_swap().unwrap(), want, "{case}");
    }
}

#[tokio::test]
async fn v2_usage_is_read_and_the_root_adds_up_its_own() {
    let fixture = Fixture::v2("cpu memory pids\n");
    fixture.file("a/cpu.stat", "usage_usec 162183\nuser_usec 1\n");
    let stat = "anon 500000\nfile 400000\ninactive_file 300000\npgfault 42\npgmajfault 1\n";
    fixture.file("a/memory.stat", stat);
    fixture.file("a/memory.current", "1000000\n");
    fixture.file("a/memory.max", "2000000\n");
    fixture.file("a/memory.swap.current", "0\n");
    fixture.file("a/pids.current", "7\n");
    fixture.file("a/cpu.pressure", "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n");
    fixture.file("memory.stat", stat);
    let cgroups = fixture.open(Owner::Us);

    let usage = cgroups.usage(&name("/a")).await.unwrap();
    let memory = usage.memory.unwrap();
    assert_eq!((usage.cpu_nanos, usage.pids), (Some(162_183_000), Some(7)));
    assert_eq!((memory.working_set, memory.rss, memory.limit), (700_000, 500_000, Some(2_000_000)));
    assert_eq!((memory.page_faults, memory.major_page_faults, memory.swap), (42, 1, Some(0)));
    assert_eq!(usage.cpu_pressure.unwrap().some.total_micros, 5);
    assert_eq!(usage.memory_pressure, None, "not counted");
    assert_eq!(cgroups.usage(&name("/none")).await.unwrap().cpu_pressure, None);

    let root = cgroups.usage(&CgroupName::ROOT).await.unwrap().memory.unwrap();
    assert_eq!((root.usage, root.working_set), (900_000, 600_000));
    assert_eq!(cgroups.usage(&name("/gone")).await.unwrap(), Usage::default());
}

#[tokio::test]
async fn pods_are_found_in_every_hierarchy() {
    let fixture = Fixture::v1(&HYBRID);
    for dir in [
        "cpu/x/kubepods/poda-1/container",
        "memory/x/kubepods/burstable/podb-2",
        "devices/x/kubepods/besteffort/podc",
        "cpu/x/kubepods/besteffort/podc",
        "cpu/x/kubepods/other",
        "cpu/kubepods/podelse",
    ] {
        std::fs::create_dir_all(fixture.path().join(dir)).unwrap();
    }
    fixture.file("cpu/x/kubepods/podfile", "");
    let pods = PodTree::below(&name("/x"));
    let found = fixture.open(Owner::Us).pods(&pods).await.unwrap();
    let found: Vec<_> = found.iter().map(|(uid, name)| (uid.as_str(), name.to_string())).collect();
    assert_eq!(
        found,
        [
            ("c", "/x/kubepods/besteffort/podc".to_owned()),
            ("b-2", "/x/kubepods/burstable/podb-2".to_owned()),
            ("a-1", "/x/kubepods/poda-1".to_owned()),
        ]
    );
}

#[tokio::test]
async fn destroying_removes_the_group_everywhere_and_is_idempotent() {
    let fixture = Fixture::v1(&HYBRID);
    for point in ["cpu", "memory", "devices", "systemd", "unified"] {
        std::fs::create_dir_all(fixture.path().join(point).join("a/b/c")).unwrap();
        std::fs::create_dir_all(fixture.path().join(point).join("a/d")).unwrap();
    }
    let cgroups = fixture.open(Owner::Us);
    for _ in 0..2 {
        cgroups.destroy(&name("/a/b")).await.unwrap();
    }
    for point in ["cpu", "memory", "devices", "systemd", "unified"] {
        assert!(!fixture.path().join(point).join("a/b").exists(), "{point}");
        assert!(fixture.path().join(point).join("a/d").exists(), "{point}");
    }
    assert!(matches!(cgroups.destroy(&CgroupName::ROOT).await, Err(CgroupError::Root)));
    // a directory that cannot be removed is named, and does not block the others
    fixture.file("cpu/a/d/file", "");
    let error = cgroups.destroy(&name("/a/d")).await.unwrap_err();
    assert!(error.to_string().ends_with("/cpu/a/d"), "{error}");
    assert!(!fixture.path().join("memory/a/d").exists());
}

#[test]
fn error_names_the_fix_where_no_hierarchy_is_mounted() {
    let error = Cgroups::open(&[], Path::new("/sys/fs/cgroup"), Owner::Us, vec![]).unwrap_err();
    let want = "no cgroup hierarchy is mounted at /sys/fs/cgroup; mount cgroup2 there";
    assert_eq!(error.to_string(), want);
}

#[test]
fn futures_can_be_spawned() {
    fn spawnable<T: Send + 'static>(_: impl Fn(Cgroups) -> T) {}
    spawnable(|cgroups| async move {
        cgroups.ensure(&CgroupName::ROOT, &CgroupConfig::default()).await?;
        cgroups.destroy(&CgroupName::ROOT).await
    });
}

#[tokio::test]
async fn processes_of_a_group_are_counted_without_their_threads() {
    let v1 = Fixture::v1(&HYBRID);
    v1.file("pids/a/cgroup.procs", "10\n11\n");
    v1.file("pids/a/pids.current", "7\n");
    let v2 = Fixture::v2("cpu memory pids\n");
    v2.file("a/cgroup.procs", "10\n11\n");
    v2.file("a/pids.current", "7\n");
    for fixture in [v1, v2] {
        let usage = fixture.open(Owner::Us).usage(&name("/a")).await.unwrap();
        assert_eq!((usage.processes, usage.pids), (Some(2), Some(7)));
    }
}

/// A procfs with an init process, a kernel thread, a program and a program in a container.
fn processes(fixture: &Fixture) -> PathBuf {
    let proc = fixture.path().join("proc");
    for (pid, exe, space) in
        [(1, true, "pid:[1]"), (2, false, "pid:[1]"), (10, true, "pid:[1]"), (11, true, "pid:[7]")]
    {
        let dir = proc.join(pid.to_string());
        std::fs::create_dir_all(dir.join("ns")).unwrap();
        std::os::unix::fs::symlink(space, dir.join("ns/pid")).unwrap();
        if exe {
            std::os::unix::fs::symlink("/sbin/program", dir.join("exe")).unwrap();
        }
    }
    proc
}

#[tokio::test]
async fn only_programs_of_the_machine_are_moved_from_the_root_group() {
    let fixture = Fixture::v2("cpu memory\n");
    let proc = processes(&fixture);
    fixture.file("cgroup.procs", "1\n2\n10\n11\n0\n99\nx\n");
    fixture.file("system/cgroup.controllers", "cpu memory\n");
    fixture.file("system/cgroup.procs", "");
    let cgroups = fixture.open(Owner::Us);
    assert_eq!(cgroups.clear_root("/system", &proc).await.unwrap(), 1);
    assert_eq!(fixture.read("system/cgroup.procs"), "10");
    cgroups.clear_root("/../system", &proc).await.unwrap_err();
}

#[tokio::test]
async fn process_of_a_service_in_another_hierarchy_is_not_moved() {
    let fixture = Fixture::v1(&["cpu", "memory"]);
    let proc = processes(&fixture);
    let listed = |memory: &str| {
        fixture.file("cpu/cgroup.procs", "1\n10\n");
        fixture.file("memory/cgroup.procs", memory);
        fixture.files("cpu/system", &["cgroup.procs"]);
        fixture.files("memory/system", &["cgroup.procs"]);
    };
    let cgroups = fixture.open(Owner::Us);
    listed("1\n");
    assert_eq!(cgroups.clear_root("/system", &proc).await.unwrap(), 0);
    assert_eq!(fixture.read("cpu/system/cgroup.procs"), "");
    listed("1\n10\n");
    assert_eq!(cgroups.clear_root("/system", &proc).await.unwrap(), 1);
    for hierarchy in ["cpu", "memory"] {
        assert_eq!(fixture.read(&format!("{hierarchy}/system/cgroup.procs")), "10");
    }
}

#[tokio::test]
async fn group_is_killed_and_stays() {
    let fixture = Fixture::v2("cpu memory\n");
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    fixture.file("kubepods/pod1/cgroup.procs", &format!("{}\n", child.id()));
    let cgroups = fixture.open(Owner::Us);
    let reaped = std::thread::spawn(move || child.wait().unwrap());
    // The file still lists the process afterwards, unlike the kernel's.
    cgroups.kill(&name("/kubepods/pod1")).await.unwrap_err();
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(reaped.join().unwrap().signal(), Some(9));
    assert!(fixture.path().join("kubepods/pod1").exists());
    assert!(matches!(cgroups.kill(&CgroupName::ROOT).await, Err(CgroupError::Root)));
}
