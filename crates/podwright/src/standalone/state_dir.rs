//! State directory: which directories `up` accepts, and what `reset` may delete.
//!
//! A marker file identifies the directory of a node; it is written before anything else in it. `up`
//! refuses a directory that contains foreign files or that another user can change, and `reset`
//! deletes only the entries that a node creates ([`removal`]).

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
/// `kind` of a marker, which distinguishes it from other files called `node.json`.
const KIND: &str = "state directory of podwright up";
const MANIFESTS: &str = "manifests";
/// The directories that a node creates. `kubectl` is the kubectl cache of `./run`.
const DIRECTORIES: [&str; 8] =
    [MANIFESTS, "kubelet", "logs", "api", "volumes", "containerd", "cni", "kubectl"];
const FILES: [&str; 3] = ["images.json", "kubeconfig", RECORD];
/// First bytes of the containerd configuration that a node writes.
const WRITTEN_BY_UP: &[u8] = b"# Written by podwright up";
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Present on a new file system.
const LOST_AND_FOUND: &str = "lost+found";
/// System directories, refused even if empty.
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
/// Lower user ids are system users, whose home directories are not protected.
const FIRST_REGULAR_UID: u32 = 1000;
/// A directory with more entries counts as not empty.
const MAX_ENTRIES: usize = 1000;
/// How many foreign entries are listed.
const MAX_LISTED: usize = 5;

/// Marker file, the first file written into a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    #[serde(rename = "kind")]
    kind: String,
    #[serde(rename = "state_dir")]
    state_dir: String,
    /// `up` created the directory, so `reset` may remove it.
    #[serde(rename = "made_directory")]
    made_directory: bool,
}

/// Whether a directory belongs to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ownership {
    Marked(Marker),
    /// Created by a build that wrote no marker.
    Unmarked,
    /// Does not belong to a node.
    None,
}

fn ownership(state: &Path) -> anyhow::Result<Ownership> {
    if let Some(text) = read_own(&state.join(MARKER))?
        && let Ok(marker) = serde_json::from_slice::<Marker>(&text)
        && marker.kind == KIND
    {
        return Ok(Ownership::Marked(marker));
    }
    // Directories without a marker are recognised by files that only a node writes: its record
    // while it is up, and its API objects and containerd configuration at any time.
    let record = read_own(&state.join(RECORD))?;
    let recorded = record.is_some_and(|text| serde_json::from_slice::<Record>(&text).is_ok());
    let config = read_own(&state.join("containerd/config.toml"))?;
    let configured = config.is_some_and(|text| text.starts_with(WRITTEN_BY_UP));
    let made = recorded || configured || is_own_file(&state.join("api/objects.redb"))?;
    Ok(if made { Ownership::Unmarked } else { Ownership::None })
}

/// Whether the directory belongs to a node, running or not.
pub fn is_node(layout: &Layout) -> anyhow::Result<bool> {
    Ok(ownership(layout.state())? != Ownership::None)
}

/// Whether the directory was only used by builds that wrote no marker.
pub(super) fn is_of_earlier_build(layout: &Layout) -> anyhow::Result<bool> {
    Ok(ownership(layout.state())? == Ownership::Unmarked)
}

/// Checks that `up` may use the directory, without changes.
pub fn examine(layout: &Layout) -> anyhow::Result<()> {
    match ownership(layout.state())? {
        Ownership::Marked(_) | Ownership::Unmarked => check_access(layout),
        Ownership::None => examine_new(layout.state()),
    }
}

/// Checks that other users could not have written to a node's directory.
pub fn check_access(layout: &Layout) -> anyhow::Result<()> {
    let Some((_, found)) = examine_owner(layout.state())? else { return Ok(()) };
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        let shown = layout.state().display();
        bail!(
            "other users can write to {shown} (mode {:o}), which names programs that run as root. \
             Fix: check that its files are the node's own, then run chmod go-w {shown}",
            found.mode() & 0o7777
        );
    }
    Ok(())
}

