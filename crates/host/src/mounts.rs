//! Mount table and mount operations.
//!
//! A volume is torn down only if we know what is mounted below it, so the table is read from the
//! kernel each time and never cached, unless it is certain without it that nothing is mounted
//! ([`has_no_mounts`]). Paths in it are bytes, escaped where they would break the
//! format: a volume's name may contain a space, and a container may name a directory anything.
//!
//! The only way to unmount is [`detach_own`], which unmounts one mount of ours. There is no
//! function that unmounts everything below a path: a bind mount of ours may show filesystems of the
//! host, and unmounting those in a peer unmounts them on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes,
    StatxFlags,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::change;

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    /// Which part of the filesystem is mounted; `/` unless it is a bind mount or a subvolume.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Of this mount: `rw,nosuid,relatime`.
    pub options: String,
    /// Mounts that appear below it also appear in its peers.
    pub shared: bool,
    pub fs_type: String,
    pub source: OsString,
    /// Of the filesystem as a whole.
    pub super_options: String,
}

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot read the mount table {}", path.display())]
    Table { path: PathBuf, source: io::Error },
    #[error("cannot {attempt} {} on {}", what.display(), target.display())]
    Mount { attempt: &'static str, what: PathBuf, target: PathBuf, source: io::Error },
    #[error("cannot {attempt} {}", target.display())]
    Change { attempt: &'static str, target: PathBuf, source: io::Error },
    #[error(
        "cannot unmount {}: {} is mounted on it and nowhere else, and would be lost. Fix: umount {}",
        target.display(), mounted.display(), mounted.display()
    )]
    Occupied { target: PathBuf, mounted: PathBuf },
}

impl MountError {
    /// The kernel does not support the call.
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::Table { source, .. }
            | Self::Mount { source, .. }
            | Self::Change { source, .. } => Errno::from_io_error(source) == Some(Errno::INVAL),
            Self::Occupied { .. } => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, MountError>;

/// The current table of this process's mount namespace; `proc` is where procfs is mounted.
pub fn table(proc: &Path) -> Result<Vec<Mount>> {
    let path = proc.join("self/mountinfo");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(source) => Err(MountError::Table { path, source }),
    }
}

/// Lines that cannot be parsed are left out: a newer kernel may have other formats.
pub fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// Mounts on `path` itself and below it, the last mounted first. For inspection only, not a list to
/// unmount: the caller has to know which of them are ours.
pub fn at_or_below<'a>(table: &'a [Mount], path: &Path) -> Vec<&'a Mount> {
    // Path comparison is by component: /a/b is not below /a/bc.
    table.iter().rev().filter(|mount| mount.point.starts_with(path)).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = device(fields.next()?)?;
    let root = unescape(fields.next()?).into();
    let point = unescape(fields.next()?).into();
    let options = text(fields.next()?);
    let mut shared = false;
    loop {
        match fields.next()? {
            b"-" => break,
            tag => shared |= tag.starts_with(b"shared:"),
        }
    }
    let fs_type = text(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = text(fields.next().unwrap_or_default());
    Some(Mount { id, parent, device, root, point, options, shared, fs_type, source, super_options })
}

/// `8:1`
fn device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    unescape(field).to_string_lossy().into_owned()
}

/// `\040` is a space; three octal digits follow a backslash, always.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| *first == b'\\').and_then(octal);
        match escaped {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// Whether something is mounted on exactly this path. A link at its end is not followed.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    let failed = |errno: Errno| MountError::Change {
        attempt: "look at",
        target: path.into(),
        source: errno.into(),
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = match rustix::fs::statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    };
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Before Linux 5.8 this is only in the table.
    let parent = path.parent().unwrap_or(path);
    let parent = std::fs::canonicalize(parent).map_err(|source| MountError::Change {
        attempt: "look at",
        target: path.into(),
        source,
    })?;
    let plain = path.file_name().map_or(parent.clone(), |name| parent.join(name));
    Ok(table(Path::new("/proc"))?.iter().any(|mount| mount.point == plain))
}

