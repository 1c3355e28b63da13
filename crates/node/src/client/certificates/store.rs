//! Certificate store: `<prefix>-<time>.pem`, and a symbolic link to the current one.
//!
//! The layout is upstream's, because other tools read `kubelet-client-current.pem`. The link is
//! replaced by a rename, so it always exists.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rcgen::KeyPair;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {attempt} {path}. Fix: make sure that the directory of --cert-dir is writable")]
    File { attempt: &'static str, path: String, source: io::Error },
    #[error("cannot generate a key")]
    Key(#[source] rcgen::Error),
}

#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    prefix: &'static str,
}

impl Store {
    /// The store of the client certificate. Completes an interrupted switch.
    pub fn client(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let this = Self { directory: directory.into(), prefix: "kubelet-client" };
        fs::create_dir_all(&this.directory).map_err(failed("create", &this.directory))?;
        let updated = this.updated();
        if updated.symlink_metadata().is_ok() {
            fs::rename(&updated, this.current()).map_err(failed("rename", &updated))?;
        }
        Ok(this)
    }

    /// The current certificate and key.
    pub fn current(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.prefix))
    }

    fn updated(&self) -> PathBuf {
        self.directory.join(format!("{}-updated.pem", self.prefix))
    }

    /// The key of a pending request, kept across restarts.
    fn pending(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.prefix))
    }

    pub(super) fn pending_key(&self) -> Result<KeyPair, StoreError> {
        let path = self.pending();
        if let Some(key) =
            fs::read_to_string(&path).ok().and_then(|pem| KeyPair::from_pem(&pem).ok())
        {
            return Ok(key);
        }
        let key = KeyPair::generate().map_err(StoreError::Key)?;
        write_secret(&path, key.serialize_pem().as_bytes()).map_err(failed("write", &path))?;
        Ok(key)
    }

    pub(super) fn remove_pending_key(&self) -> Result<(), StoreError> {
        let path = self.pending();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &path)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Stores a certificate with its key and makes it the current one.
    pub(super) fn keep(
        &self,
        certificate: &[u8],
        key: &KeyPair,
        now: Timestamp,
    ) -> Result<PathBuf, StoreError> {
        let time = now.strftime("%Y-%m-%d-%H-%M-%S");
        let name = format!("{}-{time}.pem", self.prefix);
        let path = self.directory.join(&name);
        let mut pem = certificate.to_vec();
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend_from_slice(key.serialize_pem().as_bytes());
        // A second one within a second replaces the first, which is not linked yet.
        let _ = fs::remove_file(&path);
        write_secret(&path, &pem).map_err(failed("write", &path))?;
        let updated = self.updated();
        let _ = fs::remove_file(&updated);
        symlink(&name, &updated).map_err(failed("link", &updated))?;
        let current = self.current();
        fs::rename(&updated, &current).map_err(failed("replace", &current))?;
        Ok(path)
    }
}

fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |source| StoreError::File { attempt, path, source }
}
