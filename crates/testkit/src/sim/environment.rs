//! Directories of a simulated node: its root, logs, manifests and cgroups.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::change::guard::{self, DiskFault};
use podwright_host::{machine, mounts};
use tempfile::TempDir;

use super::journal;

/// How many simulations of one test get a directory named after it.
const MOST_AT_ONCE: usize = 8;

pub struct Environment {
    directory: PathBuf,
    place: Ownership,
    /// What was unmounted so far.
    unmounted: RefCell<Vec<PathBuf>>,
    /// How many writes to the disk will fail.
    write_faults: Arc<AtomicU64>,
}

/// Ownership of the directory.
enum Ownership {
    /// Named after the test, and reserved as long as this file is locked.
    Own {
        _lock: File,
    },
    Any {
        _directory: TempDir,
    },
}

/// Memory, if it has enough space: otherwise half of a simulation's time is spent in the disk's
/// allocation of thousands of short-lived files.
fn base() -> PathBuf {
    const REQUIRED_BYTES: u64 = 256 << 20;
    let memory = Path::new("/dev/shm");
    match machine::disk(memory).is_ok_and(|disk| disk.capacity > REQUIRED_BYTES) {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    }
}

impl Environment {
    /// UIDs of static pods also depend on the path of their manifest: every run of a test uses the
    /// same directory, or a seed would not give the same run. Unless it is in use.
    pub fn new() -> Self {
        let environment = (0..MOST_AT_ONCE).find_map(|place| Self::own(place).ok());
        let environment = environment.unwrap_or_else(|| {
            let any = tempfile::tempdir_in(base()).or_else(|_| tempfile::tempdir());
            let any = any.expect("a temporary directory");
            let directory = any.path().to_owned();
            Self {
                directory,
                place: Ownership::Any { _directory: any },
                unmounted: RefCell::default(),
                write_faults: Arc::default(),
            }
        });
        for directory in [
            environment.root(),
            environment.logs(),
            environment.manifests(),
            environment.cgroup_mount(),
        ] {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        // Removing an earlier simulation's directory may have unmounted something.
        guard::take_unmounted();
        environment
    }

    /// What the agent has unmounted since the simulation began.
    pub fn unmounted(&self) -> Vec<PathBuf> {
        let mut unmounted = self.unmounted.borrow_mut();
        unmounted.extend(guard::take_unmounted());
        unmounted.clone()
    }

    /// From now on the next `count` changes that take space on a disk fail.
    pub fn fail_writes(&self, fault: DiskFault, count: u64) {
        self.write_faults.store(count, Relaxed);
        let left = self.write_faults.clone();
        guard::fail_writes(move || {
            let fails = left.load(Relaxed) > 0;
            fails.then(|| left.fetch_sub(1, Relaxed));
            fails.then_some(fault)
        });
    }

    pub fn heal_disk(&self) {
        self.write_faults.store(0, Relaxed);
    }

    pub fn writes_fail(&self) -> bool {
        self.write_faults.load(Relaxed) > 0
    }

    /// A test may have more than one simulation: each has a directory of its own, numbered in order
    /// of creation.
    fn own(place: usize) -> io::Result<Self> {
        let places = journal::environment(&base().join("podwright-sim-journal"));
        let places = places.unwrap_or_else(|| base().join("podwright-sim"));
        std::fs::create_dir_all(&places)?;
        let mut name = journal::test_name();
        if place > 0 {
            name = format!("{name}-{place}");
        }
        let lock = File::create(places.join(format!("{name}.lock")))?;
        lock.try_lock()?;
        let directory = places.join(name);
        match clear(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let place = Ownership::Own { _lock: lock };
        Ok(Self { directory, place, unmounted: RefCell::default(), write_faults: Arc::default() })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn root(&self) -> PathBuf {
        self.directory.join("kubelet")
    }

    /// The directories of the pods.
    pub fn pods(&self) -> PathBuf {
        self.root().join("pods")
    }

    pub fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }

    pub fn manifests(&self) -> PathBuf {
        self.directory.join("manifests")
    }

    fn memory_mount(&self) -> PathBuf {
        self.directory.join("cgroup/memory")
    }

    /// The machine as the eviction manager reads it, with this much memory in use of 8 GiB. Only the
    /// root group has a size, so pods have no statistics.
    pub fn use_memory(&self, mib: u64) {
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            // As one step, as the kernel would.
            let new = path.with_extension("new");
            std::fs::write(&new, text).expect("a file");
            std::fs::rename(new, path).expect("a file");
        };
        let machine = self.machine();
        write(machine.join("proc/meminfo"), "MemTotal: 8388608 kB\n");
        let memory = self.memory_mount();
        write(memory.join("memory.stat"), "total_inactive_file 0\n");
        write(memory.join("memory.usage_in_bytes"), &format!("{}\n", mib << 20));
    }

    /// The root of the machine's files, see [`Self::use_memory`].
    pub fn machine(&self) -> PathBuf {
        self.directory.join("machine")
    }

    fn cgroup_mount(&self) -> PathBuf {
        self.directory.join("cgroup/cpuacct")
    }

    /// Cgroups as one v1 hierarchy of plain directories. Nothing is ever set in the controller
    /// `cpuacct`, so a plain directory can stand in for a group.
    pub fn cgroups(&self) -> Cgroups {
        let root = self.directory.join("cgroup");
        let table = format!(
            "31 23 0:28 / {0} rw - tmpfs tmpfs rw\n32 31 0:29 / {1} rw - cgroup cgroup rw,cpuacct\n",
            root.display(),
            self.cgroup_mount().display()
        );
        let memory = self.memory_mount();
        let table = match memory.exists() {
            true => {
                format!("{table}33 31 0:30 / {} rw - cgroup cgroup rw,memory\n", memory.display())
            }
            false => table,
        };
        let table = mounts::parse(table.as_bytes());
        Cgroups::open(&table, &root, Owner::Us, Vec::new()).expect("cgroups")
    }

    /// A reboot removes all groups.
    pub fn lose_cgroups(&self) {
        let mount = self.cgroup_mount();
        std::fs::remove_dir_all(&mount).expect("the groups");
        std::fs::create_dir(&mount).expect("a directory");
    }

    /// Makes pod groups unreadable, without removing them, until they are shown again.
    pub fn hide_cgroups(&self) {
        let (groups, hidden) =
            (self.cgroup_mount().join("kubepods"), self.directory.join("hidden"));
        std::fs::rename(&groups, hidden).expect("the groups");
        // A file where a directory is expected: an error other than "not found".
        std::fs::write(groups, "").expect("a file");
    }

    pub fn show_cgroups(&self) {
        let (groups, hidden) =
            (self.cgroup_mount().join("kubepods"), self.directory.join("hidden"));
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

    /// Creates the cgroup of a pod that ran before the agent; `class` is empty for guaranteed pods.
    pub fn make_pod_cgroup(&self, class: &str, uid: &str) {
        let group = self.cgroup_mount().join("kubepods").join(class).join(format!("pod{uid}"));
        std::fs::create_dir_all(group).expect("a control group");
    }

    /// UIDs of pods that have a directory.
    pub fn pods_with_directory(&self) -> Vec<String> {
        names(&self.root().join("pods"))
    }

    /// Whether any of a pod's volumes are left.
    pub fn has_volumes(&self, uid: &str) -> bool {
        let directory = self.root().join("pods").join(uid);
        ["volumes", "volume-subpaths", "plugins"].iter().any(|name| directory.join(name).exists())
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::new()
    }
}

/// Removes everything, including mounts: an earlier test may have been killed.
fn clear(directory: &Path) -> io::Result<()> {
    guard::leave();
    let table = mounts::table(Path::new("/proc")).map_err(io::Error::other)?;
    for mount in mounts::at_or_below(&table, directory) {
        mounts::detach_own(&mount.point, mounts::InUse::Detach).map_err(io::Error::other)?;
    }
    std::fs::remove_dir_all(directory)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

impl Drop for Environment {
    fn drop(&mut self) {
        match &self.place {
            // If this fails, the next simulation in this directory cleans up.
            Ownership::Own { .. } => drop(clear(&self.directory)),
            Ownership::Any { .. } => {}
        }
    }
}
