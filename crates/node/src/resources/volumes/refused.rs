//! Volume types that this node rejects.

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::Plugin;

use super::volume_type::{Prepared, VolumeProblem, VolumeRequest, VolumeType};

pub(super) struct Refused;

impl VolumeType for Refused {
    fn covers(&self, volume: &v1::Volume) -> bool {
        reason(volume).is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        let text = reason(request.volume).unwrap_or_else(|| no_plugin("of no known kind"));
        futures::future::ready(Err(VolumeProblem::processing(text))).boxed()
    }
}

fn no_plugin(kind: &str) -> String {
    format!("no volume plugin matched: the volume is {kind}, which this node does not support")
}

fn reason(volume: &v1::Volume) -> Option<String> {
    if let Some(csi) = &volume.csi {
        let driver = &csi.driver;
        return Some(format!(
            "driver name {driver} not found in the list of registered CSI drivers"
        ));
    }
    if volume.git_repo.is_some() {
        return Some("git-repo volumes are disabled; clone in an init container".to_owned());
    }
    let kinds = [
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    kinds.into_iter().find(|(_, is)| *is).map(|(name, _)| no_plugin(name))
}
