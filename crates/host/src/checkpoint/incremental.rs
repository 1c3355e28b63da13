//! Checkpoint of many records, of which few change at a time.
//!
//! The base is an ordinary [`Checkpoint`] with all records. Changes are appended to a second file,
//! the change log, one line each; when it holds more lines than there are records, the base is
//! written again and the log removed. So a change costs the same however many records there are. A
//! checkpoint of few records is always written whole: then the base alone is complete, as earlier
//! builds read it.
//!
//! The first line of a log names the checksum of the base that it extends. A log of another base is
//! ignored: an agent that was killed after writing the base, or an earlier build that does not know
//! the log, left it behind.

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointError, Content, MAX_BYTES};
use crate::files::{Durability, FileError};

/// With no more records than this every change writes the base.
const WHOLE: usize = 128;
/// A log of this size is merged into the base.
const MAX_LOG_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub struct IncrementalCheckpoint {
    base: Checkpoint,
    log: Checkpoint,
    /// The log to append to; `None`: the next save writes the base. Locked while saving.
    open: Mutex<Option<Log>>,
}

/// The log of the current base.
#[derive(Debug)]
struct Log {
    /// Checksum of the base.
    base: String,
    /// Lines after the first; the file exists if there are any.
    lines: usize,
    bytes: usize,
}

/// The first line of a log.
#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "base")]
    base: String,
}

impl IncrementalCheckpoint {
    /// `base`: the checkpoint with all records. The log has its name with `.changes` added.
    pub fn new(base: Checkpoint) -> Result<Self, FileError> {
        let dir = base.dir.again()?;
        let log = Checkpoint::new(dir, format!("{}.changes", base.name), base.version);
        Ok(Self { base, log, open: Mutex::default() })
    }

    /// The last saved records, or `None` if nothing was saved. `apply` makes one change of the log.
    ///
    /// A line that was not completely written ends the log: it was never reported as saved. After
    /// [`CheckpointError::Corrupt`] both files are moved aside.
    pub fn load<T, C>(&self, mut apply: impl FnMut(&mut T, C)) -> Result<Option<T>, CheckpointError>
    where
        T: DeserializeOwned,
        C: DeserializeOwned,
    {
        *self.open.lock() = None;
        let base = match self.base.load_content() {
            Ok(base) => base,
            Err(error) => {
                let exists = self.log.dir.kind(&self.log.name).is_ok_and(|kind| kind.is_some());
                if matches!(error, CheckpointError::Corrupt { .. }) && exists {
                    self.log.move_aside()?;
                }
                return Err(error);
            }
        };
        let Some(Content { mut data, checksum }) = base else { return Ok(None) };
        let log = match self.log.dir.read(&self.log.name, MAX_BYTES) {
            Ok(log) => log,
            Err(error) if error.is_not_found() => return Ok(Some(data)),
            Err(error) => return Err(self.log.file_error()(error)),
        };
        let mut lines = log.split_inclusive(|byte| *byte == b'\n');
        let header = lines.next().and_then(|line| self.line::<Header>(line));
        if header.is_some_and(|header| header.base == checksum) {
            for change in lines.map_while(|line| self.line(line)) {
                apply(&mut data, change);
            }
        }
        Ok(Some(data))
    }

    /// Saves `changes` of a checkpoint that has `records` records afterwards. `all` is called only
    /// if the base is written; it may contain later changes too.
    pub fn save<T: Serialize, C: Serialize>(
        &self,
        changes: &[C],
        records: usize,
        all: impl FnOnce() -> T,
    ) -> Result<(), CheckpointError> {
        let mut open = self.open.lock();
        // If this save fails, the end of the log is unknown: the next one writes the base.
        if let Some(mut log) = open.take()
            && records > WHOLE
            && log.lines + changes.len() <= records
            && log.bytes < MAX_LOG_BYTES
        {
            self.append(&mut log, changes)?;
            *open = Some(log);
            return Ok(());
        }
        let base = self.base.save_content(&all())?;
        // Ignored from now on: it extends another base.
        self.log.remove()?;
        *open = Some(Log { base, lines: 0, bytes: 0 });
        Ok(())
    }

    /// Merges the log into the base, if there is one: earlier builds do not read it.
    pub fn merge<T: Serialize>(&self, all: impl FnOnce() -> T) -> Result<(), CheckpointError> {
        let has_log = match &*self.open.lock() {
            Some(log) => log.lines > 0,
            None => {
                let kind = self.log.dir.kind(&self.log.name);
                kind.map_err(self.log.file_error())?.is_some()
            }
        };
        if has_log { self.save::<T, ()>(&[], 0, all) } else { Ok(()) }
    }

