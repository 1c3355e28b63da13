//! Persistent part of the store: the redb tables.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table,
    TableDefinition, WriteTransaction,
};

use super::storage::{Storage, open_file};
use super::{Event, EventType, Key, Page, Scope, StoreError};
use crate::document::{Document, Revision};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const OBJECTS: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("objects");
const LOG: TableDefinition<u64, Entry<'static>> = TableDefinition::new("log");

/// Log entry: event type, key, text and, where it matters, the previous text.
type Entry<'a> = (u8, &'a str, &'a [u8], Option<&'a [u8]>);

/// A copy is written once, from front to back.
const COPY_CACHE_BYTES: usize = 1 << 20;
/// Increased when a change to the tables makes them unreadable to older versions.
const FORMAT: u64 = 1;
const FORMAT_KEY: &str = "format";
const REVISION_KEY: &str = "revision";
const RESERVED_KEY: &str = "reserved";
const FORGOTTEN_KEY: &str = "forgotten";

/// Creates the database file if there is none. It is created under a temporary name and renamed
/// when complete: after a power failure, half a database could not be opened.
pub(super) fn create(path: &Path, cache_bytes: usize) -> Result<(), StoreError> {
    if path.exists() {
        return Ok(());
    }
    let create = |source| StoreError::Create { path: path.to_owned(), source: Arc::new(source) };
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    if draft.exists() {
        fs::remove_file(draft).map_err(create)?; // left by an interrupted start
    }
    let database = open_file(draft, cache_bytes, true)?;
    prepare(&database)?;
    drop(database);
    fs::rename(draft, path).map_err(create)?;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(create)?;
    }
    Ok(())
}

/// Checks the format, and creates missing tables.
fn prepare(database: &Database) -> Result<(), StoreError> {
    let write = database.begin_write().map_err(StoreError::at("prepare"))?;
    {
        let mut meta = write.open_table(META).map_err(StoreError::at("prepare"))?;
        let found = number(&meta, FORMAT_KEY)?;
        match found {
            None => {
                meta.insert(FORMAT_KEY, FORMAT).map_err(StoreError::at("prepare"))?;
            }
            Some(found) if found > FORMAT => {
                return Err(StoreError::NewerFormat { found, known: FORMAT });
            }
            Some(_) => {
                drop(meta);
                return write.abort().map_err(StoreError::at("prepare"));
            }
        }
    }
    write.open_table(OBJECTS).map_err(StoreError::at("prepare"))?;
    write.open_table(LOG).map_err(StoreError::at("prepare"))?;
    write.commit().map_err(StoreError::at("prepare"))
}

/// The database, reopened after a storage failure: after an I/O error redb refuses every operation,
/// because its view of the file may be wrong.
#[derive(Debug)]
pub(super) struct Disk {
    storage: Storage,
    cache_bytes: usize,
    location: Arc<str>,
    open: RwLock<Opened>,
}

#[derive(Debug)]
struct Opened {
    /// `None` if it could not be reopened; the next access retries.
    database: Option<Database>,
    opening: Opening,
}

/// Counts how often the database was opened. Within one opening, only successful commits change
/// anything; the next opening shows whether a failed commit was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opening(u64);

/// State that the writer needs when it starts and after the database was reopened.
#[derive(Debug, Default)]
pub(super) struct Position {
    pub(super) opening: Opening,
    /// Revision of the newest change on disk.
    pub(super) written: Revision,
    pub(super) reserved: Revision,
    pub(super) log_entries: usize,
    pub(super) log_bytes: usize,
}

impl Disk {
    pub(super) fn open(storage: Storage, cache_bytes: usize) -> Result<Self, StoreError> {
        let database = storage.open(cache_bytes)?;
        prepare(&database)?;
        let opened = Opened { database: Some(database), opening: Opening::default() };
        Ok(Self { location: storage.location(), storage, cache_bytes, open: RwLock::new(opened) })
    }

    /// Reopens the database, unless that was done since `seen`.
    pub(super) fn reopen(&self, seen: Opening) -> Result<(), StoreError> {
        let mut open = self.open.write();
        if open.opening != seen && open.database.is_some() {
            return Ok(());
        }
        open.database = None; // closes it, which releases the file
        open.opening.0 += 1;
        let database = self
            .storage
            .open(self.cache_bytes)
            .map_err(|error| error.with_location(&self.location))?;
        open.database = Some(database);
        Ok(())
    }

    /// Runs `act` on the database; if the storage fails, once more after a reopen.
    fn with<T>(
        &self,
        act: impl Fn(&Database, Opening) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tried_again = false;
        loop {
            let open = self.open.read();
            let opening = open.opening;
            let failed = match &open.database {
                Some(database) => match act(database, opening) {
                    Err(error) if error.is_storage_failure() => Some(error),
                    other => return other,
                },
                None => None,
            };
            drop(open);
            match failed {
                Some(error) if tried_again => return Err(error.with_location(&self.location)),
                _ => self.reopen(opening)?,
            }
            tried_again = true;
        }
    }

