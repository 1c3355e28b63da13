//! The state directory: which one `up` may use, and what of it `reset` may delete.
//!
//! A directory becomes a node's by a marker file, written before anything else is made in it.
//! `up` uses no directory that holds anything of somebody else's, and `reset` deletes the entries
//! that a node makes and nothing more: not what lies beside them, and nothing through a mount.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use podwright_host::files::{FileError, Kind, Root};
use podwright_host::mounts::{self, Mount};
use serde::{Deserialize, Serialize};

use super::{Layout, Record, TEMPORARY, write_private};

const MARKER: &str = "node.json";
const RECORD: &str = "made.json";
/// What a marker says it is, so that no other `node.json` is taken for one.
const KIND: &str = "state directory of podwright up";
/// The directories a node makes. `kubectl` is where `./run` lets kubectl keep its cache.
const DIRECTORIES: [&str; 8] =
    ["manifests", "kubelet", "logs", "api", "volumes", "containerd", "cni", "kubectl"];
const FILES: [&str; 2] = ["kubeconfig", RECORD];
/// A new file system has it.
const LOST_AND_FOUND: &str = "lost+found";
/// Directories that are a machine's or a person's, even where they are empty.
const RESERVED: [&str; 24] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/tmp",
    "/run/podwright",
];
/// Users below this number are the system's own, and so are their homes.
const FIRST_PERSON: u32 = 1000;
/// A directory with more than this in it is not empty, whatever it is.
const MOST_ENTRIES: usize = 1000;
/// How many foreign entries are named.
const NAMED: usize = 5;

/// The first thing that is written into a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    #[serde(rename = "kind")]
    kind: String,
    #[serde(rename = "state_dir")]
    state_dir: String,
    /// `up` made the directory itself, so that it may go with the node.
    #[serde(rename = "made_directory")]
    made_directory: bool,
}

/// Whether a directory is a node's.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ownership {
    Marked(Marker),
    /// Made by a build that wrote no marker.
    Unmarked,
    /// Not a node's.
    None,
}

fn ownership(state: &Path) -> anyhow::Result<Ownership> {
    let path = state.join(MARKER);
    if let Some(text) = read(&path)?
        && let Ok(marker) = serde_json::from_slice::<Marker>(&text)
        && marker.kind == KIND
    {
        return Ok(Ownership::Marked(marker));
    }
    let record = read(&state.join(RECORD))?;
    let recorded = record.is_some_and(|text| serde_json::from_slice::<Record>(&text).is_ok());
    let made = ["manifests", "containerd"].iter().all(|name| state.join(name).is_dir());
    Ok(if recorded || made { Ownership::Unmarked } else { Ownership::None })
}

/// Whether the directory is a node's, running or not.
pub fn is_node(layout: &Layout) -> anyhow::Result<bool> {
    Ok(ownership(layout.state())? != Ownership::None)
}

/// Checks that `up` may use the directory, and changes nothing.
pub fn examine(layout: &Layout) -> anyhow::Result<()> {
    if ownership(layout.state())? != Ownership::None {
        return Ok(());
    }
    examine_new(layout.state())
}

/// Makes the directory the node's: the marker is there before anything else is.
pub fn claim(layout: &Layout) -> anyhow::Result<()> {
    let state = layout.state();
    let made_directory = match ownership(state)? {
        Ownership::Marked(marker) if marker.state_dir == layout.state_text() => return Ok(()),
        // Moved or restored from a copy.
        Ownership::Marked(marker) => marker.made_directory,
        Ownership::Unmarked => true,
        Ownership::None => {
            examine_new(state)?;
            make_directory(state)?
        }
    };
    let marker = Marker { kind: KIND.to_owned(), state_dir: layout.state_text(), made_directory };
    write_private(&state.join(MARKER), &serde_json::to_vec_pretty(&marker)?)
}

/// True if it was made now.
fn make_directory(state: &Path) -> anyhow::Result<bool> {
    let failed = || format!("cannot make the directory {}", state.display());
    if let Some(above) = state.parent() {
        std::fs::create_dir_all(above).with_context(failed)?;
    }
    match std::fs::DirBuilder::new().mode(0o711).create(state) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(failed),
    }
}

const FIX: &str = "Fix: name a directory that does not exist yet or is empty with --state-dir";

