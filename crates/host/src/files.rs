//! File access confined to one directory.
//!
//! The agent is root, and much of what is below its directory was put there by containers: a
//! symlink swapped in between a check and a write would make the agent overwrite the host. So
//! nothing here parses and checks absolute paths; the kernel itself refuses to leave the directory
//! (`openat2`, Linux 5.6), in the same call that opens the file.
//!
//! Files that a reader must find complete are written to a temporary name and renamed. Files that
//! must survive a power cut are synced, too.

mod descent;
mod ownership;
mod publication;
mod regular;
mod removal;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::change;

pub use ownership::Ownership;
pub use publication::{CURRENT, NewFile, Published};

/// An open directory; all paths given to it are relative and stay beneath it.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// For messages only.
    path: PathBuf,
}

/// What to do with symbolic links on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Refuse them: the tree is ours and has none.
    Refuse,
    /// Follow those that stay beneath the root: the tree is a user's volume.
    FollowBeneath,
}

/// Whether a write must survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It must survive: file and directory are synced.
    Disk,
    /// It is recreated after a reboot; readers still never see half of it.
    Cache,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {attempt} {}: the path or a symbolic link in it leads out of the directory", path.display())]
    Escapes { attempt: &'static str, path: PathBuf },
    #[error("cannot {attempt} {}: something is mounted there; unmount it first", path.display())]
    Mounted { attempt: &'static str, path: PathBuf },
    #[error("{} is larger than {limit} bytes, the limit for reading", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
}

impl FileError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub fn is_already_there(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
    }
}

pub type Result<T> = std::result::Result<T, FileError>;

