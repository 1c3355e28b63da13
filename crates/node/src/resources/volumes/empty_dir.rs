//! emptyDir volumes: a directory with the lifetime of the pod, on disk or in memory.

use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::medium::{self, Medium};
use podwright_core::volume::ownership::{self, Access};
use podwright_core::volume::teardown::{self, Mounts, Plugin};
use podwright_host::files::{Durability, FileError, Kind as FileKind, Root};
use podwright_host::mounts;

use super::volume_type::{
    Mounted, PodDirectory, Prepared, VolumeProblem, VolumeRequest, VolumeType,
};
use super::{DIRECTORY_MODE, memory};

const PLUGIN: &str = "kubernetes.io~empty-dir";
const MODE: u32 = 0o777;
/// Upper bound on the size of a record.
pub(super) const RECORD: u64 = 64;

pub(super) struct EmptyDir;

impl VolumeType for EmptyDir {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.empty_dir.is_some()
    }

    fn plugins(&self) -> &'static [Plugin] {
        &[Plugin { name: PLUGIN, mounts: Mounts::ByMedium }]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        async move {
            let none = v1::EmptyDirVolumeSource::default();
            let source = request.volume.empty_dir.as_ref().unwrap_or(&none);
            let medium = medium::of_empty_dir(request.pod, source, &request.sources.allocatable)
                .map_err(|error| VolumeProblem::set_up(error.to_string()))?;
            let (group, name) = (ownership::fs_group(request.pod), request.volume.name.clone());
            Ok(Prepared::lasting(move |directory| set_up(directory, &name, medium, group)))
        }
        .boxed()
    }
}

fn set_up(
    directory: &PodDirectory,
    name: &str,
    medium: Medium,
    group: Option<u32>,
) -> Result<Mounted, VolumeProblem> {
    let path = directory.volume(PLUGIN, name, MODE)?;
    let mounted = Mounted::directory(&path);
    let marker = teardown::record(PLUGIN, name);
    let in_place = match medium {
        Medium::Disk => true,
        Medium::Memory { .. } | Medium::HugePages { .. } => mounts::is_mount_point(&path)?,
    };
    // Already set up; its content belongs to the containers.
    if in_place && directory.0.kind(&marker)?.is_some() {
        // An earlier build and upstream leave the record empty.
        let recorded = directory.0.read(&marker, RECORD).ok();
        if recorded.as_deref() != Some(medium.record().as_bytes()) {
            write_record(directory, &marker, medium)?;
        }
        return Ok(mounted);
    }
    match medium {
        // An agent that ended between making the directory and setting its mode left it closed.
        Medium::Disk => Root::open(&path)?.set_own_mode(MODE)?,
        Medium::Memory { size } => memory::mount(&path, size)?,
        Medium::HugePages { page } => memory::mount_huge_pages(&path, page)?,
    }
    if let Some(group) = group {
        let mode = |kind, mode| {
            ownership::group_mode(kind == FileKind::Directory, mode, Access::ReadWrite)
        };
        Root::open(&path)?.give_to_group(group, mode)?;
    }
    directory.0.create_dir_all(marker.parent().unwrap_or(&marker), DIRECTORY_MODE)?;
    write_record(directory, &marker, medium)?;
    Ok(mounted)
}

fn write_record(directory: &PodDirectory, marker: &Path, medium: Medium) -> Result<(), FileError> {
    directory.0.write_atomic(marker, medium.record().as_bytes(), 0o640, Durability::Cache)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directory_left_without_its_mode_gets_it_until_it_is_set_up() {
        let temp = tempfile::tempdir().unwrap();
        let directory = PodDirectory(Root::open(temp.path()).unwrap());
        let path = temp.path().join("volumes").join(PLUGIN).join("v");
        std::fs::create_dir_all(&path).unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        set(0o700);
        set_up(&directory, "v", Medium::Disk, None).unwrap();
        assert_eq!(mode(), MODE);
        // From then on the mode is its containers' business.
        set(0o750);
        set_up(&directory, "v", Medium::Disk, None).unwrap();
        assert_eq!(mode(), 0o750);
    }
}