fn examine_new(state: &Path) -> anyhow::Result<()> {
    let shown = state.display();
    refuse_reserved(state)?;
    let found = match std::fs::symlink_metadata(state) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(super::unreadable(error, state)),
    };
    if found.is_symlink() {
        refuse_foreign_link(state, found.uid())?;
    }
    let target = std::fs::canonicalize(state).with_context(|| format!("cannot follow {shown}"))?;
    refuse_reserved(&target)?;
    let found = std::fs::metadata(&target).map_err(|error| super::unreadable(error, &target))?;
    if !found.is_dir() {
        bail!("{shown} is not a directory. {FIX}");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        bail!(
            "{shown} belongs to user {}, who could replace what the node keeps there. \
             Fix: chown root {shown}, or name another directory with --state-dir",
            found.uid()
        );
    }
    let table = mounts::table(Path::new("/proc"))?;
    let foreign = foreign_entries(&target, &table)?;
    if !foreign.is_empty() {
        bail!(
            "{shown} is not empty and is not the state directory of a node: it has {}. {FIX}",
            listed(&foreign)
        );
    }
    Ok(())
}

fn refuse_reserved(state: &Path) -> anyhow::Result<()> {
    let shown = state.display();
    if RESERVED.iter().any(|reserved| state == Path::new(reserved)) {
        bail!("{shown} is a directory of the system. {FIX}");
    }
    if let Some(person) = home_of(state) {
        bail!("{shown} is the home directory of {person}. {FIX}");
    }
    Ok(())
}

/// Whose home directory this is, if it is one.
fn home_of(path: &Path) -> Option<String> {
    if std::env::var_os("HOME").is_some_and(|home| Path::new(&home) == path) {
        return Some("the current user".to_owned());
    }
    // Without a list of users there is nobody to protect.
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, _, _, home, ..] = fields.as_slice() else { return None };
        let uid: u32 = uid.parse().ok()?;
        let person = uid == 0 || uid >= FIRST_PERSON;
        (person && Path::new(home) == path).then(|| name.to_owned())
    })
}

/// A link that another user made, or could replace, leads wherever that user wants.
fn refuse_foreign_link(link: &Path, owner: u32) -> anyhow::Result<()> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let above = link.parent().unwrap_or(Path::new("/"));
    let found = std::fs::metadata(above).map_err(|error| super::unreadable(error, above))?;
    let me = rustix::process::geteuid().as_raw();
    let replaceable =
        found.uid() != me || (found.mode() & WRITABLE_BY_OTHERS != 0 && found.mode() & STICKY == 0);
    if owner != me || replaceable {
        bail!(
            "{} is a symbolic link that another user can change. \
             Fix: name the directory itself with --state-dir",
            link.display()
        );
    }
    Ok(())
}

/// What is in a directory that no `up` made. Mounts prepared for the node, and the empty
/// directories they are mounted on, count as nothing.
fn foreign_entries(state: &Path, table: &[Mount]) -> anyhow::Result<Vec<PathBuf>> {
    let mounted = |path: &Path| table.iter().any(|mount| mount.point == path);
    let mut foreign = Vec::new();
    for (path, is_directory) in entries(state)? {
        let name = path.file_name().unwrap_or_default();
        let ours = DIRECTORIES.iter().any(|known| name == *known);
        let fresh_disk = name == LOST_AND_FOUND && mounted(state);
        let temporary = !is_directory && is_temporary(name);
        let nothing = fresh_disk
            || temporary
            || (ours && is_directory && holds_only_mounts(&path, &mounted)?);
        if !nothing {
            foreign.push(path);
        }
    }
    foreign.sort();
    Ok(foreign)
}

fn holds_only_mounts(directory: &Path, mounted: &impl Fn(&Path) -> bool) -> anyhow::Result<bool> {
    let mut pending = vec![directory.to_owned()];
    let mut seen = 0;
    while let Some(path) = pending.pop() {
        if mounted(&path) {
            continue;
        }
        for (entry, is_directory) in entries(&path)? {
            seen += 1;
            if !(is_directory || mounted(&entry)) || seen > MOST_ENTRIES {
                return Ok(false);
            }
            pending.push(entry);
        }
    }
    Ok(true)
}

/// What was not deleted.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// With the reason in parentheses.
    pub left: Vec<String>,
    pub failures: Vec<anyhow::Error>,
}