/// Entries that [`has_no_mounts`] visits at most. More take longer than to read the table.
const MAX_VISITED: usize = 256;

/// Whether it is certain that nothing is mounted on the directory `name` in `parent` nor below it.
/// Does not read the table, which has the mounts of all pods. False if there is a mount, and also
/// if there are too many entries or one cannot be opened: then only the table says what is mounted.
///
/// Each entry is opened with a flag by which the kernel refuses mounts, so this never waits for a
/// mounted filesystem that hangs.
pub fn has_no_mounts(parent: impl AsFd, name: &Path) -> bool {
    visit_without_mounts(parent, name).is_ok_and(|complete| complete)
}

/// `Ok(false)`: there are too many entries. An error if something is mounted.
fn visit_without_mounts(parent: impl AsFd, name: &Path) -> rustix::io::Result<bool> {
    let open = |parent: &dyn AsFd, name: &[u8], flags: OFlags| -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(parent.as_fd(), name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
    };
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut visited = 0;
    let mut unread = vec![open(&parent, name.as_os_str().as_bytes(), directory)?];
    while let Some(parent) = unread.pop() {
        for entry in Dir::read_from(&parent)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            visited += 1;
            if visited > MAX_VISITED {
                return Ok(false);
            }
            match entry.file_type() {
                FileType::Directory => unread.push(open(&parent, name, directory)?),
                // A directory for all we know.
                FileType::Unknown => return Ok(false),
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => drop(open(&parent, name, OFlags::PATH)?),
            }
        }
    }
    Ok(true)
}

/// Mounts a filesystem, such as a tmpfs for secrets.
pub fn mount(
    fs_type: &str,
    source: &str,
    target: &Path,
    flags: MountFlags,
    options: &str,
) -> Result<()> {
    let options = std::ffi::CString::new(options).map_err(|source| MountError::Mount {
        attempt: "mount",
        what: fs_type.into(),
        target: target.into(),
        source: source.into(),
    })?;
    change::mount(source, target, fs_type, flags, &options).map_err(|errno| MountError::Mount {
        attempt: "mount",
        what: format!("{fs_type} {source}").into(),
        target: target.into(),
        source: errno.into(),
    })
}

/// Propagation of mounts that appear and vanish below the source of a bind mount later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They appear in it; mounts and unmounts in it stay in it.
    FromSource,
    /// Both directions: mounts and unmounts in it also happen at the source. For containers with
    /// `mountPropagation: Bidirectional`.
    Both,
}

/// Bind-mounts `source` on `target`, which must exist. Mounts below the source are not included.
pub fn bind(source: &Path, target: &Path, propagation: Propagation) -> Result<()> {
    change::bind(source, target).map_err(|errno| bind_failed(source, target, errno))?;
    match propagation {
        // Shared with its own copies only: the runtime propagates to a container with
        // `HostToContainer` from a shared or slave mount, and a slave of a private source is
        // neither.
        Propagation::FromSource => {
            propagate(target, MountPropagationFlags::DOWNSTREAM, "make a slave mount of")?;
            make_shared(target)
        }
        Propagation::Both => Ok(()),
    }
}

fn bind_failed(source: &Path, target: &Path, errno: Errno) -> MountError {
    MountError::Mount {
        attempt: "bind",
        what: source.into(),
        target: target.into(),
        source: errno.into(),
    }
}

fn propagate(target: &Path, flags: MountPropagationFlags, attempt: &'static str) -> Result<()> {
    change::propagate(target, flags).map_err(|errno| MountError::Change {
        attempt,
        target: target.into(),
        source: errno.into(),
    })
}

/// Bind-mounts the file behind a handle, even if its name changed since it was opened.
pub fn bind_pinned(source: impl AsFd, target: &Path, propagation: Propagation) -> Result<()> {
    let path = format!("/proc/self/fd/{}", source.as_fd().as_raw_fd());
    bind(Path::new(&path), target, propagation)
}