    fn read<T>(
        &self,
        query: impl Fn(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with(|database, _| query(&database.begin_read().map_err(StoreError::at("read"))?))
    }

    /// Copies the tables, as they are at one moment, into a new database.
    pub(super) fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        let copy = open_file(path, COPY_CACHE_BYTES, true)?;
        prepare(&copy)?;
        self.read(|read| {
            let write = copy.begin_write().map_err(StoreError::at("copy"))?;
            copy_table(META, read, &write)?;
            copy_table(OBJECTS, read, &write)?;
            copy_table(LOG, read, &write)?;
            write.commit().map_err(StoreError::at("copy"))
        })
    }

    /// Runs `act` in a transaction of the opening that the writer knows, and of no other. The
    /// database is not reopened while `act` runs, nor by this function afterwards.
    pub(super) fn write<T>(
        &self,
        known: Opening,
        act: impl FnOnce(WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let open = self.open.read();
        match &open.database {
            Some(database) if open.opening == known => {
                act(database.begin_write().map_err(StoreError::at("write to"))?)
            }
            _ => Err(StoreError::at("write to")(redb::Error::DatabaseClosed)),
        }
    }

    pub(super) fn opening(&self) -> Opening {
        self.open.read().opening
    }

    pub(super) fn location(&self) -> &Arc<str> {
        &self.location
    }

    pub(super) fn position(&self) -> Result<Position, StoreError> {
        self.with(|database, opening| {
            let read = database.begin_read().map_err(StoreError::at("read"))?;
            let meta = read.open_table(META).map_err(StoreError::at("read"))?;
            let log = read.open_table(LOG).map_err(StoreError::at("read"))?;
            let mut position = Position {
                opening,
                written: number(&meta, REVISION_KEY)?.unwrap_or(0),
                reserved: number(&meta, RESERVED_KEY)?.unwrap_or(0),
                ..Position::default()
            };
            for entry in log.iter().map_err(StoreError::at("read"))? {
                let (_, value) = entry.map_err(StoreError::at("read"))?;
                let (_, key, text, previous) = value.value();
                position.log_entries += 1;
                position.log_bytes += weight(key, text, previous);
            }
            Ok(position)
        })
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Document>, StoreError> {
        self.read(|read| {
            let objects = read.open_table(OBJECTS).map_err(StoreError::at("read"))?;
            let found = objects.get(key.as_str()).map_err(StoreError::at("read"))?;
            Ok(found.map(|guard| {
                let (revision, text) = guard.value();
                Document { revision, text: Bytes::copy_from_slice(text) }
            }))
        })
    }

    pub(super) fn list(
        &self,
        scope: &Scope,
        after: Option<&str>,
    ) -> Result<(Vec<(Key, Document)>, Revision), StoreError> {
        let Page { objects, revision, .. } = self.list_page(scope, after, usize::MAX)?;
        Ok((objects, revision))
    }

    pub(super) fn list_page(
        &self,
        scope: &Scope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        if !scope.may_be_on_disk() {
            return Ok(Page::default());
        }
        self.read(|read| list(read, scope, after, limit))
    }

    /// Events of the scope in `(after, upto]`, at most `limit`, and the revision up to which
    /// history has been dropped.
    pub(super) fn history(
        &self,
        scope: &Scope,
        after: Revision,
        upto: Revision,
        limit: usize,
    ) -> Result<(Vec<Event>, Revision), StoreError> {
        if !scope.may_be_on_disk() {
            return Ok((Vec::new(), 0));
        }
        self.read(|read| history(read, scope, after, upto, limit))
    }
}

fn list(
    read: &ReadTransaction,
    scope: &Scope,
    after: Option<&str>,
    limit: usize,
) -> Result<Page, StoreError> {
    let meta = read.open_table(META).map_err(StoreError::at("read"))?;
    let objects = read.open_table(OBJECTS).map_err(StoreError::at("read"))?;
    let revision = number(&meta, REVISION_KEY)?.unwrap_or(0);
    let end = scope.end();
    let start = after.filter(|after| *after > scope.prefix()).unwrap_or(scope.prefix());
    let mut page = Page { revision, ..Page::default() };
    if start < end.as_str() {
        let range = objects.range(start..end.as_str()).map_err(StoreError::at("read"))?;
        for entry in range {
            let (key, value) = entry.map_err(StoreError::at("read"))?;
            if after == Some(key.value()) {
                continue;
            }
            if page.objects.len() == limit {
                page.rest += 1;
                continue;
            }
            let (revision, text) = value.value();
            let document = Document { revision, text: Bytes::copy_from_slice(text) };
            page.objects.push((Key::from_stored(key.value()), document));
        }
    }
    Ok(page)
}

fn history(
    read: &ReadTransaction,
    scope: &Scope,
    after: Revision,
    upto: Revision,
    limit: usize,
) -> Result<(Vec<Event>, Revision), StoreError> {
    let meta = read.open_table(META).map_err(StoreError::at("read"))?;
    let log = read.open_table(LOG).map_err(StoreError::at("read"))?;
    let forgotten = number(&meta, FORGOTTEN_KEY)?.unwrap_or(0);
    let mut events = Vec::new();
    if after < upto {
        let range = log.range(after + 1..=upto).map_err(StoreError::at("read"))?;
        for entry in range {
            let (revision, value) = entry.map_err(StoreError::at("read"))?;
            let (event_type, key, text, previous) = value.value();
            if !scope.holds(key) {
                continue;
            }
            events.push(Event {
                revision: revision.value(),
                key: Key::from_stored(key),
                event_type: decode_type(event_type),
                text: Bytes::copy_from_slice(text),
                previous: previous.map(Bytes::copy_from_slice),
            });
            if events.len() == limit {
                break;
            }
        }
    }
    Ok((events, forgotten))
}

/// The tables of one write transaction.
pub(super) struct Tables<'t> {
    meta: Table<'t, &'static str, u64>,
    objects: Table<'t, &'static str, (u64, &'static [u8])>,
    log: Table<'t, u64, Entry<'static>>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(write: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            meta: write.open_table(META).map_err(StoreError::at("write to"))?,
            objects: write.open_table(OBJECTS).map_err(StoreError::at("write to"))?,
            log: write.open_table(LOG).map_err(StoreError::at("write to"))?,
        })
    }

