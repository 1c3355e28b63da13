//! Volume types: the trait that each implements and the table of all types.
//!
//! A type is one row in [`VOLUME_TYPES`] and usually one file. It first reads its sources ([`VolumeType::prepare`],
//! which may be dropped at any point) and returns a closure that sets the volume up on this node
//! ([`SetUpFn`], which runs to its end on a separate thread). The same closure refreshes a volume
//! that is already set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_api::qos::ResourceList;
use podwright_core::config::MountedVolume;
use podwright_core::config::mounts::VolumeSource;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_core::volume::teardown::Plugin;
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use podwright_host::mounts::MountError;

use super::tokens::Tokens;
use super::{claim, content, empty_dir, host_path, image, refused};
use crate::error_chain::chain;
use crate::resources::objects::Objects;

/// All volume types. The order does not matter: a volume has exactly one type.
pub(super) const VOLUME_TYPES: [&dyn VolumeType; 9] = [
    &content::CONFIG_MAP,
    &content::SECRET,
    &content::DOWNWARD_API,
    &content::PROJECTED,
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &claim::Claim,
    &image::Image,
    &refused::Refused,
];

pub(crate) trait VolumeType: Sync {
    /// Whether the volume has this type.
    fn covers(&self, volume: &v1::Volume) -> bool;

    /// The directories below `volumes/` that hold volumes of this type, and what this agent mounts
    /// there. Nothing else is ever unmounted there.
    fn plugins(&self) -> &'static [Plugin];

    /// Reads the sources of the volume. Changes nothing on this node.
    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>>;
}

/// A volume of one pod, and the sources to prepare it from.
#[derive(Clone, Copy)]
pub(crate) struct VolumeRequest<'a> {
    pub pod: &'a Arc<Pod>,
    pub volume: &'a v1::Volume,
    pub sources: &'a Sources,
    pub tokens: &'a Tokens,
}

/// Sources of volume content.
pub(crate) struct Sources {
    pub objects: Arc<Objects>,
    pub allocatable: ResourceList,
    pub clock: Clock,
}

/// A volume that is fully resolved and can be set up.
pub(crate) struct Prepared {
    /// Whether the content follows its sources, or stays as it was set up.
    pub follows: bool,
    /// When the content expires.
    pub renew_at: Option<Mono>,
    pub set_up: SetUpFn,
}

pub(crate) type SetUpFn = Box<dyn FnOnce(&PodDirectory) -> Result<Mounted, VolumeProblem> + Send>;

impl Prepared {
    pub(super) fn lasting(
        set_up: impl FnOnce(&PodDirectory) -> Result<Mounted, VolumeProblem> + Send + 'static,
    ) -> Self {
        Self { follows: false, renew_at: None, set_up: Box::new(set_up) }
    }
}

/// A volume that is ready for containers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mounted {
    pub volume: MountedVolume,
    /// Supplemental group that the volume requires.
    pub group: Option<i64>,
}

impl Mounted {
    /// A writable directory, which the runtime may relabel for the pod.
    pub(super) fn directory(path: &Path) -> Self {
        let source = VolumeSource::Directory(path.to_string_lossy().into_owned());
        Self { volume: MountedVolume { source, read_only: false, relabel: true }, group: None }
    }

    pub(super) fn read_only(mut self, read_only: bool) -> Self {
        self.volume.read_only = read_only;
        self
    }

    /// Keeps the labels of a directory that is not the pod's.
    pub(super) fn with_its_labels(mut self) -> Self {
        self.volume.relabel = false;
        self
    }
}

/// Reason that a volume could not be set up, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeProblem {
    pub at: FailurePhase,
    pub text: String,
}

/// Phase of the failure; upstream words the message after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailurePhase {
    /// Resolving the volume.
    Processing,
    /// Setting it up; with the name of the volume if it differs from the name in the pod.
    SetUp(Option<String>),
}

impl VolumeProblem {
    pub(super) fn set_up(text: impl Into<String>) -> Self {
        Self { at: FailurePhase::SetUp(None), text: text.into() }
    }

    pub(super) fn processing(text: impl Into<String>) -> Self {
        Self { at: FailurePhase::Processing, text: text.into() }
    }
}

impl From<FileError> for VolumeProblem {
    fn from(error: FileError) -> Self {
        Self::set_up(chain(&error))
    }
}

impl From<MountError> for VolumeProblem {
    fn from(error: MountError) -> Self {
        Self::set_up(chain(&error))
    }
}

/// A pod directory.
pub(crate) struct PodDirectory(pub Root);

impl PodDirectory {
    /// The directory of one volume, created if missing. `mode` applies to this directory only.
    pub(super) fn volume(&self, plugin: &str, name: &str, mode: u32) -> Result<PathBuf, FileError> {
        let of_kind = Path::new("volumes").join(plugin);
        self.0.create_dir_all(&of_kind, super::DIRECTORY_MODE)?;
        let relative = of_kind.join(name);
        match self.0.create_dir(&relative, mode) {
            Ok(()) => {}
            Err(error) if error.is_already_there() => {}
            Err(error) => return Err(error),
        }
        Ok(self.0.path().join(relative))
    }
}
