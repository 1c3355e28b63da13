//! Image volumes: the files of an image, mounted by the container runtime.
//!
//! The image is pulled when a container that mounts it is about to start, as that container's own
//! image is; see `worker/start.rs`. Nothing is done on this node before that.

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::config::MountedVolume;
use podwright_core::config::mounts::VolumeSource;
use podwright_core::volume::teardown::Plugin;

use super::volume_type::{Mounted, Prepared, VolumeProblem, VolumeRequest, VolumeType};

pub(super) struct Image;

impl VolumeType for Image {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.image.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        async move {
            let source = request.volume.image.as_ref();
            let reference = source.and_then(|source| source.reference.clone());
            let reference = reference.filter(|reference| !reference.is_empty());
            let reference =
                reference.ok_or_else(|| VolumeProblem::processing("the volume names no image"))?;
            let source =
                VolumeSource::Image { reference: reference.clone(), user_image: reference };
            let volume = MountedVolume { source, read_only: true, relabel: false };
            Ok(Prepared::lasting(move |_| Ok(Mounted { volume, group: None })))
        }
        .boxed()
    }
}
