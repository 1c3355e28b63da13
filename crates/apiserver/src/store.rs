//! Where the objects are: one embedded database, one writer, one order of all changes.
//!
//! Why a log beside the objects: a watch is "what happened after revision N", and the same
//! transaction that changes an object appends the change to the log. So watchers keep no queue of
//! their own: each has a place in the log and reads on from there, and one that falls behind the
//! kept history is told so (410), which bounds memory however slow a client is.
//!
//! Why some objects are in memory only: a node's lease is renewed every few seconds and events
//! come in bursts; both are worthless after a restart and would cost an fsync each. They share
//! the order of revisions with everything else, and the database remembers a revision beyond any
//! that memory has handed out, so a revision is never used twice.
//!
//! A disk that fails, for a moment or for hours, costs only what is asked meanwhile: the database is
//! opened again ([`disk`]), and what it then holds is the truth.

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
mod medium;
mod memory;
mod writer;

#[cfg(test)]
mod bad_disk;
#[cfg(test)]
mod platter;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;

pub use key::{Key, Scope};

use disk::Disk;
use medium::Medium;
use memory::Memory;
use writer::Writer;

/// How much is kept. The defaults suit one machine with some hundred pods.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of the database's pages in memory.
    pub cache_bytes: usize,
    /// Of the history that watches can resume from.
    pub log_entries: usize,
    pub log_bytes: usize,
    /// Of events, the objects that fade.
    pub fading_objects: usize,
    pub fading_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 4 << 20,
            log_entries: 2048,
            log_bytes: 4 << 20,
            fading_objects: 2048,
            fading_after: Duration::from_secs(3600),
        }
    }
}

/// One write of one object; several may be committed as one.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    pub expect: Expect,
    pub act: Act,
}

/// What the writer believed to be there. If it is not, nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    At(Revision),
}

#[derive(Clone, Debug)]
pub enum Act {
    /// `previous` is given where a selector may judge the two differently, so that a watcher
    /// can be told that the object left its view.
    Put { text: Bytes, previous: Option<Bytes> },
    /// `last` is what watchers are shown.
    Delete { last: Bytes },
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub key: Key,
    pub what: What,
    pub text: Bytes,
    pub previous: Option<Bytes>,
}

impl Event {
    pub fn document(&self) -> Document {
        Document { revision: self.revision, text: self.text.clone() }
    }

    /// The object before this event, dressed with the event's revision.
    pub fn previous_document(&self) -> Option<Document> {
        let text = self.previous.clone()?;
        Some(Document { revision: self.revision, text })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Created,
    Updated,
    Deleted,
}

/// A stretch of history.
#[derive(Debug)]
pub struct History {
    pub events: Vec<Event>,
    /// Everything up to here has been told; go on from it.
    pub upto: Revision,
    /// There is more to tell already.
    pub more: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("history before revision {oldest} is no longer kept (asked for {asked})")]
    TooOld { asked: Revision, oldest: Revision },
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Somebody else wrote in between; `found` is what is there now.
    #[error("{key} is not what the writer had read")]
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
        "the database has format {found}, and this podwright knows formats up to {known}: run the \
         version that wrote it, or delete the data with `podwright reset`"
    )]
    NewerFormat { found: u64, known: u64 },
    #[error("cannot {attempt} the database: {source}")]
    Database { attempt: &'static str, source: Arc<redb::Error> },
    /// What is under the database fails; once it no longer does, everything goes on by itself.
    #[error("cannot {attempt} the database {place}: {source}; {way_out}")]
    Medium {
        attempt: &'static str,
        place: Arc<str>,
        way_out: &'static str,
        source: Arc<redb::Error>,
    },
    #[error("the writer of the database has stopped")]
    Stopped,
}

impl StoreError {
    fn at<E: Into<redb::Error>>(attempt: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Database { attempt, source: Arc::new(error.into()) }
    }

    /// Whether the database must be opened again before anything can succeed.
    fn is_of_medium(&self) -> bool {
        match self {
            Self::Database { source, .. } | Self::Open { source, .. } => matches!(
                **source,
                redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed
            ),
            Self::Create { .. } | Self::Medium { .. } => true,
            Self::NewerFormat { .. } | Self::Stopped => false,
        }
    }

