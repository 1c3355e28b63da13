//! Container logs: lookup, reading and rotation.
//!
//! A reader returns pieces on demand, so a slow client delays only itself. A reader that follows
//! needs neither a thread nor a timer: one inotify instance for the whole agent reports new lines,
//! and the observed state of the pod reports the end.

mod directory_watch;
mod dirs;
pub mod read;
mod removal;
pub mod rotation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::log::{LogUnavailable, Selection, instance_to_read};
use podwright_core::observed::Instance;
use podwright_core::pod::Pod;
use podwright_cri as cri;

use super::pleg::Pleg;
use crate::report::status::StatusManager;
use directory_watch::DirectoryWatch;
pub use dirs::LogDirs;
use read::{Follow, Liveness, Reader};
pub(crate) use removal::{remove, remove_now};

/// Bytes that the last lines of a log may have.
const TAIL_LIMIT: u64 = 64 * 1024;

/// A log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRequest {
    pub container: String,
    /// The instance before the current one.
    pub previous: bool,
    /// Continue as long as the container runs.
    pub follow: bool,
    pub selection: Selection,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    LogUnavailable(#[from] LogUnavailable),
    #[error("the runtime reports no log path for container {container:?} in pod {pod:?}")]
    NoPath { container: String, pod: String },
    #[error("cannot read the log of container {container:?} in pod {pod:?}")]
    Unreadable { container: String, pod: String, source: std::io::Error },
}

/// Container logs as the server reads them.
pub struct Logs {
    runtime: cri::Client,
    pleg: Arc<Pleg>,
    status: Arc<StatusManager>,
    directory_watch: Arc<DirectoryWatch>,
    dirs: Arc<LogDirs>,
}

impl Logs {
    pub fn new(
        runtime: cri::Client,
        pleg: Arc<Pleg>,
        status: Arc<StatusManager>,
        dirs: Arc<LogDirs>,
    ) -> Self {
        Self { runtime, pleg, status, directory_watch: Arc::default(), dirs }
    }

    /// Opens the log of a container. [`Reader::next`] returns its content.
    pub async fn open(&self, pod: &Pod, wanted: &LogRequest) -> Result<Reader, LogError> {
        let reported = self.status.get(&pod.uid);
        let status = reported.as_deref().or(pod.object.status.as_ref());
        let name = &*pod.name.name;
        let nothing = Default::default();
        let status = status.unwrap_or(&nothing);
        let id = instance_to_read(name, status, &wanted.container, wanted.previous)?;
        let path = self.log_of(pod, &id).await.ok_or_else(|| LogError::NoPath {
            container: wanted.container.clone(),
            pod: name.to_owned(),
        })?;
        let unreadable = |source| LogError::Unreadable {
            container: wanted.container.clone(),
            pod: name.to_owned(),
            source,
        };
        let path = self.dirs.resolve(&path).map_err(unreadable)?;
        let follow = (wanted.follow && !wanted.previous).then(|| Follow {
            changes: self.directory_watch.watch(path.parent().unwrap_or(Path::new("/"))),
            liveness: Liveness::new(self.pleg.watch(&pod.uid), id),
        });
        let opened =
            Reader::open_in(Some(self.dirs.clone()), &path, wanted.selection.clone(), follow).await;
        opened.map_err(unreadable)
    }

    /// The last lines of an instance that ended.
    pub async fn tail(&self, instance: &Instance, lines: u64) -> std::io::Result<Vec<String>> {
        let Some(path) = &instance.log_path else { return Ok(Vec::new()) };
        let path = self.dirs.resolve(Path::new(path))?;
        let limit_bytes = Some(TAIL_LIMIT);
        let selection = Selection { tail: Some(lines), limit_bytes, ..Selection::default() };
        let mut reader = Reader::open_in(Some(self.dirs.clone()), &path, selection, None).await?;
        let mut text = Vec::new();
        while let Some(piece) = reader.next().await {
            text.extend_from_slice(&piece?);
        }
        Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }

    async fn log_of(&self, pod: &Pod, id: &ContainerId) -> Option<PathBuf> {
        let seen = self.pleg.cached(&pod.uid);
        let instance = seen.as_ref().and_then(|seen| seen.instances.iter().find(|i| i.id == *id));
        if let Some(instance) = instance {
            return instance.log_path.as_ref().map(PathBuf::from);
        }
        let status = self.runtime.container_status(id, SandboxId::new("")).await.ok()?;
        status.instance.log_path.map(PathBuf::from)
    }
}

/// The name of the link by which log collectors find a container's log. File names are limited to
/// 255 bytes; the suffix is kept.
pub(crate) fn link_name(pod: &Pod, container: &str, id: &ContainerId) -> String {
    const MAX_STEM: usize = 255 - ".log".len();
    let podwright_core::ids::PodName { namespace, name } = &pod.name;
    let stem = format!("{name}_{namespace}_{container}-{id}");
    let end = (0..=stem.len().min(MAX_STEM)).rev().find(|end| stem.is_char_boundary(*end));
    format!("{}.log", stem.get(..end.unwrap_or(0)).unwrap_or_default())
}
