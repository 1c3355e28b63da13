//! Paths that no other user can change: of programs that the agent runs as root, and of its own
//! directories.
//!
//! The whole path is checked, through every link: each directory, link and file belongs to root (or
//! to the user of this process) and cannot be written by others. Otherwise a user who may write to
//! one of the directories is root.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Directories of system programs.
pub const PROGRAM_DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// In a directory with this bit, other users cannot replace what they do not own.
const STICKY: u32 = 0o1000;
const EXECUTABLE: u32 = 0o111;
/// The kernel's own limit.
const MAX_LINKS: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum UntrustedPath {
    #[error("{} belongs to user {owner}, who can change it. Fix: chown root {}", path.display(), path.display())]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "other users can write to {} (mode {mode:o}). Fix: chmod go-w {}",
        path.display(),
        path.display()
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} is not an executable file", path.display())]
    NotExecutable { path: PathBuf },
    #[error("{} is not an absolute path", path.display())]
    Relative { path: PathBuf },
    #[error("cannot inspect {}", path.display())]
    Inspect { path: PathBuf, source: io::Error },
}

impl UntrustedPath {
    /// What another user can change.
    pub fn path(&self) -> &Path {
        match self {
            Self::Owner { path, .. }
            | Self::Writable { path, .. }
            | Self::NotExecutable { path }
            | Self::Relative { path }
            | Self::Inspect { path, .. } => path,
        }
    }

    fn is_not_found(&self) -> bool {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        matches!(self, Self::Inspect { source, .. } if absent.contains(&source.kind()))
    }
}

/// The first trusted program of this name; `None` if there is none at all. An untrusted one is an
/// error only if no other directory has a trusted one.
pub fn find_program<P: AsRef<Path>>(
    name: &str,
    directories: impl IntoIterator<Item = P>,
) -> Result<Option<PathBuf>, UntrustedPath> {
    let mut untrusted = None;
    for directory in directories {
        let program = directory.as_ref().join(name);
        // A directory that others can change does not matter while it has no such program.
        if is_absent(&program) {
            continue;
        }
        match check_program(&program) {
            Ok(()) => return Ok(Some(program)),
            Err(error) if error.is_not_found() => {}
            Err(error) => untrusted = untrusted.or(Some(error)),
        }
    }
    untrusted.map_or(Ok(None), Err)
}

fn is_absent(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    path.is_absolute() && found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Checks that only root can change which program this path is.
pub fn check_program(program: &Path) -> Result<(), UntrustedPath> {
    let (target, found) = check(program)?;
    match found.is_file() && found.permissions().mode() & EXECUTABLE != 0 {
        true => Ok(()),
        false => Err(UntrustedPath::NotExecutable { path: target }),
    }
}

/// Checks that only root can change what this directory contains.
pub fn check_directory(directory: &Path) -> Result<(), UntrustedPath> {
    let (target, found) = check(directory)?;
    match is_writable_by_others(&found) {
        false => Ok(()),
        true => Err(UntrustedPath::Writable { path: target, mode: found.mode() & 0o7777 }),
    }
}

/// The search path for a program that starts others by name: the trusted directories of `path` and
/// of the system.
pub fn search_path(path: &OsStr) -> OsString {
    let mut trusted: Vec<PathBuf> = Vec::new();
    let system = PROGRAM_DIRECTORIES.into_iter().map(PathBuf::from);
    for directory in std::env::split_paths(path).chain(system) {
        if !trusted.contains(&directory) && check_directory(&directory).is_ok() {
            trusted.push(directory);
        }
    }
    // Fails only for a name with a colon, and none was split off with one.
    std::env::join_paths(trusted).unwrap_or_default()
}

/// Follows the path as the kernel does, and checks every step.
fn check(path: &Path) -> Result<(PathBuf, std::fs::Metadata), UntrustedPath> {
    if !path.is_absolute() {
        return Err(UntrustedPath::Relative { path: path.to_owned() });
    }
    let mut at = PathBuf::from("/");
    let mut found = inspect(&at)?;
    let mut steps: VecDeque<OsString> = steps(path);
    let mut links = 0;
    while let Some(step) = steps.pop_front() {
        if step == ".." {
            at.pop();
            found = inspect(&at)?;
            continue;
        }
        let next = at.join(&step);
        let metadata = inspect(&next)?;
        if !metadata.is_symlink() {
            (at, found) = (next, metadata);
            continue;
        }
        links += 1;
        let target = std::fs::read_link(&next);
        let target = target.and_then(|target| match links > MAX_LINKS {
            true => Err(io::Error::from(io::ErrorKind::TooManyLinks)),
            false => Ok(target),
        });
        let target = target.map_err(|source| UntrustedPath::Inspect { path: next, source })?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        let mut all = self::steps(&target);
        all.append(&mut steps);
        steps = all;
        found = inspect(&at)?;
    }
    Ok((at, found))
}

fn steps(path: &Path) -> VecDeque<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(step).collect()
}

