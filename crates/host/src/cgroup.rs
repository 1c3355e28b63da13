//! Control groups: creation, limits, usage and removal.
//!
//! Two kernel interfaces (v1, one tree per controller; v2, one tree) times two owners (we create
//! the directories, or systemd does and gets D-Bus requests) give four implementations of the same
//! few operations; [`Cgroups`] is these operations. Names and values come from
//! `podwright_core::cgroup`.
//!
//! Every operation can be repeated after it was interrupted at any point: a group that exists is
//! used, one that is gone counts as removed.

mod access;
mod detail;
mod directory;
mod memory_watch;
mod pressure;
mod processes;
pub mod systemd;
mod v1;
mod v2;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use podwright_api::qos::QosClass;
use podwright_core::cgroup::{CgroupConfig, CgroupName, Driver, Hugepages, PodTree};
use podwright_core::ids::PodUid;

pub use self::access::{Access, Accesses, Io};
pub use self::detail::{Detail, Throttling};
pub use self::memory_watch::{MemoryWatch, PolledWatch};
pub use self::pressure::{Pressure, Stall};
pub use self::processes::Processes;
use self::systemd::{UnitError, Units};
use crate::mounts::Mount;
use crate::threads;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tree: Tree,
    owner: Owner,
    /// Page sizes that the machine supports, in bytes.
    hugepage_sizes: Vec<u64>,
}

/// Who creates the directories.
#[derive(Debug)]
pub enum Owner {
    Us,
    Systemd(Units),
}

#[derive(Debug)]
enum Tree {
    V1(v1::Hierarchies),
    V2(v2::Unified),
}

/// Which of the kernel's interfaces is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    V1,
    /// v1, and beside it a v2 tree without the controllers that matter; treated as v1.
    Hybrid,
    V2,
}

/// Current usage of a group. A field is absent where its controller is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time since the group was created.
    pub cpu_nanos: Option<u64>,
    pub memory: Option<MemoryUsage>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processes directly in the group.
    pub processes: Option<u64>,
    pub cpu_pressure: Option<Pressure>,
    pub memory_pressure: Option<Pressure>,
    pub io_pressure: Option<Pressure>,
}

/// Bytes, and counts since the group was created; all including the groups below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    pub usage: u64,
    /// Memory that cannot be reclaimed at once: without inactive file pages.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    pub limit: Option<u64>,
    /// Absent where the kernel does not count it.
    pub swap: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup hierarchy is mounted at {}; mount cgroup2 there", root.display())]
    NotMounted { root: PathBuf },
    #[error("cannot {attempt} cgroup {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot set {} to {value:?}", path.display())]
    Set { path: PathBuf, value: String, source: io::Error },
    #[error("{} does not hold {what}", path.display())]
    Unexpected { path: PathBuf, what: &'static str },
    #[error(
        "cgroup {} lacks the controllers {}; let the groups above it pass them on in \
         cgroup.subtree_control",
        path.display(), missing.join(", ")
    )]
    ControllersMissing { path: PathBuf, missing: Vec<String> },
    #[error("cgroup {} still has processes {pids:?} after {passes} rounds of SIGKILL", path.display())]
    Undying { path: PathBuf, pids: Vec<u32>, passes: u32 },
    #[error("cgroup {name}")]
    Unit { name: String, source: UnitError },
    #[error("{entry:?} is not the name of a cgroup's directory")]
    Entry { entry: String },
    #[error("the root cgroup holds every process of the machine and cannot be destroyed")]
    Root,
}

pub type Result<T> = std::result::Result<T, CgroupError>;