impl Root {
    /// Opens an existing directory. The path comes from the configuration; links in it are
    /// followed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(errno) => {
                Err(FileError::Io { attempt: "open directory", path, source: errno.into() })
            }
        }
    }

    /// Creates the directory and its missing parents, then opens it.
    pub fn create(path: impl Into<PathBuf>, mode: u32) -> Result<Self> {
        let path = path.into();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        change::make_directories(parent.unwrap_or(Path::new(".")), 0o777).map_err(|source| {
            FileError::Io { attempt: "create the directories above", path: path.clone(), source }
        })?;
        match change::mkdirat(CWD, &path, Mode::from_raw_mode(mode & 0o777)) {
            Ok(()) => {
                let root = Self::open(path)?;
                root.set_mode(&root.fd, mode, Path::new(""))?;
                Ok(root)
            }
            Err(Errno::EXIST) => Self::open(path),
            Err(errno) => {
                Err(FileError::Io { attempt: "create directory", path, source: errno.into() })
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A root for a directory beneath this one.
    pub fn sub(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(Self { fd: self.open_dir(path)?, path: self.path.join(path) })
    }

    /// A handle that stays on the same file if names change; suitable for bind mounts.
    pub fn pin(&self, path: impl AsRef<Path>, links: Links) -> Result<OwnedFd> {
        self.open_at("find", path.as_ref(), OFlags::PATH, links)
    }

    /// The same for an entry that may itself be a link, which is not followed.
    pub fn pin_entry(&self, path: impl AsRef<Path>) -> Result<OwnedFd> {
        self.open_at("find", path.as_ref(), OFlags::PATH | OFlags::NOFOLLOW, Links::Refuse)
    }

    pub fn open_file(&self, path: impl AsRef<Path>, links: Links) -> Result<File> {
        // Non-blocking: a container may have put a pipe there.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.open_at("open", path.as_ref(), flags, links).map(File::from)
    }

    /// Opens an existing file in which a write is a command, as in the kernel's filesystems.
    pub fn open_for_writing(&self, path: impl AsRef<Path>, links: Links) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.open_at("open for writing", path.as_ref(), flags, links).map(File::from)
    }

    /// Another handle to the same directory.
    pub fn again(&self) -> Result<Self> {
        self.sub("").map(|again| Self { path: self.path.clone(), ..again })
    }

    /// The whole file, if it is no larger than `limit`.
    pub fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
        self.read_file(path.as_ref(), Links::Refuse, limit)
    }

    /// The same in a user's volume, where links that stay beneath the root are followed.
    pub fn read_following(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
        self.read_file(path.as_ref(), Links::FollowBeneath, limit)
    }

    fn read_file(&self, path: &Path, links: Links, limit: u64) -> Result<Vec<u8>> {
        let file = self.open_file(path, links)?;
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| self.error("read", path, source))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len <= limit) {
            return Ok(bytes);
        }
        Err(FileError::TooLarge { path: self.path.join(path), limit })
    }

    /// Metadata without following a link at the end; `None` if nothing is there.
    pub fn kind(&self, path: impl AsRef<Path>) -> Result<Option<Kind>> {
        let path = path.as_ref();
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = match self.open_at("look at", path, flags, Links::Refuse) {
            Ok(fd) => fd,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.error("look at", path, errno))?;
        Ok(Some(Kind::from(FileType::from_raw_mode(stat.st_mode))))
    }

    /// Names in a directory, unordered.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Kind)>> {
        let path = path.as_ref();
        let fd = self.open_dir(path)?;
        entries(&fd).map_err(|source| self.error("list", path, source))
    }

    /// Creates one directory with exactly this mode, regardless of the umask. It must not exist.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        // The umask only removes permissions, so a crash before the final mode is set leaves a
        // directory that is neither open to others nor closed to its users.
        change::mkdirat(&parent, name, Mode::from_raw_mode(mode & 0o777))
            .map_err(|errno| self.error("create directory", path, errno))?;
        self.set_mode(&self.open_dir(path)?, mode, path)
    }

    /// Creates the directory and its missing parents; existing ones are left unchanged.
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let mut so_far = PathBuf::new();
        for component in path.as_ref().components() {
            so_far.push(component);
            match self.create_dir(&so_far, mode) {
                Ok(()) => {}
                Err(error) if error.is_already_there() => {}
                Err(error) => return Err(error),
            }
        }
        // The existing entry may be a file.
        self.open_dir(path.as_ref()).map(drop)
    }

    /// Writes a file such that a reader sees the old one or the new one, complete.
    pub fn write_atomic(
        &self,
        path: impl AsRef<Path>,
        bytes: &[u8],
        mode: u32,
        durability: Durability,
    ) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let temporary = temporary_name(name);
        let made =
            self.write_new(&parent, &temporary, bytes, mode, durability, path).and_then(|()| {
                change::renameat(&parent, &temporary, &parent, name)
                    .map_err(|errno| self.error("replace", path, errno))
            });
        if made.is_err() {
            // Best effort: the first error is the one to report.
            let _ = change::unlinkat(&parent, &temporary, AtFlags::empty());
        }
        made?;
        match durability {
            Durability::Disk => {
                rustix::fs::fsync(&parent).map_err(|errno| self.error("sync", path, errno))
            }
            Durability::Cache => Ok(()),
        }
    }

    fn write_new(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        durability: Durability,
        path: &Path,
    ) -> Result<()> {
        let fd = change::create(parent, name).map_err(|errno| self.error("write", path, errno))?;
        let mut file = File::from(fd);
        change::write(&mut file, bytes).map_err(|source| self.error("write", path, source))?;
        self.set_mode(&file, mode, path)?;
        match durability {
            Durability::Disk => file.sync_all().map_err(|source| self.error("sync", path, source)),
            Durability::Cache => Ok(()),
        }
    }

    /// Appends to an existing file and syncs it. After an error a part of `bytes` may be in it.
    pub fn append(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut file = File::from(self.open_at("append to", path, flags, Links::Refuse)?);
        change::write(&mut file, bytes).map_err(|source| self.error("append to", path, source))?;
        file.sync_data().map_err(|source| self.error("sync", path, source))
    }

    /// Removes temporary files that an earlier process left when it was killed in
    /// [`Self::write_atomic`].
    pub fn sweep_temporaries(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        for (name, kind) in self.list(path)? {
            if kind == Kind::File && is_left_over(&name) {
                self.remove_file(path.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes a file or a link; no error if it does not exist.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink("remove", path.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory; no error if it does not exist.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink("remove directory", path.as_ref(), AtFlags::REMOVEDIR)
    }

    fn unlink(&self, attempt: &'static str, path: &Path, flags: AtFlags) -> Result<()> {
        let (parent, name) = match self.parent(path) {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        match change::unlinkat(&parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error(attempt, path, errno)),
        }
    }

    /// Removes a directory and all its content, following no link and entering no mount. Anything
    /// that could not be removed is an error; a missing directory is not.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        removal::remove(self, path.as_ref())
    }

    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        change::renameat(&from_parent, from_name, &to_parent, to_name)
            .map_err(|errno| self.error("rename", from, errno))
    }

    /// Creates a link with exactly this `target`, which is not resolved.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        change::symlinkat(target.as_ref(), &parent, name)
            .map_err(|errno| self.error("create link", path, errno))
    }

    fn open_dir(&self, path: &Path) -> Result<OwnedFd> {
        self.open_at("open directory", path, OFlags::RDONLY | OFlags::DIRECTORY, Links::Refuse)
    }

    /// The directory that holds `path`, and its name in it.
    fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(FileError::Escapes { attempt: "name", path: self.path.join(path) });
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((self.open_dir(parent)?, name))
    }

    fn open_at(
        &self,
        attempt: &'static str,
        path: &Path,
        flags: OFlags,
        links: Links,
    ) -> Result<OwnedFd> {
        let resolve = match links {
            Links::Refuse => ResolveFlags::NO_SYMLINKS,
            Links::FollowBeneath => ResolveFlags::empty(),
        };
        let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        open_beneath(self.fd.as_fd(), path, flags, resolve)
            .map_err(|errno| self.error(attempt, path, errno))
    }

    fn set_mode(&self, fd: impl AsFd, mode: u32, path: &Path) -> Result<()> {
        change::fchmod(fd, Mode::from_raw_mode(mode))
            .map_err(|errno| self.error("set the mode of", path, errno))
    }

    fn error(&self, attempt: &'static str, path: &Path, source: impl Into<io::Error>) -> FileError {
        let path = self.path.join(path);
        let source = source.into();
        match Errno::from_io_error(&source) {
            Some(Errno::LOOP | Errno::XDEV) => FileError::Escapes { attempt, path },
            Some(Errno::BUSY) => FileError::Mounted { attempt, path },
            _ => FileError::Io { attempt, path, source },
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<FileType> for Kind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// `openat2`, retried where the kernel detected a concurrent rename and asks for it.
fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    const TRIES: usize = 64;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let mut tried = 0;
    loop {
        tried += 1;
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tried < TRIES => {}
            result => return result,
        }
    }
}

