//! Disk usage of directories.
//!
//! Walking is slow, and the walked tree belongs to pods: it may contain links that lead out, files
//! with many names, and deeply nested directories. Links are not followed, a file counts once,
//! other filesystems are not entered, and files that vanish during the walk are not counted.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use podwright_core::stats::Used;

/// A walk stops at this many files, so that a pod with more cannot slow the node down; its usage is
/// then a lower bound.
const MOST: u64 = 10_000_000;

/// The directory itself and everything below it.
pub fn below(directory: &Path) -> io::Result<Used> {
    let top = directory.symlink_metadata()?;
    let mut used = size(&top);
    let mut several_names = HashSet::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            // Of the link itself, not of its target.
            let Ok(metadata) = entry.metadata() else { continue };
            let known = metadata.nlink() > 1
                && !metadata.is_dir()
                && !several_names.insert((metadata.dev(), metadata.ino()));
            if metadata.dev() != top.dev() || known {
                continue;
            }
            used = used + size(&metadata);
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
        if used.inodes >= MOST {
            break;
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

fn size(metadata: &std::fs::Metadata) -> Used {
    /// The unit of `st_blocks`, whatever the filesystem's own is.
    const BLOCK: u64 = 512;
    Used { bytes: metadata.blocks().saturating_mul(BLOCK), inodes: 1 }
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
    }
}
