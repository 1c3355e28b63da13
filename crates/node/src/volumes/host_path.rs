//! A path of the node itself, used where it is.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use podwright_core::volume::teardown::Plugin;

use super::kind::{Ask, Kind, Mounted, Prepared, Problem};

pub(super) struct HostPath;

impl Kind for HostPath {
    fn covers(&self, volume: &v1::Volume) -> bool {
        volume.host_path.is_some()
    }

    /// Nothing is mounted for it.
    fn plugins(&self) -> &'static [Plugin] {
        &[]
    }

    fn prepare<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Prepared, Problem>> {
        async move {
            let (path, kind) = match &ask.volume.host_path {
                Some(source) => (source.path.clone(), source.type_.clone().unwrap_or_default()),
                None => return Err(Problem::processing("it has no hostPath")),
            };
            Ok(Prepared::lasting(move |_| set_up(&path, &kind, false)))
        }
        .boxed()
    }
}

pub(super) fn set_up(path: &str, kind: &str, read_only: bool) -> Result<Mounted, Problem> {
    let folder = Path::new(path);
    if folder.components().any(|part| part == Component::ParentDir) {
        return Err(Problem::set_up(format!("invalid HostPath `{path}`: must not contain '..'")));
    }
    check(folder, kind).map_err(Problem::set_up)?;
    Ok(Mounted::folder(folder, read_only, false))
}

/// Upstream's checks; the two kinds that may create do so first.
fn check(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let created = match kind {
        "DirectoryOrCreate" => create(path, make_folder),
        "FileOrCreate" => create(path, make_file),
        _ => Ok(()),
    };
    created.map_err(|error| format!("cannot create the hostPath {shown}: {error}"))?;
    // Links are followed: the path is the node's own.
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) if kind.is_empty() => None,
        Err(error) => return Err(format!("cannot look at the hostPath {shown}: {error}")),
    };
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, wanted) = match kind {
        "" => return Ok(()),
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(fs::FileType::is_socket), "socket file"),
        "CharDevice" => (is(fs::FileType::is_char_device), "character device"),
        "BlockDevice" => (is(fs::FileType::is_block_device), "block device"),
        other => return Err(format!("hostPath type {other:?} is not known")),
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

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A link that leads nowhere is not followed to make a file elsewhere.
fn make_file(path: &Path) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_35_a_type_that_does_not_fit_is_refused_and_nothing_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, missing) = (folder.path().join("dir"), folder.path().join("missing"));
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
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let file = folder.path().join("file");
        for (path, kind) in [
            (file.as_path(), "FileOrCreate"),
            (&file, "File"),
            (&socket, "Socket"),
            (Path::new("/dev/null"), "CharDevice"),
            (folder.path(), "Directory"),
        ] {
            assert_eq!(check(path, kind), Ok(()), "{kind}");
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let deep = folder.path().join("no/such/folder/file");
        check(&deep, "FileOrCreate").unwrap_err();
        assert!(!folder.path().join("no").exists(), "no folders are made for a file");
    }

    #[test]
    fn a_dangling_link_is_neither_a_folder_nor_a_way_to_make_a_file_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for kind in ["Directory", "DirectoryOrCreate", "File", "FileOrCreate"] {
            check(&link, kind).unwrap_err();
            assert!(!target.exists(), "{kind}");
        }
    }

    #[test]
    fn a_path_that_steps_up_is_refused() {
        let problem = set_up("/var/../etc", "", false).unwrap_err();
        assert_eq!(problem.text, "invalid HostPath `/var/../etc`: must not contain '..'");
    }
}
