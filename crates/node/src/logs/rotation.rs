//! Log rotation: renames, compresses and removes logs by size.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use podwright_core::ids::ContainerId;
use podwright_core::log::{COMPRESSED, RotationPolicy, UNFINISHED, plan_rotation, rotated_name};
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::threads;
use tokio_util::sync::CancellationToken;

use crate::error_chain::chain;
use crate::pleg::Pleg;
use crate::pods::PodIndex;

#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error("cannot {attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime cannot reopen the log")]
    Reopen(#[source] cri::Error),
}

pub struct Rotation {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
    pub policy: RotationPolicy,
}

/// The log of a running container.
struct Log {
    id: ContainerId,
    path: PathBuf,
}

impl Rotation {
    /// Checks the logs of all running containers periodically, until stopped.
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
            if let Err(error) = self.check(&log, max_size).await {
                let path = log.path.display();
                tracing::warn!(%path, error = chain(&error), "cannot rotate log, retrying");
            }
        };
        futures::stream::iter(self.logs())
            .for_each_concurrent(self.policy.workers.max(1), rotate)
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

    async fn check(&self, log: &Log, max_size: u64) -> Result<(), RotationError> {
        match std::fs::symlink_metadata(&log.path) {
            Ok(metadata) if metadata.is_file() && metadata.len() >= max_size => {
                self.rotate(log).await
            }
            Ok(_) => Ok(()),
            // The file was moved away; the runtime would write to the renamed or deleted file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.reopen(&log.id).await,
            Err(source) => Err(failed("stat", &log.path)(source)),
        }
    }

    async fn rotate(&self, log: &Log) -> Result<(), RotationError> {
        let now = self.clock.now().wall;
        let name = log.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rotated = log.path.with_file_name(rotated_name(&name, now));
        if rotated.exists() || with_ending(&rotated, COMPRESSED).exists() {
            // The clock was set back. The existing file must not be replaced; retried in the next round.
            return Ok(());
        }
        let (path, max_files) = (log.path.clone(), self.policy.max_files);
        let cleaned = threads::blocking(move || clean_up(&path, max_files)).await;
        cleaned.map_err(|ended| failed("clean up", &log.path)(io::Error::other(ended)))??;
        std::fs::rename(&log.path, &rotated).map_err(failed("rename", &log.path))?;
        if let Err(error) = self.reopen(&log.id).await {
            // The runtime still writes to the old file, so its name is restored.
            std::fs::rename(&rotated, &log.path).map_err(failed("restore", &rotated))?;
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

/// Removes and compresses rotated files.
fn clean_up(log: &Path, max_files: usize) -> Result<(), RotationError> {
    let log_dir = log.parent().unwrap_or(Path::new("/"));
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let entries = log_dir.read_dir().map_err(failed("list", log_dir))?;
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let todo = plan_rotation(&name, &names, max_files);
    for name in todo.remove {
        let path = log_dir.join(name);
        std::fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    for name in todo.compress {
        let path = log_dir.join(name);
        compress(&path).map_err(failed("compress", &path))?;
    }
    Ok(())
}

/// Compresses atomically; an unfinished file is removed the next time.
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
