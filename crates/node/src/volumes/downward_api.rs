//! What a pod may know about itself, as files.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::{Mounts, Plugin};

use super::content::{self, Keep};
use super::kind::{Ask, Kind, Prepared, Problem};

const PLUGIN: &str = "kubernetes.io~downward-api";

pub(super) struct DownwardApi;

impl Kind for DownwardApi {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::Memory }]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        content::prepare(ask, PLUGIN, Keep::InMemory)
    }
}
