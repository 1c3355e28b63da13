//! A folder that lives as long as the pod, on disk or in memory.

use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::medium::{self, Medium};
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::teardown::{self, Mounts, Plugin};
use podwright_host::files::{Durability, FileError, Kind as FileKind, Root};
use podwright_host::mounts;

use super::kind::{Ask, Kind, Mounted, PodFolder, Prepared, Problem};
use super::{FOLDER_MODE, memory};

const PLUGIN: &str = "kubernetes.io~empty-dir";
const MODE: u32 = 0o777;
/// More than any record holds.
pub(super) const RECORD: u64 = 64;

pub(super) struct EmptyDir;

impl Kind for EmptyDir {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.empty_dir.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::ByMedium }]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        async move {
            let none = v1::EmptyDirVolumeSource::default();
            let source = ask.volume.empty_dir.as_ref().unwrap_or(&none);
            let medium = medium::of_empty_dir(ask.pod, source, &ask.sources.allocatable)
                .map_err(|error| Problem::set_up(error.to_string()))?;
            let (group, name) = (ownership::fs_group(ask.pod), ask.volume.name.clone());
            Ok(Prepared::lasting(move |folder| set_up(folder, &name, medium, group)))
        }
        .boxed()
    }
}

fn set_up(
    folder: &PodFolder,
    name: &str,
    medium: Medium,
    group: Option<u32>,
) -> Result<Mounted, Problem> {
    let path = folder.volume(PLUGIN, name, MODE)?;
    let mounted = Mounted::folder(&path, false, true);
    let marker = teardown::record(PLUGIN, name);
    let in_place = match medium {
        Medium::Disk => true,
        Medium::Memory { .. } | Medium::HugePages { .. } => mounts::is_mount_point(&path)?,
    };
    // Done before: what its containers made of it since is theirs.
    if in_place && folder.0.kind(&marker)?.is_some() {
        // An earlier build, or upstream, left it empty.
        let recorded = folder.0.read(&marker, RECORD).ok();
        if recorded.as_deref() != Some(medium.record().as_bytes()) {
            write_record(folder, &marker, medium)?;
        }
        return Ok(mounted);
    }
    match medium {
        Medium::Disk => {}
        Medium::Memory { size } => memory::mount(&path, size)?,
        Medium::HugePages { page } => memory::mount_huge_pages(&path, page)?,
    }
    if let Some(group) = group {
        let mode = |kind, mode| {
            ownership::group_mode(kind == FileKind::Directory, mode, Access::ReadWrite)
        };
        Root::open(&path)?.give_to_group(group, mode)?;
    }
    folder.0.create_dir_all(marker.parent().unwrap_or(&marker), FOLDER_MODE)?;
    write_record(folder, &marker, medium)?;
    Ok(mounted)
}

fn write_record(folder: &PodFolder, marker: &Path, medium: Medium) -> Result<(), FileError> {
    folder.0.write_atomic(marker, medium.record().as_bytes(), 0o640, Durability::Cache)
}
