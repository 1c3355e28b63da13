//! The same tests on this machine's kernel, below a group of the test's own.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use podwright_testkit::report;

use super::*;

/// A group for the duration of a test, removed even if the test fails.
struct RealRoot {
    cgroups: Cgroups,
    name: CgroupName,
}

impl RealRoot {
    /// `None`, with a note, where this machine does not support it.
    fn make(mode: Mode) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !report::is_root() {
            report::skipped("needs root");
            return None;
        }
        let table = mounts::table(Path::new("/proc")).unwrap();
        let root = match mode {
            Mode::V2 => {
                table.iter().find(|mount| mount.fs_type == "cgroup2").map(|m| m.point.clone())
            }
            Mode::V1 | Mode::Hybrid => Some(PathBuf::from("/sys/fs/cgroup")),
        };
        let right = |root: &PathBuf| {
            let found = detect(&table, root).ok();
            found == Some(mode) || (found == Some(Mode::Hybrid) && mode == Mode::V1)
        };
        let Some(root) = root.filter(right) else {
            report::skipped(&format!("this machine has no cgroups of {mode:?}"));
            return None;
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = format!("/podwright-test-{}-{count}", std::process::id());
        let sizes = crate::machine::hugepage_sizes(Path::new("/")).unwrap();
        let cgroups = Cgroups::open(&table, &root, Owner::Us, sizes).unwrap();
        Some(Self { cgroups, name: name(&own) })
    }

    fn pods(&self) -> PodTree {
        PodTree::below(&self.name)
    }
}

impl Drop for RealRoot {
    fn drop(&mut self) {
        let path = self.cgroups.path(&self.name);
        let removed = self.cgroups.0.kill(&path).and_then(|()| match &self.cgroups.0.tree {
            Tree::V1(tree) => tree.remove(&path),
            Tree::V2(tree) => tree.remove(&path),
        });
        if let Err(error) = removed {
            println!("left behind: {error}");
        }
    }
}

/// A process that waits until it is killed.
fn waiting_process() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn real_v1_pod_group_is_made_limited_measured_and_destroyed_with_its_processes() {
    let Some(root) = RealRoot::make(Mode::V1) else { return };
    let (cgroups, pods) = (&root.cgroups, root.pods());
    let uid = PodUid::new("1f2e-3d4c");
    let pod = pods.pod(QosClass::Burstable, &uid).unwrap();
    let burstable = CgroupConfig::for_burstable(podwright_core::cgroup::CpuRequests::default());
    cgroups.ensure(&pods.class(QosClass::Burstable), &burstable).await.unwrap();
    let config = CgroupConfig { cpus: None, ..config() };
    assert!(!cgroups.exists(&pod).await.unwrap());

    cgroups.ensure(&pod, &config).await.unwrap();
    cgroups.ensure(&pod, &config).await.unwrap();

    assert!(cgroups.exists(&pod).await.unwrap());
    let settings = cgroups.settings(&pod).await.unwrap();
    assert_eq!(settings, CgroupConfig { hugepages: Hugepages::Leave, ..config });
    assert_eq!(cgroups.pods(&pods).await.unwrap(), [(uid, pod.clone())]);

    // given a process in a container's group, and one in the pod's own, in some hierarchies only
    let container = pod.child("container").unwrap();
    cgroups.ensure(&container, &CgroupConfig::default()).await.unwrap();
    let mut children = [waiting_process(), waiting_process()];
    let Tree::V1(tree) = &cgroups.0.tree else { panic!("asked for v1") };
    for point in tree.points() {
        let dir = below(point, &cgroups.path(&container));
        directory::set(&dir, "cgroup.procs", &children[0].id().to_string()).unwrap();
    }
    let cpu = below(tree.points()[0], &cgroups.path(&pod));
    directory::set(&cpu, "cgroup.procs", &children[1].id().to_string()).unwrap();

    let pids = cgroups.pids(&pod).await.unwrap();
    assert_eq!(pids, children.iter().map(Child::id).collect());
    let usage = cgroups.usage(&pod).await.unwrap();
    assert!(usage.cpu_nanos.is_some());
    assert_eq!(usage.memory.unwrap().limit, Some(64 << 20));
    assert_eq!(usage.pids, Some(1));

    cgroups.destroy(&pod).await.unwrap();

    for child in &mut children {
        assert!(!child.wait().unwrap().success(), "it was killed");
    }
    assert!(!cgroups.exists(&pod).await.unwrap());
    assert!(cgroups.pods(&pods).await.unwrap().is_empty());
    cgroups.destroy(&pod).await.unwrap();
}

