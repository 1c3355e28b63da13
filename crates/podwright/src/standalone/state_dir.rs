//! The state directory: which one `up` may use, and what of it `reset` may delete.
//!
//! A directory becomes a node's by a marker file, written before anything else is made in it.
//! `up` uses no directory that holds anything of somebody else's, or that another user can change,
//! and `reset` deletes the entries that a node makes and nothing more ([`removal`]).

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use podwright_host::mounts::{self, Mount};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{Layout, Record, TEMPORARY, own_mounts, write_private};

mod removal;

pub(super) use removal::remove_entries;
pub use removal::{Leftovers, remove_data};

const MARKER: &str = "node.json";
const RECORD: &str = "made.json";
/// What a marker says it is, so that no other `node.json` is taken for one.
const KIND: &str = "state directory of podwright up";
const MANIFESTS: &str = "manifests";
/// The directories a node makes. `kubectl` is where `./run` lets kubectl keep its cache.
const DIRECTORIES: [&str; 8] =
    [MANIFESTS, "kubelet", "logs", "api", "volumes", "containerd", "cni", "kubectl"];
const FILES: [&str; 2] = ["kubeconfig", RECORD];
/// How the configuration of containerd begins that a node writes.
const WRITTEN_BY_UP: &[u8] = b"# Written by podwright up";
const WRITABLE_BY_OTHERS: u32 = 0o022;
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
    if let Some(text) = read_own(&state.join(MARKER))?
        && let Ok(marker) = serde_json::from_slice::<Marker>(&text)
        && marker.kind == KIND
    {
        return Ok(Ownership::Marked(marker));
    }
    // Builds without a marker are known by what only a node writes: its record while it is up, its
    // objects and its containerd's configuration for good.
    let record = read_own(&state.join(RECORD))?;
    let recorded = record.is_some_and(|text| serde_json::from_slice::<Record>(&text).is_ok());
    let config = read_own(&state.join("containerd/config.toml"))?;
    let configured = config.is_some_and(|text| text.starts_with(WRITTEN_BY_UP));
    let made = recorded || configured || is_own_file(&state.join("api/objects.redb"))?;
    Ok(if made { Ownership::Unmarked } else { Ownership::None })
}

/// Whether the directory is a node's, running or not.
pub fn is_node(layout: &Layout) -> anyhow::Result<bool> {
    Ok(ownership(layout.state())? != Ownership::None)
}

/// Whether only builds without a marker have used the directory.
pub(super) fn is_of_earlier_build(layout: &Layout) -> anyhow::Result<bool> {
    Ok(ownership(layout.state())? == Ownership::Unmarked)
}

/// Checks that `up` may use the directory, and changes nothing.
pub fn examine(layout: &Layout) -> anyhow::Result<()> {
    match ownership(layout.state())? {
        Ownership::Marked(_) | Ownership::Unmarked => check_access(layout),
        Ownership::None => examine_new(layout.state()),
    }
}

/// Checks that nobody but us could have written what a node's directory says.
pub fn check_access(layout: &Layout) -> anyhow::Result<()> {
    let Some((_, found)) = examine_owner(layout.state())? else { return Ok(()) };
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        let shown = layout.state().display();
        bail!(
            "other users can write to {shown} (mode {:o}), and what it says is run as root. \
             Fix: check that its files are the node's own, then chmod go-w {shown}",
            found.mode() & 0o7777
        );
    }
    Ok(())
}

/// Makes the directory the node's: the marker is there before anything else is.
pub fn claim(layout: &Layout) -> anyhow::Result<()> {
    let state = layout.state();
    examine(layout)?;
    let made_directory = match ownership(state)? {
        Ownership::Marked(marker) if marker.state_dir == layout.state_text() => return Ok(()),
        // Moved or restored from a copy.
        Ownership::Marked(marker) => marker.made_directory,
        Ownership::Unmarked => {
            own_mounts::adopt_agent_root(layout)?;
            true
        }
        Ownership::None => {
            let made = make_directory(state)?;
            // Until now others may have been able to write to it.
            examine_new(state)?;
            made
        }
    };
    mark(layout, made_directory)
}

fn mark(layout: &Layout, made_directory: bool) -> anyhow::Result<()> {
    let marker = Marker { kind: KIND.to_owned(), state_dir: layout.state_text(), made_directory };
    write_private(&layout.state().join(MARKER), &serde_json::to_vec_pretty(&marker)?)
}

