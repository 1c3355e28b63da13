//! What a folder's files take on the disk.
//!
//! Walking is slow and what is walked belongs to pods: they may make links that lead out, files
//! with many names, and folders as deep as they like. Links are not followed, a file counts once,
//! other filesystems are not entered, and what vanishes meanwhile is not counted.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use podwright_core::stats::Used;

/// A pod with more files than this is told the size of so many; the node has other things to do.
const MOST: u64 = 10_000_000;

/// The folder itself and all below it.
pub fn below(folder: &Path) -> io::Result<Used> {
    let top = folder.symlink_metadata()?;
    let mut used = size(&top);
    let mut several_names = HashSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Of the link itself, not of what it leads to.
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

/// The regular files directly in a folder.
pub fn files_in(folder: &Path) -> io::Result<Used> {
    let files = std::fs::read_dir(folder)?.flatten().filter_map(|entry| entry.metadata().ok());
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
    fn each_file_counts_once_and_links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("volume");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/file"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(root.join("a/file"), root.join("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/usr", root.join("out")).unwrap();
        std::os::unix::fs::symlink("..", root.join("loop")).unwrap();
        let used = below(&root).unwrap();
        assert_eq!(used.inodes, 6, "three folders, a file, two links");
        let file = of(&root.join("a/file")).unwrap();
        assert!(used.bytes >= file.bytes && used.bytes < 2 * file.bytes + 6 * 4096);
        assert_eq!(files_in(&root.join("a")).unwrap(), file);
        assert!(below(&root.join("gone")).is_err());
    }
}
