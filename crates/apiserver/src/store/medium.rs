//! What a database lies on, and how it is opened on it, once and again.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Builder, Database, StorageBackend};

use super::StoreError;

#[derive(Clone, Debug)]
pub(super) enum Medium {
    File(PathBuf),
    /// Memory, or whatever a test makes up.
    Backend(Arc<dyn StorageBackend>),
}

impl Medium {
    pub(super) fn open(&self, cache_bytes: usize) -> Result<Database, StoreError> {
        match self {
            // One that is gone is not begun anew: it held everything.
            Self::File(path) => open_file(path, cache_bytes, false),
            Self::Backend(backend) => Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(Shared(backend.clone()))
                .map_err(StoreError::at("open")),
        }
    }

    /// For people who are to look there.
    pub(super) fn place(&self) -> Arc<str> {
        match self {
            Self::File(path) => path.display().to_string().into(),
            Self::Backend(_) => "in memory".into(),
        }
    }
}

/// A file that only its owner can read: Secrets are in it.
pub(super) fn open_file(
    path: &Path,
    cache_bytes: usize,
    create: bool,
) -> Result<Database, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| StoreError::Create { path: path.to_owned(), source: Arc::new(source) })?;
    Builder::new().set_cache_size(cache_bytes).create_file(file).map_err(|source| {
        StoreError::Open { path: path.to_owned(), source: Arc::new(source.into()) }
    })
}

/// A storage that outlives the database on it.
#[derive(Debug)]
struct Shared(Arc<dyn StorageBackend>);

impl StorageBackend for Shared {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}
