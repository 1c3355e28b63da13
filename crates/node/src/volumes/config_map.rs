//! The keys of a ConfigMap as files.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::{Mounts, Plugin};

use super::content::{self, Keep};
use super::kind::{Ask, Kind, Prepared, Problem};

const PLUGIN: &str = "kubernetes.io~configmap";

pub(super) struct ConfigMap;

impl Kind for ConfigMap {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.config_map.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::Nothing }]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        content::prepare(ask, PLUGIN, Keep::OnDisk)
    }
}
