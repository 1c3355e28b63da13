//! What a kind of volume is.
//!
//! A kind is one file and one row in [`KINDS`]. It reads what it needs from elsewhere
//! ([`Kind::prepare`], which may be dropped at any point) and hands back an act that makes it so
//! on this node ([`Act`], which runs to its end on a thread of its own). The same act brings a
//! volume up to date that was set up before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::config::MountedVolume;
use podwright_core::config::mounts::VolumeSource;
use podwright_core::pod::Pod;
use podwright_core::qos::ResourceList;
use podwright_core::time::Mono;
use podwright_core::volume::teardown::Plugin;
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use podwright_host::mounts::MountError;

use super::tokens::Tokens;
use super::{
    claim, config_map, downward_api, empty_dir, host_path, image, projected, refused, secret,
};
use crate::causes::chain;
use crate::objects::Objects;

/// Every kind, in no order: a volume is of one kind only.
pub(super) const KINDS: [&dyn Kind; 9] = [
    &config_map::ConfigMap,
    &secret::Secret,
    &downward_api::DownwardApi,
    &projected::Projected,
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &claim::Claim,
    &image::Image,
    &refused::Refused,
];

pub(crate) trait Kind: Sync {
    /// Whether a volume of a pod is of this kind.
    fn covers(&self, volume: &v1::Volume) -> bool;

    /// The directories below `volumes/` that volumes of this kind are in, and what is mounted there
    /// by us. Nothing else is ever unmounted there.
    fn plugins(&self) -> &'static [Plugin];

    /// Reads what it needs. Changes nothing on this node.
    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>>;
}

/// A volume of one pod, and where a kind may read about it.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub pod: &'a Arc<Pod>,
    pub volume: &'a v1::Volume,
    pub sources: &'a Sources,
    pub tokens: &'a Tokens,
}

/// What volumes are made from.
pub(crate) struct Sources {
    pub objects: Arc<Objects>,
    pub allocatable: ResourceList,
    pub clock: Clock,
}

/// A volume that is known in full and only has to be put in place.
pub(crate) struct Prepared {
    /// Whether it follows what it is made of, or stays as it was set up.
    pub follows: bool,
    /// When its content gets too old.
    pub renew_at: Option<Mono>,
    pub act: Act,
}

pub(crate) type Act = Box<dyn FnOnce(&PodFolder) -> Result<Mounted, Problem> + Send>;

impl Prepared {
    pub(super) fn lasting(
        act: impl FnOnce(&PodFolder) -> Result<Mounted, Problem> + Send + 'static,
    ) -> Self {
        Self { follows: false, renew_at: None, act: Box::new(act) }
    }
}

/// A volume that containers may have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mounted {
    pub volume: MountedVolume,
    /// A group that its users have to be in.
    pub group: Option<i64>,
}

impl Mounted {
    pub(super) fn folder(path: &Path, read_only: bool, relabel: bool) -> Self {
        let source = VolumeSource::Directory(path.to_string_lossy().into_owned());
        Self { volume: MountedVolume { source, read_only, relabel }, group: None }
    }
}

/// Why a volume could not be set up, in the words to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub at: Stage,
    pub text: String,
}

/// How far it came; the message says so in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Finding out what it is.
    Processing,
    /// Putting it in place; with its name, where that is not the pod's name for it.
    SetUp(Option<String>),
}

impl Problem {
    pub(super) fn set_up(text: impl Into<String>) -> Self {
        Self { at: Stage::SetUp(None), text: text.into() }
    }

    pub(super) fn processing(text: impl Into<String>) -> Self {
        Self { at: Stage::Processing, text: text.into() }
    }
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Self {
        Self::set_up(chain(&error))
    }
}

impl From<MountError> for Problem {
    fn from(error: MountError) -> Self {
        Self::set_up(chain(&error))
    }
}

/// A pod's folder.
pub(crate) struct PodFolder(pub Root);

impl PodFolder {
    /// The folder of one volume, made if it is missing; only its own mode is `mode`.
    pub(super) fn volume(&self, plugin: &str, name: &str, mode: u32) -> Result<PathBuf, FileError> {
        let of_kind = Path::new("volumes").join(plugin);
        self.0.create_dir_all(&of_kind, super::FOLDER_MODE)?;
        let relative = of_kind.join(name);
        match self.0.create_dir(&relative, mode) {
            Ok(()) => {}
            Err(error) if error.is_already_there() => {}
            Err(error) => return Err(error),
        }
        Ok(self.0.path().join(relative))
    }
}
