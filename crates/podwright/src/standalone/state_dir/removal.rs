//! Deletion of a node's data: removes the entries that a node created, and keeps files of users and
//! everything on mounts.

use std::path::Path;

use anyhow::{Context as _, bail};
use podwright_core::volume::claim::is_claim_volume;
use podwright_host::files::{FileError, Kind, Root};
use podwright_host::mounts::{self, Mount};

use super::{
    DIRECTORIES, FILES, LOST_AND_FOUND, MANIFESTS, MARKER, Ownership, check_access, entries,
    is_mounted, is_temporary, mark, ownership,
};
use crate::standalone::Layout;

const FOREIGN: &str = "not made by podwright";
const A_MOUNT: &str = "a mount";
const A_LINK: &str = "a link, not made by podwright";

/// A directory in which users may keep their own files.
#[derive(Clone, Copy)]
struct Mixed {
    name: &'static str,
    /// Whether a node creates entries of this name and kind there.
    is_made: fn(&str, Kind) -> bool,
}

const MIXED: [Mixed; 3] = [
    // All belong to the user; a node only reads them.
    Mixed { name: MANIFESTS, is_made: |_, _| false },
    Mixed { name: "logs", is_made: is_log },
    Mixed {
        name: "volumes",
        is_made: |name, kind| kind == Kind::Directory && is_claim_volume(name),
    },
];

fn is_log(name: &str, kind: Kind) -> bool {
    match kind {
        Kind::Directory => matches!(name, "pods" | "containers"),
        Kind::File | Kind::Symlink | Kind::Other => {
            matches!(name, "agent.log" | "agent.log.1" | "containerd.log" | "containerd.log.1")
        }
    }
}

/// What was not deleted.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Paths that were kept, with the reason in parentheses.
    pub left: Vec<String>,
    pub failures: Vec<anyhow::Error>,
}

/// Deletes the node's data in its state directory, and the directory itself if it is then empty and
/// `up` created it.
pub fn remove_data(layout: &Layout) -> anyhow::Result<Leftovers> {
    let state = layout.state();
    let Ok(target) = std::fs::canonicalize(state) else { return Ok(Leftovers::default()) };
    check_access(layout)?;
    let made_directory = match ownership(state)? {
        Ownership::Marked(marker) => marker.made_directory,
        Ownership::Unmarked => {
            // The files that identify it are deleted first; the marker allows a retry.
            mark(layout, true)?;
            true
        }
        Ownership::None => bail!("{} is not the state directory of a node", state.display()),
    };
    let table = mounts::table(Path::new("/proc"))?;
    let mut leftovers = Leftovers::default();
    let is_mixed = |name: &str| MIXED.iter().any(|mixed| mixed.name == name);
    let whole: Vec<&str> = DIRECTORIES.into_iter().filter(|name| !is_mixed(name)).collect();
    remove_entries(&target, &whole, &FILES, &table, &mut leftovers)?;
    let (mounted, root) = (is_mounted(&target, &table), Root::open(&target)?);
    for mixed in MIXED {
        remove_made(&root, &target, mixed, &table, &mut leftovers)?;
    }
    for (path, is_directory) in entries(&target)? {
        let name = path.file_name().unwrap_or_default();
        if name == MARKER || (name == LOST_AND_FOUND && mounted) {
            continue;
        }
        if !is_directory && is_temporary(name) {
            leftovers.note(root.remove_file(Path::new(name)));
            continue;
        }
        // Known entries that were kept are already listed.
        if !DIRECTORIES.iter().chain(&FILES).any(|known| name == *known) {
            leftovers.leave(&path, FOREIGN);
        }
    }
    if !leftovers.failures.is_empty() {
        // The marker is kept for a retry.
        return Ok(leftovers);
    }
    root.remove_file(MARKER)?;
    if leftovers.left.is_empty() {
        if mounted {
            leftovers.leave(state, A_MOUNT);
        } else if !made_directory || target != state {
            leftovers.leave(state, "existed before");
        } else {
            std::fs::remove_dir(&target)
                .with_context(|| format!("cannot delete {}", target.display()))?;
        }
    }
    Ok(leftovers)
}

