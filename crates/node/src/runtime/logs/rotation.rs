//! Log rotation: renames, compresses and removes logs by size.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use podwright_core::ids::ContainerId;
use podwright_core::log::{COMPRESSED, RotationPolicy, UNFINISHED, plan_rotation, rotated_name};
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Kind, Root};
use podwright_host::threads;
use tokio_util::sync::CancellationToken;

use super::LogDirs;
use crate::error_chain::chain;
use crate::pods::PodIndex;
use crate::runtime::pleg::Pleg;

#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error("cannot {attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Directory(#[from] FileError),
    #[error("the runtime cannot reopen the log")]
    Reopen(#[source] cri::Error),
}

pub struct Rotation {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
    pub policy: RotationPolicy,
    pub dirs: Arc<LogDirs>,
}

/// The logs of a round are checked in this many slices over the interval, so that a node with many
/// containers does not check all of them at once.
const SLICES: usize = 10;
/// Few logs are checked at once.
const MIN_SLICE: usize = 50;

/// The log of a running container.
#[derive(Clone)]
struct Log {
    id: ContainerId,
    path: PathBuf,
}

/// What a log needs.
enum LogNeed {
    Nothing,
    /// It is too long; its directory.
    Rotation(Root),
    /// It was moved away; the runtime would write to the renamed or deleted file.
    Reopening,
}

