//! hostPath volumes: a path of the node, mounted as it is.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::Plugin;

use super::volume_type::{Mounted, Prepared, VolumeProblem, VolumeRequest, VolumeType};

pub(super) struct HostPath;

impl VolumeType for HostPath {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.host_path.is_some()
    }

    /// Nothing is mounted for a hostPath.
    fn plugins(&self) -> &'static [Plugin] {
        &[]
    }

    fn prepare<'a>(
        &'a self,
        request: VolumeRequest<'a>,
    ) -> BoxFuture<'a, Result<Prepared, VolumeProblem>> {
        async move {
            let (path, kind) = match &request.volume.host_path {
                Some(source) => (source.path.clone(), source.type_.clone().unwrap_or_default()),
                None => return Err(VolumeProblem::processing("the volume has no hostPath")),
            };
            Ok(Prepared::lasting(move |_| set_up(&path, &kind, false)))
        }
        .boxed()
    }
}

pub(super) fn set_up(path: &str, kind: &str, read_only: bool) -> Result<Mounted, VolumeProblem> {
    let directory = Path::new(path);
    if directory.components().any(|part| part == Component::ParentDir) {
        return Err(VolumeProblem::set_up(format!(
            "invalid HostPath `{path}`: must not contain '..'"
        )));
    }
    check(directory, kind).map_err(VolumeProblem::set_up)?;
    Ok(Mounted::directory(directory).read_only(read_only).with_its_labels())
}

/// Upstream's checks; the two types that may create the path do so first.
fn check(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let created = match kind {
        "DirectoryOrCreate" => create(path, make_directory),
        "FileOrCreate" => create(path, make_file),
        _ => Ok(()),
    };
    created.map_err(|error| format!("cannot create the hostPath {shown}: {error}"))?;
    // Symbolic links are followed: the path is the node's own.
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) if kind.is_empty() => None,
        Err(error) => return Err(format!("cannot stat the hostPath {shown}: {error}")),
    };
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, wanted) = match kind {
        "" => return Ok(()),
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(fs::FileType::is_socket), "socket file"),
        "CharDevice" => (is(fs::FileType::is_char_device), "character device"),
        "BlockDevice" => (is(fs::FileType::is_block_device), "block device"),
        other => return Err(format!("unknown hostPath type {other:?}")),
    };
    if fits {
        Ok(())
    } else {
        Err(format!("hostPath type check failed: {shown} is not a {wanted}"))
    }
}

fn create(path: &Path, make: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    if path.try_exists()? { Ok(()) } else { make(path) }
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// `create_new` does not follow a dangling symbolic link, so no file is made elsewhere.
fn make_file(path: &Path) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatched_type_is_rejected_and_creates_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, missing) = (directory.path().join("dir"), directory.path().join("missing"));
        fs::create_dir(&dir).unwrap();
        let error = check(&dir, "File").unwrap_err();
        assert_eq!(error, format!("hostPath type check failed: {} is not a file", dir.display()));
        for kind in ["Directory", "File", "Socket", "CharDevice", "BlockDevice"] {
            assert!(check(&missing, kind).unwrap_err().contains("is not a "), "{kind}");
        }
        assert!(!missing.exists());
        assert_eq!(check(&missing, ""), Ok(()), "an empty type is not checked");
        assert_eq!(check(&missing, "DirectoryOrCreate"), Ok(()));
        assert!(missing.is_dir());
        check(&missing, "Tape").unwrap_err();
    }

    #[test]
    fn every_type_accepts_what_it_names() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let file = directory.path().join("file");
        for (path, kind) in [
            (file.as_path(), "FileOrCreate"),
            (&file, "File"),
            (&socket, "Socket"),
            (Path::new("/dev/null"), "CharDevice"),
            (directory.path(), "Directory"),
        ] {
            assert_eq!(check(path, kind), Ok(()), "{kind}");
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let deep = directory.path().join("no/such/folder/file");
        check(&deep, "FileOrCreate").unwrap_err();
        assert!(!directory.path().join("no").exists(), "no parent directories for a file");
    }

    #[test]
    fn dangling_symlink_is_rejected_and_creates_no_target() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link"), directory.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for kind in ["Directory", "DirectoryOrCreate", "File", "FileOrCreate"] {
            check(&link, kind).unwrap_err();
            assert!(!target.exists(), "{kind}");
        }
    }

    #[test]
    fn path_with_parent_component_is_rejected() {
        let problem = set_up("/var/../etc", "", false).unwrap_err();
        assert_eq!(problem.text, "invalid HostPath `/var/../etc`: must not contain '..'");
    }
}