/// Whether the file at `target` is the file behind a handle.
pub fn shows(target: &Path, source: impl AsFd) -> Result<bool> {
    let failed = |errno: Errno| MountError::Change {
        attempt: "look at",
        target: target.into(),
        source: errno.into(),
    };
    let there = match rustix::fs::statat(CWD, target, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    };
    let wanted = rustix::fs::fstat(source).map_err(failed)?;
    Ok((there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino))
}

/// Makes a bind mount read-only. Other restrictions of the mount are kept.
pub fn remount_read_only(target: &Path) -> Result<()> {
    let failed = |errno: Errno| MountError::Change {
        attempt: "make read-only",
        target: target.into(),
        source: errno.into(),
    };
    // A remount replaces all flags, so those that are set have to be passed again.
    let now = rustix::fs::statvfs(target).map_err(failed)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (set, keep) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if now.contains(set) {
            flags |= keep;
        }
    }
    change::remount(target, flags, c"").map_err(failed)
}

/// Changes the size or mode of a mounted filesystem, such as a tmpfs.
pub fn reconfigure(target: &Path, flags: MountFlags, options: &str) -> Result<()> {
    let failed =
        |source| MountError::Change { attempt: "reconfigure", target: target.into(), source };
    let options = std::ffi::CString::new(options).map_err(|error| failed(error.into()))?;
    change::remount(target, flags, &options).map_err(|errno| failed(errno.into()))
}

/// Makes sure that mounts below a directory propagate to its peers, so that a container can see or
/// make mounts (`mountPropagation`). If its filesystem is private, the directory becomes a mount of
/// its own.
///
/// Existing mounts below it keep their propagation and stay visible: the bind is recursive only for
/// them. [`detach_own`] unmounts it again and touches none of them.
pub fn ensure_shared(directory: &Path) -> Result<()> {
    let directory = std::fs::canonicalize(directory).map_err(|source| MountError::Change {
        attempt: "look at",
        target: directory.into(),
        source,
    })?;
    let table = table(Path::new("/proc"))?;
    match around(&table, &directory) {
        Some(mount) if mount.shared => Ok(()),
        Some(mount) if mount.point == directory => make_shared(&directory),
        Some(_) | None => bind_shared_on_itself(&table, &directory),
    }
}

/// Mounts a directory on itself, shared. Mounts below it keep their propagation and stay visible.
pub fn bind_shared_on_itself(table: &[Mount], directory: &Path) -> Result<()> {
    let bound = match at_or_below(table, directory).is_empty() {
        true => change::bind(directory, directory),
        false => change::bind_recursive(directory, directory),
    };
    bound.map_err(|errno| bind_failed(directory, directory, errno))?;
    make_shared(directory)
}

fn make_shared(target: &Path) -> Result<()> {
    propagate(target, MountPropagationFlags::SHARED, "make shared")
}

/// The mount that a path is in: the last one on its longest mounted prefix.
pub fn around<'a>(table: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let holding = table.iter().filter(|mount| path.starts_with(&mount.point));
    holding.max_by_key(|mount| mount.point.components().count())
}

/// How a busy mount is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It stays mounted, and the call fails.
    Fail,
    /// It vanishes from the tree at once; the kernel frees it when the last user is gone.
    Detach,
}

