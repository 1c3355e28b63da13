//! The folders a simulated node stands on: its root, its logs, its manifests, its cgroups.

use std::path::{Path, PathBuf};
use std::thread;

use podwright_host::cgroup::{Cgroups, Owner, Work};
use podwright_host::mounts;
use tempfile::TempDir;

pub struct Ground(TempDir);

impl Ground {
    pub fn new() -> Self {
        // The ids of static pods come from the path of their manifest, too: two runs of a test
        // stand in the same place, one after the other.
        let name = format!("podwright-sim-{}-{:?}", std::process::id(), thread::current().id());
        let own = tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir();
        let folder = own.or_else(|_| tempfile::tempdir()).expect("a temporary folder");
        let this = Self(folder);
        for folder in [this.root(), this.logs(), this.manifests(), this.cgroup_mount()] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        this
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn root(&self) -> PathBuf {
        self.0.path().join("kubelet")
    }

    pub fn logs(&self) -> PathBuf {
        self.0.path().join("logs")
    }

    pub fn manifests(&self) -> PathBuf {
        self.0.path().join("manifests")
    }

    fn cgroup_mount(&self) -> PathBuf {
        self.0.path().join("cgroup/cpuacct")
    }

    /// Control groups as one v1 hierarchy of plain folders. Of all controllers `cpuacct` is the
    /// one in which nothing is ever set, so a folder does for a group.
    pub fn cgroups(&self) -> Cgroups {
        let root = self.0.path().join("cgroup");
        let table = format!(
            "31 23 0:28 / {0} rw - tmpfs tmpfs rw\n32 31 0:29 / {1} rw - cgroup cgroup rw,cpuacct\n",
            root.display(),
            self.cgroup_mount().display()
        );
        let table = mounts::parse(table.as_bytes());
        Cgroups::open_with(&table, &root, Owner::Us, Vec::new(), Work::AtOnce).expect("cgroups")
    }

    /// A reboot leaves no group behind.
    pub fn lose_cgroups(&self) {
        let mount = self.cgroup_mount();
        std::fs::remove_dir_all(&mount).expect("the groups");
        std::fs::create_dir(&mount).expect("a folder");
    }

    /// UIDs of pods that have a control group.
    pub fn pods_with_cgroup(&self) -> Vec<String> {
        let top = self.cgroup_mount().join("kubepods");
        let classes = [top.clone(), top.join("burstable"), top.join("besteffort")];
        let names = classes.iter().flat_map(|class| names(class));
        let uids = names.filter_map(|name| name.strip_prefix("pod").map(str::to_owned));
        uids.collect()
    }

    /// UIDs of pods that have a folder.
    pub fn pods_with_folder(&self) -> Vec<String> {
        names(&self.root().join("pods"))
    }
}

impl Default for Ground {
    fn default() -> Self {
        Self::new()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
