//! Logs of what is gone: files, pods' folders, and links that lead nowhere.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use podwright_core::gc::{self, ListedContainer, LogLink};
use podwright_core::ids::PodUid;
use podwright_core::observed::Glance;
use podwright_host::files::{Kind, Root};

use super::{Gc, GcError};

impl Gc {
    /// Folders of pods that are over.
    pub(super) fn remove_log_folders(
        &self,
        is_over: impl Fn(&PodUid) -> bool,
    ) -> Result<(), GcError> {
        let Some(root) = open(&self.place.pod_logs)? else { return Ok(()) };
        for (name, kind) in root.list("")? {
            let owner = name.to_str().and_then(gc::log_directory_owner);
            if kind == Kind::Directory && owner.is_some_and(|owner| is_over(&owner)) {
                root.remove_dir_all(&name)?;
            }
        }
        Ok(())
    }

    /// Links into the pods' logs whose end is gone. Others are somebody else's.
    pub(super) fn remove_log_links(&self, containers: &[ListedContainer]) -> Result<(), GcError> {
        let links = &self.place.log_links;
        let failed = |source| GcError::Folder { path: links.clone(), source };
        let entries = match std::fs::read_dir(links) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let link = entry.map_err(failed)?.path();
            let Ok(target) = std::fs::read_link(&link) else { continue };
            if !target.starts_with(&self.place.pod_logs) || target.exists() {
                continue;
            }
            let name = link.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if fate(name, containers).may_go() {
                match std::fs::remove_file(&link) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => result.map_err(failed)?,
                }
            }
        }
        Ok(())
    }
}

fn fate(link: &str, containers: &[ListedContainer]) -> LogLink {
    let id = gc::log_link_container(link);
    let container = containers.iter().find(|container| Some(&container.id) == id.as_ref());
    match container.map(|container| container.state) {
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