    pub(super) fn revision_of(&self, key: &Key) -> Result<Option<Revision>, StoreError> {
        let found = self.objects.get(key.as_str()).map_err(StoreError::at("write to"))?;
        Ok(found.map(|guard| guard.value().0))
    }

    /// Number of objects.
    pub(super) fn objects(&self) -> Result<usize, StoreError> {
        let count = self.objects.len().map_err(StoreError::at("write to"))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Writes an event and applies it to its object; returns by how much the log grew.
    pub(super) fn record(&mut self, event: &Event) -> Result<usize, StoreError> {
        let key = event.key.as_str();
        let text = event.text.as_ref();
        match event.event_type {
            EventType::Created | EventType::Updated => {
                self.objects
                    .insert(key, (event.revision, text))
                    .map_err(StoreError::at("write to"))?;
            }
            EventType::Deleted => {
                self.objects.remove(key).map_err(StoreError::at("write to"))?;
            }
        }
        let entry = (encode_type(event.event_type), key, text, event.previous.as_deref());
        self.log.insert(event.revision, entry).map_err(StoreError::at("write to"))?;
        Ok(weight(key, text, event.previous.as_deref()))
    }

    /// Drops the oldest entry of the log; returns its size.
    pub(super) fn drop_oldest(&mut self) -> Result<Option<usize>, StoreError> {
        let (revision, weighed) = {
            let Some((revision, value)) =
                self.log.pop_first().map_err(StoreError::at("write to"))?
            else {
                return Ok(None);
            };
            let (_, key, text, previous) = value.value();
            (revision.value(), weight(key, text, previous))
        };
        self.meta.insert(FORGOTTEN_KEY, revision).map_err(StoreError::at("write to"))?;
        Ok(Some(weighed))
    }

    pub(super) fn set_revision(&mut self, revision: Revision) -> Result<(), StoreError> {
        self.meta.insert(REVISION_KEY, revision).map_err(StoreError::at("write to"))?;
        Ok(())
    }

    pub(super) fn set_reserved(&mut self, reserved: Revision) -> Result<(), StoreError> {
        self.meta.insert(RESERVED_KEY, reserved).map_err(StoreError::at("write to"))?;
        Ok(())
    }
}

fn copy_table<K: redb::Key + 'static, V: redb::Value + 'static>(
    definition: TableDefinition<'_, K, V>,
    from: &ReadTransaction,
    to: &WriteTransaction,
) -> Result<(), StoreError> {
    let from = from.open_table(definition).map_err(StoreError::at("copy"))?;
    let mut to = to.open_table(definition).map_err(StoreError::at("copy"))?;
    for entry in from.iter().map_err(StoreError::at("copy"))? {
        let (key, value) = entry.map_err(StoreError::at("copy"))?;
        to.insert(key.value(), value.value()).map_err(StoreError::at("copy"))?;
    }
    Ok(())
}

fn number(
    meta: &impl ReadableTable<&'static str, u64>,
    key: &str,
) -> Result<Option<u64>, StoreError> {
    Ok(meta.get(key).map_err(StoreError::at("read"))?.map(|guard| guard.value()))
}

fn weight(key: &str, text: &[u8], previous: Option<&[u8]>) -> usize {
    key.len() + text.len() + previous.map_or(0, <[u8]>::len)
}

const fn encode_type(event_type: EventType) -> u8 {
    match event_type {
        EventType::Created => 1,
        EventType::Updated => 2,
        EventType::Deleted => 3,
    }
}

const fn decode_type(code: u8) -> EventType {
    match code {
        1 => EventType::Created,
        3 => EventType::Deleted,
        _ => EventType::Updated,
    }
}

#[cfg(test)]
pub(super) fn set_format(database: &Database, format: u64) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(META)?.insert(FORMAT_KEY, format)?;
    Ok(write.commit()?)
}
