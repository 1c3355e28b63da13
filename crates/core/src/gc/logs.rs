//! Names of log folders and links, and whose they are.

use crate::ids::{ContainerId, PodUid};

/// The pod a log folder belongs to: `<namespace>_<name>_<uid>`. Others are not ours to judge.
pub fn log_directory_owner(name: &str) -> Option<PodUid> {
    let mut parts = name.rsplitn(3, '_');
    let (uid, pod, namespace) = (parts.next()?, parts.next()?, parts.next()?);
    let named = !uid.is_empty() && !pod.is_empty() && !namespace.is_empty();
    named.then(|| PodUid::new(uid))
}

/// The container a link to a log belongs to: `<pod>_<namespace>_<container>-<id>.log`. A name that
/// was cut to fit has lost its id, and with it its owner.
pub fn log_link_container(name: &str) -> Option<ContainerId> {
    let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    (!id.is_empty()).then(|| ContainerId::new(id))
}

/// What became of the container behind a link that leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLink {
    Alive,
    Exited,
    /// The runtime knows no such container.
    Unknown,
}

impl LogLink {
    /// A log that is being rotated is away for a moment; only of a container that has ended is a
    /// missing log gone for good.
    pub fn may_go(self) -> bool {
        match self {
            Self::Alive => false,
            Self::Exited | Self::Unknown => true,
        }
    }
}
