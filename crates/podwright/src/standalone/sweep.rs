//! What a containerd leaves behind that was killed, or could not stop its pods: shims, their
//! sockets, mounts, network namespaces and what plugins remember. Orderly ends leave none of it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::Signal;
use podwright_core::cgroup::CgroupName;
use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::machine;
use podwright_host::mounts::{self, Unmount};
use podwright_host::process::ProcessIdentity;

use super::filter::run;
use super::network::Network;
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
    let shims = shims_of(&layout.socket())?;
    for shim in &shims {
        daemon::signal(shim, Signal::SIGKILL)?;
    }
    for shim in &shims {
        daemon::end(shim, PATIENCE)?;
    }
    Ok(())
}

fn shims_of(socket: &Path) -> anyhow::Result<Vec<ProcessIdentity>> {
    let mut shims = Vec::new();
    for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(command) = std::fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let mut words = command.split(|byte| *byte == 0);
        let is_shim = words
            .next()
            .is_some_and(|program| String::from_utf8_lossy(program).contains("containerd-shim"));
        let ours = words.any(|word| word == socket.as_os_str().as_encoded_bytes());
        if is_shim && ours {
            shims.extend(ProcessIdentity::of(Path::new("/proc"), pid)?);
        }
    }
    Ok(shims)
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

/// Takes off every mount below the node's folders; network namespaces are among them.
pub fn unmount(layout: &Layout) -> anyhow::Result<()> {
    let table = mounts::table(Path::new("/proc"))?;
    for folder in [layout.run(), layout.state().to_owned()] {
        let mut points: Vec<_> =
            mounts::at_or_below(&table, &folder).iter().map(|m| m.point.clone()).collect();
        points.sort();
        for point in points.iter().rev() {
            mounts::unmount(point, Unmount::Lazy)?;
        }
    }
    Ok(())
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
    forget_results(Path::new(PLUGIN_RESULTS), &layout.run())
}

/// Removes the answers of plugins that name a network namespace below a folder.
fn forget_results(results: &Path, folder: &Path) -> anyhow::Result<()> {
    let below = format!("\"{}/", folder.display());
    for result in entries(results)? {
        let answer = std::fs::read_to_string(&result).unwrap_or_default();
        if answer.contains(&below) {
            absent_is_fine(std::fs::remove_file(&result))
                .with_context(|| format!("cannot remove {}", result.display()))?;
        }
    }
    Ok(())
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
    fn what_plugins_remember_goes_with_the_node_it_is_about() {
        let results = tempfile::tempdir().unwrap();
        for (name, netns) in [("ours", "/run/pw/1/netns/a"), ("theirs", "/run/pw/12/netns/b")] {
            let answer = format!(r#"{{"kind":"cniCacheV1","sandbox":"{netns}"}}"#);
            std::fs::write(results.path().join(name), answer).unwrap();
        }
        forget_results(results.path(), Path::new("/run/pw/1")).unwrap();
        assert_eq!(entries(results.path()).unwrap(), [results.path().join("theirs")]);
        forget_results(&results.path().join("nowhere"), Path::new("/run/pw/1")).unwrap();
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
