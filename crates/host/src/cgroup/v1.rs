//! cgroup v1: a tree for each controller; a group is a directory of the same name in each.
//!
//! A pod's group is created in every hierarchy that has a controller, also in those without
//! settings of ours: the runtime puts its containers there, and would otherwise create the pod's
//! directory itself, which would then never be removed. In systemd's named hierarchy and in the v2
//! tree of a hybrid machine we create nothing and only remove what the runtime left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use podwright_core::cgroup::{CgroupConfig, CpuQuota, hugepage_size_name};

use super::directory::{self, io_error, keyed, set, set_if_there};
use super::{MemoryUsage, Result, Usage, below, hugepage_limits};
use crate::mounts::Mount;

/// Controllers without which a group counts as incomplete.
const USED: [&str; 6] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids"];
/// The kernel's value for no memory limit.
const UNLIMITED: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct Hierarchies {
    /// Mount points by controller; several may share one.
    controllers: BTreeMap<String, PathBuf>,
    /// Mount points of hierarchies without controllers.
    others: BTreeSet<PathBuf>,
}

impl Hierarchies {
    /// Where one controller is mounted more than once, the shortest path is used.
    pub(super) fn find(table: &[Mount], root: &Path) -> Self {
        let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
        for mount in table.iter().filter(|mount| mount.point.starts_with(root)) {
            for hierarchy in hierarchies_of(mount) {
                let shortest = found.entry(hierarchy).or_insert_with(|| mount.point.clone());
                if mount.point.as_os_str().len() < shortest.as_os_str().len() {
                    shortest.clone_from(&mount.point);
                }
            }
        }
        let (others, controllers): (BTreeMap<_, _>, BTreeMap<_, _>) =
            found.into_iter().partition(|(name, _)| name.contains('=') || name.is_empty());
        Self { controllers, others: others.into_values().collect() }
    }

