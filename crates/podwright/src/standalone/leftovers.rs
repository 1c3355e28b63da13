//! Removal of leftovers of a containerd that was killed or could not stop its pods: shims, their
//! sockets, mounts, network namespaces and cached CNI results. A clean shutdown leaves none.
//!
//! Leftovers of other nodes must stay. Those of this node are recognised by its directory below
//! `/run`, the name of its network and the paths of its mounts.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use podwright_core::cgroup::CgroupName;
use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::machine;
use podwright_host::mounts;
use podwright_host::process::ProcessIdentity;
use rustix::process::Signal;
use serde::Deserialize;

use super::filter::run;
use super::network::Network;
use super::own_mounts::{self, MountLocations};
use super::state_dir::{self, Leftovers};
use super::{Layout, daemon};

/// Time a shim has to exit after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Directory of the shim sockets, independent of containerd's configuration.
const SHIM_SOCKETS: &str = "/run/containerd/s";
/// Cache of CNI results, independent of containerd's configuration.
const PLUGIN_RESULTS: &str = "/var/lib/cni/results";

/// Kills the shims that were started for this node's socket, and no others. Shims keep containers
/// running without containerd; the containers are killed with their cgroup.
pub fn end_shims(layout: &Layout) -> anyhow::Result<()> {
    let shims = shims_of(layout)?;
    for shim in &shims {
        daemon::signal(shim, Signal::KILL)?;
    }
    for shim in &shims {
        daemon::end(shim, KILL_TIMEOUT)?;
    }
    Ok(())
}

fn shims_of(layout: &Layout) -> anyhow::Result<Vec<ProcessIdentity>> {
    let socket = layout.socket();
    let mut shims = Vec::new();
    let run = match std::fs::metadata(layout.run()) {
        Ok(run) => run,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(shims),
        Err(error) => return Err(super::unreadable(error, &layout.run())),
    };
    for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(command) = std::fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        if is_shim_of(&command, &socket) && has_same_directory(pid, &layout.run(), &run) {
            shims.extend(ProcessIdentity::of(Path::new("/proc"), pid)?);
        }
    }
    Ok(shims)
}

fn is_shim_of(command_line: &[u8], socket: &Path) -> bool {
    let mut words = command_line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let for_socket = words.any(|word| word == socket.as_os_str().as_encoded_bytes());
    name.starts_with(b"containerd-shim") && for_socket
}

