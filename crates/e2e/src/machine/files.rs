//! Files of a machine snapshot: those outside the node's directories that an agent could change.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Entry, Kind, Scope};
use crate::tools::repository;

/// A directory tree that is walked to a maximum depth and not across mounts: those are listed as
/// mounts.
struct Tree {
    root: &'static str,
    levels: usize,
    content: Content,
    walked: Walked,
}

/// When a tree is walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walked {
    Always,
    /// Only if it is private in isolation: everyone on the machine writes there.
    IfMounted,
}

impl Tree {
    const fn new(root: &'static str, levels: usize) -> Self {
        Self { root, levels, content: Content::Compared, walked: Walked::Always }
    }
}

/// Which part of a file's content is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Compared,
    /// Services of the machine append to files here at any time.
    Ignored,
}

const TREES: [Tree; 18] = [
    Tree::new("/etc", 8),
    Tree::new("/run", 8),
    Tree::new("/var/lib", 5),
    Tree { content: Content::Ignored, ..Tree::new("/var/log", 5) },
    // These two are private in isolation, so they are mounts.
    Tree::new("/var/lib/cni", 5),
    Tree::new("/var/log/containers", 2),
    Tree::new("/var/cache", 3),
    Tree::new("/usr/lib/cni", 2),
    Tree::new("/usr/libexec/kubernetes", 5),
    Tree::new("/usr/local", 4),
    Tree::new("/opt", 4),
    Tree::new("/root", 3),
    Tree::new("/home", 3),
    Tree::new("/srv", 3),
    Tree::new("/mnt", 3),
    Tree { walked: Walked::IfMounted, ..Tree::new("/tmp", 4) },
    Tree { walked: Walked::IfMounted, ..Tree::new("/var/tmp", 4) },
    Tree { walked: Walked::IfMounted, ..Tree::new("/dev/shm", 4) },
];

/// Directories that are not walked.
const EXCLUDED: [(&str, &str); 19] = [
    ("/run/podwright-beds", "the beds' own directories; their content is covered by bystanders"),
    ("/var/lib/apt", "the machine's package manager, which other tests may be using"),
    ("/var/lib/dpkg", "the machine's package manager, which other tests may be using"),
    ("/var/cache/PackageKit", "the machine's package manager, which other tests may be using"),
    ("/var/cache/apt", "the machine's package manager, which other tests may be using"),
    ("/var/cache/debconf", "the machine's package manager, which other tests may be using"),
    ("/var/cache/fontconfig", "written by any package that is installed"),
    ("/var/cache/ldconfig", "written by any package that is installed"),
    ("/var/cache/man", "written by any package that is installed, and by a timer"),
    ("/var/cache/swcatalog", "written by any package that is installed"),
    ("/var/lib/docker", "data of a running runtime; represented by bystanders"),
    ("/var/lib/containerd", "data of a running runtime; represented by bystanders"),
    ("/var/lib/postgresql", "data of a server that may be running"),
    ("/var/lib/systemd", "timers and seeds that systemd writes at any time"),
    ("/var/log/journal", "systemd's journal is written at any time"),
    ("/root/.cache", "build caches, and the parts that testbed/provide unpacks"),
    ("/root/.cargo", "cargo's registry, which a build beside the tests changes"),
    ("/root/.rustup", "toolchains: large, and never used by a node"),
    ("/root/.pyenv", "toolchains: large, and never used by a node"),
];

/// Larger files are compared by size only.
const SMALL: u64 = 64 << 10;
const MOST_FILES: usize = 50_000;
const LONGEST: Duration = Duration::from_secs(60);

