//! A node alone on one machine, with a container runtime of its own.
//!
//! Everything it makes is its own: a private containerd with its own socket, folders, images,
//! network bridge and cgroup root. The machine's containerd, Docker or kubelet does not notice,
//! and `down` takes away exactly what `up` made. What must be known for that is written into
//! [`Layout::record`] *before* it is made, so that a killed `up` can be cleaned up as well.

pub mod agent;
pub mod api;
pub mod containerd;
pub mod daemon;
pub mod filter;
pub mod kubeconfig;
pub mod log;
pub mod network;
pub mod pods;
pub mod resolver;
pub mod runtime;
pub mod shared;
pub mod streams;
pub mod sweep;
pub mod teardown;
pub mod wishes;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use network::Network;
use wishes::Wishes;

/// Where each node of the machine has a folder for what does not outlive a reboot.
const RUN: &str = "/run/podwright";

/// The cgroup below which all pods of this node live.
pub const CGROUP_ROOT: &str = "/podwright";

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Layout {
    state: PathBuf,
}

impl Layout {
    pub fn new(state_dir: &Path) -> Self {
        Self { state: state_dir.to_owned() }
    }

    pub fn state(&self) -> &Path {
        &self.state
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
        Path::new(RUN).join(self.instance())
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

    /// Makes the folders. Only root may look into them; through the state folder others may go,
    /// or nobody else could reach the kubeconfig that is theirs.
    pub fn make(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let folders = [
            (self.state.clone(), 0o711),
            (self.manifests(), 0o700),
            (self.root_dir(), 0o700),
            (self.state.join("logs"), 0o700),
            (self.pod_logs(), 0o700),
            (self.log_links(), 0o700),
            (self.api(), 0o700),
            (self.volumes(), 0o700),
            (self.containerd(), 0o700),
            (self.cni(), 0o700),
            (self.run(), 0o700),
        ];
        for (folder, mode) in folders {
            std::fs::create_dir_all(&folder)
                .and_then(|()| {
                    let permissions = std::fs::Permissions::from_mode(mode);
                    std::fs::set_permissions(&folder, permissions)
                })
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        Ok(())
    }

    /// Whether the state folder is one that `up` made.
    pub fn is_ours(&self) -> bool {
        self.record_path().exists() || (self.manifests().is_dir() && self.containerd().is_dir())
    }

    pub fn record(&self) -> anyhow::Result<Option<Record>> {
        let path = self.record_path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error, &path)),
        };
        let record = serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; move it away to start afresh", path.display())
        })?;
        Ok(Some(record))
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
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
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
    #[serde(rename = "network")]
    pub network: Network,
    #[serde(rename = "cgroup_root")]
    pub cgroup_root: String,
    #[serde(rename = "wishes", default)]
    pub wishes: Wishes,
}
