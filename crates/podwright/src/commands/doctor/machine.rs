//! Machine interface of the checks.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use podwright_cri::{Client, Endpoint, Timeouts};

/// What checks can read. Files are read below a root, so that tests can use a directory as a
/// machine; everything else has its own method.
pub trait Machine {
    /// The root directory of this machine.
    fn root(&self) -> &Path;

    /// Whether an address can be listened on.
    fn listen(&self, address: SocketAddr) -> io::Result<()>;

    /// The file system that holds a path.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Version, status and images of the runtime at an endpoint.
    fn runtime(&self, endpoint: &str) -> Result<RuntimeReport, String>;
}

/// Capacity and free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    pub bytes_free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Responses of a container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeReport {
    /// Name and version.
    pub version: String,
    pub runtime_ready: Result<(), String>,
    pub network_ready: Result<(), String>,
    /// Names of the images it has.
    pub images: Vec<String>,
}

impl dyn Machine + '_ {
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root().join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read(self.at(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// Names of the files in a directory; none if it does not exist.
    pub(super) fn names_in(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Path of a program in the usual directories.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        const DIRECTORIES: [&str; 6] =
            ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        DIRECTORIES
            .iter()
            .map(|directory| Path::new(directory).join(name))
            .find(|path| self.exists(path))
    }
}

/// This machine.
pub struct LocalMachine {
    root: PathBuf,
}

impl LocalMachine {
    pub fn new() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl Default for LocalMachine {
    fn default() -> Self {
        Self::new()
    }
}

/// A healthy runtime responds immediately.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(5);

impl Machine for LocalMachine {
    fn root(&self) -> &Path {
        &self.root
    }

    fn listen(&self, address: SocketAddr) -> io::Result<()> {
        TcpListener::bind(address).map(drop)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Space {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            inodes_free: found.f_favail,
        })
    }

    fn runtime(&self, endpoint: &str) -> Result<RuntimeReport, String> {
        let endpoint = Endpoint::from_str(endpoint).map_err(|error| error.to_string())?;
        let reactor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        reactor.block_on(async {
            let client = Client::new(&endpoint, Timeouts { call: RUNTIME_TIMEOUT });
            let version = client.version().await.map_err(|error| error.to_string())?;
            let status = client.status().await.map_err(|error| error.to_string())?;
            let images = client.list_images().await.map_err(|error| error.to_string())?;
            Ok(RuntimeReport {
                version: format!("{} {}", version.runtime_name, version.runtime_version),
                runtime_ready: status.runtime,
                network_ready: status.network,
                images: images.into_iter().flat_map(|image| image.tags).collect(),
            })
        })
    }
}
