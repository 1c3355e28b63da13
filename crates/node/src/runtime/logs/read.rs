//! Log reader: reads a log file to its end, or follows it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use podwright_core::ids::ContainerId;
use podwright_core::log::{COMPRESSED, Filter, Flow, Selection, UNFINISHED, tail_start};
use podwright_core::observed::ObservedPod;
use podwright_host::threads;
use tokio::sync::watch;

use super::directory_watch::Changes;
use super::dirs::{LogDirs, open_given};

/// Read size, and about the size of a returned piece.
const READ_SIZE: usize = 64 * 1024;
/// Longer lines are dropped: runtimes split theirs at 16 KiB.
const LONGEST_LINE: usize = 1024 * 1024;
/// During rotation the runtime may still write its last lines to the old file.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Continues at the end of the file.
pub(crate) struct Follow {
    pub(crate) changes: Changes,
    pub(crate) liveness: Liveness,
}

/// Whether the container still runs, by the observed state of its pod.
pub(crate) struct Liveness {
    view: watch::Receiver<Option<Arc<ObservedPod>>>,
    id: ContainerId,
}

impl Liveness {
    pub(crate) fn new(view: watch::Receiver<Option<Arc<ObservedPod>>>, id: ContainerId) -> Self {
        Self { view, id }
    }

    fn is_alive(&mut self) -> bool {
        // The sender is dropped: the pod is no longer observed.
        if self.view.has_changed().is_err() {
            return false;
        }
        let view = self.view.borrow_and_update();
        let Some(view) = &*view else { return true };
        view.instances.iter().any(|instance| instance.id == self.id && instance.is_running())
    }

    /// Waits for a change of the pod. Cancel-safe.
    async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            // `is_alive` reports it, and the caller checks that before it waits again.
            std::future::pending::<()>().await;
        }
    }
}

/// An open log.
pub struct Reader {
    /// The directories that all files must be in; `None` if the path contains no links.
    dirs: Option<Arc<LogDirs>>,
    path: PathBuf,
    file: Arc<File>,
    offset: u64,
    /// Data that is not yet a whole line.
    rest: Vec<u8>,
    /// The current line is too long and skipped up to its end.
    overlong: bool,
    filter: Filter,
    /// Lines still to return, if a tail was requested without follow.
    lines_left: Option<u64>,
    follow: Option<Follow>,
    /// Newer files than the one being read.
    later: VecDeque<PathBuf>,
    done: bool,
}

impl Reader {
    /// Opens a log at the path given to the runtime, which must not be a link.
    pub(crate) async fn open(
        path: &Path,
        selection: Selection,
        follow: Option<Follow>,
    ) -> io::Result<Self> {
        Self::open_in(None, path, selection, follow).await
    }

    /// Opens a log by its real path, which must be below one of `dirs`.
    pub(crate) async fn open_in(
        dirs: Option<Arc<LogDirs>>,
        path: &Path,
        selection: Selection,
        follow: Option<Follow>,
    ) -> io::Result<Self> {
        let file = Arc::new(open(dirs.as_deref(), path)?);
        let offset = match selection.tail {
            None => 0,
            Some(lines) => {
                let file = file.clone();
                blocking(move || find_tail(&file, lines)).await?
            }
        };
        let lines_left = selection.tail.filter(|_| follow.is_none());
        Ok(Self {
            dirs,
            path: path.to_owned(),
            file,
            offset,
            rest: Vec::new(),
            overlong: false,
            done: lines_left == Some(0),
            filter: Filter::new(selection),
            lines_left,
            follow,
            later: VecDeque::new(),
        })
    }

