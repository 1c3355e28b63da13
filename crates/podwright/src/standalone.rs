//! A node alone on one machine, with a container runtime of its own.
//!
//! Everything it makes is its own: a private containerd with its own socket, folders, images,
//! network bridge and cgroup root. The machine's containerd, Docker or kubelet does not notice,
//! and `down` takes away exactly what `up` made. What must be known for that is written into
//! [`Layout::record`] *before* it is made, so that a killed `up` can be cleaned up as well.

pub mod agent;
pub mod api;
pub mod claim_directories;
pub mod containerd;
pub mod daemon;
pub mod filter;
pub mod kubeconfig;
pub mod lock;
pub mod log;
pub mod network;
pub mod own_mounts;
pub mod pods;
pub mod resolver;
pub mod runtime;
pub mod shared;
pub mod state_dir;
pub mod stopping;
pub mod streams;
pub mod sweep;
pub mod teardown;
pub mod wishes;

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use network::Network;
use wishes::Wishes;

/// Where each node of the machine has a folder for what does not outlive a reboot.
const RUN: &str = "/run/podwright";

/// The cgroup below which all pods of this node live.
pub const CGROUP_ROOT: &str = "/podwright";

/// How the names of files begin that are written but not yet in place.
const TEMPORARY: &str = ".podwright-";

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Layout {
    state: PathBuf,
    /// Where all nodes of the machine have what does not outlive a reboot.
    runs: PathBuf,
}

impl Layout {
    pub fn new(state_dir: &Path) -> Self {
        let as_given = Self { state: state_dir.to_owned(), runs: RUN.into() };
        // Earlier builds took the same directory with a slash at the end for another node.
        if matches!(as_given.record(), Ok(Some(record)) if record.state_dir.is_none()) {
            return as_given;
        }
        Self { state: state_dir.components().collect(), ..as_given }
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// As it is written into records.
    fn state_text(&self) -> String {
        self.state.to_string_lossy().into_owned()
    }

    pub fn manifests(&self) -> PathBuf {
        self.state.join("manifests")
    }

    pub fn root_dir(&self) -> PathBuf {
        self.state.join("kubelet")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.state.join("logs/pods")
    }

    pub fn log_links(&self) -> PathBuf {
        self.state.join("logs/containers")
    }

    pub fn agent_log(&self) -> PathBuf {
        self.state.join("logs/agent.log")
    }

    /// What the API server keeps: objects, certificates, keys.
    pub fn api(&self) -> PathBuf {
        self.state.join("api")
    }

    /// The folders of claims.
    pub fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    /// How `kubectl` finds this node.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    pub fn containerd(&self) -> PathBuf {
        self.state.join("containerd")
    }

    pub fn cni(&self) -> PathBuf {
        self.state.join("cni")
    }

    /// Pid files, sockets and what else is worth nothing after a reboot.
    ///
    /// A socket's path has room for 108 bytes, so it cannot live below a deep state folder.
    pub fn run(&self) -> PathBuf {
        self.runs.join(self.instance())
    }

    /// Held by the command that changes this node; beside what the command may remove.
    pub fn lock(&self) -> PathBuf {
        self.runs.join(format!("{}.lock", self.instance()))
    }

    /// Says what was mounted on the agent's root directory before we mounted it on itself.
    pub fn agent_root_mount(&self) -> PathBuf {
        self.run().join("agent-root-mount.json")
    }

    /// Says whose the directory [`Self::run`] is: instances are short hashes.
    fn owner(&self) -> PathBuf {
        self.run().join("state-dir")
    }

    /// What the private containerd keeps as long as it has sandboxes.
    pub fn runtime_state(&self) -> PathBuf {
        self.run().join("containerd")
    }

    pub fn socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// Tells nodes with different state folders apart.
    pub fn instance(&self) -> String {
        let fnv = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let path = self.state.as_os_str().as_encoded_bytes();
        format!("{:08x}", path.iter().fold(0x811c_9dc5, fnv))
    }

    /// The bridge of this node; a link's name has room for 15 bytes.
    pub fn bridge(&self) -> String {
        format!("pw-{}", self.instance())
    }

    /// The cgroup of this node, beside those of other nodes on the machine.
    pub fn cgroup_root(&self) -> String {
        format!("{CGROUP_ROOT}-{}", self.instance())
    }

    fn record_path(&self) -> PathBuf {
        self.state.join("made.json")
    }

    /// Makes the directories in the state directory, which is there, and the one below `/run`. Only
    /// root may look into them.
    pub fn make(&self) -> anyhow::Result<()> {
        self.claim_instance()?;
        let directories = [
            self.manifests(),
            self.root_dir(),
            self.state.join("logs"),
            self.pod_logs(),
            self.log_links(),
            self.api(),
            self.volumes(),
            self.containerd(),
            self.cni(),
            self.run(),
        ];
        directories.iter().try_for_each(|directory| state_dir::make_private(directory))
    }