/// Metadata of a directory, link or file that only root can change.
fn inspect(path: &Path) -> Result<std::fs::Metadata, UntrustedPath> {
    let found = std::fs::symlink_metadata(path)
        .map_err(|source| UntrustedPath::Inspect { path: path.to_owned(), source })?;
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(UntrustedPath::Owner { path: path.to_owned(), owner });
    }
    let mode = found.mode() & 0o7777;
    // A link has no mode of its own.
    let protected = found.is_symlink() || (found.is_dir() && mode & STICKY != 0);
    if is_writable_by_others(&found) && !protected {
        return Err(UntrustedPath::Writable { path: path.to_owned(), mode });
    }
    Ok(found)
}

/// The group root has no other members than root.
fn is_writable_by_others(found: &std::fs::Metadata) -> bool {
    let others = if found.gid() == 0 { OTHERS_WRITE } else { GROUP_WRITE | OTHERS_WRITE };
    found.mode() & others != 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, mode: u32) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn program_that_others_can_write_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| root.path().join(name));
        write(&first.join("ctr"), 0o757);
        let directories = || [Path::new("/absent"), &first, &second];
        let refused = find_program("ctr", directories()).unwrap_err().to_string();
        assert!(refused.contains("first/ctr (mode 757). Fix: chmod go-w"), "{refused}");
        write(&second.join("ctr"), 0o755);
        assert_eq!(find_program("ctr", directories()).unwrap(), Some(second.join("ctr")));
        assert!(find_program("absent", [&first, &second]).unwrap().is_none());
        set(&first, 0o757);
        assert!(find_program("absent", [&first, &second]).unwrap().is_none());
        write(&second.join("data"), 0o644);
        let refused = find_program("data", [&second]).unwrap_err().to_string();
        assert!(refused.contains("second/data is not an executable file"), "{refused}");
        assert!(matches!(find_program("ctr", ["bin"]), Err(UntrustedPath::Relative { .. })));
    }

    #[test]
    fn every_directory_and_link_on_the_way_is_checked() {
        let root = tempfile::tempdir().unwrap();
        let [bin, other, real] = ["bin", "other", "real"].map(|name| root.path().join(name));
        write(&real.join("deep/tool-1"), 0o755);
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        // bin/tool -> ../other/tool -> real/deep/tool-1
        symlink("../other/tool", bin.join("tool")).unwrap();
        symlink(real.join("deep/tool-1"), other.join("tool")).unwrap();
        assert_eq!(find_program("tool", [&bin]).unwrap(), Some(bin.join("tool")));
        for directory in [&bin, &other, &real, &real.join("deep")] {
            for (mode, group) in [(0o775, Some(1000)), (0o757, None)] {
                if group.is_some() && !rustix::process::geteuid().is_root() {
                    continue;
                }
                std::os::unix::fs::chown(directory, None, group).unwrap();
                set(directory, mode);
                let refused = find_program("tool", [&bin]).unwrap_err();
                let named =
                    matches!(&refused, UntrustedPath::Writable { path, .. } if path == directory);
                assert!(named, "{refused}");
            }
            set(directory, 0o755);
        }
        if rustix::process::geteuid().is_root() {
            // As archives of network plugins have it.
            std::os::unix::fs::chown(&bin, None, Some(0)).unwrap();
            set(&bin, 0o775);
            find_program("tool", [&bin]).unwrap().unwrap();
        }
        symlink("circle", bin.join("circle")).unwrap();
        assert!(matches!(find_program("circle", [&bin]), Err(UntrustedPath::Inspect { .. })));
    }

    /// Needs root, to give files away.
    #[test]
    fn program_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        write(&bin.join("tool"), 0o755);
        for theirs in [bin.join("tool"), bin.clone()] {
            std::os::unix::fs::chown(&theirs, Some(1000), None).unwrap();
            let refused = find_program("tool", [&bin]).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 1000"), "{refused}");
            std::os::unix::fs::chown(&theirs, Some(0), None).unwrap();
        }
        // Their link in a directory that everybody may write to.
        let shared = root.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        set(&shared, 0o1777);
        symlink(bin.join("tool"), shared.join("tool")).unwrap();
        assert!(find_program("tool", [&shared]).unwrap().is_some());
        std::os::unix::fs::lchown(shared.join("tool"), Some(1000), None).unwrap();
        assert!(matches!(
            find_program("tool", [&shared]),
            Err(UntrustedPath::Owner { owner: 1000, .. })
        ));
    }

    #[test]
    fn search_path_has_only_trusted_directories() {
        let root = tempfile::tempdir().unwrap();
        let [own, shared] = ["own", "shared"].map(|name| root.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&shared).unwrap();
        set(&shared, 0o1777);
        let given = std::env::join_paths([&shared, Path::new("."), &own, &own]).unwrap();
        let path = search_path(&given);
        let found: Vec<PathBuf> = std::env::split_paths(&path).collect();
        assert_eq!(found.first(), Some(&own));
        assert!(!found.contains(&shared) && !found.contains(&PathBuf::from(".")));
        assert_eq!(found.iter().filter(|path| **path == own).count(), 1);
    }
}
