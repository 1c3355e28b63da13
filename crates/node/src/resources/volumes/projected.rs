//! Projected volumes: several sources in one directory, such as the service account token.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::{Mounts, Plugin};

use super::content::{self, Keep};
use super::volume_type::{Prepared, VolumeProblem, VolumeRequest, VolumeType};

const PLUGIN: &str = "kubernetes.io~projected";

pub(super) struct Projected;

impl VolumeType for Projected {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.projected.is_some()
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