    fn append<C: Serialize>(&self, log: &mut Log, changes: &[C]) -> Result<(), CheckpointError> {
        let mut text = Vec::new();
        if log.lines == 0 {
            self.write_line(&mut text, &Header { base: log.base.clone() })?;
        }
        for change in changes {
            self.write_line(&mut text, change)?;
        }
        let (dir, name) = (&self.log.dir, &self.log.name);
        if log.lines == 0 {
            dir.write_atomic(name, &text, 0o600, Durability::Disk)
        } else {
            dir.append(name, &text)
        }
        .map_err(self.log.file_error())?;
        log.lines += changes.len();
        log.bytes += text.len();
        Ok(())
    }

    /// JSON escapes line breaks, so a line is one value.
    fn write_line(&self, text: &mut Vec<u8>, data: &impl Serialize) -> Result<(), CheckpointError> {
        let (line, _) = self.log.encode(data)?;
        text.extend(line);
        text.push(b'\n');
        Ok(())
    }

    fn line<D: DeserializeOwned>(&self, line: &[u8]) -> Option<D> {
        let complete = line.strip_suffix(b"\n")?;
        self.log.decode(complete).ok().map(|content| content.data)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::rc::Rc;

    use super::*;
    use crate::change::guard;
    use crate::files::Root;

    type Records = BTreeMap<String, u64>;
    type Change = (String, Option<u64>);

    fn checkpoint(directory: &Path) -> Checkpoint {
        Checkpoint::new(Root::open(directory).unwrap(), "state", 1)
    }

    fn incremental(directory: &Path) -> IncrementalCheckpoint {
        IncrementalCheckpoint::new(checkpoint(directory)).unwrap()
    }

    fn make(records: &mut Records, (name, value): Change) {
        match value {
            Some(value) => drop(records.insert(name, value)),
            None => drop(records.remove(&name)),
        }
    }

    fn stored(directory: &Path) -> Option<Records> {
        incremental(directory).load(make).unwrap()
    }

    fn records(count: u64) -> Records {
        (0..count).map(|number| (format!("pod-{number}"), number)).collect()
    }

    /// A checkpoint and the records in it.
    struct Saved {
        directory: tempfile::TempDir,
        checkpoint: IncrementalCheckpoint,
        records: Records,
        written: usize,
    }

    impl Saved {
        fn new(count: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let mut checkpoint = incremental(directory.path());
            let records = records(count);
            checkpoint.save::<_, Change>(&[], records.len(), || &records).unwrap();
            checkpoint = incremental(directory.path());
            let mut saved = Self { directory, checkpoint, records, written: 0 };
            // The first save of a process writes the base.
            saved.save(&[]).unwrap();
            saved
        }

        fn save(&mut self, changes: &[Change]) -> Result<(), CheckpointError> {
            for change in changes {
                make(&mut self.records, change.clone());
            }
            let before = self.checkpoint.open.lock().as_ref().map_or(0, |log| log.bytes);
            let (records, mut whole) = (&self.records, 0);
            let result = self.checkpoint.save(changes, records.len(), || {
                whole = serde_json::to_vec(records).unwrap().len();
                records
            });
            let after = self.checkpoint.open.lock().as_ref().map_or(0, |log| log.bytes);
            self.written += if whole == 0 { after.saturating_sub(before) } else { whole };
            result
        }

        fn path(&self) -> &Path {
            self.directory.path()
        }

        fn log(&self) -> std::path::PathBuf {
            self.path().join("state.changes")
        }
    }

    #[test]
    fn changes_are_appended_and_merged_when_there_are_more_than_records() {
        let mut saved = Saved::new(200);
        let base = std::fs::read(saved.path().join("state")).unwrap();
        for number in 0..200 {
            saved.save(&[("pod-0".to_owned(), Some(1000 + number))]).unwrap();
            assert_eq!(stored(saved.path()).as_ref(), Some(&saved.records));
            assert!(saved.log().exists());
        }
        assert_eq!(std::fs::read(saved.path().join("state")).unwrap(), base, "not written again");
        saved.save(&[("pod-1".to_owned(), None)]).unwrap();
        assert!(!saved.log().exists(), "merged into the base");
        assert_eq!(stored(saved.path()), Some(saved.records));
    }

    #[test]
    fn merged_log_is_in_the_file_that_earlier_builds_read() {
        let mut saved = Saved::new(200);
        saved.save(&[("pod-0".to_owned(), Some(7))]).unwrap();
        saved.checkpoint.merge(|| &saved.records).unwrap();
        assert_eq!(checkpoint(saved.path()).load().unwrap(), Some(saved.records.clone()));
        assert!(!saved.log().exists());
        saved.checkpoint.merge(|| unreachable!("there is no log") as Records).unwrap();
    }

    #[test]
    fn few_records_are_written_whole_so_that_earlier_builds_read_them() {
        let mut saved = Saved::new(WHOLE as u64);
        saved.save(&[("pod-0".to_owned(), Some(7))]).unwrap();
        assert!(!saved.log().exists());
        assert_eq!(checkpoint(saved.path()).load().unwrap(), Some(saved.records));
    }

    #[test]
    fn file_of_an_earlier_build_is_read_and_replaces_a_log_that_it_does_not_know() {
        let directory = tempfile::tempdir().unwrap();
        checkpoint(directory.path()).save(&records(200)).unwrap();
        assert_eq!(stored(directory.path()), Some(records(200)));

        let mut saved = Saved::new(200);
        saved.save(&[("pod-0".to_owned(), Some(1))]).unwrap();
        let of_earlier_build = records(190);
        checkpoint(saved.path()).save(&of_earlier_build).unwrap();
        assert_eq!(stored(saved.path()), Some(of_earlier_build));
    }

    #[test]
    fn bytes_written_per_change_do_not_depend_on_the_number_of_records() {
        let cost = |count: u64| {
            let mut saved = Saved::new(0);
            for number in 0..count {
                saved.save(&[(format!("pod-{number:08}"), Some(1_000_000))]).unwrap();
            }
            for number in 0..count {
                saved.save(&[(format!("pod-{number:08}"), None)]).unwrap();
            }
            assert_eq!(stored(saved.path()), Some(Records::new()));
            saved.written as u64 / count
        };
        let (few, many) = (cost(300), cost(3_000));
        assert!(10 * many <= 11 * few, "{few} bytes per record of 300, {many} of 3,000");
    }

    #[test]
    fn agent_killed_at_any_step_loses_nothing_that_was_saved() {
        for changes in [1, 201] {
            for step in 0u32.. {
                let mut saved = Saved::new(200);
                saved.save(&[("pod-0".to_owned(), Some(5))]).unwrap();
                let before = saved.records.clone();
                let left = Rc::new(Cell::new(step));
                let passes = left.clone();
                guard::post(move || passes.replace(passes.get().saturating_sub(1)) > 0);
                let changes: Vec<_> =
                    (0..changes).map(|n| (format!("pod-{n}"), Some(900 + n))).collect();
                let result = saved.save(&changes);
                guard::leave();
                let found = stored(saved.path()).unwrap();
                match &result {
                    Ok(()) => assert_eq!(found, saved.records),
                    Err(_) => assert!(found == before || found == saved.records, "step {step}"),
                }
                // A process that is not killed but whose disk was full goes on.
                saved.save(&[]).unwrap();
                assert_eq!(stored(saved.path()).as_ref(), Some(&saved.records));
                if result.is_ok() {
                    assert!(step > 0, "the guard stopped nothing");
                    break;
                }
            }
        }
    }

    #[test]
    fn log_that_was_cut_or_damaged_counts_up_to_that_line() {
        let mut saved = Saved::new(200);
        let mut states = vec![saved.records.clone()];
        for number in 0..3 {
            saved.save(&[(format!("pod-{number}"), Some(5000))]).unwrap();
            states.push(saved.records.clone());
        }
        let good = std::fs::read(saved.log()).unwrap();
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            for bad in [&flipped, &good[..at]] {
                std::fs::write(saved.log(), bad).unwrap();
                assert!(states.contains(&stored(saved.path()).unwrap()), "at {at}");
            }
        }
    }

    #[test]
    fn log_of_a_corrupt_base_is_moved_aside_with_it() {
        let mut saved = Saved::new(200);
        saved.save(&[("pod-0".to_owned(), Some(1))]).unwrap();
        std::fs::write(saved.path().join("state"), "{").unwrap();
        let error = incremental(saved.path()).load::<Records, Change>(make).unwrap_err();
        assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
        assert!(saved.path().join("state.changes.corrupt-1").exists() && !saved.log().exists());
    }
}
