//! Cgroups of one bed: one subtree with the same name in every mounted hierarchy.
//!
//! The bed's programs also run in it, in a leaf of one hierarchy. This finds all of them when the
//! bed ends, even those that were reparented.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::mounts;

/// The leaf for the bed's own programs; pods are beside it, because cgroup v2 allows processes in
/// leaves only.
const LEAF: &str = "bed";

#[derive(Clone, Debug)]
pub struct Cgroup {
    /// Name of the subtree, without a slash.
    name: String,
    /// Mount points: one for each v1 hierarchy, one for v2.
    hierarchies: Vec<PathBuf>,
}

impl Cgroup {
    /// The subtree `name`, whether it exists or not.
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

    /// The path for `cgroupRoot` and for the CRI's `cgroup_parent`.
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Creates the subtree and the leaf.
    pub(crate) fn create(&self) -> Result<()> {
        for hierarchy in &self.hierarchies {
            create(hierarchy, &hierarchy.join(&self.name))?;
        }
        let leaf = self.leaf();
        if let Some(hierarchy) = leaf.parent() {
            create(hierarchy, &leaf)?;
        }
        Ok(())
    }

    /// Creates a cgroup below the subtree in every hierarchy and returns its path, for an agent
    /// whose cgroup root must exist.
    pub fn child(&self, name: &str) -> Result<String> {
        for hierarchy in &self.hierarchies {
            let parent = hierarchy.join(&self.name);
            create(&parent, &parent.join(name))?;
        }
        Ok(format!("/{}/{name}", self.name))
    }

    /// Directory of a cgroup with the files of a controller: in that controller's v1 hierarchy, or
    /// else in v2.
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

    /// The files, one for each hierarchy, that a process writes `0` to in order to join a cgroup
    /// below the subtree.
    pub(crate) fn procs_files(&self, child: &str) -> Vec<PathBuf> {
        let files = self.hierarchies.iter();
        files.map(|point| point.join(&self.name).join(child).join("cgroup.procs")).collect()
    }

    /// The file that a program writes `0` to in order to join the bed's leaf.
    pub(crate) fn procs_file(&self) -> PathBuf {
        self.leaf().join("cgroup.procs")
    }

    /// The leaf, in the freezer hierarchy on v1, so that membership limits nothing.
    fn leaf(&self) -> PathBuf {
        let harmless = self.hierarchies.iter().find(|point| point.ends_with("freezer"));
        let hierarchy = harmless.or(self.hierarchies.last());
        hierarchy.map_or_else(PathBuf::new, |point| point.join(&self.name).join(LEAF))
    }

    /// Thaws frozen processes: cgroup v1 does not kill a frozen one.
    pub(crate) fn thaw(&self) {
        for directory in self.directories() {
            // Only one of the two files exists, and the root of a hierarchy has neither.
            let _ = fs::write(directory.join("freezer.state"), "THAWED");
            let _ = fs::write(directory.join("cgroup.freeze"), "0");
        }
    }

    /// Removes the subtree; fails while a process is in it.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut directories = self.directories();
        directories.reverse();
        for directory in directories {
            match fs::remove_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("removing the cgroup {}", directory.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Every cgroup of the subtree, parents first.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
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

/// Whether a hierarchy is cgroup v2, which has this file at its root.
pub fn is_version_2(point: &Path) -> bool {
    point.join("cgroup.controllers").exists()
}

/// Adds every cgroup below `directory` to `found`, parents first.
pub(crate) fn below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
            below(&entry.path(), found);
        }
    }
}

/// Creates one cgroup. A new v1 cpuset is empty and takes no processes: it gets its parent's CPUs
/// and memory nodes.
fn create(parent: &Path, directory: &Path) -> Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error)
                .with_context(|| format!("creating the cgroup {}", directory.display()));
        }
        _ => {}
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(directory.join(file));
        if own.is_ok_and(|own| own.trim().is_empty())
            && let Ok(inherited) = fs::read_to_string(parent.join(file))
            && !inherited.trim().is_empty()
        {
            fs::write(directory.join(file), inherited.trim())
                .with_context(|| format!("setting {file} of {}", directory.display()))?;
        }
    }
    Ok(())
}
