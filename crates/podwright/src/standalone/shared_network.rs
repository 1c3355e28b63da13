//! Network state shared by all standalone nodes of a machine: `net.ipv4.ip_forward` and the
//! iptables chains from which CNI plugins jump to the chains of their containers.
//!
//! A node must not restore it while another node needs it. The first node saves the original state,
//! the last one restores it. The saved state is below `/run`, because a reboot resets all of it,
//! and there is one file per network namespace, because the state belongs to a namespace.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::filter::{self, Filter};
use super::{Layout, RUN, write_private};

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// State before the first node changed it, and the nodes that depend on it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedState {
    #[serde(rename = "ip_forward")]
    ip_forward: String,
    #[serde(rename = "chains")]
    chains: Vec<String>,
    #[serde(rename = "nodes")]
    nodes: BTreeSet<String>,
}

/// Outcome of [`SharedNetwork::leave`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaveOutcome {
    /// The node was the last and the original state is restored, or it had changed nothing.
    AsFound,
    /// This many other nodes still depend on the state, which is kept.
    Others(usize),
}

/// The shared state of one network namespace.
pub struct SharedNetwork {
    directory: PathBuf,
    file: PathBuf,
}

impl SharedNetwork {
    /// The shared state of the network namespace of this process.
    pub fn here() -> anyhow::Result<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/net").context("/proc/self/ns/net")?;
        Ok(Self::at(Path::new(RUN), namespace.ino()))
    }

    fn at(directory: &Path, namespace: u64) -> Self {
        let file = directory.join(format!("network-{namespace}.json"));
        Self { directory: directory.to_owned(), file }
    }

    /// Registers a node, before it changes any of the state.
    pub fn join(&self, layout: &Layout) -> anyhow::Result<()> {
        self.join_as(&layout.instance(), || {
            let ip_forward = std::fs::read_to_string(FORWARDING).context(FORWARDING)?;
            let chains = Filter::read()?.shared_chains();
            Ok((ip_forward.trim().to_owned(), chains))
        })
    }

    fn join_as(
        &self,
        node: &str,
        read_state: impl FnOnce() -> anyhow::Result<(String, Vec<String>)>,
    ) -> anyhow::Result<()> {
        let _lock = self.lock()?;
        let mut found = match self.read()?.filter(|found| !found.nodes.is_empty()) {
            Some(found) => found,
            None => {
                let (ip_forward, chains) = read_state()?;
                SavedState { ip_forward, chains, nodes: BTreeSet::new() }
            }
        };
        match found.nodes.insert(node.to_owned()) {
            true => write_private(&self.file, &serde_json::to_vec(&found)?),
            false => Ok(()),
        }
    }

    /// Unregisters a node, after it removed its own rules. The last node restores the original
    /// state.
    pub fn leave(&self, layout: &Layout) -> anyhow::Result<LeaveOutcome> {
        self.leave_as(&layout.instance(), |found| {
            filter::remove_shared_chains(&found.chains)?;
            let now = std::fs::read_to_string(FORWARDING).context(FORWARDING)?;
            if now.trim() != found.ip_forward {
                std::fs::write(FORWARDING, &found.ip_forward)
                    .context("cannot restore net.ipv4.ip_forward")?;
            }
            Ok(())
        })
    }

    fn leave_as(
        &self,
        node: &str,
        restore: impl FnOnce(&SavedState) -> anyhow::Result<()>,
    ) -> anyhow::Result<LeaveOutcome> {
        let _lock = self.lock()?;
        let Some(mut found) = self.read()? else { return Ok(LeaveOutcome::AsFound) };
        if !found.nodes.remove(node) {
            return Ok(LeaveOutcome::AsFound);
        }
        if !found.nodes.is_empty() {
            write_private(&self.file, &serde_json::to_vec(&found)?)?;
            return Ok(LeaveOutcome::Others(found.nodes.len()));
        }
        restore(&found)?;
        std::fs::remove_file(&self.file)
            .with_context(|| format!("cannot remove {}", self.file.display()))?;
        Ok(LeaveOutcome::AsFound)
    }

    /// The saved state, without nodes that no longer exist.
    fn read(&self) -> anyhow::Result<Option<SavedState>> {
        let text = match std::fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(super::unreadable(error, &self.file)),
        };
        let damaged = || format!("{} is corrupt. Fix: delete it", self.file.display());
        let mut found: SavedState = serde_json::from_slice(&text).with_context(damaged)?;
        found.nodes.retain(|node| self.directory.join(node).is_dir());
        Ok(Some(found))
    }

    /// Lock for reading and writing the file. The directory itself is locked, so that no lock file
    /// remains when it is removed.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.directory.display();
        loop {
            std::fs::create_dir_all(&self.directory)
                .with_context(|| format!("cannot create {path}"))?;
            let lock =
                File::open(&self.directory).with_context(|| format!("cannot open {path}"))?;
            flock(&lock, FlockOperation::LockExclusive)
                .with_context(|| format!("cannot lock {path}"))?;
            // Another node may have removed the directory in the meantime.
            let still = std::fs::metadata(&self.directory).map(|now| now.ino()).ok();
            if still == Some(lock.metadata()?.ino()) {
                return Ok(lock);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn nodes(directory: &Path, names: &[&str]) -> SharedNetwork {
        for name in names {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        SharedNetwork::at(directory, 7)
    }

    fn found() -> anyhow::Result<(String, Vec<String>)> {
        Ok(("0".to_owned(), vec!["nat CNI-HOSTPORT-DNAT".to_owned()]))
    }

    fn must_not_be_read() -> anyhow::Result<(String, Vec<String>)> {
        anyhow::bail!("only the first node reads the state")
    }

    #[test]
    fn last_node_restores_the_state_saved_by_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let shared = nodes(directory.path(), &["a", "b"]);
        shared.join_as("a", found).unwrap();
        shared.join_as("b", must_not_be_read).unwrap();
        shared.join_as("b", must_not_be_read).unwrap();
        let too_early = |_: &SavedState| anyhow::bail!("b still depends on the state");
        assert_eq!(shared.leave_as("a", too_early).unwrap(), LeaveOutcome::Others(1));
        assert_eq!(shared.leave_as("a", too_early).unwrap(), LeaveOutcome::AsFound, "already left");
        let mut restored = None;
        let restore = |found: &SavedState| {
            restored = Some(found.ip_forward.clone());
            Ok(())
        };
        assert_eq!(shared.leave_as("b", restore).unwrap(), LeaveOutcome::AsFound);
        assert_eq!(restored.as_deref(), Some("0"));
        assert!(!shared.file.exists());
    }

    #[test]
    fn saved_state_round_trips_through_json() {
        let text = r#"{"ip_forward":"0","chains":["nat CNI-HOSTPORT-DNAT"],"nodes":["0a1b2c3d"]}"#;
        let found: SavedState = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&found).unwrap(), text);
    }

    #[test]
    fn removed_node_does_not_keep_the_state() {
        let directory = tempfile::tempdir().unwrap();
        let shared = nodes(directory.path(), &["a", "b"]);
        shared.join_as("a", found).unwrap();
        shared.join_as("b", must_not_be_read).unwrap();
        std::fs::remove_dir(directory.path().join("b")).unwrap();
        assert_eq!(shared.leave_as("a", |_| Ok(())).unwrap(), LeaveOutcome::AsFound);
    }

    #[test]
    fn failed_restore_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let shared = nodes(directory.path(), &["a"]);
        shared.join_as("a", found).unwrap();
        shared.leave_as("a", |_| anyhow::bail!("read-only")).unwrap_err();
        let again = |found: &SavedState| {
            assert_eq!(found.ip_forward, "0");
            Ok(())
        };
        assert_eq!(shared.leave_as("a", again).unwrap(), LeaveOutcome::AsFound);
    }

    #[test]
    fn network_namespaces_are_independent() {
        let directory = tempfile::tempdir().unwrap();
        let one = nodes(directory.path(), &["a", "b"]);
        let other = SharedNetwork::at(directory.path(), 8);
        one.join_as("a", found).unwrap();
        other.join_as("b", found).unwrap();
        assert_eq!(one.leave_as("a", |_| Ok(())).unwrap(), LeaveOutcome::AsFound);
        assert_eq!(other.leave_as("b", |_| Ok(())).unwrap(), LeaveOutcome::AsFound);
    }
}
