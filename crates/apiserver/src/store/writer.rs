//! The writer: checks preconditions, orders the changes, makes them durable, and only then
//! publishes them to readers.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::disk::{Disk, Opening, Tables};
use super::memory::Memory;
use super::wakeups::Wakeups;
use super::{
    Change, CommitError, Event, EventType, Key, Limits, Precondition, StoreError, WriteOp,
};
use crate::clock::Clock;
use crate::document::Revision;

/// In-memory revisions are used only below a mark that is stored on disk. The mark is raised by the
/// step when fewer than the margin are left: one small write per 12,288 revisions. (Tests use a
/// smaller margin.)
const RESERVE_MARGIN: Revision = if cfg!(test) { 64 } else { 4096 };
const RESERVE_STEP: Revision = 4 * RESERVE_MARGIN;
/// Number of queued writes in one transaction.
const BATCH: usize = 64;

type CommitResult = Result<Vec<Revision>, CommitError>;

/// How writes reach the core.
#[derive(Debug)]
pub(super) enum Writer {
    Inline(Box<Mutex<Core>>),
    Thread { queue: Option<mpsc::Sender<Job>>, thread: Option<JoinHandle<()>> },
}

/// An empty list of changes means: expire objects.
#[derive(Debug)]
pub(super) struct Job {
    changes: Vec<Change>,
    reply: oneshot::Sender<CommitResult>,
}

impl Writer {
    pub(super) fn inline(core: Core) -> Self {
        Self::Inline(Box::new(Mutex::new(core)))
    }

