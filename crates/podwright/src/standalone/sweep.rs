//! What a containerd leaves behind that was killed, or could not stop its pods: shims, their
//! sockets, mounts, network namespaces and what plugins remember. Orderly ends leave none of it.
//!
//! Each of these is told apart from a neighbour's by something that only this node's has: the node's
//! own directory below `/run`, the name of its network, the place of its mounts.

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
use super::own_mounts::{self, Places};
use super::state_dir::{self, Leftovers};
use super::{Layout, daemon};

/// What SIGKILL may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Shims listen here whatever containerd's configuration says.
const SHIM_SOCKETS: &str = "/run/containerd/s";
/// What plugins answered is kept here whatever the configuration says.
const PLUGIN_RESULTS: &str = "/var/lib/cni/results";

/// Ends the shims that were started for our socket, and nobody else's. A shim holds its containers
/// without containerd; they end with their cgroup.
pub fn end_shims(layout: &Layout) -> anyhow::Result<()> {
    let shims = shims_of(layout)?;
    for shim in &shims {
        daemon::signal(shim, Signal::KILL)?;
    }
    for shim in &shims {
        daemon::end(shim, PATIENCE)?;
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
        if is_shim_of(&command, &socket) && sees(pid, &layout.run(), &run) {
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

/// Whether a directory is the same for a process as for us. In a container with its own `/run`
/// another node may have a socket with the very same path.
fn sees(pid: u32, directory: &Path, ours: &std::fs::Metadata) -> bool {
    let relative = directory.strip_prefix("/").unwrap_or(directory);
    let theirs = std::fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(relative));
    theirs.is_ok_and(|theirs| (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// Kills whatever still runs in the node's cgroup, and removes it.
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

/// Takes off the node's mounts; network namespaces are among them. Returns what had to stay.
pub fn unmount(layout: &Layout) -> anyhow::Result<Vec<String>> {
    own_mounts::unmount(&Places::of(layout)?)
}

/// Removes the sockets of our shims, which tell of them in their bundles.
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
            // Up to 1.7 a plain text; later a JSON document.
            for file in ["address", "bootstrap.json"] {
                let text = std::fs::read_to_string(bundle.join(file)).unwrap_or_default();
                sockets.extend(socket_in(&text));
            }
        }
    }
    Ok(sockets)
}

/// The socket named in what a shim left, if it is one of those that stay behind.
fn socket_in(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("unix://")?;
    let path = PathBuf::from(rest.split(['"', '\n', ' ']).next()?);
    (path.parent() == Some(Path::new(SHIM_SOCKETS))).then_some(path)
}

/// Removes the bridge, and what plugins remember of who was on it.
pub fn remove_network(layout: &Layout, network: &Network) -> anyhow::Result<()> {
    let bridge = &network.bridge;
    // Asked of ip and not of /sys, which may show another network namespace than ours.
    if run("ip", &["link", "show", "dev", bridge]).is_ok() {
        run("ip", &["link", "delete", bridge])?;
    }
    forget_results(Path::new(PLUGIN_RESULTS), bridge, &layout.run())
}

/// Removes the answers of plugins about a network, and those about the loopback of its pods, which
/// name a network namespace below a directory.
fn forget_results(results: &Path, network: &str, directory: &Path) -> anyhow::Result<()> {
    for result in entries(results)? {
        let answer = std::fs::read(&result).unwrap_or_default();
        if is_result_of(&answer, network, directory) {
            absent_is_fine(std::fs::remove_file(&result))
                .with_context(|| format!("cannot remove {}", result.display()))?;
        }
    }
    Ok(())
}

/// As libcni caches it: since cniCacheV1 with the name of the network, before that the bare answer.
fn is_result_of(answer: &[u8], network: &str, directory: &Path) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Cached {
        #[serde(rename = "networkName")]
        network_name: String,
        #[serde(rename = "result")]
        result: Answer,
        #[serde(flatten)]
        bare: Answer,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Answer {
        #[serde(rename = "interfaces")]
        interfaces: Vec<Interface>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Interface {
        #[serde(rename = "sandbox")]
        sandbox: PathBuf,
    }
    let Ok(cached) = serde_json::from_slice::<Cached>(answer) else { return false };
    let mut interfaces = cached.result.interfaces.iter().chain(&cached.bare.interfaces);
    let ours = |interface: &Interface| {
        interface.sandbox != directory && interface.sandbox.starts_with(directory)
    };
    cached.network_name == network || interfaces.any(ours)
}

/// Removes what the node has in its directory below `/run`, and the directory. Returns what had to
/// stay.
pub fn remove_run_directory(layout: &Layout) -> anyhow::Result<Vec<String>> {
    const DIRECTORIES: [&str; 2] = ["containerd", "runc"];
    const FILES: [&str; 7] = [
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

/// What is in a folder; nothing if there is none.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed: std::io::Result<Vec<PathBuf>> = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    match listed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.with_context(|| format!("cannot list {}", folder.display())),
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
    fn plugin_results_of_other_networks_stay() {
        let results = tempfile::tempdir().unwrap();
        let sandbox = |path: &str| format!(r#"{{"interfaces":[{{"sandbox":"{path}"}}]}}"#);
        let loopback =
            |path: &str| format!(r#"{{"networkName":"cni-loopback","result":{}}}"#, sandbox(path));
        for (name, answer) in [
            ("ours", r#"{"kind":"cniCacheV1","networkName":"pw-1"}"#.to_owned()),
            ("our-loopback", loopback("/run/pw/1/netns/a")),
            ("our-bare-answer", sandbox("/run/pw/1/netns/a")),
            ("their-network", r#"{"networkName":"pw-12"}"#.to_owned()),
            ("their-loopback", loopback("/run/pw/12/netns/b")),
            // Names our directory, and is about another network all the same.
            ("their-comment", r#"{"networkName":"cbr0","args":"\"/run/pw/1/x\""}"#.to_owned()),
            ("no-json", "\"/run/pw/1/netns/a\" pw-1".to_owned()),
        ] {
            std::fs::write(results.path().join(name), answer).unwrap();
        }
        forget_results(results.path(), "pw-1", Path::new("/run/pw/1")).unwrap();
        let mut left = entries(results.path()).unwrap();
        left.sort();
        let want = ["no-json", "their-comment", "their-loopback", "their-network"];
        assert_eq!(left, want.map(|name| results.path().join(name)));
        forget_results(&results.path().join("nowhere"), "pw-1", Path::new("/run/pw/1")).unwrap();
    }

    #[test]
    fn only_shims_of_our_socket_are_ours() {
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
    fn process_with_another_directory_at_the_same_path_is_not_ours() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let of = |path: &Path| std::fs::metadata(path).unwrap();
        assert!(sees(std::process::id(), one.path(), &of(one.path())));
        assert!(!sees(std::process::id(), one.path(), &of(other.path())));
    }

    #[test]
    fn run_directory_goes_but_for_what_others_put_there() {
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
    fn sockets_are_found_in_bundles_and_only_where_shims_have_them() {
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