    /// Whether it is worth trying again with nothing else changed.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Medium { .. })
    }

    /// The same failure, with the place to look at.
    fn of(self, place: &Arc<str>) -> Self {
        let (attempt, source) = match self {
            Self::Database { attempt, source } => (attempt, source),
            Self::Open { path: _, source } => ("open", source),
            Self::Create { path: _, source } => {
                let source = std::io::Error::new(source.kind(), source.to_string());
                ("open", Arc::new(redb::Error::Io(source)))
            }
            other @ (Self::NewerFormat { .. } | Self::Medium { .. } | Self::Stopped) => {
                return other;
            }
        };
        let place = place.clone();
        Self::Medium { attempt, place, way_out: way_out(&source), source }
    }
}

fn way_out(error: &redb::Error) -> &'static str {
    let kind = match error {
        redb::Error::Io(error) => Some(error.kind()),
        _ => None,
    };
    match kind {
        Some(ErrorKind::StorageFull) => "free some space there, and try again",
        Some(ErrorKind::QuotaExceeded) => "free some space there or raise the quota, and try again",
        Some(ErrorKind::ReadOnlyFilesystem) => "mount its file system writable, and try again",
        _ => "try again; if that does not help, the kernel's log tells of the disk",
    }
}

/// The store. Cheap to share behind an `Arc`; reads never wait for writes.
#[derive(Debug)]
pub struct Store {
    disk: Arc<Disk>,
    memory: Arc<RwLock<Memory>>,
    current: watch::Receiver<Revision>,
    writer: Writer,
}

impl Store {
    /// A store that lives in memory and writes on the caller's thread: for tests, and for the
    /// simulator, whose paused time must not run on while another thread works.
    pub fn in_memory(limits: Limits, clock: Clock) -> Result<Self, StoreError> {
        Self::with_backend(InMemoryBackend::new(), limits, clock)
    }

    /// A store on a storage of the caller's making, written on the caller's thread.
    pub fn with_backend(
        backend: impl StorageBackend,
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let disk = Disk::open(Medium::Backend(Arc::new(backend)), limits.cache_bytes)?;
        let (disk, memory, core) = writer::Core::start(disk, limits, clock)?;
        let current = core.subscribe();
        Ok(Self { disk, memory, current, writer: Writer::inline(core) })
    }

    /// The store in a file, readable by its owner only, written by a thread of its own that puts
    /// the writes waiting at the same time into one transaction.
    pub fn open(path: &Path, limits: Limits, clock: Clock) -> Result<Self, StoreError> {
        disk::create(path, limits.cache_bytes)?;
        let disk = Disk::open(Medium::File(path.to_owned()), limits.cache_bytes)?;
        let (disk, memory, core) = writer::Core::start(disk, limits, clock)?;
        let current = core.subscribe();
        let writer = Writer::thread(core).map_err(|source| StoreError::Create {
            path: path.to_owned(),
            source: Arc::new(source),
        })?;
        Ok(Self { disk, memory, current, writer })
    }

    /// The newest revision that every reader can see.
    pub fn revision(&self) -> Revision {
        *self.current.borrow()
    }

    /// Wakes whenever the revision grows.
    pub fn changes(&self) -> watch::Receiver<Revision> {
        self.current.clone()
    }

    /// Writes all of the changes or none. Once this returns, they survive a power cut.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Revision>, CommitError> {
        self.writer.commit(changes).await
    }

    /// Lets faded objects go.
    pub async fn expire(&self) -> Result<(), StoreError> {
        self.writer.expire().await
    }

    pub fn get(&self, key: &Key) -> Result<Option<Document>, StoreError> {
        if key.in_memory() {
            return Ok(self.memory.read().get(key));
        }
        self.disk.get(key)
    }

    /// The objects of a scope by key, from `after` on; and the revision they are true for.
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
        // then tells something twice, where one from the disk's could miss something.
        let (mut objects, revision): (Vec<_>, _) = {
            let memory = self.memory.read();
            (memory.list(scope, after).collect(), self.revision())
        };
        objects.extend(self.disk.list(scope, after)?.0);
        objects.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok((objects, revision))
    }

    /// At most `limit` events of a scope that came after a revision, oldest first.
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
            return Err(HistoryError::TooOld { asked: after, oldest });
        }
        if events.len() >= limit {
            events.truncate(limit);
            let upto = events.last().map_or(upto, |event| event.revision);
            return Ok(History { events, upto, more: true });
        }
        Ok(History { events, upto: upto.max(after), more: false })
    }
}
