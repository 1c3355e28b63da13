//! Leftovers of a bed on the machine, found from its directory alone, and their removal.
//!
//! No state of the creating process is used: that process may have been killed. A bed's programs
//! have its id in their environment and are in its cgroup, its containers are in its cgroup or its
//! network namespaces, and everything else is below its directory or has its id in the name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::cgroup::Cgroup;
use crate::mounts;

/// Environment variable that marks the programs of a bed with its id.
pub(crate) const MARK: &str = "PODWRIGHT_BED";

/// Mount point of a bed's network namespace, below its directory.
pub(crate) const NETNS: &str = "netns";

/// Name of the cgroup subtree and of the CNI network of the bed `id`.
pub(crate) fn name_of(id: &str) -> String {
    format!("pw-{id}")
}

const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

/// containerd's shims always listen here, whatever its configuration says.
const SHIM_SOCKETS: &str = "/run/containerd/s";

/// libcni always keeps the results of its plugins here.
const CNI_RESULTS: &str = "/var/lib/cni/results";

/// The upstream kubelet always links container logs here.
const LOG_LINKS: &str = "/var/log/containers";

pub struct Leftovers {
    directory: PathBuf,
    id: String,
    cgroup: Cgroup,
}

impl Leftovers {
    /// The leftovers of the bed with this directory.
    pub fn of(directory: &Path) -> Result<Self> {
        let id = directory.file_name().and_then(|name| name.to_str());
        let id =
            id.with_context(|| format!("{} is not the directory of a bed", directory.display()))?;
        let cgroup = Cgroup::named(name_of(id))?;
        Ok(Self { directory: directory.to_owned(), id: id.to_owned(), cgroup })
    }

    /// Removes everything except the directory itself.
    pub fn clear(&self) -> Result<()> {
        let mut sockets = self.shim_sockets()?;
        self.end_processes()?;
        sockets.extend(self.shim_sockets()?);
        for socket in sockets {
            absent_is_fine(fs::remove_file(&socket))?;
        }
        self.unmount()?;
        self.remove_cgroups()?;
        self.remove_cni_results()?;
        self.remove_log_links()
    }

    /// Removes the directory. Never across a mount: a mount there may hold a user's data.
    pub fn remove_directory(&self) -> Result<()> {
        if let Some(mount) = mounts::below(&self.directory)?.first() {
            bail!("{} is still mounted; umount -l it", mount.point.display());
        }
        absent_is_fine(fs::remove_dir_all(&self.directory))
            .with_context(|| format!("removing {}", self.directory.display()))
    }

