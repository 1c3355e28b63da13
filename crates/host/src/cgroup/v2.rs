//! cgroup v2: one tree, in which a group has the controllers that the group above passes on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use podwright_core::cgroup::{
    CgroupConfig, CpuQuota, hugepage_size_name, shares_from_weight, weight_from_shares,
};

use super::directory::{self, keyed, set, set_if_there};
use super::{CgroupError, MemoryUsage, Result, Usage, below, hugepage_limits, pressure};

/// Controllers without which a group counts as incomplete, as far as the machine has them.
const USED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

#[derive(Debug)]
pub(super) struct Unified {
    point: PathBuf,
    /// All controllers of the machine, including those that only the runtime uses.
    controllers: BTreeSet<String>,
}

impl Unified {
    pub(super) fn open(point: &Path) -> Result<Self> {
        match controllers(point)? {
            Some(controllers) => Ok(Self { point: point.to_owned(), controllers }),
            None => Err(CgroupError::NotMounted { root: point.to_owned() }),
        }
    }

    #[cfg(test)]
    pub(super) fn point(&self) -> &Path {
        &self.point
    }

    pub(super) fn missing_controllers(&self) -> Vec<&'static str> {
        USED.into_iter().filter(|used| !self.controllers.contains(*used)).collect()
    }

    /// The root group does not show it. Where no group shows it, assume a standard kernel.
    pub(super) fn limits_swap(&self) -> Result<bool> {
        let groups = directory::children(&self.point)?;
        let groups = groups.iter().map(|name| self.point.join(name));
        let mut telling = groups.filter(|group| group.join("memory.max").exists()).peekable();
        let silent = telling.peek().is_none();
        Ok(silent || telling.any(|group| group.join("memory.swap.max").exists()))
    }

    pub(super) fn create(&self, path: &str) -> Result<()> {
        let dir = below(&self.point, path);
        let mut parent = self.point.clone();
        for level in directory::levels(&self.point, &dir) {
            self.pass_on_controllers(&parent)?;
            directory::make(&level)?;
            parent = level;
        }
        match self.lacking(&dir)? {
            Some(missing) if missing.is_empty() => Ok(()),
            missing => Err(CgroupError::ControllersMissing {
                path: dir,
                missing: missing.unwrap_or_else(|| self.used().map(str::to_owned).collect()),
            }),
        }
    }

    /// The owner of the groups above may withhold controllers; whether a required one is missing
    /// shows in the group itself.
    fn pass_on_controllers(&self, dir: &Path) -> Result<()> {
        let passed = directory::read(dir, SUBTREE_CONTROL)?.unwrap_or_default();
        let passed: BTreeSet<_> = passed.split_ascii_whitespace().collect();
        let absent: Vec<_> = self
            .controllers
            .iter()
            .filter(|controller| !passed.contains(controller.as_str()))
            .map(|controller| format!("+{controller}"))
            .collect();
        if absent.is_empty() || set(dir, SUBTREE_CONTROL, &absent.join(" ")).is_ok() {
            return Ok(());
        }
        for one in absent {
            let _ = set(dir, SUBTREE_CONTROL, &one);
        }
        Ok(())
    }

    pub(super) fn exists(&self, path: &str) -> Result<bool> {
        let missing = self.lacking(&below(&self.point, path))?;
        Ok(missing.is_some_and(|missing| missing.is_empty()))
    }

    pub(super) fn made(&self, path: &str) -> Result<Option<SystemTime>> {
        directory::made(&below(&self.point, path))
    }

    pub(super) fn join(&self, path: &str, pid: u32) -> Result<()> {
        directory::join(&below(&self.point, path), pid)
    }

    /// Required controllers that a group does not have; `None` if there is no group.
    fn lacking(&self, dir: &Path) -> Result<Option<Vec<String>>> {
        let Some(present) = controllers(dir)? else { return Ok(None) };
        Ok(Some(self.used().filter(|used| !present.contains(*used)).map(str::to_owned).collect()))
    }

    fn used(&self) -> impl Iterator<Item = &'static str> {
        USED.into_iter().filter(|used| self.controllers.contains(*used))
    }

    pub(super) fn apply(&self, path: &str, config: &CgroupConfig, sizes: &[u64]) -> Result<()> {
        let dir = below(&self.point, path);
        let has = |controller: &str| self.controllers.contains(controller);
        if let Some(limit) = config.pids_limit.filter(|_| has("pids")) {
            set(&dir, "pids.max", &limit.max(1).to_string())?;
        }
        if let Some(bytes) = config.memory_limit.filter(|_| has("memory")) {
            set(&dir, "memory.max", &bytes.to_string())?;
        }
        if let Some(shares) = config.cpu_shares.filter(|_| has("cpu")) {
            set(&dir, "cpu.weight", &weight_from_shares(shares).to_string())?;
        }
        if let Some(quota) = config.cpu_quota.filter(|_| has("cpu")) {
            let micros = quota.micros.map_or("max".to_owned(), |micros| micros.to_string());
            set(&dir, "cpu.max", &format!("{micros} {}", quota.period_micros))?;
        }
        if let Some(cpus) = config.cpus.as_ref().filter(|_| has("cpuset")) {
            set(&dir, "cpuset.cpus", cpus)?;
        }
        if has("hugetlb") {
            for (size, limit) in hugepage_limits(&config.hugepages, sizes) {
                let (name, limit) = (hugepage_size_name(size), limit.to_string());
                set(&dir, &format!("hugetlb.{name}.max"), &limit)?;
                // Reservations, since Linux 5.7.
                set_if_there(&dir, &format!("hugetlb.{name}.rsvd.max"), &limit)?;
            }
        }
        Ok(())
    }

    pub(super) fn set_oom_group(&self, path: &str, together: bool) -> Result<()> {
        set(&below(&self.point, path), "memory.oom.group", if together { "1" } else { "0" })
    }

    /// `cgroup.kill`, since Linux 5.14. Processes that it does not reach are killed one by one.
    pub(super) fn kill_at_once(&self, path: &str) {
        let _ = set(&below(&self.point, path), "cgroup.kill", "1");
    }

    pub(super) fn remove(&self, path: &str) -> Result<()> {
        directory::remove(&below(&self.point, path))
    }

    pub(super) fn children(&self, path: &str) -> Result<BTreeSet<String>> {
        directory::children(&below(&self.point, path))
    }

    pub(super) fn pids(&self, path: &str) -> Result<BTreeSet<u32>> {
        let mut pids = BTreeSet::new();
        directory::collect_pids(&below(&self.point, path), &mut pids)?;
        Ok(pids)
    }

    pub(super) fn usage(&self, path: &str) -> Result<Usage> {
        let dir = below(&self.point, path);
        let cpu = directory::read(&dir, "cpu.stat")?;
        Ok(Usage {
            cpu_nanos: cpu.map(|stat| keyed(&stat, "usage_usec").saturating_mul(1000)),
            memory: memory_usage(&dir)?,
            pids: directory::read_number(&dir, "pids.current")?.flatten(),
            processes: directory::count_processes(&dir),
            cpu_pressure: pressure::read(&dir, "cpu.pressure")?,
            memory_pressure: pressure::read(&dir, "memory.pressure")?,
            io_pressure: pressure::read(&dir, "io.pressure")?,
        })
    }

    pub(super) fn memory(&self, path: &str) -> Result<Option<MemoryUsage>> {
        memory_usage(&below(&self.point, path))
    }

    pub(super) fn dir(&self, path: &str) -> PathBuf {
        below(&self.point, path)
    }

    pub(super) fn settings(&self, path: &str) -> Result<CgroupConfig> {
        let dir = below(&self.point, path);
        let weight = directory::read_number(&dir, "cpu.weight")?.flatten();
        let cpu_quota = match directory::read(&dir, "cpu.max")? {
            Some(text) => Some(parse_quota(&text).ok_or_else(|| CgroupError::Unexpected {
                path: dir.join("cpu.max"),
                what: "a quota and a period",
            })?),
            None => None,
        };
        Ok(CgroupConfig {
            cpu_shares: weight.map(shares_from_weight),
            cpu_quota,
            memory_limit: directory::read_number(&dir, "memory.max")?.flatten(),
            pids_limit: directory::read_number(&dir, "pids.max")?.flatten(),
            ..CgroupConfig::default()
        })
    }
}

