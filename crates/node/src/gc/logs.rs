//! Logs of what is gone: files, pods' folders, and links that lead nowhere.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use podwright_core::gc::{self, ListedContainer, LogLink};
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::observed::Glance;
use podwright_host::files::{Kind, Root};
use podwright_host::{change, threads};

use super::{Gc, GcError, Place};

impl Gc {
    /// Does something with the logs, which takes the disk's time and not that of our threads.
    pub(super) async fn with_logs<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Place) -> Result<T, GcError> + Send + 'static,
    ) -> Result<T, GcError> {
        let place = self.place.clone();
        threads::blocking(move || act(&place)).await.unwrap_or_else(|_| Err(GcError::Stopping))
    }
}

impl Place {
    /// The pods' folders, and whose they are.
    pub(super) fn log_folders(&self) -> Result<Vec<(OsString, PodUid)>, GcError> {
        let Some(root) = open(&self.pod_logs)? else { return Ok(Vec::new()) };
        let folders = root.list("")?.into_iter().filter(|(_, kind)| *kind == Kind::Directory);
        let owned = folders.filter_map(|(name, _)| {
            let owner = gc::log_directory_owner(name.to_str()?)?;
            Some((name, owner))
        });
        Ok(owned.collect())
    }

    pub(super) fn remove_log_folders(&self, folders: &[OsString]) -> Result<(), GcError> {
        let Some(root) = open(&self.pod_logs)? else { return Ok(()) };
        // One that cannot go keeps no other.
        let removed = folders.iter().map(|name| root.remove_dir_all(name));
        GcError::of(removed.filter_map(Result::err).map(GcError::from).collect())
    }

    /// Links into the pods' logs whose end is gone. Others are somebody else's.
    pub(super) fn remove_log_links(&self, containers: &[ListedContainer]) -> Result<(), GcError> {
        let links = &self.log_links;
        let failed = |source| GcError::Folder { path: links.clone(), source };
        let entries = match std::fs::read_dir(links) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        let states: HashMap<&ContainerId, Glance> =
            containers.iter().map(|container| (&container.id, container.state)).collect();
        let mut errors = Vec::new();
        for entry in entries {
            let link = entry.map_err(failed)?.path();
            let Ok(target) = std::fs::read_link(&link) else { continue };
            if !target.starts_with(&self.pod_logs) || target.exists() {
                continue;
            }
            let name = link.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if fate(name, &states).may_go() {
                match change::remove_file(&link) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => errors.extend(result.map_err(failed).err()),
                }
            }
        }
        GcError::of(errors)
    }
}

fn fate(link: &str, states: &HashMap<&ContainerId, Glance>) -> LogLink {
    match gc::log_link_container(link).and_then(|id| states.get(&id).copied()) {
        None => LogLink::Unknown,
        Some(Glance::Exited) => LogLink::Exited,
        Some(Glance::Created | Glance::Running | Glance::Unknown) => LogLink::Alive,
    }
}

/// `None`: no pod ever had a log.
fn open(path: &Path) -> Result<Option<Root>, GcError> {
    match Root::open(path) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
