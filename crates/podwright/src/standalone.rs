//! Standalone node: the node of `podwright up`, with its own container runtime.
//!
//! It shares nothing with other software on the machine: it has a private containerd with its own
//! socket, directories, images, network bridge and cgroup root. The machine's containerd, Docker or
//! kubelet is not affected, and `down` removes exactly what `up` created. What `down` needs for
//! that is written to [`Layout::record`] *before* it is created, so that an interrupted `up` can be
//! cleaned up as well.

pub mod agent;
pub mod agent_connector;
pub mod api;
pub mod backup;
pub mod claim_directories;
pub mod containerd;
pub mod credentials;
pub mod daemon;
pub mod filter;
pub mod image_archive;
pub mod isolation;
pub mod kubeconfig;
pub mod leftovers;
pub mod loaded_images;
pub mod lock;
pub mod log;
pub mod network;
pub mod own_mounts;
pub mod pods;
pub mod resolver;
pub mod runtime;
pub mod shared_network;
pub mod state_dir;
pub mod stopping;
pub mod supervisor;
pub mod teardown;
pub mod up_options;

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use network::Network;
use up_options::UpOptions;

/// Parent of the runtime directories of all standalone nodes; empty after a reboot.
const RUN: &str = "/run/podwright";

/// Prefix of the cgroup that contains all pods of a node.
pub const CGROUP_ROOT: &str = "/podwright";

/// Name prefix of files that are written but not yet renamed to their final name.
const TEMPORARY: &str = ".podwright-";

/// Paths and names of one standalone node.
#[derive(Clone, Debug)]
pub struct Layout {
    state: PathBuf,
    /// Parent of the runtime directories of all standalone nodes.
    runs: PathBuf,
}

impl Layout {
    pub fn new(state_dir: &Path) -> Self {
        let as_given = Self { state: state_dir.to_owned(), runs: RUN.into() };
        // Earlier builds treated a path with a trailing slash as a different node.
        if matches!(as_given.record(), Ok(Some(record)) if record.state_dir.is_none()) {
            return as_given;
        }
        Self { state: state_dir.components().collect(), ..as_given }
    }

    /// The node whose agent has this root directory, if it is one of `podwright up`.
    pub fn of_root(root: &Path) -> Option<Self> {
        let layout = Self::new(root.parent()?);
        (layout.root_dir() == root && layout.kubeconfig().exists()).then_some(layout)
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The state directory as written into records.
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

    /// Files of the API server: objects, certificates, keys.
    pub fn api(&self) -> PathBuf {
        self.state.join("api")
    }

    /// Directories of the PersistentVolumeClaims.
    pub fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    /// Kubeconfig of this node, for `kubectl`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    pub fn containerd(&self) -> PathBuf {
        self.state.join("containerd")
    }

    /// Names of the images that were loaded by hand, which `images prune` keeps.
    pub fn loaded_images(&self) -> PathBuf {
        self.state.join("images.json")
    }

    pub fn cni(&self) -> PathBuf {
        self.state.join("cni")
    }

    /// Pid files, sockets and other files that are useless after a reboot.
    ///
    /// A socket path is limited to 108 bytes, so it cannot be below a deep state directory.
    pub fn run(&self) -> PathBuf {
        self.runs.join(self.instance())
    }

    /// Lock file, held by the command that changes this node. Outside of [`Self::run`], which
    /// `down` removes.
    pub fn lock(&self) -> PathBuf {
        self.runs.join(format!("{}.lock", self.instance()))
    }

    /// Record of what was mounted on the agent's root directory before the agent bind-mounted it on
    /// itself.
    pub fn agent_root_mount(&self) -> PathBuf {
        self.run().join("agent-root-mount.json")
    }

    /// What the agent reports about the private containerd that it supervises.
    pub fn supervision(&self) -> PathBuf {
        self.run().join("containerd.json")
    }

    /// Socket at which the agent sends its objects for a backup.
    pub fn backup_socket(&self) -> PathBuf {
        self.run().join("backup.sock")
    }

