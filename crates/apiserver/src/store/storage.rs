//! Storage under the database: opens and reopens it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Builder, Database, StorageBackend};

use super::StoreError;

#[derive(Clone, Debug)]
pub(super) enum Storage {
    File(PathBuf),
    /// Memory, or a backend made by a test.
    Backend(Arc<dyn StorageBackend>),
}

impl Storage {
    pub(super) fn open(&self, cache_bytes: usize) -> Result<Database, StoreError> {
        match self {
            // A missing file is not created again: it held all data.
            Self::File(path) => open_file(path, cache_bytes, false),
            Self::Backend(backend) => Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(Shared(backend.clone()))
                .map_err(StoreError::at("open")),
        }
    }

    /// Location for error messages.
    pub(super) fn location(&self) -> Arc<str> {
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

/// Storage backend that outlives the database on it.
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