/// Which interface the mounts at or below `root` (`/sys/fs/cgroup`) provide.
pub fn detect(table: &[Mount], root: &Path) -> Result<Mode> {
    let here: Vec<_> = table.iter().filter(|mount| mount.point.starts_with(root)).collect();
    // The last mount on the root itself hides the others.
    if here.iter().rev().find(|mount| mount.point == root).is_some_and(|m| m.fs_type == "cgroup2") {
        return Ok(Mode::V2);
    }
    let has = |fs_type: &str| here.iter().any(|mount| mount.fs_type == fs_type);
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => Ok(Mode::Hybrid),
        (true, false) => Ok(Mode::V1),
        (false, _) => Err(CgroupError::NotMounted { root: root.to_owned() }),
    }
}

impl Cgroups {
    /// `table` is the mount table and `root` is `/sys/fs/cgroup`; tests pass their own.
    pub fn open(
        table: &[Mount],
        root: &Path,
        owner: Owner,
        hugepage_sizes: Vec<u64>,
    ) -> Result<Self> {
        let tree = match detect(table, root)? {
            Mode::V1 | Mode::Hybrid => Tree::V1(v1::Hierarchies::find(table, root)),
            Mode::V2 => Tree::V2(v2::Unified::open(root)?),
        };
        Ok(Self(Arc::new(Inner { tree, owner, hugepage_sizes })))
    }

    pub fn driver(&self) -> Driver {
        match &self.0.owner {
            Owner::Us => Driver::Cgroupfs,
            Owner::Systemd(_) => Driver::Systemd,
        }
    }

    /// 1 or 2.
    pub fn version(&self) -> u32 {
        match &self.0.tree {
            Tree::V1(_) => 1,
            Tree::V2(_) => 2,
        }
    }

