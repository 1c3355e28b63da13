//! Persistent volumes, by way of a claim: directories of this node that outlive the pod.

use std::path::{Component, Path};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::pod::Pod;
use podwright_core::volume::claim::{self, BoundVolume, ClaimRef, VolumeLocation};
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::teardown::{self, Mounts, Plugin};
use podwright_host::files::{Durability, Kind as FileKind, Root};
use podwright_host::mounts::{self, InUse, Propagation};

use super::volume_type::{
    FailurePhase, Mounted, PodDirectory, Prepared, VolumeProblem, VolumeRequest, VolumeType,
};
use super::{DIRECTORY_MODE, host_path};

const LOCAL: &str = "kubernetes.io~local-volume";
const MODE: u32 = 0o750;
/// Has an entry for each container that was created.
const CONTAINERS: &str = "containers";
/// Plugin of the record that a claim's directory was set up for this pod.
const DIRECTORY: &str = "podwright~claim-directory";

pub(super) struct Claim;

impl VolumeType for Claim {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: LOCAL, mounts: Mounts::Bind }]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        async move {
            let bound = resolve(request).await?;
            let pod = request.pod.clone();
            Ok(Prepared::lasting(move |directory| {
                let name = bound.name.clone();
                set_up(directory, &bound, &pod).map_err(|problem| VolumeProblem {
                    at: FailurePhase::SetUp(Some(name)),
                    ..problem
                })
            }))
        }
        .boxed()
    }
}

/// Both objects are read on each attempt, because the binding may have been undone.
async fn resolve(request: VolumeRequest<'_>) -> Result<BoundVolume, VolumeProblem> {
    let VolumeRequest { pod, volume, sources, .. } = request;
    let Some(wanted) = ClaimRef::of(pod, volume) else {
        return Err(VolumeProblem::processing("the volume names no claim"));
    };
    let problem = |text: String| {
        let claim = &wanted.name;
        VolumeProblem::processing(format!(
            "error processing PVC {}/{claim}: {text}",
            pod.name.namespace
        ))
    };
    let objects = &sources.objects;
    let claim = objects.claim(pod, &wanted.name).await;
    let claim =
        claim.map_err(|error| problem(format!("failed to fetch PVC from API server: {error}")))?;
    let name =
        claim::volume_of(pod, &wanted, &claim).map_err(|error| problem(error.to_string()))?;
    let persistent = objects.persistent_volume(&name).await;
    let persistent = persistent
        .map_err(|error| problem(format!("failed to fetch PV {name} from API server: {error}")))?;
    let node = objects.node().await;
    let node = node.map_err(|error| problem(format!("cannot read the Node object: {error}")))?;
    claim::resolve(pod, volume, &wanted, &claim, &persistent, &node)
        .map_err(|error| problem(error.to_string()))
}

fn set_up(
    directory: &PodDirectory,
    bound: &BoundVolume,
    pod: &Arc<Pod>,
) -> Result<Mounted, VolumeProblem> {
    let mounted = match &bound.location {
        VolumeLocation::HostPath { path, kind } => host_path::set_up(path, kind, bound.read_only)?,
        VolumeLocation::Local { path } => bind(directory, bound, Path::new(path), pod)?,
        VolumeLocation::ClaimDirectory { path } => {
            let mounted = host_path::set_up(path, "DirectoryOrCreate", bound.read_only)?;
            set_up_directory(directory, bound, Path::new(path), pod)?;
            mounted
        }
    };
    Ok(Mounted { group: bound.group, ..mounted })
}

/// Gives the pod access to a directory that this node made, once for each pod: afterwards owners
/// and modes are its containers' business.
fn set_up_directory(
    directory: &PodDirectory,
    bound: &BoundVolume,
    path: &Path,
    pod: &Pod,
) -> Result<(), VolumeProblem> {
    let record = teardown::record(DIRECTORY, &bound.name);
    if directory.0.kind(&record)?.is_some() {
        return Ok(());
    }
    // A pod that ran under an earlier build has no record, and uses its files already.
    let has_run =
        directory.0.kind(CONTAINERS)?.is_some() && !directory.0.list(CONTAINERS)?.is_empty();
    if !has_run {
        let root = Root::open(path)?;
        let made = root.ownership()?;
        if ownership::is_closed(made.user, made.group, made.mode)
            && is_in_private_directory(path)?
            && root.list("")?.is_empty()
        {
            root.set_own_mode(ownership::OPEN_MODE)?;
        }
        give_to_pod(&root, bound, pod)?;
    }
    directory.0.create_dir_all(record.parent().unwrap_or(&record), DIRECTORY_MODE)?;
    directory.0.write_atomic(&record, b"", 0o640, Durability::Cache)?;
    Ok(())
}

fn is_in_private_directory(path: &Path) -> Result<bool, VolumeProblem> {
    let Some(parent) = path.parent() else { return Ok(false) };
    // A user may have put a link to another disk there: its target counts.
    let above = Root::open(parent)?.ownership()?;
    Ok(ownership::is_private(above.user, above.mode))
}

/// Changes the group of the volume's files to that of the pod, if it has one.
fn give_to_pod(root: &Root, bound: &BoundVolume, pod: &Pod) -> Result<(), VolumeProblem> {
    let Some(group) = ownership::fs_group(pod).filter(|_| !bound.read_only) else { return Ok(()) };
    let (now, access) = (root.ownership()?, Access::ReadWrite);
    if ownership::needs_walk(pod, group, now.group, now.mode, access) {
        root.give_to_group(group, |kind, mode| {
            ownership::group_mode(kind == FileKind::Directory, mode, access)
        })?;
    }
    Ok(())
}

fn bind(
    directory: &PodDirectory,
    bound: &BoundVolume,
    source: &Path,
    pod: &Pod,
) -> Result<Mounted, VolumeProblem> {
    if source.components().any(|part| part == Component::ParentDir) || !source.is_absolute() {
        let shown = source.display();
        return Err(VolumeProblem::set_up(format!(
            "invalid path {shown}: must be absolute and must not contain '..'"
        )));
    }
    let target = directory.volume(LOCAL, &bound.name, MODE)?;
    let mounted = Mounted::directory(&target).read_only(bound.read_only);
    if mounts::is_mount_point(&target)? {
        // Already bound, but perhaps by a process that ended before the read-only remount.
        if bound.read_only {
            mounts::remount_read_only(&target)?;
        }
        return Ok(mounted);
    }
    // Kept open, so that the checked directory is the one that is bound.
    let root = Root::open(source)?;
    give_to_pod(&root, bound, pod)?;
    // A container started later may request `Bidirectional` propagation.
    mounts::bind_pinned(&root, &target, Propagation::Both)?;
    if bound.read_only
        && let Err(error) = mounts::remount_read_only(&target)
    {
        // A missing mount is safer than a writable one.
        mounts::detach_own(&target, InUse::Detach)?;
        return Err(error.into());
    }
    Ok(mounted)
}
