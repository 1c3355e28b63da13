//! Volumes whose files come from objects: written as one, and never half.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;
use podwright_core::pod::Pod;
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::payload::Payload;
use podwright_core::volume::{medium, nested, sources};
use podwright_host::files::{Kind as FileKind, NewFile, Root};

use super::kind::{Ask, Mounted, PodFolder, Prepared, Problem};
use super::memory;

const MODE: u32 = 0o777;
const NESTED_MODE: u32 = 0o755;

/// Where the files are kept.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    OnDisk,
    /// Secrets never touch a disk.
    InMemory,
}

pub(super) fn prepare<'a>(
    ask: Ask<'a>,
    plugin: &'static str,
    keep: Keep,
) -> BoxFuture<'a, Result<Prepared, Problem>> {
    async move {
        let Ask { pod, volume, sources: from, tokens } = ask;
        let wanted = sources::wanted(pod, volume);
        let mut fetched = from.objects.fetch_wanted(pod, &wanted).await;
        let renew_at = tokens.fetch(ask, &wanted.tokens, &mut fetched).await;
        let payload = sources::payload(pod, volume, &from.allocatable, &fetched)
            .map_err(|error| Problem::set_up(error.to_string()))?;
        let size = medium::memory(pod, None, &from.allocatable)
            .map_err(|error| Problem::set_up(error.to_string()))?;
        let stamp = stamp(from.clock.now().wall);
        let (pod, name) = (pod.clone(), volume.name.clone());
        let act = move |folder: &PodFolder| {
            let path = folder.volume(plugin, &name, MODE)?;
            match keep {
                Keep::OnDisk => {}
                Keep::InMemory => memory::mount(&path, size)?,
            }
            let root = Root::open(&path)?;
            for inner in nested::mount_points(&pod, &name) {
                root.create_dir_all(inner, NESTED_MODE)?;
            }
            write(&root, &payload, &stamp, &pod)?;
            Ok(Mounted::folder(&path, true, true))
        };
        Ok(Prepared { follows: true, renew_at, act: Box::new(act) })
    }
    .boxed()
}

fn write(root: &Root, payload: &Payload, stamp: &str, pod: &Pod) -> Result<(), Problem> {
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

/// Different for each edition; upstream's form.
fn stamp(now: jiff::Timestamp) -> String {
    let date = jiff::tz::TimeZone::UTC.to_datetime(now);
    let (y, mo, d, h, mi, s) =
        (date.year(), date.month(), date.day(), date.hour(), date.minute(), date.second());
    format!("{y:04}_{mo:02}_{d:02}_{h:02}_{mi:02}_{s:02}.{:09}", date.subsec_nanosecond())
}