    /// Controllers that we would use but the machine does not offer: their limits have no effect.
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        match &self.0.tree {
            Tree::V1(tree) => tree.missing_controllers(),
            Tree::V2(tree) => tree.missing_controllers(),
        }
    }

    /// Whether swap can be limited for a group.
    pub fn limits_swap(&self) -> Result<bool> {
        match &self.0.tree {
            Tree::V1(tree) => Ok(tree.limits_swap()),
            Tree::V2(tree) => tree.limits_swap(),
        }
    }

    /// The path within a hierarchy; the runtime gets it as a container's cgroup parent.
    pub fn path(&self, name: &CgroupName) -> String {
        name.path(self.driver())
    }

    /// Creates the group, and those above it, as far as they are missing, and applies `config`.
    ///
    /// `config` is applied to an existing group, too: the agent may have been killed between
    /// creating the group and setting its limits.
    pub async fn ensure(&self, name: &CgroupName, config: &CgroupConfig) -> Result<()> {
        match &self.0.owner {
            Owner::Us => {}
            Owner::Systemd(units) => {
                units.start(name, self.version()).await.map_err(unit_error(name))?;
            }
        }
        self.blocking(name, |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.create(path),
            Tree::V2(tree) => tree.create(path),
        })
        .await?;
        self.update(name, config).await
    }

    /// Applies the values that `config` sets to an existing group, and leaves the rest.
    pub async fn update(&self, name: &CgroupName, config: &CgroupConfig) -> Result<()> {
        let mut config = config.clone();
        match &self.0.owner {
            Owner::Us => {}
            Owner::Systemd(units) => {
                config = units.set(name, config, self.version()).await.map_err(unit_error(name))?;
            }
        }
        self.blocking(name, move |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.apply(path, &config, &inner.hugepage_sizes),
            Tree::V2(tree) => tree.apply(path, &config, &inner.hugepage_sizes),
        })
        .await
    }

    /// Whether the group exists, with all controllers that we use.
    pub async fn exists(&self, name: &CgroupName) -> Result<bool> {
        self.blocking(name, |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.exists(path),
            Tree::V2(tree) => tree.exists(path),
        })
        .await
    }

    /// Kills all processes in the group and removes it with all groups below. No error if it is
    /// already gone.
    pub async fn destroy(&self, name: &CgroupName) -> Result<()> {
        if name.is_root() {
            return Err(CgroupError::Root);
        }
        self.blocking(name, |inner, path| inner.kill(path)).await?;
        match &self.0.owner {
            Owner::Us => {}
            Owner::Systemd(units) => units.stop(name).await.map_err(unit_error(name))?,
        }
        self.blocking(name, |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.remove(path),
            Tree::V2(tree) => tree.remove(path),
        })
        .await
    }

    /// Kills all processes in the group and below; the group stays.
    pub async fn kill(&self, name: &CgroupName) -> Result<()> {
        if name.is_root() {
            return Err(CgroupError::Root);
        }
        self.blocking(name, |inner, path| inner.kill(path)).await
    }

    /// Every pod that has a group in any hierarchy. The caller destroys those of pods that no
    /// longer exist.
    pub async fn pods(&self, pods: &PodTree) -> Result<Vec<(PodUid, CgroupName)>> {
        let mut found = BTreeMap::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            for entry in self.children(&pods.class(class)).await? {
                let uid = pods.pod_of_entry(class, &entry, self.driver());
                // A UID that was parsed from a name must produce the same name again.
                if let Some((uid, Ok(name))) = uid.map(|uid| (uid.clone(), pods.pod(class, &uid))) {
                    found.insert(name, uid);
                }
            }
        }
        Ok(found.into_iter().map(|(name, uid)| (uid, name)).collect())
    }

    /// Names of the directories directly below the group.
    pub async fn children(&self, name: &CgroupName) -> Result<BTreeSet<String>> {
        self.blocking(name, |inner, path| inner.children(path)).await
    }

    /// Processes in the group and below.
    pub async fn pids(&self, name: &CgroupName) -> Result<BTreeSet<u32>> {
        self.blocking(name, |inner, path| inner.pids(path)).await
    }

    pub async fn usage(&self, name: &CgroupName) -> Result<Usage> {
        self.blocking(name, |inner, path| inner.usage(path)).await
    }

    /// Memory alone: a few files, cheap enough to be read often. `None`: there is no such group, or
    /// no memory controller.
    pub async fn memory(&self, name: &CgroupName) -> Result<Option<MemoryUsage>> {
        self.blocking(name, |inner, path| inner.memory(path)).await
    }

    /// The same for one of the group's [`Self::children`].
    pub async fn memory_of_child(
        &self,
        name: &CgroupName,
        entry: &str,
    ) -> Result<Option<MemoryUsage>> {
        let entry = plain(entry)?.to_owned();
        self.blocking(name, move |inner, path| inner.memory(&format!("{path}/{entry}"))).await
    }

    /// Notifications of a group whose memory use crosses `bytes`, or, where the kernel cannot tell
    /// that (v2), of processes that wait for memory; `None`: it can tell neither.
    pub async fn watch_memory(&self, name: &CgroupName, bytes: u64) -> Result<Option<MemoryWatch>> {
        self.blocking(name, move |inner, path| match &inner.tree {
            Tree::V1(tree) => match tree.dir("memory", path) {
                Some(dir) => MemoryWatch::of_usage(&dir, bytes),
                None => Ok(None),
            },
            Tree::V2(tree) => MemoryWatch::of_stalls(&tree.dir(path)),
        })
        .await
    }

    /// The same for a group that is not ours, by its path.
    pub async fn usage_at(&self, path: &str) -> Result<Usage> {
        self.at(path, |inner, path| inner.usage(path)).await
    }

    /// Further counters of a group that is not ours.
    pub async fn detail_at(&self, path: &str) -> Result<Detail> {
        self.at(path, |inner, path| inner.detail(path)).await
    }

    /// When a group that is not ours was created or last changed; `None`: it does not exist.
    pub async fn made_at(&self, path: &str) -> Result<Option<SystemTime>> {
        self.at(path, |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.made(path),
            Tree::V2(tree) => tree.made(path),
        })
        .await
    }

    /// Moves a process with all its threads into a group by its path; the group is created if
    /// needed.
    pub async fn join(&self, path: &str, pid: u32) -> Result<()> {
        self.at(path, move |inner, path| inner.create(path).and_then(|()| inner.join(path, pid)))
            .await
    }

    /// Moves the processes directly in the root group to another group, which is created if needed;
    /// returns how many. The init process, kernel threads and processes of other pid namespaces
    /// stay. `proc` is where procfs is mounted.
    pub async fn clear_root(&self, path: &str, proc: &Path) -> Result<usize> {
        let proc = proc.to_owned();
        self.at(path, move |inner, path| {
            let (mut moved, mut failed) = (0, None);
            for pid in inner.pids_in_root()?.into_iter().filter(|pid| is_movable(&proc, *pid)) {
                if moved == 0 {
                    inner.create(path)?;
                }
                match inner.join(path, pid) {
                    Ok(()) => moved += 1,
                    // It has ended.
                    Err(_) if !proc.join(pid.to_string()).exists() => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            failed.map_or(Ok(moved), Err)
        })
        .await
    }

    /// Usage of one of the group's [`Self::children`], such as a container's group, which the
    /// runtime has named.
    pub async fn usage_of_child(&self, name: &CgroupName, entry: &str) -> Result<Usage> {
        let entry = plain(entry)?.to_owned();
        self.blocking(name, move |inner, path| inner.usage(&format!("{path}/{entry}"))).await
    }

    /// Further counters of a group or one of its children.
    pub async fn detail(&self, name: &CgroupName, entry: Option<&str>) -> Result<Detail> {
        let entry = entry.map(plain).transpose()?.map(str::to_owned);
        self.blocking(name, move |inner, path| {
            let path = match entry {
                Some(entry) => &*format!("{path}/{entry}"),
                None => path,
            };
            inner.detail(path)
        })
        .await
    }

    /// Processes in one of the group's children, such as a sandbox's.
    pub async fn pids_of_child(&self, name: &CgroupName, entry: &str) -> Result<BTreeSet<u32>> {
        let entry = plain(entry)?.to_owned();
        self.blocking(name, move |inner, path| inner.pids(&format!("{path}/{entry}"))).await
    }

    /// CPU, memory and pids as they are set now.
    pub async fn settings(&self, name: &CgroupName) -> Result<CgroupConfig> {
        self.blocking(name, |inner, path| match &inner.tree {
            Tree::V1(tree) => tree.settings(path),
            Tree::V2(tree) => tree.settings(path),
        })
        .await
    }

    /// Whether the OOM killer kills all processes of the group at once. Only v2 supports it.
    pub async fn set_oom_group(&self, name: &CgroupName, together: bool) -> Result<()> {
        self.blocking(name, move |inner, path| match &inner.tree {
            Tree::V1(_) => Ok(()),
            Tree::V2(tree) => tree.set_oom_group(path, together),
        })
        .await
    }

    /// cgroup operations can block for long, so they must not run on an async worker thread.
    async fn blocking<T: Send + 'static>(
        &self,
        name: &CgroupName,
        act: impl FnOnce(&Inner, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.at_checked(self.path(name), act).await
    }

    async fn at<T: Send + 'static>(
        &self,
        path: &str,
        act: impl FnOnce(&Inner, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        for entry in path.split('/').filter(|entry| !entry.is_empty()) {
            plain(entry)?;
        }
        self.at_checked(path.to_owned(), act).await
    }

    async fn at_checked<T: Send + 'static>(
        &self,
        path: String,
        act: impl FnOnce(&Inner, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (inner, at) = (Arc::clone(&self.0), path.clone());
        match threads::blocking(move || act(&inner, &at)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(CgroupError::Io {
                    attempt: "finish work on",
                    path: path.into(),
                    source: io::Error::other("the runtime is shutting down"),
                }),
            },
        }
    }
}

