//! Garbage collection of logs: files, log directories of pods, and dangling links.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
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

    /// Removes dangling links into the pod logs. Other links are not the agent's.
    pub(super) fn remove_log_links(&self, containers: &[ListedContainer]) -> Result<(), GcError> {
        let links = &self.log_links;
        let failed = |source| GcError::ListLogs { path: links.clone(), source };
        let entries = match std::fs::read_dir(links) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        let states: HashMap<&ContainerId, ListedState> =
            containers.iter().map(|container| (&container.id, container.state)).collect();
        let mut errors = Vec::new();
        for entry in entries {
            let link = entry.map_err(failed)?.path();
            let Ok(target) = std::fs::read_link(&link) else { continue };
            if !target.starts_with(&self.pod_logs) || target.exists() {
                continue;
            }
            let name = link.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if link_state(name, &states).is_removable() {
                match change::remove_file(&link) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => errors.extend(result.map_err(failed).err()),
                }
            }
        }
        GcError::of(errors)
    }
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
