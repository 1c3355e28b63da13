//! The cgroups of one bed: one subtree, of the same name in every hierarchy the machine mounts.
//!
//! The bed's programs run in it too, in a leaf of one hierarchy. That is how they are all found
//! when the bed ends, whoever their parent has become by then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::mounts;

/// The leaf for the bed's own programs; pods are beside it, as version 2 demands.
const LEAF: &str = "bed";

#[derive(Clone, Debug)]
pub struct Cgroup {
    /// Name of the subtree, with no slash.
    name: String,
    /// Mount points: one for each version 1 hierarchy, one for version 2.
    hierarchies: Vec<PathBuf>,
}

impl Cgroup {
    /// The subtree `name`, whether it is there or not.
    pub(crate) fn named(name: impl Into<String>) -> Result<Self> {
        let hierarchies: Vec<_> = mounts::all()?
            .into_iter()
            .filter(|mount| mount.kind == "cgroup" || mount.kind == "cgroup2")
            .map(|mount| mount.point)
            .collect();
        if hierarchies.is_empty() {
            bail!("no cgroup hierarchy is mounted; mount one at /sys/fs/cgroup");
        }
        Ok(Self { name: name.into(), hierarchies })
    }

    /// The path for `cgroupRoot` and for CRI's `cgroup_parent`.
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Makes the subtree and the leaf.
    pub(crate) fn create(&self) -> Result<()> {
        for hierarchy in &self.hierarchies {
            create(hierarchy, &hierarchy.join(&self.name))?;
        }
        let home = self.home();
        if let Some(hierarchy) = home.parent() {
            create(hierarchy, &home)?;
        }
        Ok(())
    }

    /// Makes a cgroup below the subtree in every hierarchy and returns its path, for an agent that
    /// wants its root to exist.
    pub fn child(&self, name: &str) -> Result<String> {
        for hierarchy in &self.hierarchies {
            let parent = hierarchy.join(&self.name);
            create(&parent, &parent.join(name))?;
        }
        Ok(format!("/{}/{name}", self.name))
    }

    /// Where a cgroup, such as that of an agent's pods, has the files of a controller: in that
    /// controller's hierarchy of version 1, or else in that of version 2.
    pub fn of(&self, controller: &str, path: &str) -> Result<PathBuf> {
        let named = self.hierarchies.iter().find(|point| {
            point.file_name().is_some_and(|name| {
                name.to_string_lossy().split(',').any(|name| name == controller)
            })
        });
        let unified = || self.hierarchies.iter().find(|point| is_version_2(point));
        let hierarchy = named.or_else(unified);
        let hierarchy =
            hierarchy.with_context(|| format!("no hierarchy has the controller {controller}"))?;
        Ok(hierarchy.join(path.trim_start_matches('/')))
    }

    /// The files, one for each hierarchy, that a process writes `0` to in order to be in a cgroup
    /// below the subtree.
    pub(crate) fn enrolments(&self, child: &str) -> Vec<PathBuf> {
        let files = self.hierarchies.iter();
        files.map(|point| point.join(&self.name).join(child).join("cgroup.procs")).collect()
    }

    /// The file a program writes `0` to in order to be one of the bed's.
    pub(crate) fn enrolment(&self) -> PathBuf {
        self.home().join("cgroup.procs")
    }

    /// The leaf, in a hierarchy whose only power is to freeze, so that being in it limits nothing.
    fn home(&self) -> PathBuf {
        let harmless = self.hierarchies.iter().find(|point| point.ends_with("freezer"));
        let hierarchy = harmless.or(self.hierarchies.last());
        hierarchy.map_or_else(PathBuf::new, |point| point.join(&self.name).join(LEAF))
    }

    /// Lets frozen processes run: version 1 does not kill a frozen one.
    pub(crate) fn thaw(&self) {
        for folder in self.folders() {
            // Only one of the two files exists, and the top of a hierarchy has neither.
            let _ = fs::write(folder.join("freezer.state"), "THAWED");
            let _ = fs::write(folder.join("cgroup.freeze"), "0");
        }
    }

    /// Removes the subtree; fails while a process is in it.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut folders = self.folders();
        folders.reverse();
        for folder in folders {
            match fs::remove_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("removing the cgroup {}", folder.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Every cgroup of the subtree, parents before children.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            let top = hierarchy.join(&self.name);
            if top.is_dir() {
                found.push(top.clone());
                below(&top, &mut found);
            }
        }
        found
    }
}

/// Whether a hierarchy is that of version 2, which has this file at its top.
pub fn is_version_2(point: &Path) -> bool {
    point.join("cgroup.controllers").exists()
}

/// Adds every cgroup below `folder` to `found`, parents first.
pub(crate) fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
            below(&entry.path(), found);
        }
    }
}

/// Makes one cgroup. A new cpuset of version 1 is empty, and nothing can be in an empty one: it
/// gets its parent's CPUs and memory nodes.
fn create(parent: &Path, folder: &Path) -> Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("making the cgroup {}", folder.display()));
        }
        _ => {}
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(folder.join(file));
        if own.is_ok_and(|own| own.trim().is_empty())
            && let Ok(inherited) = fs::read_to_string(parent.join(file))
            && !inherited.trim().is_empty()
        {
            fs::write(folder.join(file), inherited.trim())
                .with_context(|| format!("setting {file} of {}", folder.display()))?;
        }
    }
    Ok(())
}