    pub(super) fn missing_controllers(&self) -> Vec<&'static str> {
        USED.into_iter().filter(|used| !self.controllers.contains_key(*used)).collect()
    }

    /// Only with the corresponding kernel command line option.
    pub(super) fn limits_swap(&self) -> bool {
        let memory = self.controllers.get("memory");
        memory.is_some_and(|point| point.join("memory.memsw.limit_in_bytes").exists())
    }

    pub(super) fn create(&self, path: &str) -> Result<()> {
        let cpuset = self.controllers.get("cpuset");
        for point in self.points() {
            let mut parent = point.clone();
            for level in directory::levels(point, &below(point, path)) {
                directory::make(&level)?;
                if Some(point) == cpuset {
                    inherit_cpuset(&parent, &level)?;
                }
                parent = level;
            }
        }
        Ok(())
    }

    pub(super) fn exists(&self, path: &str) -> Result<bool> {
        for dir in USED.into_iter().filter_map(|name| self.dir(name, path)) {
            if !directory::is_there(&dir)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The oldest of its directories: some controllers may have been added later.
    pub(super) fn made(&self, path: &str) -> Result<Option<SystemTime>> {
        let mut oldest = None;
        for point in self.points() {
            if let Some(made) = directory::made(&below(point, path))? {
                oldest = Some(oldest.map_or(made, |oldest: SystemTime| oldest.min(made)));
            }
        }
        Ok(oldest)
    }

    pub(super) fn join(&self, path: &str, pid: u32) -> Result<()> {
        self.points().into_iter().try_for_each(|point| directory::join(&below(point, path), pid))
    }

    pub(super) fn apply(&self, path: &str, config: &CgroupConfig, sizes: &[u64]) -> Result<()> {
        if let Some(dir) = self.dir("cpuset", path)
            && let Some(cpus) = &config.cpus
        {
            set(&dir, "cpuset.cpus", cpus)?;
        }
        if let Some(dir) = self.dir("cpu", path) {
            if let Some(shares) = config.cpu_shares {
                set(&dir, "cpu.shares", &shares.to_string())?;
            }
            if let Some(quota) = config.cpu_quota {
                set_quota(&dir, quota)?;
            }
        }
        if let Some(dir) = self.dir("pids", path)
            && let Some(limit) = config.pids_limit
        {
            set(&dir, "pids.max", &limit.max(1).to_string())?;
        }
        if let Some(dir) = self.dir("hugetlb", path) {
            for (size, limit) in hugepage_limits(&config.hugepages, sizes) {
                let (name, limit) = (hugepage_size_name(size), limit.to_string());
                set(&dir, &format!("hugetlb.{name}.limit_in_bytes"), &limit)?;
                // Reservations, since Linux 5.7.
                set_if_there(&dir, &format!("hugetlb.{name}.rsvd.limit_in_bytes"), &limit)?;
            }
        }
        // Last: it is refused while usage is above it.
        if let Some(dir) = self.dir("memory", path)
            && let Some(bytes) = config.memory_limit
        {
            set(&dir, "memory.limit_in_bytes", &bytes.to_string())?;
        }
        Ok(())
    }

    /// Frozen processes ignore signals until thawed.
    pub(super) fn thaw(&self, path: &str) -> Result<()> {
        let Some(dir) = self.dir("freezer", path) else { return Ok(()) };
        let mut open = vec![dir];
        while let Some(dir) = open.pop() {
            set_if_there(&dir, "freezer.state", "THAWED")?;
            open.extend(directory::children(&dir)?.into_iter().map(|name| dir.join(name)));
        }
        Ok(())
    }

    pub(super) fn remove(&self, path: &str) -> Result<()> {
        let mut first_error = None;
        // A directory that cannot be removed must not block the others. The hierarchies in which
        // leftovers are searched go last, so that an interrupted removal is found and finished.
        for point in self.others.iter().chain(self.points()) {
            if let Err(error) = directory::remove(&below(point, path)) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(super) fn children(&self, path: &str) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for point in self.points() {
            names.append(&mut directory::children(&below(point, path))?);
        }
        Ok(names)
    }

    pub(super) fn pids(&self, path: &str) -> Result<BTreeSet<u32>> {
        let mut pids = BTreeSet::new();
        for point in self.points() {
            directory::collect_pids(&below(point, path), &mut pids)?;
        }
        Ok(pids)
    }

    pub(super) fn usage(&self, path: &str) -> Result<Usage> {
        let number = |controller: &str, file: &str| match self.dir(controller, path) {
            Some(dir) => directory::read_number(&dir, file).map(Option::flatten),
            None => Ok(None),
        };
        Ok(Usage {
            cpu_nanos: number("cpuacct", "cpuacct.usage")?,
            memory: self.memory(path)?,
            pids: number("pids", "pids.current")?,
            processes: self.dir("pids", path).and_then(|dir| directory::count_processes(&dir)),
            ..Usage::default()
        })
    }

    pub(super) fn memory(&self, path: &str) -> Result<Option<MemoryUsage>> {
        self.dir("memory", path).map_or(Ok(None), |dir| memory_usage(&dir))
    }

    pub(super) fn settings(&self, path: &str) -> Result<CgroupConfig> {
        let mut config = CgroupConfig::default();
        if let Some(dir) = self.dir("cpu", path) {
            config.cpu_shares = directory::read_number(&dir, "cpu.shares")?.flatten();
            let period = directory::read_number(&dir, "cpu.cfs_period_us")?.flatten();
            // -1 means unlimited
            let quota = directory::read(&dir, "cpu.cfs_quota_us")?;
            let micros = quota.and_then(|quota| quota.trim().parse().ok());
            config.cpu_quota = period.map(|period_micros| CpuQuota { micros, period_micros });
        }
        if let Some(dir) = self.dir("memory", path) {
            config.memory_limit = memory_limit(&dir, "memory.limit_in_bytes")?;
        }
        if let Some(dir) = self.dir("pids", path) {
            config.pids_limit = directory::read_number(&dir, "pids.max")?.flatten();
        }
        Ok(config)
    }

    /// Mount points of the hierarchies that have controllers.
    pub(super) fn points(&self) -> Vec<&PathBuf> {
        self.controllers.values().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn dir(&self, controller: &str, path: &str) -> Option<PathBuf> {
        self.controllers.get(controller).map(|point| below(point, path))
    }
}

/// Names of the controllers on a mount; one without controllers is named by its `name=`, and the v2
/// tree has no name.
fn hierarchies_of(mount: &Mount) -> Vec<String> {
    const OPTIONS: [&str; 7] = ["rw", "ro", "noprefix", "clone_children", "xattr", "all", "none"];
    match mount.fs_type.as_str() {
        "cgroup2" => vec![String::new()],
        "cgroup" => mount
            .super_option_list()
            .filter(|option| !OPTIONS.contains(option) && !option.starts_with("release_agent="))
            .filter(|option| !option.is_empty())
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

/// A new cpuset has no CPUs and no memory nodes, and accepts no process before it has both.
fn inherit_cpuset(parent: &Path, dir: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let read = |dir: &Path| {
            let path = dir.join(file);
            std::fs::read_to_string(&path).map_err(io_error("read", &path))
        };
        if read(dir)?.trim().is_empty() {
            set(dir, file, read(parent)?.trim())?;
        }
    }
    Ok(())
}

/// The kernel checks each write against the current other value, so either order may be refused;
/// then the other order works.
fn set_quota(dir: &Path, quota: CpuQuota) -> Result<()> {
    let set_period = || set(dir, "cpu.cfs_period_us", &quota.period_micros.to_string());
    let micros = quota.micros.map_or("-1".to_owned(), |micros| micros.to_string());
    let set_micros = || set(dir, "cpu.cfs_quota_us", &micros);
    match set_period() {
        Ok(()) => set_micros(),
        Err(error) if directory::is_invalid(&error) => {
            set_micros()?;
            set_period()
        }
        Err(error) => Err(error),
    }
}

/// `None`: unlimited.
pub(super) fn memory_limit(dir: &Path, file: &str) -> Result<Option<u64>> {
    let limit = directory::read_number(dir, file)?.flatten();
    Ok(limit.filter(|limit| *limit < UNLIMITED))
}

fn memory_usage(dir: &Path) -> Result<Option<MemoryUsage>> {
    let Some(usage) = directory::read_number(dir, "memory.usage_in_bytes")?.flatten() else {
        return Ok(None);
    };
    let stat = directory::read(dir, "memory.stat")?.unwrap_or_default();
    let with_swap = directory::read_number(dir, "memory.memsw.usage_in_bytes")?.flatten();
    Ok(Some(MemoryUsage {
        usage,
        working_set: usage.saturating_sub(keyed(&stat, "total_inactive_file")),
        rss: keyed(&stat, "total_rss"),
        page_faults: keyed(&stat, "pgfault"),
        major_page_faults: keyed(&stat, "pgmajfault"),
        limit: memory_limit(dir, "memory.limit_in_bytes")?,
        swap: with_swap.map(|both| both.saturating_sub(usage)),
    }))
}
