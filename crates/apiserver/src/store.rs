//! Object store: one embedded database, one writer, one order of all changes.
//!
//! Why a log beside the objects: a watch needs every change after revision N, and the transaction
//! that changes an object also appends to the log. Watchers keep no queue of their own: each reads
//! on from its position in the log, and one that falls behind the kept history gets 410, which
//! bounds memory however slow a client is.
//!
//! Why some objects are in memory only: a node's lease is renewed every few seconds and events come
//! in bursts; both are worthless after a restart and would cost an fsync each. They share the
//! revisions with everything else, and the database stores a revision beyond any that memory has
//! used, so a revision is never used twice.
//!
//! A disk failure, for a moment or for hours, only fails the requests during that time: the
//! database is reopened ([`disk`]), and its content then counts.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::document::{Document, Revision};

mod disk;
mod key;
mod memory;
mod storage;
mod wakeups;
mod writer;

#[cfg(test)]
mod disk_failure;
#[cfg(test)]
mod fake_disk;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;

pub use key::{Key, Scope};
pub use wakeups::{Subscription, Unseen};

use disk::Disk;
use memory::Memory;
use storage::Storage;
use wakeups::Wakeups;
use writer::Writer;

/// Size limits of the store. The defaults suit one machine with some hundred pods.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Page cache of the database.
    pub cache_bytes: usize,
    /// History that watches can resume from.
    pub log_entries: usize,
    pub log_bytes: usize,
    /// The same for each object on disk: history must be longer than one change of each, or a
    /// client that reconnects has to list all of them again. The larger limit applies.
    pub log_entries_per_object: usize,
    pub log_bytes_per_object: usize,
    /// Events, the objects that expire.
    pub max_events: usize,
    pub event_bytes: usize,
    pub event_ttl: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 4 << 20,
            log_entries: 2048,
            log_bytes: 4 << 20,
            log_entries_per_object: 2,
            log_bytes_per_object: 16 << 10,
            max_events: 2048,
            event_bytes: 4 << 20,
            event_ttl: Duration::from_secs(3600),
        }
    }
}

/// One write of one object; several can be committed together.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    pub expect: Precondition,
    pub op: WriteOp,
}

/// Precondition of a write. If it does not hold, nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    Absent,
    At(Revision),
}

#[derive(Clone, Debug)]
pub enum WriteOp {
    /// `previous` is set where a selector may match only one of the two, so that a watcher can be
    /// sent a deletion when the object leaves its selection.
    Put { text: Bytes, previous: Option<Bytes> },
    /// `last` is the object that watchers get.
    Delete { last: Bytes },
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub key: Key,
    pub event_type: EventType,
    pub text: Bytes,
    pub previous: Option<Bytes>,
}

impl Event {
    pub fn document(&self) -> Document {
        Document { revision: self.revision, text: self.text.clone() }
    }

    /// The object before this event, with the event's revision.
    pub fn previous_document(&self) -> Option<Document> {
        let text = self.previous.clone()?;
        Some(Document { revision: self.revision, text })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Created,
    Updated,
    Deleted,
}

/// A range of history.
#[derive(Debug)]
pub struct History {
    pub events: Vec<Event>,
    /// The revision up to which this range is complete; continue from it.
    pub upto: Revision,
    /// Whether there are more events.
    pub more: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("history before revision {oldest} is no longer kept (requested {requested})")]
    TooOld { requested: Revision, oldest: Revision },
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Another client wrote in between; `found` is the current revision.
    #[error("{key} was modified concurrently")]
    Conflict { key: Key, found: Option<Revision> },
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the database {path}: {source}")]
    Open { path: PathBuf, source: Arc<redb::Error> },
    #[error("cannot create the database {path}: {source}")]
    Create { path: PathBuf, source: Arc<std::io::Error> },
    #[error(
        "database format {found} is not supported (newest supported: {known}); run the version that \
         wrote it, or delete the data with `podwright reset`"
    )]
    NewerFormat { found: u64, known: u64 },
    #[error("cannot {attempt} the database: {source}")]
    Database { attempt: &'static str, source: Arc<redb::Error> },
    /// Storage failure; recovers without intervention once the storage works again.
    #[error("cannot {attempt} the database {location}: {source}; {fix}")]
    Storage {
        attempt: &'static str,
        location: Arc<str>,
        fix: &'static str,
        source: Arc<redb::Error>,
    },
    #[error("the database writer has stopped")]
    Stopped,
}

