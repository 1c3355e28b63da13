//! Secret volumes: the keys of a Secret as files, in memory only.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::{Mounts, Plugin};

use super::content::{self, Keep};
use super::volume_type::{Prepared, VolumeProblem, VolumeRequest, VolumeType};

const PLUGIN: &str = "kubernetes.io~secret";

pub(super) struct Secret;

impl VolumeType for Secret {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.secret.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::Memory }]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        content::prepare(request, PLUGIN, Keep::InMemory)
    }
}