/// Unmounts our mount at `point`, the path at which it was mounted, without links. No error if
/// there is none.
///
/// It is made a recursive slave first. So mounts that others made at its source, and that
/// propagated into our mount, stay mounted at the source. A mount that exists only on ours would be
/// lost: then nothing is unmounted, and the error says what to do.
pub fn detach_own(point: &Path, in_use: InUse) -> Result<()> {
    let table = table(Path::new("/proc"))?;
    let stacked = stack(&table, point);
    let Some(own) = stacked.last() else { return Ok(()) };
    let on_it = mounted_on(&table, own);
    if let Some(mounted) = lost(&table, &on_it, &[own.id]) {
        return Err(occupied(point, mounted));
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    let flags = match in_use {
        InUse::Fail if on_it.is_empty() => UnmountFlags::NOFOLLOW,
        InUse::Fail | InUse::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    for _ in &stacked {
        // One at a time: the call unmounts the topmost mount, and the one below is next.
        let gone = change::propagate(point, slave).and_then(|()| change::unmount(point, flags));
        match gone {
            // No longer mounted, or the path does not exist.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => {
                return Err(MountError::Change {
                    attempt: "unmount",
                    target: point.into(),
                    source: errno.into(),
                });
            }
        }
    }
    Ok(())
}

/// Whether [`detach_own`] of all these paths would lose no foreign mount.
pub fn check_own(table: &[Mount], points: &[PathBuf]) -> Result<()> {
    let own: Vec<&Mount> =
        points.iter().filter_map(|point| stack(table, point).last().copied()).collect();
    let ids: Vec<u64> = own.iter().map(|mount| mount.id).collect();
    for own in own {
        if let Some(mounted) = lost(table, &mounted_on(table, own), &ids) {
            return Err(occupied(&own.point, mounted));
        }
    }
    Ok(())
}

fn occupied(target: &Path, mounted: &Mount) -> MountError {
    MountError::Occupied { target: target.into(), mounted: mounted.point.clone() }
}

/// The mounts on exactly this path, the topmost first.
fn stack<'a>(table: &'a [Mount], point: &Path) -> Vec<&'a Mount> {
    let at = |mount: &&Mount| mount.point == point;
    let mut stacked: Vec<&Mount> = table.iter().rev().find(at).into_iter().collect();
    while let Some(lowest) = stacked.last()
        && let Some(below) = table.iter().filter(at).find(|mount| mount.id == lowest.parent)
        && !stacked.iter().any(|seen| seen.id == below.id)
    {
        stacked.push(below);
    }
    stacked
}

/// All mounts on a mount, at any depth.
fn mounted_on<'a>(table: &'a [Mount], own: &Mount) -> Vec<&'a Mount> {
    let mut children: BTreeMap<u64, Vec<&Mount>> = BTreeMap::new();
    for mount in table {
        children.entry(mount.parent).or_default().push(mount);
    }
    let (mut found, mut open) = (Vec::new(), vec![own.id]);
    while let Some(id) = open.pop() {
        // Removed from the table, so that each is visited once even if the table has a loop.
        for mount in children.remove(&id).unwrap_or_default() {
            if mount.id != own.id {
                open.push(mount.id);
                found.push(mount);
            }
        }
    }
    found
}

/// The mounts of `on_it`, which are on a mount of ours, that would be mounted nowhere once the
/// mounts `going` and all on them are gone. Filesystems of our own mounts are not counted as lost.
fn lost<'a>(table: &[Mount], on_it: &[&'a Mount], going: &[u64]) -> Option<&'a Mount> {
    if on_it.is_empty() {
        return None;
    }
    let mut gone: BTreeSet<u64> = BTreeSet::new();
    for going in table.iter().filter(|mount| going.contains(&mount.id)) {
        gone.extend(mounted_on(table, going).iter().map(|mount| mount.id));
    }
    // The device alone is not enough: all namespaces share one, and a bind mount shows only a part.
    let mut kept: BTreeMap<(u32, u32), Vec<&Path>> = BTreeMap::new();
    for mount in table.iter().filter(|mount| !gone.contains(&mount.id)) {
        kept.entry(mount.device).or_default().push(&mount.root);
    }
    let is_kept = |mount: &Mount| {
        let roots = kept.get(&mount.device).into_iter().flatten();
        roots.into_iter().any(|root| mount.root.starts_with(root))
    };
    on_it.iter().find(|mount| !is_kept(mount)).copied()
}

impl Mount {
    /// For cgroup v1, these name the controllers.
    pub fn super_option_list(&self) -> impl Iterator<Item = &str> {
        self.super_options.split(',')
    }

    pub fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }
}

#[cfg(test)]
pub(crate) mod tests;