    pub(super) fn thread(mut core: Core) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Job>();
        let thread = thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
            while let Ok(first) = jobs.recv() {
                let mut batch = vec![first];
                batch.extend(jobs.try_iter().take(BATCH - 1));
                let (changes, replies): (Vec<_>, Vec<_>) =
                    batch.into_iter().map(|job| (job.changes, job.reply)).unzip();
                for (reply, result) in replies.into_iter().zip(core.apply(&changes)) {
                    let _ = reply.send(result); // the caller may be gone
                }
            }
        })?;
        Ok(Self::Thread { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> CommitResult {
        match self {
            Self::Inline(core) => {
                core.lock().apply(&[changes]).pop().unwrap_or(Err(StoreError::Stopped.into()))
            }
            Self::Thread { queue, .. } => {
                let (reply, receiver) = oneshot::channel();
                let queue = queue.as_ref().ok_or(StoreError::Stopped)?;
                queue.send(Job { changes, reply }).map_err(|_| StoreError::Stopped)?;
                receiver.await.map_err(|_| StoreError::Stopped)?
            }
        }
    }

    pub(super) async fn expire(&self) -> Result<(), StoreError> {
        match self.commit(Vec::new()).await {
            Ok(_) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Self::Thread { queue, thread } = self {
            queue.take(); // ends the loop once the queued writes are done
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// State of the writer.
#[derive(Debug)]
pub(super) struct Core {
    disk: Arc<Disk>,
    memory: Arc<RwLock<Memory>>,
    current: watch::Sender<Revision>,
    wakeups: Arc<Wakeups>,
    limits: Limits,
    clock: Clock,
    last: Revision,
    /// The following fields mirror the disk, as of this opening.
    opening: Opening,
    reserved: Revision,
    log_entries: usize,
    log_bytes: usize,
    /// The last write failed, and that was logged.
    failing: bool,
}

/// Effects of a batch before it is committed.
#[derive(Default)]
struct Staged {
    /// Revisions that the keys of this batch will have.
    revisions: BTreeMap<Key, Option<Revision>>,
    in_memory: Vec<Event>,
    wrote_to_disk: bool,
    log_entries: usize,
    log_bytes: usize,
    last: Revision,
}

/// Outcome of writing a batch.
enum WriteOutcome {
    /// It is durable.
    Safe,
    /// The disk failed during the commit: it is written completely or not at all.
    InDoubt(StoreError),
}

impl Core {
    #[expect(clippy::type_complexity, reason = "the parts of a store")]
    pub(super) fn start(
        disk: Disk,
        limits: Limits,
        clock: Clock,
    ) -> Result<(Arc<Disk>, Arc<RwLock<Memory>>, Self), StoreError> {
        let position = disk.position()?;
        let last = position.written.max(position.reserved);
        let disk = Arc::new(disk);
        let memory = Arc::new(RwLock::new(Memory::new(last)));
        let core = Self {
            disk: disk.clone(),
            memory: memory.clone(),
            current: watch::Sender::new(last),
            wakeups: Arc::default(),
            limits,
            clock,
            last,
            opening: position.opening,
            reserved: position.reserved,
            log_entries: position.log_entries,
            log_bytes: position.log_bytes,
            failing: false,
        };
        Ok((disk, memory, core))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.current.subscribe()
    }

    pub(super) fn wakeups(&self) -> Arc<Wakeups> {
        self.wakeups.clone()
    }

    /// Commits or refuses each list of changes, all in one transaction. Tries twice if the storage
    /// fails, so that a brief fault is not reported.
    fn apply(&mut self, batch: &[Vec<Change>]) -> Vec<CommitResult> {
        let mut in_doubt = None;
        let mut result = self.attempt(batch, &mut in_doubt);
        if result.as_ref().is_err_and(StoreError::is_storage_failure) {
            result = self.attempt(batch, &mut in_doubt);
        }
        match &result {
            Err(error) if !self.failing => {
                tracing::error!(%error, "database is not writable; retrying on each write");
            }
            Ok(_) if self.failing => {
                tracing::info!(database = %self.disk.location(), "database is writable again");
            }
            Ok(_) | Err(_) => {}
        }
        self.failing = result.is_err();
        result.unwrap_or_else(|error| vec![Err(CommitError::Store(error)); batch.len()])
    }

    /// One attempt. A commit of unknown outcome is resolved as soon as the disk can be read again,
    /// here or in the next attempt.
    fn attempt(
        &mut self,
        batch: &[Vec<Change>],
        in_doubt: &mut Option<(Staged, Vec<CommitResult>)>,
    ) -> Result<Vec<CommitResult>, StoreError> {
        let runs_short = self.last + RESERVE_MARGIN > self.reserved;
        let on_disk = batch.iter().flatten().any(|change| !change.key.in_memory());
        if !on_disk && !runs_short {
            let mut staged = self.begin();
            let results = batch
                .iter()
                .map(|changes| self.stage(None, changes, &mut staged))
                .collect::<Result<_, _>>()?;
            self.publish(staged);
            return Ok(results);
        }
        // The database was reopened: by the last attempt, or by a reader that saw it fail.
        if self.disk.opening() != self.opening
            && let Some(results) = self.settle(in_doubt)?
        {
            return Ok(results);
        }
        let error = match self.write(batch) {
            Ok((staged, results, WriteOutcome::Safe)) => {
                self.publish(staged);
                return Ok(results);
            }
            Ok((staged, results, WriteOutcome::InDoubt(error))) => {
                // Whatever the outcome, these revisions are used: writes to memory continue after
                // them.
                self.last = staged.last;
                *in_doubt = Some((staged, results));
                error
            }
            Err(error) if error.is_storage_failure() => error,
            Err(error) => return Err(error),
        };
        self.disk.reopen(self.opening)?; // also for readers
        match self.settle(in_doubt)? {
            Some(results) => Ok(results),
            None => Err(error.with_location(self.disk.location())),
        }
    }

    /// Resolves a commit of unknown outcome after the database was reopened. If it was written, it
    /// is published like any other; if not, it is discarded.
    fn settle(
        &mut self,
        in_doubt: &mut Option<(Staged, Vec<CommitResult>)>,
    ) -> Result<Option<Vec<CommitResult>>, StoreError> {
        let written = self.catch_up()?;
        let committed = in_doubt.take().filter(|(staged, _)| staged.last <= written);
        Ok(committed.map(|(staged, results)| {
            self.publish(staged);
            results
        }))
    }

    /// Reads the state of the reopened database; returns its newest revision.
    fn catch_up(&mut self) -> Result<Revision, StoreError> {
        let position = self.disk.position()?;
        self.opening = position.opening;
        self.reserved = position.reserved;
        self.log_entries = position.log_entries;
        self.log_bytes = position.log_bytes;
        Ok(position.written)
    }

    fn begin(&self) -> Staged {
        Staged {
            last: self.last,
            log_entries: self.log_entries,
            log_bytes: self.log_bytes,
            ..Staged::default()
        }
    }

    fn write(
        &mut self,
        batch: &[Vec<Change>],
    ) -> Result<(Staged, Vec<CommitResult>, WriteOutcome), StoreError> {
        let mut staged = self.begin();
        let runs_short = self.last + RESERVE_MARGIN > self.reserved;
        let reserve = runs_short.then_some(self.last + RESERVE_STEP);
        let (results, written) = self.disk.write(self.opening, |write| {
            let results: Vec<CommitResult>;
            {
                let mut tables = Tables::open(&write)?;
                results = batch
                    .iter()
                    .map(|changes| self.stage(Some(&mut tables), changes, &mut staged))
                    .collect::<Result<_, _>>()?;
                let (entries, bytes) = self.log_limits(tables.objects()?);
                while staged.log_entries > entries || staged.log_bytes > bytes {
                    let Some(weight) = tables.drop_oldest()? else { break };
                    staged.log_entries = staged.log_entries.saturating_sub(1);
                    staged.log_bytes = staged.log_bytes.saturating_sub(weight);
                }
                if staged.wrote_to_disk {
                    tables.set_revision(staged.last)?;
                }
                if let Some(reserved) = reserve {
                    tables.set_reserved(reserved)?;
                }
            }
            if !staged.wrote_to_disk && reserve.is_none() {
                write.abort().map_err(StoreError::at("write to"))?;
                return Ok((results, WriteOutcome::Safe));
            }
            Ok(match write.commit().map_err(StoreError::at("commit to")) {
                Ok(()) => (results, WriteOutcome::Safe),
                Err(error) if error.is_storage_failure() => (results, WriteOutcome::InDoubt(error)),
                Err(error) => return Err(error),
            })
        })?;
        if let WriteOutcome::Safe = written {
            self.reserved = reserve.unwrap_or(self.reserved);
        }
        Ok((staged, results, written))
    }

    /// The number of entries of the log, and of bytes, with this many objects on disk.
    fn log_limits(&self, objects: usize) -> (usize, usize) {
        let limits = &self.limits;
        (
            limits.log_entries.max(objects.saturating_mul(limits.log_entries_per_object)),
            limits.log_bytes.max(objects.saturating_mul(limits.log_bytes_per_object)),
        )
    }

    /// Adds one list of changes to the batch if all its preconditions hold.
    fn stage(
        &self,
        mut tables: Option<&mut Tables<'_>>,
        changes: &[Change],
        staged: &mut Staged,
    ) -> Result<CommitResult, StoreError> {
        for change in changes {
            let found = match staged.revisions.get(&change.key) {
                Some(revision) => *revision,
                None if change.key.in_memory() => self.memory.read().revision_of(&change.key),
                None => match &tables {
                    Some(tables) => tables.revision_of(&change.key)?,
                    None => None,
                },
            };
            let expected = match change.expect {
                Precondition::Absent => None,
                Precondition::At(revision) => Some(revision),
            };
            if found != expected {
                let key = change.key.clone();
                return Ok(Err(CommitError::Conflict { key, found }));
            }
        }
        let mut revisions = Vec::with_capacity(changes.len());
        for change in changes {
            staged.last += 1;
            revisions.push(staged.last);
            let event = event(change.clone(), staged.last);
            let at = (event.event_type != EventType::Deleted).then_some(staged.last);
            staged.revisions.insert(event.key.clone(), at);
            match &mut tables {
                Some(tables) if !event.key.in_memory() => {
                    staged.log_bytes += tables.record(&event)?;
                    staged.log_entries += 1;
                    staged.wrote_to_disk = true;
                }
                _ => staged.in_memory.push(event),
            }
        }
        Ok(Ok(revisions))
    }

    /// Publishes a batch to readers, once it is durable.
    fn publish(&mut self, staged: Staged) {
        // Not after the last revision used: that may be of this batch, if its outcome was in doubt.
        let first = *self.current.borrow() + 1;
        self.last = staged.last;
        self.log_entries = staged.log_entries;
        self.log_bytes = staged.log_bytes;
        let now = self.clock.now();
        let mut expired = Vec::new();
        let mut memory = self.memory.write();
        for event in staged.in_memory {
            memory.record(event, now, &self.limits);
        }
        // Objects that need a revision beyond the mark expire with the next write.
        while self.last < self.reserved
            && let Some((key, document)) = memory.next_expired(now, &self.limits)
        {
            self.last += 1;
            expired.push(key.clone());
            let event = Event {
                revision: self.last,
                key,
                event_type: EventType::Deleted,
                text: document.text,
                previous: None,
            };
            memory.record(event, now, &self.limits);
        }
        // Before readers can see the new revision: one that sees it has been marked.
        self.wakeups.mark(staged.revisions.keys().chain(&expired), first);
        // Still holding the lock on the memory, so that readers see it at exactly this revision.
        self.current.send_if_modified(|current| {
            let grew = self.last > *current;
            *current = self.last;
            grew
        });
        drop(memory);
    }
}

fn event(change: Change, revision: Revision) -> Event {
    let Change { key, expect, op } = change;
    match op {
        WriteOp::Put { text, previous } => {
            let event_type = match expect {
                Precondition::Absent => EventType::Created,
                Precondition::At(_) => EventType::Updated,
            };
            Event { revision, key, event_type, text, previous }
        }
        WriteOp::Delete { last } => {
            Event { revision, key, event_type: EventType::Deleted, text: last, previous: None }
        }
    }
}
