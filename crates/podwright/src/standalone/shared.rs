//! What all nodes of a machine share: the kernel's switch for forwarding, and the chains that
//! network plugins hang those of their containers into.
//!
//! No single node made them, so none may take them back while another lives. The first node writes
//! down how it found them, the last one puts that back. The note is below `/run`: after a reboot
//! the machine has made them anew. There is one for each network namespace, because that is what
//! they belong to.

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

/// How the first node found them, and who lives by them now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    #[serde(rename = "ip_forward")]
    ip_forward: String,
    #[serde(rename = "chains")]
    chains: Vec<String>,
    #[serde(rename = "nodes")]
    nodes: BTreeSet<String>,
}

/// How a node left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was the last, and all is as the first found it; or it had changed nothing.
    AsFound,
    /// Others stay, and with them what they need.
    Others(usize),
}

/// The note of one network namespace.
pub struct Shared {
    folder: PathBuf,
    note: PathBuf,
}

impl Shared {
    /// What is shared in the network namespace of this process.
    pub fn here() -> anyhow::Result<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/net").context("/proc/self/ns/net")?;
        Ok(Self::at(Path::new(RUN), namespace.ino()))
    }

    fn at(folder: &Path, namespace: u64) -> Self {
        let note = folder.join(format!("network-{namespace}.json"));
        Self { folder: folder.to_owned(), note }
    }

    /// Before a node changes any of it.
    pub fn join(&self, layout: &Layout) -> anyhow::Result<()> {
        self.join_as(&layout.instance(), || {
            let ip_forward = std::fs::read_to_string(FORWARDING).context(FORWARDING)?;
            let chains = Filter::look()?.shared_chains();
            Ok((ip_forward.trim().to_owned(), chains))
        })
    }

    fn join_as(
        &self,
        node: &str,
        look: impl FnOnce() -> anyhow::Result<(String, Vec<String>)>,
    ) -> anyhow::Result<()> {
        let _lock = self.lock()?;
        let mut found = match self.read()?.filter(|found| !found.nodes.is_empty()) {
            Some(found) => found,
            None => {
                let (ip_forward, chains) = look()?;
                Found { ip_forward, chains, nodes: BTreeSet::new() }
            }
        };
        match found.nodes.insert(node.to_owned()) {
            true => write_private(&self.note, &serde_json::to_vec(&found)?),
            false => Ok(()),
        }
    }

    /// When a node has taken away what is its own. The last one puts back how it was.
    pub fn leave(&self, layout: &Layout) -> anyhow::Result<Left> {
        self.leave_as(&layout.instance(), |found| {
            filter::forget_shared(&found.chains)?;
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
        restore: impl FnOnce(&Found) -> anyhow::Result<()>,
    ) -> anyhow::Result<Left> {
        let _lock = self.lock()?;
        let Some(mut found) = self.read()? else { return Ok(Left::AsFound) };
        if !found.nodes.remove(node) {
            return Ok(Left::AsFound);
        }
        if !found.nodes.is_empty() {
            write_private(&self.note, &serde_json::to_vec(&found)?)?;
            return Ok(Left::Others(found.nodes.len()));
        }
        restore(&found)?;
        std::fs::remove_file(&self.note)
            .with_context(|| format!("cannot remove {}", self.note.display()))?;
        Ok(Left::AsFound)
    }

    /// What is written down, of the nodes that are still there.
    fn read(&self) -> anyhow::Result<Option<Found>> {
        let text = match std::fs::read(&self.note) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(super::unreadable(error, &self.note)),
        };
        let damaged = || format!("{} is damaged; delete it", self.note.display());
        let mut found: Found = serde_json::from_slice(&text).with_context(damaged)?;
        found.nodes.retain(|node| self.folder.join(node).is_dir());
        Ok(Some(found))
    }

    /// Held by whoever reads and writes the note. It is the folder's own lock, so that nothing is
    /// left when the folder goes.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.display();
        loop {
            std::fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {path}"))?;
            let lock = File::open(&self.folder).with_context(|| format!("cannot open {path}"))?;
            flock(&lock, FlockOperation::LockExclusive)
                .with_context(|| format!("cannot lock {path}"))?;
            // Another node may have taken the folder away while we waited.
            let still = std::fs::metadata(&self.folder).map(|now| now.ino()).ok();
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

    fn nodes(folder: &Path, names: &[&str]) -> Shared {
        for name in names {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        Shared::at(folder, 7)
    }

    fn found() -> anyhow::Result<(String, Vec<String>)> {
        Ok(("0".to_owned(), vec!["nat CNI-HOSTPORT-DNAT".to_owned()]))
    }

    fn nobody_asks() -> anyhow::Result<(String, Vec<String>)> {
        anyhow::bail!("only the first looks")
    }

    #[test]
    fn the_last_node_puts_back_what_the_first_found() {
        let folder = tempfile::tempdir().unwrap();
        let shared = nodes(folder.path(), &["a", "b"]);
        shared.join_as("a", found).unwrap();
        shared.join_as("b", nobody_asks).unwrap();
        shared.join_as("b", nobody_asks).unwrap();
        let too_early = |_: &Found| anyhow::bail!("b still lives");
        assert_eq!(shared.leave_as("a", too_early).unwrap(), Left::Others(1));
        assert_eq!(shared.leave_as("a", too_early).unwrap(), Left::AsFound, "it had left");
        let mut restored = None;
        let restore = |found: &Found| {
            restored = Some(found.ip_forward.clone());
            Ok(())
        };
        assert_eq!(shared.leave_as("b", restore).unwrap(), Left::AsFound);
        assert_eq!(restored.as_deref(), Some("0"));
        assert!(!shared.note.exists());
    }

    #[test]
    fn note_is_written_as_it_was_read() {
        let text = r#"{"ip_forward":"0","chains":["nat CNI-HOSTPORT-DNAT"],"nodes":["0a1b2c3d"]}"#;
        let found: Found = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&found).unwrap(), text);
    }

    #[test]
    fn a_node_that_vanished_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let shared = nodes(folder.path(), &["a", "b"]);
        shared.join_as("a", found).unwrap();
        shared.join_as("b", nobody_asks).unwrap();
        std::fs::remove_dir(folder.path().join("b")).unwrap();
        assert_eq!(shared.leave_as("a", |_| Ok(())).unwrap(), Left::AsFound);
    }

    #[test]
    fn what_cannot_be_put_back_is_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let shared = nodes(folder.path(), &["a"]);
        shared.join_as("a", found).unwrap();
        shared.leave_as("a", |_| anyhow::bail!("read-only")).unwrap_err();
        let again = |found: &Found| {
            assert_eq!(found.ip_forward, "0");
            Ok(())
        };
        assert_eq!(shared.leave_as("a", again).unwrap(), Left::AsFound);
    }

    #[test]
    fn namespaces_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let one = nodes(folder.path(), &["a", "b"]);
        let other = Shared::at(folder.path(), 8);
        one.join_as("a", found).unwrap();
        other.join_as("b", found).unwrap();
        assert_eq!(one.leave_as("a", |_| Ok(())).unwrap(), Left::AsFound);
        assert_eq!(other.leave_as("b", |_| Ok(())).unwrap(), Left::AsFound);
    }
}
