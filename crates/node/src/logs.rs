//! Container logs: finding the file somebody means, reading it, and keeping it from growing.
//!
//! A reader hands out pieces when it is asked for the next one, so whoever is slow to take them
//! slows down only itself. One that follows costs no thread and no timer: the kernel tells of new
//! lines through one inotify instance for the whole agent, and the pod's view tells of the end.

mod folders;
pub mod read;
mod removal;
pub mod rotation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::log::{NoLog, Selection, instance_to_read};
use podwright_core::pod::Pod;

use crate::tools::Tools;
use folders::Folders;
use read::{Follow, Liveness, Reader};
pub(crate) use removal::{remove, remove_now};

/// What somebody wants to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub container: String,
    /// The instance before the current one.
    pub previous: bool,
    /// Go on as long as the container runs.
    pub follow: bool,
    pub selection: Selection,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    NoLog(#[from] NoLog),
    #[error("the runtime does not know the log of container {container:?} in pod {pod:?}")]
    NoPath { container: String, pod: String },
    #[error("cannot read the log of container {container:?} in pod {pod:?}")]
    Unreadable { container: String, pod: String, source: std::io::Error },
}

#[derive(Default)]
pub struct Logs {
    folders: Arc<Folders>,
}

impl Logs {
    /// Opens the log of a container. What comes of it later comes from [`Reader::next`].
    pub async fn open(
        &self,
        tools: &Tools,
        pod: &Pod,
        wanted: &Wanted,
    ) -> Result<Reader, LogError> {
        let reported = tools.status.get(&pod.uid);
        let status = reported.as_deref().or(pod.object.status.as_ref());
        let name = &*pod.name.name;
        let nothing = Default::default();
        let status = status.unwrap_or(&nothing);
        let id = instance_to_read(name, status, &wanted.container, wanted.previous)?;
        let path = log_of(tools, pod, &id).await.ok_or_else(|| LogError::NoPath {
            container: wanted.container.clone(),
            pod: name.to_owned(),
        })?;
        let follow = (wanted.follow && !wanted.previous).then(|| Follow {
            changes: self.folders.watch(path.parent().unwrap_or(Path::new("/"))),
            liveness: Liveness::new(tools.pleg.watch(&pod.uid), id),
        });
        let opened = Reader::open(&path, wanted.selection.clone(), follow).await;
        opened.map_err(|source| LogError::Unreadable {
            container: wanted.container.clone(),
            pod: name.to_owned(),
            source,
        })
    }
}

async fn log_of(tools: &Tools, pod: &Pod, id: &ContainerId) -> Option<PathBuf> {
    let seen = tools.pleg.cached(&pod.uid);
    let instance = seen.as_ref().and_then(|seen| seen.instances.iter().find(|i| i.id == *id));
    if let Some(instance) = instance {
        return instance.log_path.as_ref().map(PathBuf::from);
    }
    let status = tools.runtime.container_status(id, SandboxId::new("")).await.ok()?;
    status.instance.log_path.map(PathBuf::from)
}

/// The name of the link by which log collectors find a container's log. A file name has room for
/// 255 bytes; the ending stays.
pub(crate) fn link_name(pod: &Pod, container: &str, id: &ContainerId) -> String {
    const ROOM: usize = 255 - ".log".len();
    let podwright_core::ids::PodName { namespace, name } = &pod.name;
    let stem = format!("{name}_{namespace}_{container}-{id}");
    let end = (0..=stem.len().min(ROOM)).rev().find(|end| stem.is_char_boundary(*end));
    format!("{}.log", stem.get(..end.unwrap_or(0)).unwrap_or_default())
}