    /// State directory that [`Self::run`] belongs to: instances are short hashes and may collide.
    fn owner(&self) -> PathBuf {
        self.run().join("state-dir")
    }

    /// State directory of the private containerd, present while it has sandboxes.
    pub fn runtime_state(&self) -> PathBuf {
        self.run().join("containerd")
    }

    pub fn socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// Short hash of the state directory, which distinguishes the nodes of a machine.
    pub fn instance(&self) -> String {
        let fnv = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let path = self.state.as_os_str().as_encoded_bytes();
        format!("{:08x}", path.iter().fold(0x811c_9dc5, fnv))
    }

    /// The bridge of this node; an interface name is limited to 15 bytes.
    pub fn bridge(&self) -> String {
        format!("pw-{}", self.instance())
    }

    /// The cgroup of this node; each node of the machine has its own.
    pub fn cgroup_root(&self) -> String {
        format!("{CGROUP_ROOT}-{}", self.instance())
    }

    fn record_path(&self) -> PathBuf {
        self.state.join("made.json")
    }

    /// Creates the directories in the existing state directory and the one below `/run`, readable
    /// by root only.
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

    /// Checks that no other node uses the same instance name: two state directories may have the
    /// same short hash.
    pub fn check_instance(&self) -> anyhow::Result<()> {
        let owner = self.owner();
        let other = match std::fs::read_to_string(&owner) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unreadable(error, &owner)),
        };
        if other != self.state_text() {
            anyhow::bail!(
                "{} is in use by the node in {other}. Fix: use another directory than {} with \
                 --state-dir",
                self.run().display(),
                self.state.display()
            );
        }
        Ok(())
    }

    /// Claims the directory below `/run` for this node.
    fn claim_instance(&self) -> anyhow::Result<()> {
        self.check_instance()?;
        let run = self.run();
        std::fs::create_dir_all(&run)
            .with_context(|| format!("cannot create directory {}", run.display()))?;
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
            format!("{} is corrupt. Fix: move it away to start a new node", path.display())
        })?;
        self.check_record(&record)?;
        Ok(Some(record))
    }

    /// Rejects a record of another user: programs it names run as root.
    fn check_record_owner(&self, path: &Path) -> anyhow::Result<()> {
        let found = std::fs::metadata(path).map_err(|error| unreadable(error, path))?;
        let (owner, shown) = (found.uid(), path.display());
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            anyhow::bail!(
                "{shown} belongs to user {owner} and is ignored. Fix: if the node in {} wrote it, run \
                 chown root {shown}; otherwise delete it",
                self.state.display()
            );
        }
        Ok(())
    }

    /// Rejects the record of another node: a copied state directory contains a record that names
    /// the network and cgroup of the original.
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
            "{} was written by the node in {of}; nothing changed. Fix: if this is a copy of \
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

/// Error for a file that exists and cannot be read, which must not be treated as missing.
fn unreadable(error: std::io::Error, path: &Path) -> anyhow::Error {
    let fix = match error.kind() {
        ErrorKind::PermissionDenied => "; run with sudo",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot read {}{fix}", path.display()))
}

/// Atomically writes a file with mode 0600.
pub fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok::<_, std::io::Error>(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// What `up` created outside of its state directory, and the options it was run with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// State directory of the node; not written by earlier builds.
    #[serde(rename = "state_dir", default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    #[serde(rename = "network")]
    pub network: Network,
    #[serde(rename = "cgroup_root")]
    pub cgroup_root: String,
    #[serde(rename = "wishes", default)]
    pub up_options: UpOptions,
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
            up_options: UpOptions::default(),
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
            assert!(refused.contains("nothing changed"), "{refused}");
        }
        let earlier = Record { state_dir: None, ..record(&one) };
        one.write_record(&earlier).unwrap();
        assert_eq!(one.record().unwrap(), Some(earlier), "written by an earlier build");
    }

    #[test]
    fn instance_used_by_another_node_is_refused() {
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
