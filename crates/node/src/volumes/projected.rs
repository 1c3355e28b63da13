//! Several sources in one folder; this is how a pod gets its token.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::{Mounts, Plugin};

use super::content::{self, Keep};
use super::kind::{Ask, Kind, Prepared, Problem};

const PLUGIN: &str = "kubernetes.io~projected";

pub(super) struct Projected;

impl Kind for Projected {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.projected.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::Memory }]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        content::prepare(ask, PLUGIN, Keep::InMemory)
    }
}