impl StoreError {
    fn at<E: Into<redb::Error>>(attempt: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Database { attempt, source: Arc::new(error.into()) }
    }

    /// Whether the database must be reopened before anything can succeed.
    fn is_storage_failure(&self) -> bool {
        match self {
            Self::Database { source, .. } | Self::Open { source, .. } => matches!(
                **source,
                redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed
            ),
            Self::Create { .. } | Self::Storage { .. } => true,
            Self::NewerFormat { .. } | Self::Stopped => false,
        }
    }

    /// Whether a retry can succeed although nothing else changes.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Storage { .. })
    }

    /// The same failure, with the location of the database.
    fn with_location(self, location: &Arc<str>) -> Self {
        let (attempt, source) = match self {
            Self::Database { attempt, source } => (attempt, source),
            Self::Open { path: _, source } => ("open", source),
            Self::Create { path: _, source } => {
                let source = std::io::Error::new(source.kind(), source.to_string());
                ("open", Arc::new(redb::Error::Io(source)))
            }
            other @ (Self::NewerFormat { .. } | Self::Storage { .. } | Self::Stopped) => {
                return other;
            }
        };
        let location = location.clone();
        Self::Storage { attempt, location, fix: fix(&source), source }
    }
}

fn fix(error: &redb::Error) -> &'static str {
    let kind = match error {
        redb::Error::Io(error) => Some(error.kind()),
        _ => None,
    };
    match kind {
        Some(ErrorKind::StorageFull) => "free some space there, and try again",
        Some(ErrorKind::QuotaExceeded) => "free some space there or raise the quota, and try again",
        Some(ErrorKind::ReadOnlyFilesystem) => "mount its file system writable, and try again",
        _ => "try again; if the error persists, check the kernel log for disk errors",
    }
}

/// Objects of a scope.
#[derive(Debug, Default)]
pub struct Page {
    pub objects: Vec<(Key, Document)>,
    /// Number of objects after the last one.
    pub rest: usize,
    pub revision: Revision,
}

/// The store. Reads never wait for writes.
#[derive(Debug)]
pub struct Store {
    disk: Arc<Disk>,
    memory: Arc<RwLock<Memory>>,
    current: watch::Receiver<Revision>,
    wakeups: Arc<Wakeups>,
    writer: Writer,
}

impl Store {
    /// Store in memory, written on the caller's thread: for tests, and for the simulator, whose
    /// paused time must not advance while another thread works.
    pub fn in_memory(limits: Limits, clock: Clock) -> Result<Self, StoreError> {
        Self::with_backend(InMemoryBackend::new(), limits, clock)
    }

    /// Store on the given backend, written on the caller's thread.
    pub fn with_backend(
        backend: impl StorageBackend,
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let disk = Disk::open(Storage::Backend(Arc::new(backend)), limits.cache_bytes)?;
        let (disk, memory, core) = writer::Core::start(disk, limits, clock)?;
        let (current, wakeups) = (core.subscribe(), core.wakeups());
        Ok(Self { disk, memory, current, wakeups, writer: Writer::inline(core) })
    }

