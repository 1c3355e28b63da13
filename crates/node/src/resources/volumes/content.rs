//! Volume types whose files come from API objects: ConfigMaps, Secrets, the downward API and
//! projections of these. The files are replaced atomically.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::pod::Pod;
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::payload::Payload;
use podwright_core::volume::teardown::{Mounts, Plugin};
use podwright_core::volume::{medium, nested, sources};
use podwright_host::files::{CURRENT, Kind as FileKind, NewFile, Root};

use super::memory;
use super::volume_type::{
    Mounted, PodDirectory, Prepared, VolumeProblem, VolumeRequest, VolumeType,
};

const MODE: u32 = 0o777;
const NESTED_MODE: u32 = 0o755;

/// A volume type whose files come from API objects or fields of the pod.
pub(super) struct ContentVolume {
    covers: fn(&v1::Volume) -> bool,
    plugin: &'static [Plugin; 1],
}

/// The keys of a ConfigMap.
pub(super) const CONFIG_MAP: ContentVolume = ContentVolume {
    covers: |volume| volume.config_map.is_some(),
    plugin: &[Plugin { name: "kubernetes.io~configmap", mounts: Mounts::Nothing }],
};

/// The keys of a Secret, which are never written to a disk.
pub(super) const SECRET: ContentVolume = ContentVolume {
    covers: |volume| volume.secret.is_some(),
    plugin: &[Plugin { name: "kubernetes.io~secret", mounts: Mounts::Memory }],
};

/// Fields of the pod.
pub(super) const DOWNWARD_API: ContentVolume = ContentVolume {
    covers: |volume| volume.downward_api.is_some(),
    plugin: &[Plugin { name: "kubernetes.io~downward-api", mounts: Mounts::Memory }],
};

/// Several sources in one directory, such as the service account token.
pub(super) const PROJECTED: ContentVolume = ContentVolume {
    covers: |volume| volume.projected.is_some(),
    plugin: &[Plugin { name: "kubernetes.io~projected", mounts: Mounts::Memory }],
};

impl VolumeType for ContentVolume {
    fn covers(&self, volume: &v1::Volume) -> bool {
        (self.covers)(volume)
    }

    fn plugins(&self) -> &'static [Plugin] {
        self.plugin
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        let [plugin] = self.plugin;
        prepare(request, plugin)
    }
}

fn prepare<'a>(
    request: VolumeRequest<'a>,
    plugin: &'static Plugin,
) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
    let in_memory = match plugin.mounts {
        Mounts::Memory => true,
        Mounts::Nothing | Mounts::ByMedium | Mounts::Bind => false,
    };
    async move {
        let VolumeRequest { pod, volume, sources: from, tokens } = request;
        let wanted = sources::wanted(pod, volume);
        let mut fetched = from.objects.fetch_wanted(pod, &wanted).await;
        let renew_at = tokens.fetch(request, &wanted.tokens, &mut fetched).await;
        let payload = sources::payload(pod, volume, &from.allocatable, &fetched)
            .map_err(|error| VolumeProblem::set_up(error.to_string()))?;
        let size = medium::memory(pod, None, &from.allocatable)
            .map_err(|error| VolumeProblem::set_up(error.to_string()))?;
        let stamp = stamp(from.clock.now().wall);
        let (pod, name) = (pod.clone(), volume.name.clone());
        let set_up = move |directory: &PodDirectory| {
            let path = directory.volume(plugin.name, &name, MODE)?;
            if in_memory {
                memory::mount(&path, size)?;
            }
            let root = Root::open(&path)?;
            if root.kind(CURRENT)?.is_none() && !in_memory {
                // An agent that ended before it set the mode left the directory closed.
                root.set_own_mode(MODE)?;
            }
            for inner in nested::mount_points(&pod, &name) {
                root.create_dir_all(inner, NESTED_MODE)?;
            }
            write(&root, &payload, &stamp, &pod)?;
            Ok(Mounted::directory(&path).read_only(true))
        };
        Ok(Prepared { follows: true, renew_at, set_up: Box::new(set_up) })
    }
    .boxed()
}

fn write(root: &Root, payload: &Payload, stamp: &str, pod: &Pod) -> Result<(), VolumeProblem> {
    let files: BTreeMap<PathBuf, NewFile<'_>> = payload
        .files()
        .map(|(path, file)| {
            let new = NewFile { bytes: &file.bytes, mode: file.mode, owner: file.owner };
            (Path::new(path).to_owned(), new)
        })
        .collect();
    let group = ownership::fs_group(pod);
    let mode =
        |kind, mode| ownership::group_mode(kind == FileKind::Directory, mode, Access::ReadOnly);
    root.publish(&files, stamp, |edition| match group {
        Some(group) => edition.give_to_group(group, mode),
        None => Ok(()),
    })?;
    if let Some(group) = group {
        root.give_itself_to_group(group, mode)?;
    }
    Ok(())
}

/// Unique name of one version of the content, in upstream's format.
fn stamp(now: jiff::Timestamp) -> String {
    let date = jiff::tz::TimeZone::UTC.to_datetime(now);
    let (y, mo, d, h, mi, s) =
        (date.year(), date.month(), date.day(), date.hour(), date.minute(), date.second());
    format!("{y:04}_{mo:02}_{d:02}_{h:02}_{mi:02}_{s:02}.{:09}", date.subsec_nanosecond())
}