/// Creates the directory if necessary and writes the marker, before anything else.
pub fn claim(layout: &Layout) -> anyhow::Result<()> {
    let state = layout.state();
    examine(layout)?;
    let made_directory = match ownership(state)? {
        Ownership::Marked(marker) if marker.state_dir == layout.state_text() => return Ok(()),
        // The directory was moved or copied.
        Ownership::Marked(marker) => marker.made_directory,
        Ownership::Unmarked => {
            own_mounts::adopt_agent_root(layout)?;
            true
        }
        Ownership::None => {
            let made = make_directory(state)?;
            // Other users may have written to it before it was restricted.
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

/// Creates the state directory; returns whether it was created now. Other users may traverse it, to
/// reach a kubeconfig that they own; an existing directory only loses write permission for others.
fn make_directory(state: &Path) -> anyhow::Result<bool> {
    let failed = || format!("cannot create directory {}", state.display());
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

/// Changes the mode of an own directory, without following a link.
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

/// Creates a directory that only root can read. The content of an existing one is kept; a link is
/// accepted if only root could have created it, and its target is not changed.
pub(super) fn make_private(directory: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot create directory {}", directory.display());
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
        bail!("{} is a dangling link. Fix: delete it", directory.display());
    };
    if target.mode() & WRITABLE_BY_OTHERS != 0 {
        let shown = directory.display();
        bail!("other users can write to the target of {shown}. Fix: chmod go-w {shown}/");
    }
    Ok(())
}

const FIX: &str = "Fix: give a new or empty directory with --state-dir";

fn examine_new(state: &Path) -> anyhow::Result<()> {
    let shown = state.display();
    refuse_reserved(state)?;
    let Some((target, _)) = examine_owner(state)? else { return Ok(()) };
    refuse_reserved(&target)?;
    let table = mounts::table(Path::new("/proc"))?;
    let foreign = foreign_entries(&target, &table)?;
    if !foreign.is_empty() {
        bail!(
            "{shown} is not empty and is not the state directory of a node: it contains {}. {FIX}",
            listed(&foreign)
        );
    }
    Ok(())
}

/// Checks the owner of the directory and of a link to it. Returns the resolved path; none if it
/// does not exist.
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
    let target = std::fs::canonicalize(state).with_context(|| format!("cannot resolve {shown}"))?;
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
            "{shown} belongs to user {owner}, who could replace the node's files. \
             Fix: chown root {shown}, or give another directory with --state-dir"
        );
    }
    Ok(())
}

fn refuse_reserved(state: &Path) -> anyhow::Result<()> {
    let shown = state.display();
    if RESERVED.iter().any(|reserved| state == Path::new(reserved)) {
        bail!("{shown} is a system directory. {FIX}");
    }
    if let Some(user) = home_of(state) {
        bail!("{shown} is the home directory of {user}. {FIX}");
    }
    Ok(())
}

/// The user whose home directory this is, if any.
fn home_of(path: &Path) -> Option<String> {
    if std::env::var_os("HOME").is_some_and(|home| Path::new(&home) == path) {
        return Some("the current user".to_owned());
    }
    // Without /etc/passwd there are no home directories to protect.
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, _, _, home, ..] = fields.as_slice() else { return None };
        let uid: u32 = uid.parse().ok()?;
        let regular = uid == 0 || uid >= FIRST_REGULAR_UID;
        (regular && Path::new(home) == path).then(|| name.to_owned())
    })
}

/// Refuses a link that another user created or could replace, and thus controls.
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
             Fix: give the directory itself with --state-dir",
            link.display()
        );
    }
    Ok(())
}

/// Entries that `up` did not create. Mounts prepared for the node and their empty mount points are
/// ignored. So are manifests: a node only reads them, and `reset` keeps them.
fn foreign_entries(state: &Path, table: &[Mount]) -> anyhow::Result<Vec<PathBuf>> {
    let mounted = |path: &Path| table.iter().any(|mount| mount.point == path);
    let mut foreign = Vec::new();
    for (path, is_directory) in entries(state)? {
        let name = path.file_name().unwrap_or_default();
        let ours = DIRECTORIES.iter().any(|known| name == *known);
        let fresh_disk = name == LOST_AND_FOUND && mounted(state);
        let temporary = !is_directory && is_temporary(name);
        let manifests = is_directory && name == MANIFESTS;
        let ignored = fresh_disk
            || temporary
            || manifests
            || (ours && is_directory && holds_only_mounts(&path, &mounted)?);
        if !ignored {
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
            if !(is_directory || mounted(&entry)) || seen > MAX_ENTRIES {
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

/// A temporary file of an interrupted [`write_private`].
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

/// The content of a file that this user owns; files of other users are ignored.
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
        names.take(MAX_LISTED).map(|name| name.to_string_lossy().into_owned()).collect();
    if let Some(more) = paths.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