impl Inner {
    fn kill(&self, path: &str) -> Result<()> {
        match &self.tree {
            Tree::V1(tree) => tree.thaw(path)?,
            Tree::V2(tree) => tree.kill_at_once(path),
        }
        directory::kill_all(Path::new(path), || self.pids(path))
    }

    fn create(&self, path: &str) -> Result<()> {
        match &self.tree {
            Tree::V1(tree) => tree.create(path),
            Tree::V2(tree) => tree.create(path),
        }
    }

    fn join(&self, path: &str, pid: u32) -> Result<()> {
        match &self.tree {
            Tree::V1(tree) => tree.join(path, pid),
            Tree::V2(tree) => tree.join(path, pid),
        }
    }

    /// Processes directly in the root group, of every hierarchy.
    fn pids_in_root(&self) -> Result<BTreeSet<u32>> {
        let points = match &self.tree {
            Tree::V1(tree) => tree.points().into_iter().cloned().collect(),
            Tree::V2(tree) => vec![tree.dir("/")],
        };
        let mut in_all: Option<BTreeSet<u32>> = None;
        for point in points {
            let pids = directory::own_pids(&point)?;
            in_all = Some(match in_all {
                // One that is elsewhere in another hierarchy belongs to a service.
                Some(known) => known.intersection(&pids).copied().collect(),
                None => pids,
            });
        }
        Ok(in_all.unwrap_or_default())
    }