    fn end_processes(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let namespaces = self.network_namespaces()?;
            let alive = self.processes(&namespaces);
            if alive.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("cannot kill processes of bed {}: {alive:?}", self.id);
            }
            self.cgroup.thaw();
            for pid in alive {
                self.end(pid, &namespaces);
            }
            sleep(PAUSE);
        }
    }

    /// Kills one process if the pid still belongs to the bed.
    fn end(&self, pid: i32, namespaces: &BTreeSet<String>) {
        let Some(number) = Pid::from_raw(pid) else { return };
        // A process that has already exited is fine.
        if let Ok(handle) = pidfd_open(number, PidfdFlags::empty())
            && self.owns(pid, namespaces)
        {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }

    /// Every live process of this bed.
    pub(crate) fn processes(&self, namespaces: &BTreeSet<String>) -> Vec<i32> {
        let me = getpid().as_raw_nonzero().get();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|&pid: &i32| pid > 1 && pid != me && self.owns(pid, namespaces))
            .collect()
    }

    fn owns(&self, pid: i32, namespaces: &BTreeSet<String>) -> bool {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        alive(&proc)
            && (self.in_cgroup(&proc) || self.marked(&proc) || in_namespace(&proc, namespaces))
    }

    fn in_cgroup(&self, proc: &Path) -> bool {
        let top = self.cgroup.path();
        let table = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
        table.lines().any(|line| {
            let path = line.splitn(3, ':').nth(2).unwrap_or_default();
            path.strip_prefix(&top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn marked(&self, proc: &Path) -> bool {
        let mark = format!("{MARK}={}", self.id);
        let environ = fs::read(proc.join("environ")).unwrap_or_default();
        environ.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    }

    /// The namespaces mounted below the directory: the bed's own, and those of its pods.
    pub(crate) fn network_namespaces(&self) -> Result<BTreeSet<String>> {
        let mounted = mounts::below(&self.directory)?.into_iter();
        Ok(mounted.map(|mount| mount.root).filter(|root| root.starts_with("net:[")).collect())
    }

    fn unmount(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mounted = mounts::below(&self.directory)?;
            let Some(last) = mounted.last() else { return Ok(()) };
            if Instant::now() >= deadline {
                bail!("{} cannot be unmounted", last.point.display());
            }
            for mount in mounted.iter().rev() {
                // Mounts that failed are still in the table and are retried.
                let _ = unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            }
            sleep(PAUSE);
        }
    }

    /// A cgroup stays busy for a moment after its last process exits.
    fn remove_cgroups(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.cgroup.remove() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => sleep(PAUSE),
            }
        }
    }

    /// The sockets of this bed's shims, read from their bundles.
    fn shim_sockets(&self) -> Result<BTreeSet<PathBuf>> {
        let mounted =
            mounts::below(&self.directory)?.into_iter().map(|mount| mount.point).collect();
        let mut bundles = Vec::new();
        find_bundles(&self.directory, 6, &mounted, &mut bundles);
        let reported = bundles.iter().flat_map(|bundle| {
            // Plain text up to 1.7, a JSON document in later releases.
            ["address", "bootstrap.json"].map(|file| fs::read_to_string(bundle.join(file)))
        });
        Ok(reported.flatten().filter_map(|text| socket_in(&text)).collect())
    }

    /// Removes the CNI results that name a network namespace of this bed.
    fn remove_cni_results(&self) -> Result<()> {
        let directory = format!("{}/", self.directory.display());
        for entry in fs::read_dir(CNI_RESULTS).into_iter().flatten().flatten() {
            let response = fs::read_to_string(entry.path()).unwrap_or_default();
            if response.contains(&directory) {
                absent_is_fine(fs::remove_file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// Removes the log links that point into this bed.
    fn remove_log_links(&self) -> Result<()> {
        for entry in fs::read_dir(LOG_LINKS).into_iter().flatten().flatten() {
            if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(&self.directory)) {
                absent_is_fine(fs::remove_file(entry.path()))?;
            }
        }
        Ok(())
    }
}

/// False for a zombie, which only its parent can reap.
fn alive(proc: &Path) -> bool {
    let stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn in_namespace(proc: &Path, namespaces: &BTreeSet<String>) -> bool {
    let namespace = fs::read_link(proc.join("ns/net")).unwrap_or_default();
    namespace.to_str().is_some_and(|namespace| namespaces.contains(namespace))
}

/// Finds the bundle directories of running tasks, at most `depth` levels down, and not below a
/// mount: reading one whose server is gone may hang forever.
fn find_bundles(
    directory: &Path,
    depth: usize,
    mounted: &BTreeSet<PathBuf>,
    found: &mut Vec<PathBuf>,
) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if mounted.contains(&path) || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if path.ends_with("io.containerd.runtime.v2.task") {
            let namespaces = fs::read_dir(&path).into_iter().flatten().flatten();
            let tasks = namespaces.flat_map(|space| fs::read_dir(space.path())).flatten().flatten();
            found.extend(tasks.map(|task| task.path()));
        } else if depth > 0 {
            find_bundles(&path, depth - 1, mounted, found);
        }
    }
}

/// The socket named in a shim's file, if it is one of those that stay behind.
fn socket_in(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("unix://")?;
    let path = PathBuf::from(rest.split(['"', '\n', ' ']).next()?);
    (path.parent() == Some(Path::new(SHIM_SOCKETS))).then_some(path)
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_read_from_shim_files() {
        for (text, want) in [
            ("unix:///run/containerd/s/0a1b", Some("/run/containerd/s/0a1b")),
            (
                r#"{"version":3,"address":"unix:///run/containerd/s/0a1b","protocol":"ttrpc"}"#,
                Some("/run/containerd/s/0a1b"),
            ),
            ("unix:///run/containerd/s/../../../etc/passwd", None),
            ("unix:///run/other.sock", None),
            ("", None),
        ] {
            assert_eq!(socket_in(text), want.map(PathBuf::from), "{text}");
        }
    }

    #[test]
    fn unmarked_process_is_never_selected() {
        let leftovers = Leftovers::of(Path::new("/nowhere/00000000"));
        let Ok(leftovers) = leftovers else { return }; // no cgroups on this machine
        assert_eq!(leftovers.processes(&BTreeSet::new()), Vec::<i32>::new());
    }

    #[test]
    fn bundles_are_found_but_not_below_a_mount() {
        let root = tempfile::tempdir().unwrap();
        let bundle = root.path().join("state/io.containerd.runtime.v2.task/k8s.io/abc");
        fs::create_dir_all(&bundle).unwrap();
        let found_past = |mounted: &[PathBuf]| {
            let mut found = Vec::new();
            find_bundles(root.path(), 6, &mounted.iter().cloned().collect(), &mut found);
            found
        };
        assert_eq!(found_past(&[]), [bundle]);
        assert_eq!(found_past(&[root.path().join("state")]), Vec::<PathBuf>::new());
    }
}