/// True if it was made now. Through the state directory others may go, or they could not reach a
/// kubeconfig that is theirs; one that was there before only stops being writable by others.
fn make_directory(state: &Path) -> anyhow::Result<bool> {
    let failed = || format!("cannot make the directory {}", state.display());
    if let Some(above) = state.parent() {
        std::fs::create_dir_all(above).with_context(failed)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(state) {
        Ok(()) => {
            let permissions = std::fs::Permissions::from_mode(0o711);
            std::fs::set_permissions(state, permissions).with_context(failed)?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let target = std::fs::canonicalize(state).with_context(failed)?;
            restrict(&target, |mode| mode & !WRITABLE_BY_OTHERS)?;
            Ok(false)
        }
        Err(error) => Err(error).with_context(failed),
    }
}

/// Changes the mode of a directory of ours, and of nothing that a link at its place leads to.
fn restrict(directory: &Path, mode: impl FnOnce(u32) -> u32) -> anyhow::Result<()> {
    let failed = || format!("cannot change the mode of {}", directory.display());
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).with_context(failed)?;
    let found = rustix::fs::fstat(&opened).with_context(failed)?;
    refuse_foreign_owner(directory, found.st_uid)?;
    let (now, wanted) = (found.st_mode & 0o7777, mode(found.st_mode & 0o7777));
    if now != wanted {
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(wanted)).with_context(failed)?;
    }
    Ok(())
}

/// Makes a directory that only root may look into. One that is there keeps what is in it; a link is
/// followed if only root could have made it, and what it leads to is not changed.
pub(super) fn make_private(directory: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot make the directory {}", directory.display());
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(failed),
    }
    let found = std::fs::symlink_metadata(directory).with_context(failed)?;
    if !found.is_symlink() {
        return restrict(directory, |_| 0o700);
    }
    let Some((_, target)) = examine_owner(directory)? else {
        bail!("{} is a link that leads nowhere. Fix: delete it", directory.display());
    };
    if target.mode() & WRITABLE_BY_OTHERS != 0 {
        let shown = directory.display();
        bail!("other users can write to what {shown} leads to. Fix: chmod go-w {shown}/");
    }
    Ok(())
}

const FIX: &str = "Fix: name a directory that does not exist yet or is empty with --state-dir";

fn examine_new(state: &Path) -> anyhow::Result<()> {
    let shown = state.display();
    refuse_reserved(state)?;
    let Some((target, _)) = examine_owner(state)? else { return Ok(()) };
    refuse_reserved(&target)?;
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

/// Checks that the directory is ours, and the link that leads to it. Returns where it really is;
/// none if nothing is there.
fn examine_owner(state: &Path) -> anyhow::Result<Option<(PathBuf, Metadata)>> {
    let shown = state.display();
    let found = match std::fs::symlink_metadata(state) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(super::unreadable(error, state)),
    };
    if found.is_symlink() {
        refuse_foreign_link(state, found.uid())?;
    }
    let target = std::fs::canonicalize(state).with_context(|| format!("cannot follow {shown}"))?;
    let found = std::fs::metadata(&target).map_err(|error| super::unreadable(error, &target))?;
    if !found.is_dir() {
        bail!("{shown} is not a directory. {FIX}");
    }
    refuse_foreign_owner(state, found.uid())?;
    Ok(Some((target, found)))
}

fn refuse_foreign_owner(directory: &Path, owner: u32) -> anyhow::Result<()> {
    if owner != rustix::process::geteuid().as_raw() {
        let shown = directory.display();
        bail!(
            "{shown} belongs to user {owner}, who could replace what the node keeps there. \
             Fix: chown root {shown}, or name another directory with --state-dir"
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
/// directories they are mounted on, count as nothing. So do manifests: they are for a node to read,
/// and `reset` keeps them.
fn foreign_entries(state: &Path, table: &[Mount]) -> anyhow::Result<Vec<PathBuf>> {
    let mounted = |path: &Path| table.iter().any(|mount| mount.point == path);
    let mut foreign = Vec::new();
    for (path, is_directory) in entries(state)? {
        let name = path.file_name().unwrap_or_default();
        let ours = DIRECTORIES.iter().any(|known| name == *known);
        let fresh_disk = name == LOST_AND_FOUND && mounted(state);
        let temporary = !is_directory && is_temporary(name);
        let manifests = is_directory && name == MANIFESTS;
        let nothing = fresh_disk
            || temporary
            || manifests
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

/// The content of a file that is ours. One that another user made says nothing about a node.
fn read_own(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    if !is_own_file(path)? {
        return Ok(None);
    }
    match std::fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(super::unreadable(error, path)),
    }
}

fn is_own_file(path: &Path) -> anyhow::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_file() && found.uid() == rustix::process::geteuid().as_raw()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
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
