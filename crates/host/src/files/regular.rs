//! Regular files in a directory that a container may be able to write to.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::change;

use super::{Durability, Links, Result, Root};

impl Root {
    /// Opens a regular file for reading without following links. Opening a device or a pipe can
    /// have side effects, so the file is pinned and its type checked before it is opened.
    pub fn open_regular(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_pinned(path.as_ref(), OFlags::RDONLY)
    }

    /// Overwrites a file without replacing it, because it is mounted in containers. Readers may see
    /// the end of the old content after the new one, but never an empty file.
    pub fn write_in_place(&self, path: impl AsRef<Path>, bytes: &[u8], mode: u32) -> Result<()> {
        let path = path.as_ref();
        let mut file = match self.open_pinned(path, OFlags::RDWR) {
            Err(error) if error.is_not_found() => {
                return self.write_atomic(path, bytes, mode, Durability::Cache);
            }
            file => file?,
        };
        let failed = |source| self.error("write", path, source);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut old = Vec::new();
        Read::by_ref(&mut file)
            .take(length.saturating_add(1))
            .read_to_end(&mut old)
            .map_err(failed)?;
        if old == bytes {
            return Ok(());
        }
        file.rewind().map_err(failed)?;
        change::write(&mut file, bytes).map_err(failed)?;
        file.set_len(length).map_err(failed)
    }

    fn open_pinned(&self, path: &Path, access: OFlags) -> Result<File> {
        let pinned = self.pin(path, Links::Refuse)?;
        let failed = |errno| self.error("open", path, errno);
        let stat = rustix::fs::fstat(&pinned).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.error("open", path, io::Error::other("not a regular file")));
        }
        // This path leads to the pinned file even if it was renamed.
        let pinned_path = format!("/proc/self/fd/{}", pinned.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, pinned_path, flags, Mode::empty());
        fd.map(File::from).map_err(failed)
    }

    /// Creates a file that only its owner can access. Fails if the name exists, even as a link.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let created = change::create(&parent, name);
        created.map(File::from).map_err(|errno| self.error("create", path, errno))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_file_at_path_without_links_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("own")).unwrap();
        std::fs::write(at("own/0.log"), "text").unwrap();
        symlink("0.log", at("own/link")).unwrap();
        symlink("own", at("elsewhere")).unwrap();
        rustix::fs::mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        let root = Root::open(directory.path()).unwrap();
        let mut text = String::new();
        root.open_regular("own/0.log").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        for refused in ["own", "own/link", "elsewhere/0.log", "pipe", "missing", "../etc/passwd"] {
            assert!(root.open_regular(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn new_file_is_not_created_through_link() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        symlink(&target, directory.path().join("link")).unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert!(root.create_file("link").unwrap_err().is_already_there());
        assert!(!target.exists());
        root.create_file("new").unwrap();
    }

    #[test]
    fn file_written_in_place_keeps_its_inode() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let path = directory.path().join("etc-hosts");
        let inode = || std::fs::metadata(&path).unwrap().ino();
        root.write_in_place("etc-hosts", b"long content", 0o644).unwrap();
        let first = inode();
        for content in ["short", "and longer again than before", ""] {
            root.write_in_place("etc-hosts", content.as_bytes(), 0o644).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(inode(), first);
        }
        std::fs::remove_file(&path).unwrap();
        symlink("/etc/hosts", &path).unwrap();
        root.write_in_place("etc-hosts", b"x", 0o644).unwrap_err();
    }
}