/// Whether a path leads a process to the same directory as this process. A node in a container with
/// its own `/run` may have a socket with the same path.
fn has_same_directory(pid: u32, directory: &Path, ours: &std::fs::Metadata) -> bool {
    let relative = directory.strip_prefix("/").unwrap_or(directory);
    let theirs = std::fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(relative));
    theirs.is_ok_and(|theirs| (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// Kills all processes in the node's cgroup and removes it.
pub async fn remove_cgroup(root: &str) -> anyhow::Result<()> {
    let table = mounts::table(Path::new("/proc"))?;
    let sizes = machine::hugepage_sizes(Path::new("/"))?;
    let cgroups = Cgroups::open(&table, Path::new("/sys/fs/cgroup"), Owner::Us, sizes)?;
    let root = CgroupName::parse(root)?;
    if !root.is_root() {
        cgroups.destroy(&root).await?;
    }
    Ok(())
}

/// Unmounts the node's mounts, network namespaces included. Returns the mounts that had to stay.
pub fn unmount(layout: &Layout) -> anyhow::Result<Vec<String>> {
    own_mounts::unmount(&MountLocations::of(layout)?)
}

/// Removes the sockets of this node's shims, which are named in their bundles.
pub fn remove_shim_sockets(layout: &Layout) -> anyhow::Result<()> {
    for socket in shim_sockets(&layout.runtime_state())? {
        absent_is_fine(std::fs::remove_file(&socket))
            .with_context(|| format!("cannot remove {}", socket.display()))?;
    }
    Ok(())
}

fn shim_sockets(runtime_state: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut sockets = BTreeSet::new();
    let tasks = runtime_state.join("io.containerd.runtime.v2.task");
    for namespace in entries(&tasks)? {
        for bundle in entries(&namespace)? {
            // Plain text up to containerd 1.7, JSON since.
            for file in ["address", "bootstrap.json"] {
                let text = std::fs::read_to_string(bundle.join(file)).unwrap_or_default();
                sockets.extend(socket_in(&text));
            }
        }
    }
    Ok(sockets)
}

/// The socket named in a bundle file, if it is in the directory where shims leave them behind.
fn socket_in(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("unix://")?;
    let path = PathBuf::from(rest.split(['"', '\n', ' ']).next()?);
    (path.parent() == Some(Path::new(SHIM_SOCKETS))).then_some(path)
}

/// Removes the bridge and the CNI results cached for it.
pub fn remove_network(layout: &Layout, network: &Network) -> anyhow::Result<()> {
    let bridge = &network.bridge;
    // Not read from /sys, which may show another network namespace.
    if run("ip", &["link", "show", "dev", bridge]).is_ok() {
        run("ip", &["link", "delete", bridge])?;
    }
    remove_results(Path::new(PLUGIN_RESULTS), bridge, &layout.run())
}

/// Removes the cached results of a network, and those of the loopback plugin, which name a network
/// namespace below `directory`.
fn remove_results(results: &Path, network: &str, directory: &Path) -> anyhow::Result<()> {
    for result in entries(results)? {
        let content = std::fs::read(&result).unwrap_or_default();
        if is_result_of(&content, network, directory) {
            absent_is_fine(std::fs::remove_file(&result))
                .with_context(|| format!("cannot remove {}", result.display()))?;
        }
    }
    Ok(())
}

/// Format of libcni's cache: since cniCacheV1 with the network name, before that the bare result.
fn is_result_of(content: &[u8], network: &str, directory: &Path) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Cached {
        #[serde(rename = "networkName")]
        network_name: String,
        #[serde(rename = "result")]
        result: CniResult,
        #[serde(flatten)]
        bare: CniResult,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CniResult {
        #[serde(rename = "interfaces")]
        interfaces: Vec<Interface>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Interface {
        #[serde(rename = "sandbox")]
        sandbox: PathBuf,
    }
    let Ok(cached) = serde_json::from_slice::<Cached>(content) else { return false };
    let mut interfaces = cached.result.interfaces.iter().chain(&cached.bare.interfaces);
    let ours = |interface: &Interface| {
        interface.sandbox != directory && interface.sandbox.starts_with(directory)
    };
    cached.network_name == network || interfaces.any(ours)
}

/// Removes the node's directory below `/run` with the files the node made there. Returns what had
/// to stay.
pub fn remove_run_directory(layout: &Layout) -> anyhow::Result<Vec<String>> {
    const DIRECTORIES: [&str; 2] = ["containerd", "runc"];
    const FILES: [&str; 9] = [
        "backup.sock",
        "containerd.json",
        "containerd.sock",
        "containerd.sock.ttrpc",
        "containerd.pid",
        "agent.pid",
        "agent.json",
        "agent-root-mount.json",
        "state-dir",
    ];
    let run = layout.run();
    if !run.exists() {
        return Ok(Vec::new());
    }
    let table = mounts::table(Path::new("/proc"))?;
    let mut leftovers = Leftovers::default();
    state_dir::remove_entries(&run, &DIRECTORIES, &FILES, &table, &mut leftovers)?;
    for entry in entries(&run)? {
        let temporary = entry.file_name().is_some_and(state_dir::is_temporary);
        let known = entry.file_name().is_some_and(|name| DIRECTORIES.iter().any(|it| name == *it));
        if temporary && !entry.is_dir() {
            absent_is_fine(std::fs::remove_file(&entry))?;
        } else if !known {
            leftovers.left.push(format!("{} (not made by podwright)", entry.display()));
        }
    }
    if let Some(failure) = leftovers.failures.into_iter().next() {
        return Err(failure);
    }
    if leftovers.left.is_empty() {
        absent_is_fine(std::fs::remove_dir(&run))
            .with_context(|| format!("cannot remove {}", run.display()))?;
    }
    Ok(leftovers.left)
}

/// Entries of a directory; none if it does not exist.
fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed: std::io::Result<Vec<PathBuf>> = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    match listed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.with_context(|| format!("cannot list {}", directory.display())),
    }
}

pub(super) fn absent_is_fine(outcome: std::io::Result<()>) -> std::io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cni_results_of_other_networks_are_kept() {
        let results = tempfile::tempdir().unwrap();
        let sandbox = |path: &str| format!(r#"{{"interfaces":[{{"sandbox":"{path}"}}]}}"#);
        let loopback =
            |path: &str| format!(r#"{{"networkName":"cni-loopback","result":{}}}"#, sandbox(path));
        for (name, content) in [
            ("ours", r#"{"kind":"cniCacheV1","networkName":"pw-1"}"#.to_owned()),
            ("our-loopback", loopback("/run/pw/1/netns/a")),
            ("our-bare-answer", sandbox("/run/pw/1/netns/a")),
            ("their-network", r#"{"networkName":"pw-12"}"#.to_owned()),
            ("their-loopback", loopback("/run/pw/12/netns/b")),
            // Mentions this node's directory but belongs to another network.
            ("their-comment", r#"{"networkName":"cbr0","args":"\"/run/pw/1/x\""}"#.to_owned()),
            ("no-json", "\"/run/pw/1/netns/a\" pw-1".to_owned()),
        ] {
            std::fs::write(results.path().join(name), content).unwrap();
        }
        remove_results(results.path(), "pw-1", Path::new("/run/pw/1")).unwrap();
        let mut left = entries(results.path()).unwrap();
        left.sort();
        let want = ["no-json", "their-comment", "their-loopback", "their-network"];
        assert_eq!(left, want.map(|name| results.path().join(name)));
        remove_results(&results.path().join("nowhere"), "pw-1", Path::new("/run/pw/1")).unwrap();
    }

    #[test]
    fn shims_are_recognised_by_their_socket() {
        let socket = Path::new("/run/podwright/1/containerd.sock");
        for (line, ours) in [
            ("/usr/bin/containerd-shim-runc-v2 -address /run/podwright/1/containerd.sock", true),
            ("/usr/bin/containerd-shim-runc-v2 -address /run/containerd/containerd.sock", false),
            ("/usr/bin/containerd-shim-runc-v2 -address /run/podwright/12/containerd.sock", false),
            ("vi /notes/containerd-shim /run/podwright/1/containerd.sock", false),
            ("/containerd-shim-users/tail /run/podwright/1/containerd.sock", false),
        ] {
            let line = line.replace(' ', "\0");
            assert_eq!(is_shim_of(line.as_bytes(), socket), ours, "{line}");
        }
    }

    #[test]
    fn process_with_another_directory_at_the_same_path_is_not_a_shim_of_this_node() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let of = |path: &Path| std::fs::metadata(path).unwrap();
        assert!(has_same_directory(std::process::id(), one.path(), &of(one.path())));
        assert!(!has_same_directory(std::process::id(), one.path(), &of(other.path())));
    }

    #[test]
    fn run_directory_is_removed_except_for_foreign_files() {
        let runs = tempfile::tempdir().unwrap();
        let layout = Layout { state: "/nowhere/state".into(), runs: runs.path().to_owned() };
        let fill = || {
            std::fs::create_dir_all(layout.run().join("containerd/netns")).unwrap();
            for file in ["agent.pid", "containerd.sock", ".podwright-x"] {
                std::fs::write(layout.run().join(file), "").unwrap();
            }
        };
        fill();
        assert_eq!(remove_run_directory(&layout).unwrap(), [] as [String; 0]);
        assert!(!layout.run().exists());
        fill();
        let notes = layout.run().join("notes.txt");
        std::fs::write(&notes, "mine").unwrap();
        let left = remove_run_directory(&layout).unwrap();
        assert_eq!(left, [format!("{} (not made by podwright)", notes.display())]);
        assert_eq!(entries(&layout.run()).unwrap(), [notes]);
    }

    #[test]
    fn only_sockets_in_the_shim_directory_are_read_from_bundles() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(shim_sockets(state.path()).unwrap(), BTreeSet::new());
        for (bundle, file, text) in [
            ("a", "address", "unix:///run/containerd/s/0a1b"),
            ("b", "bootstrap.json", r#"{"version":3,"address":"unix:///run/containerd/s/0c1d"}"#),
            ("c", "address", "unix:///run/containerd/s/../../../etc/passwd"),
            ("d", "address", "unix:///run/other.sock"),
            ("e", "pid", "7"),
        ] {
            let bundle = state.path().join("io.containerd.runtime.v2.task/k8s.io").join(bundle);
            std::fs::create_dir_all(&bundle).unwrap();
            std::fs::write(bundle.join(file), text).unwrap();
        }
        let want = ["/run/containerd/s/0a1b", "/run/containerd/s/0c1d"].map(PathBuf::from);
        assert_eq!(shim_sockets(state.path()).unwrap(), want.into());
    }
}