impl Rotation {
    /// Checks the logs of all running containers periodically, until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let Some(max_size) = self.policy.max_size else { return };
        let work = async {
            loop {
                self.round(max_size).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Checks all logs in the course of one interval.
    async fn round(&self, max_size: u64) {
        let slices = slices_of(self.logs().len());
        let pause = self.policy.every / u32::try_from(slices).unwrap_or(u32::MAX);
        tokio::time::sleep(pause).await;
        self.check_in_slices(self.logs(), slices, pause, max_size).await;
    }

    async fn check_in_slices(
        &self,
        mut logs: Vec<Log>,
        slices: usize,
        pause: Duration,
        max_size: u64,
    ) {
        let size = logs.len().div_ceil(slices);
        for slice in 0..slices {
            if slice > 0 {
                tokio::time::sleep(pause).await;
            }
            let rest = logs.split_off(size.min(logs.len()));
            self.check_all(std::mem::replace(&mut logs, rest), max_size).await;
        }
    }

    /// Checks these logs on a blocking thread and does what they need.
    async fn check_all(&self, logs: Vec<Log>, max_size: u64) {
        let dirs = self.dirs.clone();
        let checked = threads::blocking(move || {
            let check = |log: Log| match need(&dirs, &log, max_size) {
                Ok(LogNeed::Nothing) => None,
                other => Some((log, other)),
            };
            logs.into_iter().filter_map(check).collect::<Vec<_>>()
        });
        let act = |(log, need): (Log, Result<LogNeed, RotationError>)| async move {
            let done = match need {
                Ok(need) => self.act(&log, need).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                let path = log.path.display();
                tracing::warn!(%path, error = chain(&error), "cannot rotate log, retrying");
            }
        };
        futures::stream::iter(checked.await.unwrap_or_default())
            .for_each_concurrent(self.policy.workers.max(1), act)
            .await;
    }

    /// By the observed state: an idle node makes no calls.
    fn logs(&self) -> Vec<Log> {
        let handles = self.pod_index.handles().into_iter();
        let views = handles.filter_map(|(uid, _)| self.pleg.cached(&uid));
        let of = |instance: &podwright_core::observed::Instance| {
            Some(Log { id: instance.id.clone(), path: instance.log_path.as_ref()?.into() })
        };
        views.flat_map(|view| view.running().filter_map(of).collect::<Vec<_>>()).collect()
    }

    async fn act(&self, log: &Log, need: LogNeed) -> Result<(), RotationError> {
        match need {
            LogNeed::Nothing => Ok(()),
            LogNeed::Rotation(log_dir) => self.rotate(log, log_dir).await,
            LogNeed::Reopening => self.reopen(&log.id).await,
        }
    }

    async fn rotate(&self, log: &Log, log_dir: Root) -> Result<(), RotationError> {
        let now = self.clock.now().wall;
        let name = log.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rotated = rotated_name(&name, now);
        for existing in [rotated.clone(), format!("{rotated}{COMPRESSED}")] {
            if log_dir.kind(existing)?.is_some() {
                // The clock was set back. The existing file must not be replaced; retried in the
                // next round.
                return Ok(());
            }
        }
        let max_files = self.policy.max_files;
        let (dir, current) = (log_dir.again()?, name.clone());
        let cleaned = threads::blocking(move || clean_up(&dir, &current, max_files)).await;
        cleaned.map_err(|ended| failed("clean up", &log.path)(io::Error::other(ended)))??;
        log_dir.rename(&name, &rotated)?;
        if let Err(error) = self.reopen(&log.id).await {
            // The runtime still writes to the old file, so its name is restored.
            log_dir.rename(&rotated, &name)?;
            return Err(error);
        }
        tracing::debug!(log = %log.path.display(), "rotated");
        Ok(())
    }

    async fn reopen(&self, id: &ContainerId) -> Result<(), RotationError> {
        match self.runtime.reopen_log(id).await {
            // The container has exited, so nothing is written any more.
            Err(error) if error.kind == cri::Kind::NotFound => Ok(()),
            result => result.map_err(RotationError::Reopen),
        }
    }
}

/// The number of slices for this many logs.
fn slices_of(logs: usize) -> usize {
    logs.div_ceil(MIN_SLICE).clamp(1, SLICES)
}

fn need(dirs: &LogDirs, log: &Log, max_size: u64) -> Result<LogNeed, RotationError> {
    // One call for a log of the usual length. Only a path that is rotated is resolved and checked.
    let usual = std::fs::symlink_metadata(&log.path);
    if usual.is_ok_and(|metadata| metadata.is_file() && metadata.len() < max_size) {
        return Ok(LogNeed::Nothing);
    }
    let name = log.path.file_name().unwrap_or_default();
    let log_dir = match dirs.directory(&log.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LogNeed::Reopening),
        log_dir => log_dir.map_err(failed("open the directory of", &log.path))?,
    };
    match log_dir.kind(name)? {
        Some(Kind::File) => {
            let file = log_dir.open_regular(name)?;
            let metadata = file.metadata().map_err(failed("stat", &log.path))?;
            Ok(match metadata.len() >= max_size {
                true => LogNeed::Rotation(log_dir),
                false => LogNeed::Nothing,
            })
        }
        // The runtime keeps the log elsewhere and rotates it there.
        Some(Kind::Directory | Kind::Symlink | Kind::Other) => Ok(LogNeed::Nothing),
        None => Ok(LogNeed::Reopening),
    }
}

/// Removes and compresses rotated files. Links and other non-regular files are left alone.
fn clean_up(log_dir: &Root, log: &str, max_files: usize) -> Result<(), RotationError> {
    let mut files = Vec::new();
    for (name, kind) in log_dir.list("")? {
        let Ok(name) = name.into_string() else { continue };
        if kind != Kind::File || !name.starts_with(log) {
            continue;
        }
        let file = match log_dir.open_regular(&name) {
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        files.push((modified.map_err(failed("stat", Path::new(&name)))?, name));
    }
    files.sort();
    let names: Vec<String> = files.into_iter().map(|(_, name)| name).collect();
    let todo = plan_rotation(log, &names, max_files);
    for name in todo.remove {
        log_dir.remove_file(name)?;
    }
    for name in todo.compress {
        compress(log_dir, &name)?;
    }
    Ok(())
}

/// Compresses atomically; an unfinished file is removed the next time.
fn compress(log_dir: &Root, name: &str) -> Result<(), RotationError> {
    let (part, whole) = (format!("{name}{UNFINISHED}"), format!("{name}{COMPRESSED}"));
    let mut source = log_dir.open_regular(name)?;
    // A link with that name is removed, not followed.
    log_dir.remove_file(&part)?;
    let sink = log_dir.create_file(&part)?;
    gzip(&mut source, sink).map_err(failed("compress", &log_dir.path().join(name)))?;
    log_dir.rename(&part, &whole)?;
    Ok(log_dir.remove_file(name)?)
}

fn gzip(source: &mut File, sink: File) -> io::Result<()> {
    let mut sink = GzEncoder::new(sink, Compression::default());
    io::copy(source, &mut sink)?;
    let (sink, metadata) = (sink.finish()?, source.metadata()?);
    // Rotated files are ordered by modification time.
    sink.set_modified(metadata.modified()?)?;
    sink.set_permissions(metadata.permissions())
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotationError {
    let path = path.to_owned();
    move |source| RotationError::File { attempt, path, source }
}

#[cfg(test)]
mod tests;
