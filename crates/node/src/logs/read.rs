//! Reads a log file, to its end or on and on.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use podwright_core::ids::ContainerId;
use podwright_core::log::{COMPRESSED, Filter, Flow, Selection, UNFINISHED, tail_start};
use podwright_core::observed::ObservedPod;
use podwright_host::threads;
use tokio::sync::watch;

use super::folders::Changes;

/// What is read at a time, and about as much is handed out.
const PIECE: usize = 64 * 1024;
/// A line longer than this is none: runtimes split theirs at 16 KiB.
const LONGEST_LINE: usize = 1024 * 1024;
/// While a log is rotated the runtime may still write its last lines to the old file.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Goes on when the end of the file is reached.
pub(crate) struct Follow {
    pub(crate) changes: Changes,
    pub(crate) liveness: Liveness,
}

/// Whether the container still runs, as far as the node has seen.
pub(crate) struct Liveness {
    view: watch::Receiver<Option<Arc<ObservedPod>>>,
    id: ContainerId,
}

impl Liveness {
    pub(crate) fn new(view: watch::Receiver<Option<Arc<ObservedPod>>>, id: ContainerId) -> Self {
        Self { view, id }
    }

    fn is_alive(&mut self) -> bool {
        // Whoever kept the view has dropped it: nobody looks after this pod any more.
        if self.view.has_changed().is_err() {
            return false;
        }
        let view = self.view.borrow_and_update();
        let Some(view) = &*view else { return true };
        view.instances.iter().any(|instance| instance.id == self.id && instance.is_running())
    }

    /// Waits for news of the pod. Cancel-safe.
    async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            // Said by `is_alive`, which the caller asks before it waits again.
            std::future::pending::<()>().await;
        }
    }
}

/// A log being read.
pub struct Reader {
    path: PathBuf,
    file: Arc<File>,
    offset: u64,
    /// Read and not yet a whole line.
    rest: Vec<u8>,
    /// The line under way is too long and passed over up to its end.
    overlong: bool,
    filter: Filter,
    /// Lines still to hand out, if the tail was asked for and nothing is followed.
    lines_left: Option<u64>,
    follow: Option<Follow>,
    /// Files that came after the one being read.
    later: VecDeque<PathBuf>,
    done: bool,
}

impl Reader {
    pub(crate) async fn open(
        path: &Path,
        selection: Selection,
        follow: Option<Follow>,
    ) -> io::Result<Self> {
        let file = Arc::new(open(path)?);
        let offset = match selection.tail {
            None => 0,
            Some(lines) => {
                let file = file.clone();
                blocking(move || find_tail(&file, lines)).await?
            }
        };
        let lines_left = selection.tail.filter(|_| follow.is_none());
        Ok(Self {
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

    /// The next piece, `None` at the end. It waits for one that follows, and reads no further
    /// than what it hands out: who takes pieces slowly holds nothing up. Cancel-safe: what was
    /// read and not handed out is read again.
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
            let mut piece = vec![0; PIECE];
            let read = file.read_at(&mut piece, offset)?;
            piece.truncate(read);
            Ok(piece)
        })
        .await
    }

    /// Cuts a piece into lines.
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
        // Asked before looking for files: what the container wrote last is then there.
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
            // Rotation may have moved it on; the next look finds what it is called now.
            if let Ok(file) = open(&next) {
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

    /// A line that was never ended is the last word of its file.
    fn last_line(&mut self, out: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.rest);
        if !line.is_empty() && !std::mem::take(&mut self.overlong) {
            self.line(&line, out);
        }
    }
}

/// The text of the last lines of a log, at most `bytes` of their end.
pub(crate) async fn last_words(path: &Path, lines: u64, bytes: usize) -> io::Result<String> {
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

/// A log is a regular file, and stays one between the look and the opening.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Files that rotation put after this one, oldest first: usually none or the new one in use.
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
    for aside in put_aside(path).into_iter().rev() {
        match aside.symlink_metadata() {
            Ok(metadata) if identity(&metadata) == reading => break,
            // The newest one is not compressed. One that is, was put aside before ours.
            Ok(metadata) if metadata.is_file() => files.push_front(aside),
            Ok(_) | Err(_) => {}
        }
    }
    files
}

/// What rotation put aside and did not compress yet, oldest first.
fn put_aside(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let prefix = format!("{}.", name.to_string_lossy());
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut aside: Vec<PathBuf> = names
        .filter(|name| name.starts_with(&prefix))
        .filter(|name| !name.ends_with(COMPRESSED) && !name.ends_with(UNFINISHED))
        .map(|name| folder.join(name))
        .collect();
    aside.sort();
    aside
}

/// Where the last lines of a file begin.
fn find_tail(file: &File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let (mut end, mut left) = (length, lines);
    let mut block = vec![0; PIECE];
    while end > 0 {
        let start = end.saturating_sub(PIECE as u64);
        let size = usize::try_from(end - start).unwrap_or(PIECE);
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
