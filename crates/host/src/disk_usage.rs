//! Disk usage of directories.
//!
//! Walking is slow, and the walked tree belongs to pods, which change it meanwhile: it may contain
//! links that lead out, files with many names, and deeply nested directories. Each directory is
//! opened from the one above it and never through a link, a file counts once, other file systems are
//! not entered, and files that vanish during the walk are not counted.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use podwright_core::stats::Used;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};

/// A walk stops at this many files, so that a pod with more cannot slow the node down; its usage is
/// then a lower bound.
const MOST: u64 = 10_000_000;
/// Each level keeps a directory open. What is nested deeper is not counted.
const DEEPEST: usize = 512;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory itself and everything below it.
pub fn below(directory: &Path) -> io::Result<Used> {
    let top = openat(CWD, directory, DIRECTORY, Mode::empty())?;
    let stat = fstat(&top)?;
    let device = stat.st_dev;
    let mut used = of_stat(&stat);
    let mut several_names = HashSet::new();
    let mut open = vec![Dir::new(top)?];
    while let Some(directory) = open.last_mut() {
        // A directory that cannot be read on, such as one that was removed, ends here.
        let Some(Ok(entry)) = directory.read() else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(parent) = directory.fd() else { continue };
        // Of the link itself, not of its target.
        let Ok(stat) = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        let is_known = stat.st_nlink > 1 && !is_directory && !several_names.insert(stat.st_ino);
        if stat.st_dev != device || is_known {
            continue;
        }
        used = used + of_stat(&stat);
        if used.inodes >= MOST {
            break;
        }
        if is_directory && let Ok(below) = openat(parent, name, DIRECTORY, Mode::empty()) {
            // Another one may be in its place since.
            let is_same =
                fstat(&below).is_ok_and(|it| it.st_dev == device && it.st_ino == stat.st_ino);
            if is_same
                && open.len() < DEEPEST
                && let Ok(below) = Dir::new(below)
            {
                open.push(below);
            }
        }
    }
    Ok(used)
}

/// The regular files directly in a directory.
pub fn files_in(directory: &Path) -> io::Result<Used> {
    let files = std::fs::read_dir(directory)?.flatten().filter_map(|entry| entry.metadata().ok());
    Ok(files.filter(|file| file.is_file()).map(|file| size(&file)).sum())
}

/// One file.
pub fn of(path: &Path) -> io::Result<Used> {
    path.symlink_metadata().map(|metadata| size(&metadata))
}

/// The unit of `st_blocks`, whatever the filesystem's own is.
const BLOCK: u64 = 512;

fn size(metadata: &std::fs::Metadata) -> Used {
    Used { bytes: metadata.blocks().saturating_mul(BLOCK), inodes: 1 }
}

fn of_stat(stat: &Stat) -> Used {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Used { bytes: blocks.saturating_mul(BLOCK), inodes: 1 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_once_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("volume");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/file"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(root.join("a/file"), root.join("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/usr", root.join("out")).unwrap();
        std::os::unix::fs::symlink("..", root.join("loop")).unwrap();
        let used = below(&root).unwrap();
        assert_eq!(used.inodes, 6, "three directories, a file, two links");
        let file = of(&root.join("a/file")).unwrap();
        assert!(used.bytes >= file.bytes && used.bytes < 2 * file.bytes + 6 * 4096);
        assert_eq!(files_in(&root.join("a")).unwrap(), file);
        assert!(below(&root.join("gone")).is_err());
        // A volume that a pod replaced by a link is not followed either.
        assert!(below(&root.join("out")).is_err());
    }

    #[test]
    fn directories_are_nested_deeper_than_the_walk_goes() {
        let directory = tempfile::tempdir().unwrap();
        let mut parent = openat(CWD, directory.path(), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..DEEPEST + 100 {
            crate::change::mkdirat(&parent, "d", Mode::RWXU).unwrap();
            parent = openat(&parent, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        let used = below(directory.path()).unwrap();
        assert_eq!(used.inodes, DEEPEST as u64 + 1, "the last one is counted, but not entered");
    }
}
