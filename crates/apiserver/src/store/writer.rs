//! The one writer: checks what each change expects, orders the changes, makes them durable,
//! and only then lets anybody see them.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::disk::{Disk, Opening, Tables};
use super::memory::Memory;
use super::{Act, Change, CommitError, Event, Expect, Key, Limits, StoreError, What};
use crate::clock::Clock;
use crate::document::Revision;

/// Revisions in memory are handed out only below a mark that the disk remembers. The mark is
/// moved by the step when fewer than the margin are left: one small write per 12,288 of them.
/// (Tests come to it sooner.)
const RESERVE_MARGIN: Revision = if cfg!(test) { 64 } else { 4096 };
const RESERVE_STEP: Revision = 4 * RESERVE_MARGIN;
/// How many waiting writes share one transaction.
const BATCH: usize = 64;

type Answer = Result<Vec<Revision>, CommitError>;

/// How writes reach the core.
#[derive(Debug)]
pub(super) enum Writer {
    Inline(Box<Mutex<Core>>),
    Thread { queue: Option<mpsc::Sender<Job>>, thread: Option<JoinHandle<()>> },
}

/// No changes means: let faded objects go.
#[derive(Debug)]
pub(super) struct Job {
    changes: Vec<Change>,
    answer: oneshot::Sender<Answer>,
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
                let (changes, answers): (Vec<_>, Vec<_>) =
                    batch.into_iter().map(|job| (job.changes, job.answer)).unzip();
                for (answer, result) in answers.into_iter().zip(core.apply(&changes)) {
                    let _ = answer.send(result); // whoever asked may have gone
                }
            }
        })?;
        Ok(Self::Thread { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> Answer {
        match self {
            Self::Inline(core) => {
                core.lock().apply(&[changes]).pop().unwrap_or(Err(StoreError::Stopped.into()))
            }
            Self::Thread { queue, .. } => {
                let (answer, answered) = oneshot::channel();
                let queue = queue.as_ref().ok_or(StoreError::Stopped)?;
                queue.send(Job { changes, answer }).map_err(|_| StoreError::Stopped)?;
                answered.await.map_err(|_| StoreError::Stopped)?
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
            queue.take(); // ends the loop once what waits is written
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// The state of the one writer.
#[derive(Debug)]
pub(super) struct Core {
    disk: Arc<Disk>,
    memory: Arc<RwLock<Memory>>,
    current: watch::Sender<Revision>,
    limits: Limits,
    clock: Clock,
    last: Revision,
    /// The rest is what the disk says, as of this opening of it.
    opening: Opening,
    reserved: Revision,
    log_entries: usize,
    log_bytes: usize,
    /// The last write failed, and that was said.
    failing: bool,
}

/// What a batch will do, before it is done.
#[derive(Default)]
struct Staged {
    /// For keys of this batch, what they will be at.
    revisions: BTreeMap<Key, Option<Revision>>,
    in_memory: Vec<Event>,
    wrote_to_disk: bool,
    log_entries: usize,
    log_bytes: usize,
    last: Revision,
}

/// How far a batch came.
enum Written {
    /// It is there, and stays.
    Safe,
    /// The disk failed while it was made safe: it is there whole or not at all.
    InDoubt(StoreError),
}

impl Core {
    #[expect(clippy::type_complexity, reason = "the parts of a store, taken apart at once")]
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

    /// Commits each list of changes, or refuses it, all in one transaction. If the disk fails, once
    /// more: a fault that has passed by then is nobody's business.
    fn apply(&mut self, batch: &[Vec<Change>]) -> Vec<Answer> {
        let mut doubt = None;
        let mut result = self.attempt(batch, &mut doubt);
        if result.as_ref().is_err_and(StoreError::is_of_medium) {
            result = self.attempt(batch, &mut doubt);
        }
        match &result {
            Err(error) if !self.failing => {
                tracing::error!(%error, "nothing can be written; it is tried anew with every write");
            }
            Ok(_) if self.failing => {
                tracing::info!(database = %self.disk.place(), "writing is possible again");
            }
            Ok(_) | Err(_) => {}
        }
        self.failing = result.is_err();
        result.unwrap_or_else(|error| vec![Err(CommitError::Store(error)); batch.len()])
    }

    /// One try. What a failed disk leaves in doubt is settled as soon as the disk can be read again,
    /// here or in the next try.
    fn attempt(
        &mut self,
        batch: &[Vec<Change>],
        doubt: &mut Option<(Staged, Vec<Answer>)>,
    ) -> Result<Vec<Answer>, StoreError> {
        let runs_short = self.last + RESERVE_MARGIN > self.reserved;
        let on_disk = batch.iter().flatten().any(|change| !change.key.in_memory());
        if !on_disk && !runs_short {
            let mut staged = self.begin();
            let answers = batch
                .iter()
                .map(|changes| self.stage(None, changes, &mut staged))
                .collect::<Result<_, _>>()?;
            self.publish(staged);
            return Ok(answers);
        }
        // It was opened anew: by the last try, or by a reader that found it failing.
        if self.disk.opening() != self.opening
            && let Some(answers) = self.settle(doubt)?
        {
            return Ok(answers);
        }
        let error = match self.write(batch) {
            Ok((staged, answers, Written::Safe)) => {
                self.publish(staged);
                return Ok(answers);
            }
            Ok((staged, answers, Written::InDoubt(error))) => {
                // Whatever becomes of them, these revisions are used up: memory goes on meanwhile.
                self.last = staged.last;
                *doubt = Some((staged, answers));
                error
            }
            Err(error) if error.is_of_medium() => error,
            Err(error) => return Err(error),
        };
        self.disk.reopen(self.opening)?; // for the readers, too
        match self.settle(doubt)? {
            Some(answers) => Ok(answers),
            None => Err(error.of(self.disk.place())),
        }
    }

    /// Looks at the disk, now that it was opened again. If what was in doubt is there, it is as good
    /// as any other write; if it is not, it never was.
    fn settle(
        &mut self,
        doubt: &mut Option<(Staged, Vec<Answer>)>,
    ) -> Result<Option<Vec<Answer>>, StoreError> {
        let written = self.catch_up()?;
        let there = doubt.take().filter(|(staged, _)| staged.last <= written);
        Ok(there.map(|(staged, answers)| {
            self.publish(staged);
            answers
        }))
    }

    /// Learns what the disk holds, now that it was opened again; says up to which revision.
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
    ) -> Result<(Staged, Vec<Answer>, Written), StoreError> {
        let mut staged = self.begin();
        let runs_short = self.last + RESERVE_MARGIN > self.reserved;
        let reserve = runs_short.then_some(self.last + RESERVE_STEP);
        let (answers, written) = self.disk.write(self.opening, |write| {
            let answers: Vec<Answer>;
            {
                let mut tables = Tables::open(&write)?;
                answers = batch
                    .iter()
                    .map(|changes| self.stage(Some(&mut tables), changes, &mut staged))
                    .collect::<Result<_, _>>()?;
                while staged.log_entries > self.limits.log_entries
                    || staged.log_bytes > self.limits.log_bytes
                {
                    let Some(weight) = tables.forget_oldest()? else { break };
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
                return Ok((answers, Written::Safe));
            }
            Ok(match write.commit().map_err(StoreError::at("commit to")) {
                Ok(()) => (answers, Written::Safe),
                Err(error) if error.is_of_medium() => (answers, Written::InDoubt(error)),
                Err(error) => return Err(error),
            })
        })?;
        if let Written::Safe = written {
            self.reserved = reserve.unwrap_or(self.reserved);
        }
        Ok((staged, answers, written))
    }

    /// Takes one list of changes into the batch if everything it expects is so.
    fn stage(
        &self,
        mut tables: Option<&mut Tables<'_>>,
        changes: &[Change],
        staged: &mut Staged,
    ) -> Result<Answer, StoreError> {
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
                Expect::Absent => None,
                Expect::At(revision) => Some(revision),
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
            let at = (event.what != What::Deleted).then_some(staged.last);
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

    /// The disk has it: now everybody may see it.
    fn publish(&mut self, staged: Staged) {
        self.last = staged.last;
        self.log_entries = staged.log_entries;
        self.log_bytes = staged.log_bytes;
        let now = self.clock.now();
        let mut memory = self.memory.write();
        for event in staged.in_memory {
            memory.record(event, now, &self.limits);
        }
        // What does not fit under the mark fades with the next write.
        while self.last < self.reserved
            && let Some((key, document)) = memory.faded(now, &self.limits)
        {
            self.last += 1;
            let event = Event {
                revision: self.last,
                key,
                what: What::Deleted,
                text: document.text,
                previous: None,
            };
            memory.record(event, now, &self.limits);
        }
        // Still holding the memory, so that whoever holds it sees it at exactly this revision.
        self.current.send_if_modified(|current| {
            let grew = self.last > *current;
            *current = self.last;
            grew
        });
        drop(memory);
    }
}

fn event(change: Change, revision: Revision) -> Event {
    let Change { key, expect, act } = change;
    match act {
        Act::Put { text, previous } => {
            let what = match expect {
                Expect::Absent => What::Created,
                Expect::At(_) => What::Updated,
            };
            Event { revision, key, what, text, previous }
        }
        Act::Delete { last } => {
            Event { revision, key, what: What::Deleted, text: last, previous: None }
        }
    }
}