fn controllers(dir: &Path) -> Result<Option<BTreeSet<String>>> {
    let text = directory::read(dir, "cgroup.controllers")?;
    Ok(text.map(|text| text.split_ascii_whitespace().map(str::to_owned).collect()))
}

/// `max 100000`, `50000 100000`
fn parse_quota(text: &str) -> Option<CpuQuota> {
    let (micros, period) = text.trim().split_once(' ')?;
    let micros = match micros {
        "max" => None,
        number => Some(number.parse().ok()?),
    };
    Some(CpuQuota { micros, period_micros: period.trim().parse().ok()? })
}

fn memory_usage(dir: &Path) -> Result<Option<MemoryUsage>> {
    let Some(stat) = directory::read(dir, "memory.stat")? else { return Ok(None) };
    // The root has no total of its own; what it has is anonymous memory and file pages.
    let usage = match directory::read_number(dir, "memory.current")?.flatten() {
        Some(usage) => usage,
        None => keyed(&stat, "anon").saturating_add(keyed(&stat, "file")),
    };
    Ok(Some(MemoryUsage {
        usage,
        working_set: usage.saturating_sub(keyed(&stat, "inactive_file")),
        rss: keyed(&stat, "anon"),
        page_faults: keyed(&stat, "pgfault"),
        major_page_faults: keyed(&stat, "pgmajfault"),
        limit: directory::read_number(dir, "memory.max")?.flatten(),
        swap: directory::read_number(dir, "memory.swap.current")?.flatten(),
    }))
}
