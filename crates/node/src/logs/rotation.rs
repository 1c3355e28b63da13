//! Puts logs aside that have grown too long.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use podwright_core::ids::ContainerId;
use podwright_core::log::{COMPRESSED, RotationPolicy, UNFINISHED, chores, rotated_name};
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::threads;
use tokio_util::sync::CancellationToken;

use crate::causes::chain;
use crate::pleg::Pleg;
use crate::pods::Directory;

#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error("cannot {attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime does not open the log again")]
    Reopen(#[source] cri::Error),
}

pub struct Rotation {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub pleg: Arc<Pleg>,
    pub directory: Arc<Directory>,
    pub policy: RotationPolicy,
}

/// A running container's log.
struct Log {
    id: ContainerId,
    path: PathBuf,
}

impl Rotation {
    /// Looks at the logs of all running containers again and again, until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let Some(max_size) = self.policy.max_size else { return };
        let work = async {
            loop {
                tokio::time::sleep(self.policy.every).await;
                self.round(max_size).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn round(&self, max_size: u64) {
        let rotate = |log: Log| async move {
            if let Err(error) = self.look_after(&log, max_size).await {
                let path = log.path.display();
                tracing::warn!(%path, error = chain(&error), "cannot rotate a log; will try again");
            }
        };
        futures::stream::iter(self.logs())
            .for_each_concurrent(self.policy.workers.max(1), rotate)
            .await;
    }

    /// By what the node last saw: an idle node asks nobody.
    fn logs(&self) -> Vec<Log> {
        let cells = self.directory.cells().into_iter();
        let views = cells.filter_map(|(uid, _)| self.pleg.cached(&uid));
        let of = |instance: &podwright_core::observed::Instance| {
            Some(Log { id: instance.id.clone(), path: instance.log_path.as_ref()?.into() })
        };
        views.flat_map(|view| view.running().filter_map(of).collect::<Vec<_>>()).collect()
    }

    async fn look_after(&self, log: &Log, max_size: u64) -> Result<(), RotationError> {
        match std::fs::symlink_metadata(&log.path) {
            Ok(metadata) if metadata.is_file() && metadata.len() >= max_size => {
                self.rotate(log).await
            }
            Ok(_) => Ok(()),
            // Somebody moved it away; the runtime would write into the void.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.reopen(&log.id).await,
            Err(source) => Err(failed("look at", &log.path)(source)),
        }
    }

    async fn rotate(&self, log: &Log) -> Result<(), RotationError> {
        let now = self.clock.now().wall;
        let name = log.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = log.path.with_file_name(rotated_name(&name, now));
        if aside.exists() || with_ending(&aside, COMPRESSED).exists() {
            // The clock was set back. A file must not be lost to that; the next round will do.
            return Ok(());
        }
        let (path, max_files) = (log.path.clone(), self.policy.max_files);
        let tidied = threads::blocking(move || do_chores(&path, max_files)).await;
        tidied.map_err(|ended| failed("tidy", &log.path)(io::Error::other(ended)))??;
        std::fs::rename(&log.path, &aside).map_err(failed("put aside", &log.path))?;
        if let Err(error) = self.reopen(&log.id).await {
            // The runtime goes on with the old file: it gets its name back.
            std::fs::rename(&aside, &log.path).map_err(failed("put back", &aside))?;
            return Err(error);
        }
        tracing::debug!(log = %log.path.display(), "rotated");
        Ok(())
    }

    async fn reopen(&self, id: &ContainerId) -> Result<(), RotationError> {
        match self.runtime.reopen_log(id).await {
            // It ended meanwhile: nobody writes any more.
            Err(error) if error.kind == cri::Kind::NotFound => Ok(()),
            result => result.map_err(RotationError::Reopen),
        }
    }
}

/// Removes and compresses what was put aside before.
fn do_chores(log: &Path, max_files: usize) -> Result<(), RotationError> {
    let folder = log.parent().unwrap_or(Path::new("/"));
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let entries = folder.read_dir().map_err(failed("list", folder))?;
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let todo = chores(&name, &names, max_files);
    for name in todo.remove {
        let path = folder.join(name);
        std::fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    for name in todo.compress {
        let path = folder.join(name);
        compress(&path).map_err(failed("compress", &path))?;
    }
    Ok(())
}

/// Whole or not at all: what is cut off in the middle is found and removed the next time.
fn compress(path: &Path) -> io::Result<()> {
    let (part, whole) = (with_ending(path, UNFINISHED), with_ending(path, COMPRESSED));
    let mut source = File::open(path)?;
    let mut sink = GzEncoder::new(File::create(&part)?, Compression::default());
    io::copy(&mut source, &mut sink)?;
    sink.finish()?.set_permissions(source.metadata()?.permissions())?;
    std::fs::rename(&part, &whole)?;
    std::fs::remove_file(path)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotationError {
    let path = path.to_owned();
    move |source| RotationError::File { attempt, path, source }
}

#[cfg(test)]
mod tests;
