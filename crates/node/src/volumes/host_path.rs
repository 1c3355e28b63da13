//! A path of the node itself, used where it is.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use super::{Kind, Place};

pub(super) struct HostPath;

impl Kind for HostPath {
    fn plugin(&self) -> &'static str {
        "kubernetes.io~host-path"
    }

    fn set_up(&self, place: &Place<'_>) -> Result<(), String> {
        let Some(source) = &place.volume.host_path else { return Ok(()) };
        let path = Path::new(&source.path);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(format!("hostPath {:?}: a path must not contain '..'", source.path));
        }
        check(path, source.type_.as_deref().unwrap_or_default())
    }

    fn data(&self, place: &Place<'_>) -> Option<PathBuf> {
        place.volume.host_path.as_ref().map(|source| PathBuf::from(&source.path))
    }
}

/// Upstream's checks; the two kinds that may create do so first.
fn check(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let created = match kind {
        "DirectoryOrCreate" => {
            create(path, |p| fs::create_dir_all(p).and_then(|()| mode(p, 0o755)))
        }
        "FileOrCreate" => create(path, |p| fs::write(p, "").and_then(|()| mode(p, 0o644))),
        _ => Ok(()),
    };
    created.map_err(|error| format!("hostPath {shown}: cannot create it: {error}"))?;
    let found = fs::metadata(path).map(|metadata| metadata.file_type()).ok();
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

fn create(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    if path.try_exists()? { Ok(()) } else { make(path) }
}

/// Whatever our umask is.
fn mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_does_not_fit_is_refused_and_nothing_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, missing) = (folder.path().join("dir"), folder.path().join("missing"));
        fs::create_dir(&dir).unwrap();
        let error = check(&dir, "File").unwrap_err();
        assert_eq!(error, format!("hostPath type check failed: {} is not a file", dir.display()));
        assert!(check(&missing, "Directory").unwrap_err().ends_with("is not a directory"));
        assert!(!missing.exists());
        assert_eq!(check(&missing, ""), Ok(()), "an empty type is not checked");
        assert_eq!(check(&missing, "DirectoryOrCreate"), Ok(()));
        assert!(missing.is_dir());
    }

    #[test]
    fn a_dangling_link_is_not_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/nowhere/at/all", &link).unwrap();
        assert!(check(&link, "Directory").is_err());
    }
}
