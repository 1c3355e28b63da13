//! Garbage collection of logs: files, log directories of pods, and dangling links.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::DirEntry;
use std::io;
use std::path::Path;

use podwright_core::gc::{self, ListedContainer, LogLink};
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::observed::ListedState;
use podwright_host::files::{Kind, Root};
use podwright_host::{change, threads};

use super::{Gc, GcError, LogLocations};

impl Gc {
    /// Runs an operation on the logs on a blocking thread.
    pub(super) async fn with_logs<T: Send + 'static>(
        &self,
        act: impl FnOnce(&LogLocations) -> Result<T, GcError> + Send + 'static,
    ) -> Result<T, GcError> {
        let locations = self.locations.clone();
        threads::blocking(move || act(&locations)).await.unwrap_or_else(|_| Err(GcError::Stopping))
    }
}

impl LogLocations {
    /// The log directories of pods, and their UIDs.
    pub(super) fn log_directories(&self) -> Result<Vec<(OsString, PodUid)>, GcError> {
        let Some(root) = open(&self.pod_logs)? else { return Ok(Vec::new()) };
        let directories = root.list("")?.into_iter().filter(|(_, kind)| *kind == Kind::Directory);
        let owned = directories.filter_map(|(name, _)| {
            let owner = gc::log_directory_owner(name.to_str()?)?;
            Some((name, owner))
        });
        Ok(owned.collect())
    }

    pub(super) fn remove_log_directories(&self, directories: &[OsString]) -> Result<(), GcError> {
        let Some(root) = open(&self.pod_logs)? else { return Ok(()) };
        // A failure does not keep the others from being removed.
        let removed = directories.iter().map(|name| root.remove_dir_all(name));
        GcError::of(removed.filter_map(Result::err).map(GcError::from).collect())
    }

    /// Whether there is a dangling link that may be of a container that does not run. The links of
    /// running containers are not read.
    pub(super) fn has_dangling_link(
        &self,
        is_running: impl Fn(&ContainerId) -> bool,
    ) -> Result<bool, GcError> {
        for link in self.links()? {
            let link = link.map_err(self.cannot_list())?.path();
            let container = gc::log_link_container(name_of(&link));
            if !container.is_some_and(|id| is_running(&id)) && self.is_dangling(&link) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn links(&self) -> Result<impl Iterator<Item = io::Result<DirEntry>>, GcError> {
        match std::fs::read_dir(&self.log_links) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
            entries => Ok(Some(entries.map_err(self.cannot_list())?).into_iter().flatten()),
        }
    }

    fn cannot_list(&self) -> impl Fn(io::Error) -> GcError {
        |source| GcError::ListLogs { path: self.log_links.clone(), source }
    }

    /// Whether this is a link to a missing file in the pod logs.
    fn is_dangling(&self, link: &Path) -> bool {
        let target = std::fs::read_link(link);
        target.is_ok_and(|target| target.starts_with(&self.pod_logs) && !target.exists())
    }

    /// Removes dangling links into the pod logs. Other links are not the agent's.
    pub(super) fn remove_log_links(&self, containers: &[ListedContainer]) -> Result<(), GcError> {
        let states: HashMap<&ContainerId, ListedState> =
            containers.iter().map(|container| (&container.id, container.state)).collect();
        let mut errors = Vec::new();
        for link in self.links()? {
            let link = link.map_err(self.cannot_list())?.path();
            // The state first: the links of running containers are not read.
            if link_state(name_of(&link), &states).is_removable() && self.is_dangling(&link) {
                match change::remove_file(&link) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => errors.extend(result.map_err(self.cannot_list()).err()),
                }
            }
        }
        GcError::of(errors)
    }
}

fn name_of(link: &Path) -> &str {
    link.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

fn link_state(link: &str, states: &HashMap<&ContainerId, ListedState>) -> LogLink {
    match gc::log_link_container(link).and_then(|id| states.get(&id).copied()) {
        None => LogLink::Unknown,
        Some(ListedState::Exited) => LogLink::Exited,
        Some(ListedState::Created | ListedState::Running | ListedState::Unknown) => LogLink::Alive,
    }
}

/// `None`: no pod had a log yet.
fn open(path: &Path) -> Result<Option<Root>, GcError> {
    match Root::open(path) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