    /// The next piece, `None` at the end. Waits if the log is followed, and reads no further than what it
    /// returns, so a slow client applies back pressure. Cancel-safe: data that was read and not returned
    /// is read again.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut out = Vec::new();
        while !self.done && out.is_empty() {
            let piece = match self.read().await {
                Ok(piece) => piece,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            };
            if !piece.is_empty() {
                self.offset += piece.len() as u64;
                self.take(&piece, &mut out);
            } else if !self.go_on(&mut out).await {
                self.done = true;
            }
        }
        (!out.is_empty()).then(|| Ok(Bytes::from(out)))
    }

    async fn read(&self) -> io::Result<Vec<u8>> {
        let (file, offset) = (self.file.clone(), self.offset);
        blocking(move || {
            let mut piece = vec![0; READ_SIZE];
            let read = file.read_at(&mut piece, offset)?;
            piece.truncate(read);
            Ok(piece)
        })
        .await
    }

    /// Splits a piece into lines.
    fn take(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let whole = part.ends_with(b"\n");
            if self.rest.len() + part.len() > LONGEST_LINE {
                self.rest.clear();
                self.overlong = true;
            }
            match (self.overlong, whole) {
                (true, true) => self.overlong = false,
                (true, false) => {}
                (false, false) => self.rest.extend_from_slice(part),
                (false, true) if self.rest.is_empty() => self.line(part, out),
                (false, true) => {
                    let mut line = std::mem::take(&mut self.rest);
                    line.extend_from_slice(part);
                    self.line(&line, out);
                }
            }
            if self.done {
                return;
            }
        }
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if self.filter.take(line, out) == Flow::Full {
            self.done = true;
        }
        if let Some(left) = &mut self.lines_left {
            *left = left.saturating_sub(1);
            self.done |= *left == 0;
        }
    }

    /// At the end of the file: whether there is, or will be, more.
    async fn go_on(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(follow) = &mut self.follow else {
            self.last_line(out);
            return false;
        };
        // Checked before looking for files, so that the container's last output is included.
        let alive = follow.liveness.is_alive();
        if self.later.is_empty() {
            self.later = later_files(&self.path, &self.file);
            if !self.later.is_empty() {
                tokio::time::sleep(LAST_LINES).await;
                return true;
            }
        }
        if let Some(next) = self.later.pop_front() {
            self.last_line(out);
            // Rotation may have renamed it; the next check finds its new name.
            if let Ok(file) = open(self.dirs.as_deref(), &next) {
                (self.file, self.offset) = (Arc::new(file), 0);
                self.filter.next_file();
            }
            return true;
        }
        if !alive {
            self.last_line(out);
            return false;
        }
        tokio::select! {
            () = follow.changes.next() => {}
            () = follow.liveness.changed() => {}
        }
        true
    }

    /// An unterminated line is the last one of its file.
    fn last_line(&mut self, out: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.rest);
        if !line.is_empty() && !std::mem::take(&mut self.overlong) {
            self.line(&line, out);
        }
    }
}

/// The text of the last lines of a log, at most the last `bytes`.
pub(crate) async fn log_tail(path: &Path, lines: u64, bytes: usize) -> io::Result<String> {
    let selection = Selection { tail: Some(lines), ..Selection::default() };
    let mut reader = Reader::open(path, selection, None).await?;
    let mut words = Vec::new();
    while let Some(piece) = reader.next().await {
        words.extend_from_slice(&piece?);
        let excess = words.len().saturating_sub(bytes);
        words.drain(..excess);
    }
    Ok(String::from_utf8_lossy(&words).into_owned())
}

/// Opens a log, which must be a regular file.
fn open(dirs: Option<&LogDirs>, path: &Path) -> io::Result<File> {
    match dirs {
        Some(dirs) => dirs.open(path),
        None => open_given(path),
    }
}

/// Newer files after rotation, oldest first: usually none or only the current one.
fn later_files(path: &Path, reading: &File) -> VecDeque<PathBuf> {
    let identity = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    let Ok(reading) = reading.metadata().map(|metadata| identity(&metadata)) else {
        return VecDeque::new();
    };
    let Ok(current) = path.symlink_metadata() else { return VecDeque::new() };
    if identity(&current) == reading {
        return VecDeque::new();
    }
    let mut files = VecDeque::from([path.to_owned()]);
    for rotated in rotated_files(path).into_iter().rev() {
        match rotated.symlink_metadata() {
            Ok(metadata) if identity(&metadata) == reading => break,
            // The newest one is not compressed. A compressed one is older than the one being read.
            Ok(metadata) if metadata.is_file() => files.push_front(rotated),
            Ok(_) | Err(_) => {}
        }
    }
    files
}

/// Rotated files that are not compressed yet, oldest first.
fn rotated_files(path: &Path) -> Vec<PathBuf> {
    let (Some(log_dir), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let prefix = format!("{}.", name.to_string_lossy());
    let Ok(entries) = log_dir.read_dir() else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut rotated: Vec<PathBuf> = names
        .filter(|name| name.starts_with(&prefix))
        .filter(|name| !name.ends_with(COMPRESSED) && !name.ends_with(UNFINISHED))
        .map(|name| log_dir.join(name))
        .collect();
    // Not by name: the kubelet's names are in local time, ours in UTC.
    rotated.sort_by_cached_key(|path| {
        let modified = path.symlink_metadata().and_then(|metadata| metadata.modified());
        (modified.ok(), path.clone())
    });
    rotated
}

/// The offset of the last lines of a file.
fn find_tail(file: &File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let (mut end, mut left) = (length, lines);
    let mut block = vec![0; READ_SIZE];
    while end > 0 {
        let start = end.saturating_sub(READ_SIZE as u64);
        let size = usize::try_from(end - start).unwrap_or(READ_SIZE);
        let Some(part) = block.get_mut(..size) else { break };
        file.read_exact_at(part, start)?;
        match tail_start(part, left, end == length) {
            Ok(at) => return Ok(start + at as u64),
            Err(still) => left = still,
        }
        end = start;
    }
    Ok(0)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    threads::blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