#[tokio::test]
async fn real_v1_quota_and_period_shrink_together_although_either_alone_is_refused() {
    let Some(root) = RealRoot::make(Mode::V1) else { return };
    let quota = |micros, period_micros| CgroupConfig {
        cpu_quota: Some(CpuQuota { micros: Some(micros), period_micros }),
        ..CgroupConfig::default()
    };
    // given a parent of half a CPU, and a child that uses all of it
    let child = root.name.child("child").unwrap();
    root.cgroups.ensure(&root.name, &quota(50_000, 100_000)).await.unwrap();
    root.cgroups.ensure(&child, &quota(50_000, 100_000)).await.unwrap();
    // when its period alone shrank, it would have five CPUs for a moment
    root.cgroups.update(&child, &quota(5_000, 10_000)).await.unwrap();
    let settings = root.cgroups.settings(&child).await.unwrap();
    assert_eq!(settings.cpu_quota, quota(5_000, 10_000).cpu_quota);
    // and a quota above the parent's is refused, by name
    let error = root.cgroups.update(&child, &quota(20_000, 10_000)).await.unwrap_err();
    assert!(error.to_string().contains("child/cpu.cfs_quota_us to \"20000\""), "{error}");
}

#[tokio::test]
async fn real_v1_groups_inherit_the_cpus_of_those_above() {
    let Some(root) = RealRoot::make(Mode::V1) else { return };
    let deep = root.name.child("a").unwrap().child("b").unwrap();
    root.cgroups.ensure(&deep, &CgroupConfig::default()).await.unwrap();
    let Tree::V1(tree) = &root.cgroups.0.tree else { panic!("asked for v1") };
    let Some(dir) = tree.dir("cpuset", &root.cgroups.path(&deep)) else {
        report::skipped("this machine has no cpuset hierarchy");
        return;
    };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        assert_ne!(std::fs::read_to_string(dir.join(file)).unwrap().trim(), "", "{file}");
    }
}

#[tokio::test]
async fn real_v2_group_is_made_measured_and_destroyed_with_its_processes() {
    let Some(root) = RealRoot::make(Mode::V2) else { return };
    let (cgroups, pods) = (&root.cgroups, root.pods());
    let uid = PodUid::new("1f2e-3d4c");
    let pod = pods.pod(QosClass::Guaranteed, &uid).unwrap();
    // Any controllers: beside v1 it may be huge pages only.
    cgroups.ensure(&pod, &CgroupConfig { cpus: None, ..config() }).await.unwrap();
    assert!(cgroups.exists(&pod).await.unwrap());
    assert_eq!(cgroups.pods(&pods).await.unwrap(), [(uid, pod.clone())]);
    let Tree::V2(tree) = &cgroups.0.tree else { panic!("asked for v2") };
    let dir = below(tree.point(), &cgroups.path(&pod));
    if !cgroups.missing_controllers().contains(&"hugetlb") {
        let limit = directory::read_number(&dir, "hugetlb.2MB.max").unwrap();
        assert_eq!(limit, Some(Some(4 << 20)));
    }

    let mut child = waiting_process();
    let inner = dir.join("container");
    directory::make(&inner).unwrap();
    directory::set(&inner, "cgroup.procs", &child.id().to_string()).unwrap();
    assert_eq!(cgroups.pids(&pod).await.unwrap(), BTreeSet::from([child.id()]));
    assert!(cgroups.usage(&pod).await.unwrap().cpu_nanos.is_some());
    assert!(cgroups.usage_of_child(&pod, "container").await.unwrap().cpu_nanos.is_some());

    cgroups.destroy(&pod).await.unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed");
    assert!(!dir.exists());
}

#[tokio::test]
async fn real_processes_that_fork_while_being_killed_are_killed_too() {
    let Some(root) = RealRoot::make(Mode::V1) else { return };
    let group = root.name.child("forks").unwrap();
    let config = CgroupConfig { pids_limit: Some(40), ..CgroupConfig::default() };
    root.cgroups.ensure(&group, &config).await.unwrap();
    // given a shell that joins the group itself, then spawns without end
    let Tree::V1(tree) = &root.cgroups.0.tree else { panic!("asked for v1") };
    let joins: String = tree
        .points()
        .iter()
        .map(|point| below(point, &root.cgroups.path(&group)).join("cgroup.procs"))
        .map(|procs| format!("echo $$ > {}; ", procs.display()))
        .collect();
    let script = format!("{joins} echo ready; while :; do sleep 60 & done 2>/dev/null");
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).unwrap();

    root.cgroups.destroy(&group).await.unwrap();
    shell.wait().unwrap();
    assert!(!root.cgroups.exists(&group).await.unwrap());
}

#[tokio::test]
async fn real_v1_frozen_processes_are_killed_too() {
    let Some(root) = RealRoot::make(Mode::V1) else { return };
    let group = root.name.child("frozen").unwrap();
    root.cgroups.ensure(&group, &CgroupConfig::default()).await.unwrap();
    let Tree::V1(tree) = &root.cgroups.0.tree else { panic!("asked for v1") };
    let Some(dir) = tree.dir("freezer", &root.cgroups.path(&group)) else {
        report::skipped("this machine has no freezer hierarchy");
        return;
    };
    let mut child = waiting_process();
    directory::set(&dir, "cgroup.procs", &child.id().to_string()).unwrap();
    directory::set(&dir, "freezer.state", "FROZEN").unwrap();
    root.cgroups.destroy(&group).await.unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed");
}
