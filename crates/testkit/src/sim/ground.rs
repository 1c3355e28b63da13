//! The folders a simulated node stands on: its root, its logs, its manifests, its cgroups.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::change::guard;
use podwright_host::{machine, mounts};
use tempfile::TempDir;

use super::journal;

/// How many worlds of one test find a place of their own.
const MOST_AT_ONCE: usize = 8;

pub struct Ground {
    folder: PathBuf,
    place: Place,
}

/// Whose the folder is.
enum Place {
    /// Named after the test, and ours as long as this file is locked.
    Own {
        _lock: File,
    },
    Any {
        _folder: TempDir,
    },
}

/// Memory, if it can hold that much: half of a simulation's time is the disk's otherwise, which has to find
/// places for thousands of files that live for a moment.
fn base() -> PathBuf {
    const ROOM: u64 = 256 << 20;
    let memory = Path::new("/dev/shm");
    match machine::disk(memory).is_ok_and(|disk| disk.capacity > ROOM) {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    }
}

impl Ground {
    /// The ids of static pods come from the path of their manifest, too: every run of a test stands
    /// in the same place, or a seed would not be the same run. Unless someone else stands there.
    pub fn new() -> Self {
        let ground = (0..MOST_AT_ONCE).find_map(|place| Self::own(place).ok());
        let ground = ground.unwrap_or_else(|| {
            let any = tempfile::tempdir_in(base()).or_else(|_| tempfile::tempdir());
            let any = any.expect("a temporary folder");
            Self { folder: any.path().to_owned(), place: Place::Any { _folder: any } }
        });
        for folder in [ground.root(), ground.logs(), ground.manifests(), ground.cgroup_mount()] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        ground
    }

    /// A test may have more than one world: they stand at places of their own, in the order in
    /// which they are made.
    fn own(place: usize) -> io::Result<Self> {
        let places = journal::ground(&base().join("podwright-sim-journal"));
        let places = places.unwrap_or_else(|| base().join("podwright-sim"));
        std::fs::create_dir_all(&places)?;
        let mut name = journal::test_name();
        if place > 0 {
            name = format!("{name}-{place}");
        }
        let lock = File::create(places.join(format!("{name}.lock")))?;
        lock.try_lock()?;
        let folder = places.join(name);
        match clear(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        Ok(Self { folder, place: Place::Own { _lock: lock } })
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("kubelet")
    }

    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    fn cgroup_mount(&self) -> PathBuf {
        self.folder.join("cgroup/cpuacct")
    }

    /// Control groups as one v1 hierarchy of plain folders. Of all controllers `cpuacct` is the
    /// one in which nothing is ever set, so a folder does for a group.
    pub fn cgroups(&self) -> Cgroups {
        let root = self.folder.join("cgroup");
        let table = format!(
            "31 23 0:28 / {0} rw - tmpfs tmpfs rw\n32 31 0:29 / {1} rw - cgroup cgroup rw,cpuacct\n",
            root.display(),
            self.cgroup_mount().display()
        );
        let table = mounts::parse(table.as_bytes());
        Cgroups::open(&table, &root, Owner::Us, Vec::new()).expect("cgroups")
    }

    /// A reboot leaves no group behind.
    pub fn lose_cgroups(&self) {
        let mount = self.cgroup_mount();
        std::fs::remove_dir_all(&mount).expect("the groups");
        std::fs::create_dir(&mount).expect("a folder");
    }

    /// Nobody can look at a pod's group, though all are where they were, until they are shown
    /// again.
    pub fn hide_cgroups(&self) {
        let (groups, hidden) = (self.cgroup_mount().join("kubepods"), self.folder.join("hidden"));
        std::fs::rename(&groups, hidden).expect("the groups");
        // What would be a folder on the way is none: an error, and not that it is missing.
        std::fs::write(groups, "").expect("a file");
    }

    pub fn show_cgroups(&self) {
        let (groups, hidden) = (self.cgroup_mount().join("kubepods"), self.folder.join("hidden"));
        std::fs::remove_file(&groups).expect("a file");
        std::fs::rename(hidden, groups).expect("the groups");
    }

    /// UIDs of pods that have a control group.
    pub fn pods_with_cgroup(&self) -> Vec<String> {
        let top = self.cgroup_mount().join("kubepods");
        let classes = [top.clone(), top.join("burstable"), top.join("besteffort")];
        let names = classes.iter().flat_map(|class| names(class));
        let uids = names.filter_map(|name| name.strip_prefix("pod").map(str::to_owned));
        uids.collect()
    }

    /// Makes the control group of a pod that ran before the agent; `class` is empty for guaranteed
    /// pods.
    pub fn make_pod_cgroup(&self, class: &str, uid: &str) {
        let group = self.cgroup_mount().join("kubepods").join(class).join(format!("pod{uid}"));
        std::fs::create_dir_all(group).expect("a control group");
    }

    /// UIDs of pods that have a folder.
    pub fn pods_with_folder(&self) -> Vec<String> {
        names(&self.root().join("pods"))
    }

    /// Whether anything of a pod's volumes is left.
    pub fn has_volumes(&self, uid: &str) -> bool {
        let folder = self.root().join("pods").join(uid);
        ["volumes", "volume-subpaths", "plugins"].iter().any(|name| folder.join(name).exists())
    }
}

impl Default for Ground {
    fn default() -> Self {
        Self::new()
    }
}

/// Removes all there is, also what is mounted there: a test may have been killed.
fn clear(folder: &Path) -> io::Result<()> {
    guard::leave();
    let table = mounts::table(Path::new("/proc")).map_err(io::Error::other)?;
    for mount in mounts::at_or_below(&table, folder) {
        mounts::detach_own(&mount.point, mounts::InUse::Detach).map_err(io::Error::other)?;
    }
    std::fs::remove_dir_all(folder)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

impl Drop for Ground {
    fn drop(&mut self) {
        match &self.place {
            // The next one clears what is left, should it not go now.
            Place::Own { .. } => drop(clear(&self.folder)),
            Place::Any { .. } => {}
        }
    }
}