    /// Checks that what other parts of the machine would call by this node's instance is not
    /// another node's: two state directories may have the same short hash.
    pub fn check_instance(&self) -> anyhow::Result<()> {
        let owner = self.owner();
        let other = match std::fs::read_to_string(&owner) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unreadable(error, &owner)),
        };
        if other != self.state_text() {
            anyhow::bail!(
                "{} is in use by the node in {other}. Fix: name another directory than {} with \
                 --state-dir",
                self.run().display(),
                self.state.display()
            );
        }
        Ok(())
    }

    /// Makes the directory below `/run` this node's own.
    fn claim_instance(&self) -> anyhow::Result<()> {
        self.check_instance()?;
        let run = self.run();
        std::fs::create_dir_all(&run)
            .with_context(|| format!("cannot make the directory {}", run.display()))?;
        write_private(&self.owner(), self.state_text().as_bytes())
    }

    pub fn record(&self) -> anyhow::Result<Option<Record>> {
        let path = self.record_path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error, &path)),
        };
        self.check_record_owner(&path)?;
        let record: Record = serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; move it away to start afresh", path.display())
        })?;
        self.check_record(&record)?;
        Ok(Some(record))
    }

    /// What a record names is run as root.
    fn check_record_owner(&self, path: &Path) -> anyhow::Result<()> {
        let found = std::fs::metadata(path).map_err(|error| unreadable(error, path))?;
        let (owner, shown) = (found.uid(), path.display());
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            anyhow::bail!(
                "{shown} belongs to user {owner} and is not used. Fix: if the node in {} wrote it, \
                 chown root {shown}; otherwise delete it",
                self.state.display()
            );
        }
        Ok(())
    }

    /// A record names things all over the machine. One that came here with a copy of another state
    /// directory names that node's.
    fn check_record(&self, record: &Record) -> anyhow::Result<()> {
        let here = record.state_dir.as_ref().is_none_or(|state| *state == self.state_text());
        if here
            && record.network.bridge == self.bridge()
            && record.cgroup_root == self.cgroup_root()
        {
            return Ok(());
        }
        let of = record.state_dir.as_deref().unwrap_or("another state directory");
        anyhow::bail!(
            "{} was written by the node in {of}; nothing is changed. Fix: if this is a copy of \
             that directory, delete the file; if the directory was moved while its node was up, \
             move it back and run podwright down",
            self.record_path().display()
        )
    }

    pub fn write_record(&self, record: &Record) -> anyhow::Result<()> {
        write_private(&self.record_path(), &serde_json::to_vec_pretty(record)?)
    }

    pub fn forget_record(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(self.record_path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// A file that is there and cannot be read. Not being allowed to look is not the same as seeing
/// that nothing is there.
fn unreadable(error: std::io::Error, path: &Path) -> anyhow::Error {
    let way_out = match error.kind() {
        ErrorKind::PermissionDenied => ": only root may look; try sudo",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot read {}{way_out}", path.display()))
}

/// Writes a file that only its owner can read, whole or not at all.
pub fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok::<_, std::io::Error>(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// What `up` made outside of its folders, and what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose record it is; earlier builds did not say.
    #[serde(rename = "state_dir", default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    #[serde(rename = "network")]
    pub network: Network,
    #[serde(rename = "cgroup_root")]
    pub cgroup_root: String,
    #[serde(rename = "wishes", default)]
    pub wishes: Wishes,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    pub(super) fn record(layout: &Layout) -> Record {
        Record {
            state_dir: Some(layout.state_text()),
            network: Network {
                bridge: layout.bridge(),
                subnet: "10.213.0.0/16".into(),
                plugins: "/usr/lib/cni".into(),
            },
            cgroup_root: layout.cgroup_root(),
            wishes: Wishes::default(),
        }
    }

    #[test]
    fn record_of_another_state_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let (one, copy) = (base.path().join("one"), base.path().join("copy"));
        for state in [&one, &copy] {
            std::fs::create_dir(state).unwrap();
        }
        let (one, copy) = (Layout::new(&one), Layout::new(&copy));
        one.write_record(&record(&one)).unwrap();
        assert_eq!(one.record().unwrap(), Some(record(&one)));
        for state_dir in [Some(one.state_text()), None] {
            copy.write_record(&Record { state_dir, ..record(&one) }).unwrap();
            let refused = format!("{:#}", copy.record().unwrap_err());
            assert!(refused.contains("nothing is changed"), "{refused}");
        }
        let earlier = Record { state_dir: None, ..record(&one) };
        one.write_record(&earlier).unwrap();
        assert_eq!(one.record().unwrap(), Some(earlier), "of an earlier build");
    }

    #[test]
    fn node_whose_instance_another_node_has_is_refused() {
        // Two paths with the same short hash.
        let (one, other) = ("/srv/6371bfdb2d", "/srv/a5e8659a38");
        let runs = tempfile::tempdir().unwrap();
        let layout = |state: &str| Layout { state: state.into(), runs: runs.path().to_owned() };
        assert_eq!(layout(one).instance(), layout(other).instance());
        layout(one).claim_instance().unwrap();
        layout(one).claim_instance().unwrap();
        let refused = format!("{:#}", layout(other).claim_instance().unwrap_err());
        assert!(refused.contains(one) && refused.contains(other), "{refused}");
    }
}