/// Deletes what a node made in its state directory, and the directory itself if nothing else is
/// in it and `up` made it.
pub fn remove_data(layout: &Layout) -> anyhow::Result<Leftovers> {
    let state = layout.state();
    let Ok(target) = std::fs::canonicalize(state) else { return Ok(Leftovers::default()) };
    let made_directory = match ownership(state)? {
        Ownership::Marked(marker) => marker.made_directory,
        Ownership::Unmarked => true,
        Ownership::None => bail!("{} is not the state directory of a node", state.display()),
    };
    let table = mounts::table(Path::new("/proc"))?;
    let mut leftovers = Leftovers::default();
    remove_entries(&target, &DIRECTORIES, &FILES, &table, &mut leftovers)?;
    let (mounted, root) = (is_mounted(&target, &table), Root::open(&target)?);
    for (path, is_directory) in entries(&target)? {
        let name = path.file_name().unwrap_or_default();
        if name == MARKER || (name == LOST_AND_FOUND && mounted) {
            continue;
        }
        if !is_directory && is_temporary(name) {
            leftovers.note(root.remove_file(Path::new(name)));
            continue;
        }
        // What is known was named when it could not be removed.
        if !DIRECTORIES.iter().chain(&FILES).any(|known| name == *known) {
            leftovers.left.push(format!("{} (not made by podwright)", path.display()));
        }
    }
    if !leftovers.failures.is_empty() {
        // The marker stays, so that it can be tried again.
        return Ok(leftovers);
    }
    root.remove_file(MARKER)?;
    if leftovers.left.is_empty() {
        if mounted {
            leftovers.left.push(format!("{} (a mount)", state.display()));
        } else if !made_directory || target != state {
            leftovers.left.push(format!("{} (was there before)", state.display()));
        } else {
            std::fs::remove_dir(&target)
                .with_context(|| format!("cannot delete {}", target.display()))?;
        }
    }
    Ok(leftovers)
}

impl Leftovers {
    fn note(&mut self, outcome: Result<(), FileError>) {
        match outcome {
            Ok(()) => {}
            // It was mounted after we looked.
            Err(FileError::Mounted { path, .. }) => {
                self.left.push(format!("{} (a mount)", path.display()));
            }
            Err(error) => self.failures.push(error.into()),
        }
    }
}

/// Removes known entries of a directory of ours, around whatever is mounted in them.
pub(super) fn remove_entries(
    base: &Path,
    directories: &[&str],
    files: &[&str],
    table: &[Mount],
    leftovers: &mut Leftovers,
) -> anyhow::Result<()> {
    let root = Root::open(base)?;
    for name in files {
        match root.kind(name)? {
            Some(Kind::Directory) => leftovers
                .left
                .push(format!("{} (not made by podwright)", base.join(name).display())),
            Some(_) if is_mounted(&base.join(name), table) => {
                leftovers.left.push(format!("{} (a mount)", base.join(name).display()));
            }
            Some(Kind::File | Kind::Symlink | Kind::Other) => {
                leftovers.note(root.remove_file(name));
            }
            None => {}
        }
    }
    for name in directories {
        match root.kind(name)? {
            Some(Kind::Directory) => remove_around_mounts(&root, base, name, table, leftovers),
            Some(Kind::Symlink) => leftovers
                .left
                .push(format!("{} (a link, not made by podwright)", base.join(name).display())),
            Some(Kind::File | Kind::Other) => leftovers
                .left
                .push(format!("{} (not made by podwright)", base.join(name).display())),
            None => {}
        }
    }
    Ok(())
}

/// Removes a directory but for what is mounted in it and the directories that lead there. How deep
/// it goes is bounded by the paths in the mount table; the rest is the kernel's to walk.
fn remove_around_mounts(
    root: &Root,
    base: &Path,
    name: &str,
    table: &[Mount],
    leftovers: &mut Leftovers,
) {
    let mut pending = vec![PathBuf::from(name)];
    while let Some(path) = pending.pop() {
        let whole = base.join(&path);
        if is_mounted(&whole, table) {
            leftovers.left.push(format!("{} (a mount)", whole.display()));
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
                    leftovers.left.push(format!("{} (a mount)", base.join(&child).display()));
                }
                Kind::File | Kind::Symlink | Kind::Other => {
                    leftovers.note(root.remove_file(&child));
                }
            }
        }
    }
}

fn is_mounted(path: &Path, table: &[Mount]) -> bool {
    table.iter().any(|mount| mount.point == path)
}

/// A file that [`write_private`] had not put in place when it was killed.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes())
}

fn entries(directory: &Path) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    let list = || -> std::io::Result<Vec<(PathBuf, bool)>> {
        let entries = std::fs::read_dir(directory)?;
        entries
            .map(|entry| entry.and_then(|it| Ok((it.path(), it.file_type()?.is_dir()))))
            .collect()
    };
    list().map_err(|error| super::unreadable(error, directory))
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::IsADirectory => Ok(None),
        Err(error) => Err(super::unreadable(error, path)),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    let names = paths.iter().filter_map(|path| path.file_name());
    let mut shown: Vec<String> =
        names.take(NAMED).map(|name| name.to_string_lossy().into_owned()).collect();
    if let Some(more) = paths.len().checked_sub(NAMED).filter(|more| *more > 0) {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
