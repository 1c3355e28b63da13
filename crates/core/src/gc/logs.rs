//! Names of log directories and log links, and the pod or container that owns each.

use crate::ids::{ContainerId, PodUid};

/// Pod that owns a log directory: `<namespace>_<name>_<uid>`. Directories with other names are not
/// ours.
pub fn log_directory_owner(name: &str) -> Option<PodUid> {
    let mut parts = name.rsplitn(3, '_');
    let (uid, pod, namespace) = (parts.next()?, parts.next()?, parts.next()?);
    let named = !uid.is_empty() && !pod.is_empty() && !namespace.is_empty();
    named.then(|| PodUid::new(uid))
}

/// Container that a log link belongs to: `<pod>_<namespace>_<container>-<id>.log`. A truncated name
/// has lost the id, so its owner is unknown.
pub fn log_link_container(name: &str) -> Option<ContainerId> {
    let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    (!id.is_empty()).then(|| ContainerId::new(id))
}

/// State of the container of a dangling log link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLink {
    Alive,
    Exited,
    /// The runtime has no such container.
    Unknown,
}

impl LogLink {
    /// A log file is briefly missing during rotation; only for an exited container is it gone for
    /// good.
    pub fn is_removable(self) -> bool {
        match self {
            Self::Alive => false,
            Self::Exited | Self::Unknown => true,
        }
    }
}