    /// Store in a file, readable by its owner only. A separate thread writes it and puts concurrent
    /// writes into one transaction.
    pub fn open(path: &Path, limits: Limits, clock: Clock) -> Result<Self, StoreError> {
        disk::create(path, limits.cache_bytes)?;
        let disk = Disk::open(Storage::File(path.to_owned()), limits.cache_bytes)?;
        let (disk, memory, core) = writer::Core::start(disk, limits, clock)?;
        let (current, wakeups) = (core.subscribe(), core.wakeups());
        let writer = Writer::thread(core).map_err(|source| StoreError::Create {
            path: path.to_owned(),
            source: Arc::new(source),
        })?;
        Ok(Self { disk, memory, current, wakeups, writer })
    }

    /// Writes what is on disk, as of one moment, to a new database file. Objects that are in memory
    /// only are left out. Blocks.
    pub fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.copy_to(path)
    }

    /// The newest revision visible to readers.
    pub fn revision(&self) -> Revision {
        *self.current.borrow()
    }

    /// Notifies whenever the revision grows.
    pub fn changes(&self) -> watch::Receiver<Revision> {
        self.current.clone()
    }

    /// Waits for changes of one object.
    pub fn subscribe_to_key(&self, key: &Key) -> Subscription {
        self.wakeups.subscribe_to_key(key)
    }

    /// Waits for changes in a scope.
    pub fn subscribe_to_scope(&self, scope: &Scope) -> Subscription {
        self.wakeups.subscribe_to_scope(scope)
    }

    /// Writes all of the changes or none. Once this returns, they survive a power cut.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Revision>, CommitError> {
        self.writer.commit(changes).await
    }

    /// Deletes expired objects.
    pub async fn expire(&self) -> Result<(), StoreError> {
        self.writer.expire().await
    }

    pub fn get(&self, key: &Key) -> Result<Option<Document>, StoreError> {
        if key.in_memory() {
            return Ok(self.memory.read().get(key));
        }
        self.disk.get(key)
    }

    /// The objects of a scope by key, starting after `after`, and the revision they are current at.
    pub fn list(
        &self,
        scope: &Scope,
        after: Option<&str>,
    ) -> Result<(Vec<(Key, Document)>, Revision), StoreError> {
        if !scope.may_be_in_memory() {
            let before = self.revision();
            let (objects, on_disk) = self.disk.list(scope, after)?;
            return Ok((objects, before.max(on_disk)));
        }
        // The disk is read after the memory and may be newer: a watch from the memory's revision
        // may then repeat an event, where one from the disk's could miss one.
        let (mut objects, revision): (Vec<_>, _) = {
            let memory = self.memory.read();
            (memory.list(scope, after).collect(), self.revision())
        };
        objects.extend(self.disk.list(scope, after)?.0);
        objects.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok((objects, revision))
    }

    /// At most `limit` objects of a scope, as [`Self::list`]. Those after them are not copied.
    pub fn list_page(
        &self,
        scope: &Scope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        if !scope.may_be_in_memory() {
            let before = self.revision();
            let mut page = self.disk.list_page(scope, after, limit)?;
            page.revision = page.revision.max(before);
            return Ok(page);
        }
        let (mut objects, revision) = self.list(scope, after)?;
        let rest = objects.len().saturating_sub(limit);
        objects.truncate(limit);
        Ok(Page { objects, rest, revision })
    }

    /// At most `limit` events of a scope after a revision, oldest first.
    pub fn history(
        &self,
        scope: &Scope,
        after: Revision,
        limit: usize,
    ) -> Result<History, HistoryError> {
        let upto = self.revision();
        let (mut events, mut oldest) = self.disk.history(scope, after, upto, limit)?;
        if scope.may_be_in_memory() {
            let memory = self.memory.read();
            events.extend(memory.history(scope, after, upto).take(limit));
            events.sort_by_key(|event| event.revision);
            oldest = oldest.max(memory.oldest());
        }
        if after < oldest {
            return Err(HistoryError::TooOld { requested: after, oldest });
        }
        if events.len() >= limit {
            events.truncate(limit);
            let upto = events.last().map_or(upto, |event| event.revision);
            return Ok(History { events, upto, more: true });
        }
        Ok(History { events, upto: upto.max(after), more: false })
    }
}
