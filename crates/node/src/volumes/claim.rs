//! Persistent volumes, by way of a claim: folders of this node that outlive the pod.

use std::path::{Component, Path};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::pod::Pod;
use podwright_core::volume::claim::{self, Bound, ClaimRef, Place};
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::teardown::{Mounts, Plugin};
use podwright_host::files::{Kind as FileKind, Root};
use podwright_host::mounts::{self, InUse, Propagation};

use super::host_path;
use super::kind::{Ask, Kind, Mounted, PodFolder, Prepared, Problem, Stage};

const LOCAL: &str = "kubernetes.io~local-volume";
const MODE: u32 = 0o750;

pub(super) struct Claim;

impl Kind for Claim {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: LOCAL, mounts: Mounts::Bind }]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        async move {
            let bound = resolve(ask).await?;
            let pod = ask.pod.clone();
            Ok(Prepared::lasting(move |folder| {
                let name = bound.name.clone();
                set_up(folder, &bound, &pod)
                    .map_err(|problem| Problem { at: Stage::SetUp(Some(name)), ..problem })
            }))
        }
        .boxed()
    }
}

/// Both sides are read anew each time: a binding may have been undone.
async fn resolve(ask: Ask<'_>) -> Result<Bound, Problem> {
    let Ask { pod, volume, sources, .. } = ask;
    let Some(wanted) = ClaimRef::of(pod, volume) else {
        return Err(Problem::processing("it names no claim"));
    };
    let problem = |text: String| {
        let claim = &wanted.name;
        Problem::processing(format!("error processing PVC {}/{claim}: {text}", pod.name.namespace))
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
    let node = node.map_err(|error| problem(format!("cannot read this node: {error}")))?;
    claim::resolve(pod, volume, &wanted, &claim, &persistent, &node)
        .map_err(|error| problem(error.to_string()))
}

fn set_up(folder: &PodFolder, bound: &Bound, pod: &Arc<Pod>) -> Result<Mounted, Problem> {
    let mounted = match &bound.place {
        Place::HostPath { path, kind } => host_path::set_up(path, kind, bound.read_only)?,
        Place::Local { path } => bind(folder, bound, Path::new(path), pod)?,
    };
    Ok(Mounted { group: bound.group, ..mounted })
}

fn bind(folder: &PodFolder, bound: &Bound, source: &Path, pod: &Pod) -> Result<Mounted, Problem> {
    if source.components().any(|part| part == Component::ParentDir) || !source.is_absolute() {
        let shown = source.display();
        return Err(Problem::set_up(format!(
            "invalid path {shown}: must be absolute and must not contain '..'"
        )));
    }
    let target = folder.volume(LOCAL, &bound.name, MODE)?;
    let mounted = Mounted::folder(&target, bound.read_only, true);
    if mounts::is_mount_point(&target)? {
        // Done before; but perhaps by a process that ended before it was read-only.
        if bound.read_only {
            mounts::remount_read_only(&target)?;
        }
        return Ok(mounted);
    }
    // Held while it is looked at and bound: it is the same folder both times.
    let root = Root::open(source)?;
    if let Some(group) = ownership::fs_group(pod)
        && !bound.read_only
    {
        let access = Access::ReadWrite;
        let now = root.ownership()?;
        if ownership::needs_walk(pod, group, now.group, now.mode, access) {
            root.give_to_group(group, |kind, mode| {
                ownership::group_mode(kind == FileKind::Directory, mode, access)
            })?;
        }
    }
    // A container that comes later may ask for `Bidirectional`.
    mounts::bind_pinned(&root, &target, Propagation::Both)?;
    if bound.read_only
        && let Err(error) = mounts::remount_read_only(&target)
    {
        // Better none than one that can be written to.
        mounts::detach_own(&target, InUse::Detach)?;
        return Err(error.into());
    }
    Ok(mounted)
}