pub(super) fn entries(scope: &Scope) -> Result<Vec<Entry>> {
    let deadline = Instant::now() + LONGEST;
    let mut found = Vec::new();
    for tree in &TREES {
        let mut open = vec![(PathBuf::from(tree.root), tree.levels)];
        let Ok(root) = fs::symlink_metadata(tree.root) else { continue };
        if tree.walked == Walked::IfMounted && !is_mount_point(Path::new(tree.root), &root) {
            continue;
        }
        while let Some((directory, levels)) = open.pop() {
            for path in listed(&directory)? {
                let Some(metadata) = unless_gone(fs::symlink_metadata(&path))? else { continue };
                found.push(entry(&path, &metadata, tree.content));
                let excluded = EXCLUDED.iter().any(|(excluded, _)| path == Path::new(excluded));
                let own = scope.excludes(&path) || path == repository();
                if metadata.is_dir()
                    && metadata.dev() == root.dev()
                    && levels > 1
                    && !excluded
                    && !own
                {
                    open.push((path, levels - 1));
                }
            }
            if found.len() > MOST_FILES || Instant::now() > deadline {
                bail!(
                    "machine snapshot: {} files and no end at {}: exclude a directory, with a \
                     reason, in machine/files.rs",
                    found.len(),
                    directory.display()
                );
            }
        }
    }
    Ok(found)
}

fn is_mount_point(path: &Path, metadata: &fs::Metadata) -> bool {
    let above = path.parent().and_then(|above| fs::symlink_metadata(above).ok());
    above.is_some_and(|above| above.dev() != metadata.dev())
}

fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let Some(entries) = unless_gone(fs::read_dir(directory))? else { return Ok(Vec::new()) };
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Others may remove a file between listing and reading.
fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn entry(path: &Path, metadata: &fs::Metadata, content: Content) -> Entry {
    let kind = metadata.file_type();
    let mode = metadata.mode() & 0o7777;
    let mut detail = format!("mode {mode:o} owner {}:{}", metadata.uid(), metadata.gid());
    let what = if kind.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        format!(" link to {}", target.display())
    } else if kind.is_dir() {
        " directory".to_owned()
    } else if kind.is_socket() {
        " socket".to_owned()
    } else if kind.is_fifo() {
        " pipe".to_owned()
    } else if kind.is_file() {
        match content {
            Content::Ignored => " file".to_owned(),
            Content::Compared => {
                format!(" file of {} bytes{}", metadata.len(), digest(path, metadata))
            }
        }
    } else {
        format!(" device {:x}", metadata.rdev())
    };
    detail.push_str(&what);
    // A file that was deleted and written again is no longer the user's, even with the same
    // content.
    if content == Content::Compared {
        detail.push_str(&format!(" inode {}", metadata.ino()));
    }
    Entry::new(Kind::File, path.display().to_string(), detail)
}

/// Not cryptographic: it only detects accidents, and is computed for thousands of files.
fn digest(path: &Path, metadata: &fs::Metadata) -> String {
    if metadata.len() > SMALL {
        return String::new();
    }
    let Ok(content) = fs::read(path) else { return String::new() };
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&content);
    format!(" content {:016x}", hasher.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn mode_content_inode_and_link_target_of_a_file_are_compared() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        let inspect = |path: &Path| {
            entry(path, &fs::symlink_metadata(path).unwrap(), Content::Compared).detail
        };
        fs::write(&file, "one").unwrap();
        std::os::unix::fs::symlink("one", &link).unwrap();
        let mut seen = vec![inspect(&file), inspect(&link)];
        fs::write(&file, "two").unwrap();
        seen.push(inspect(&file));
        // Written to a new file and renamed, as most programs replace a file.
        let copy = directory.path().join("copy");
        fs::copy(&file, &copy).unwrap();
        fs::rename(&copy, &file).unwrap();
        seen.push(inspect(&file));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        seen.push(inspect(&file));
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("two", &link).unwrap();
        seen.push(inspect(&link));
        let different: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(different.len(), seen.len(), "{seen:#?}");
    }

    #[test]
    fn every_exclusion_is_within_a_tree_that_is_walked() {
        for (path, reason) in EXCLUDED {
            let walked = TREES.iter().any(|tree| Path::new(path).starts_with(tree.root));
            assert!(walked && !reason.is_empty(), "{path}");
        }
    }
}