    fn pids(&self, path: &str) -> Result<BTreeSet<u32>> {
        match &self.tree {
            Tree::V1(tree) => tree.pids(path),
            Tree::V2(tree) => tree.pids(path),
        }
    }

    fn children(&self, path: &str) -> Result<BTreeSet<String>> {
        match &self.tree {
            Tree::V1(tree) => tree.children(path),
            Tree::V2(tree) => tree.children(path),
        }
    }

    fn usage(&self, path: &str) -> Result<Usage> {
        match &self.tree {
            Tree::V1(tree) => tree.usage(path),
            Tree::V2(tree) => tree.usage(path),
        }
    }

    fn memory(&self, path: &str) -> Result<Option<MemoryUsage>> {
        match &self.tree {
            Tree::V1(tree) => tree.memory(path),
            Tree::V2(tree) => tree.memory(path),
        }
    }

    fn detail(&self, path: &str) -> Result<Detail> {
        match &self.tree {
            Tree::V1(tree) => tree.detail(path),
            Tree::V2(tree) => tree.detail(path),
        }
    }
}

/// Whether a process may be moved from the root group. Kernel threads have no program.
fn is_movable(proc: &Path, pid: u32) -> bool {
    let of = |pid: u32, link: &str| std::fs::read_link(proc.join(pid.to_string()).join(link)).ok();
    let space = "ns/pid";
    pid > 1
        && of(pid, "exe").is_some()
        && of(pid, space).is_some()
        && of(pid, space) == of(1, space)
}

/// Accepts only a plain directory name, not a path that leads elsewhere.
fn plain(entry: &str) -> Result<&str> {
    if matches!(entry, "" | "." | "..") || entry.contains(['/', '\0']) {
        return Err(CgroupError::Entry { entry: entry.to_owned() });
    }
    Ok(entry)
}

fn unit_error(name: &CgroupName) -> impl FnOnce(UnitError) -> CgroupError {
    |source| CgroupError::Unit { name: name.to_string(), source }
}

/// Path of a group in a hierarchy that is mounted on `point`.
fn below(point: &Path, path: &str) -> PathBuf {
    point.join(path.trim_start_matches('/'))
}

/// Limit in bytes for each huge page size of the machine.
fn hugepage_limits<'a>(
    limits: &'a Hugepages,
    sizes: &'a [u64],
) -> impl Iterator<Item = (u64, u64)> + 'a {
    const UNLIMITED: u64 = 1 << 62; // more than any machine has
    let limit = move |size: &u64| match limits {
        Hugepages::Leave => None,
        Hugepages::Unlimited => Some((*size, UNLIMITED)),
        Hugepages::Only(limits) => Some((*size, limits.get(size).copied().unwrap_or(0))),
    };
    sizes.iter().filter_map(limit)
}

#[cfg(test)]
mod tests;
