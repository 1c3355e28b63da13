//! Volumes whose files come from API objects; their files are replaced atomically.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;
use podwright_core::pod::Pod;
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::payload::Payload;
use podwright_core::volume::{medium, nested, sources};
use podwright_host::files::{CURRENT, Kind as FileKind, NewFile, Root};

use super::memory;
use super::volume_type::{Mounted, PodDirectory, Prepared, VolumeProblem, VolumeRequest};

const MODE: u32 = 0o777;
const NESTED_MODE: u32 = 0o755;

/// Storage medium of the files.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    OnDisk,
    /// Secrets are never written to a disk.
    InMemory,
}

pub(super) fn prepare<'a>(
    request: VolumeRequest<'a>,
    plugin: &'static str,
    keep: Keep,
) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
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
            let path = directory.volume(plugin, &name, MODE)?;
            match keep {
                Keep::OnDisk => {}
                Keep::InMemory => memory::mount(&path, size)?,
            }
            let root = Root::open(&path)?;
            if root.kind(CURRENT)?.is_none() && matches!(keep, Keep::OnDisk) {
                // An agent that ended before it set the mode left the directory closed.
                root.set_own_mode(MODE)?;
            }
            for inner in nested::mount_points(&pod, &name) {
                root.create_dir_all(inner, NESTED_MODE)?;
            }
            write(&root, &payload, &stamp, &pod)?;
            Ok(Mounted::directory(&path, true, true))
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