/// Removes what a node created in a directory with files of users, and the directory if it is then
/// empty.
fn remove_made(
    root: &Root,
    base: &Path,
    mixed: Mixed,
    table: &[Mount],
    leftovers: &mut Leftovers,
) -> anyhow::Result<()> {
    let whole = base.join(mixed.name);
    match root.kind(mixed.name)? {
        Some(Kind::Directory) if is_mounted(&whole, table) => {
            leftovers.leave(&whole, A_MOUNT);
            return Ok(());
        }
        Some(Kind::Directory) => {}
        Some(Kind::Symlink) => {
            leftovers.leave(&whole, A_LINK);
            return Ok(());
        }
        Some(Kind::File | Kind::Other) => {
            leftovers.leave(&whole, FOREIGN);
            return Ok(());
        }
        None => return Ok(()),
    }
    let before = leftovers.count();
    for (name, kind) in root.list(mixed.name)? {
        let path = Path::new(mixed.name).join(&name);
        let is_made = name.to_str().is_some_and(|name| (mixed.is_made)(name, kind));
        match kind {
            _ if is_mounted(&base.join(&path), table) => {
                leftovers.leave(&base.join(&path), A_MOUNT);
            }
            _ if !is_made => leftovers.leave(&base.join(&path), FOREIGN),
            Kind::Directory => remove_around_mounts(root, base, &path, table, leftovers),
            Kind::File | Kind::Symlink | Kind::Other => leftovers.note(root.remove_file(&path)),
        }
    }
    if leftovers.count() == before {
        leftovers.note(root.remove_dir(mixed.name));
    }
    Ok(())
}

impl Leftovers {
    fn leave(&mut self, path: &Path, reason: &str) {
        self.left.push(format!("{} ({reason})", path.display()));
    }

    fn count(&self) -> usize {
        self.left.len() + self.failures.len()
    }

    fn note(&mut self, outcome: Result<(), FileError>) {
        match outcome {
            Ok(()) => {}
            // It was mounted after the mount table was read.
            Err(FileError::Mounted { path, .. }) => {
                self.leave(&path, A_MOUNT);
            }
            Err(error) => self.failures.push(error.into()),
        }
    }
}

/// Removes known entries of an own directory, except mounts in them.
pub(in crate::standalone) fn remove_entries(
    base: &Path,
    directories: &[&str],
    files: &[&str],
    table: &[Mount],
    leftovers: &mut Leftovers,
) -> anyhow::Result<()> {
    let root = Root::open(base)?;
    for name in files {
        match root.kind(name)? {
            Some(Kind::Directory) => leftovers.leave(&base.join(name), FOREIGN),
            Some(_) if is_mounted(&base.join(name), table) => {
                leftovers.leave(&base.join(name), A_MOUNT);
            }
            Some(Kind::File | Kind::Symlink | Kind::Other) => {
                leftovers.note(root.remove_file(name));
            }
            None => {}
        }
    }
    for name in directories {
        match root.kind(name)? {
            Some(Kind::Directory) => {
                remove_around_mounts(&root, base, Path::new(name), table, leftovers);
            }
            Some(Kind::Symlink) => leftovers.leave(&base.join(name), A_LINK),
            Some(Kind::File | Kind::Other) => leftovers.leave(&base.join(name), FOREIGN),
            None => {}
        }
    }
    Ok(())
}

/// Removes a directory except mounts in it and their parent directories. The depth of this walk is
/// bounded by the paths in the mount table; subtrees without mounts are removed as a whole.
fn remove_around_mounts(
    root: &Root,
    base: &Path,
    directory: &Path,
    table: &[Mount],
    leftovers: &mut Leftovers,
) {
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        let whole = base.join(&path);
        if is_mounted(&whole, table) {
            leftovers.leave(&whole, A_MOUNT);
            continue;
        }
        let leads_to_mount = table.iter().any(|mount| mount.point.starts_with(&whole));
        if !leads_to_mount {
            leftovers.note(root.remove_dir_all(&path));
            continue;
        }
        let listed = match root.list(&path) {
            Ok(listed) => listed,
            Err(error) => {
                leftovers.note(Err(error));
                continue;
            }
        };
        for (child, kind) in listed {
            let child = path.join(child);
            match kind {
                Kind::Directory => pending.push(child),
                Kind::File | Kind::Symlink | Kind::Other
                    if is_mounted(&base.join(&child), table) =>
                {
                    leftovers.leave(&base.join(&child), A_MOUNT);
                }
                Kind::File | Kind::Symlink | Kind::Other => {
                    leftovers.note(root.remove_file(&child));
                }
            }
        }
    }
}