fn entries(dir: impl AsFd) -> io::Result<Vec<(OsString, Kind)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if let Some(kind) = kind_of(dir.as_fd(), &entry)? {
            found.push((OsStr::from_bytes(name.to_bytes()).to_owned(), kind));
        }
    }
    Ok(found)
}

/// Type of an entry of `dir`; `None` if it is gone.
fn kind_of(dir: BorrowedFd<'_>, entry: &DirEntry) -> rustix::io::Result<Option<Kind>> {
    let file_type = match entry.file_type() {
        // Some filesystems do not report it.
        FileType::Unknown => {
            match rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        known => known,
    };
    Ok(Some(Kind::from(file_type)))
}

const TEMPORARY: &str = ".podwright-tmp";

/// Unique for every call and every process, so that no two writers share one.
fn temporary_name(name: &OsStr) -> OsString {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut temporary = OsString::from(".");
    // Leave space for the suffix within the 255 bytes of a name.
    let kept = name.as_bytes().get(..180).unwrap_or(name.as_bytes());
    temporary.push(OsStr::from_bytes(kept));
    temporary.push(format!(".{count}{}", this_process()));
    temporary
}

/// A process id is not unique: in a container it is the same after every restart.
fn this_process() -> &'static str {
    static SUFFIX: OnceLock<String> = OnceLock::new();
    SUFFIX
        .get_or_init(|| format!("-{:016x}{TEMPORARY}", RandomState::new().build_hasher().finish()))
}

fn is_left_over(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b".")
        && name.ends_with(TEMPORARY.as_bytes())
        && !name.ends_with(this_process().as_bytes())
}

#[cfg(test)]
mod tests;
