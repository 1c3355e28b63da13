//! Directory trees in an archive.
//!
//! Containers write to volumes while they are read, so each entry is opened beneath the directory
//! and without following links: a link to a file of the machine must not bring that file into the
//! archive.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use podwright_host::files::{FileError, Kind, Links, Root};
use rustix::fs::Stat;

/// A tree that is deeper is refused.
const MAX_DEPTH: usize = 256;
const MODE: u32 = 0o7777;

/// What is left out of an archive.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    /// Sockets, pipes and devices.
    pub(super) files: u64,
}

/// Appends the content of a directory, below `name`. Entries that disappear meanwhile are left out.
pub(super) fn append(
    archive: &mut tar::Builder<impl Write>,
    name: &Path,
    root: &Root,
    skipped: &mut Skipped,
) -> anyhow::Result<()> {
    append_directory(archive, name, root, Path::new(""))?;
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        if directory.components().count() > MAX_DEPTH {
            bail!("{} is more than {MAX_DEPTH} directories deep", directory.display());
        }
        let entries = match root.list(&directory) {
            Err(error) if is_gone(&error) => continue,
            entries => entries?,
        };
        for (entry, kind) in entries {
            let path = directory.join(entry);
            let appended = match kind {
                Kind::Directory => {
                    let appended = append_directory(archive, &name.join(&path), root, &path);
                    if appended.is_ok() {
                        left.push(path.clone());
                    }
                    appended
                }
                Kind::File => append_file(archive, &name.join(&path), root, &path),
                Kind::Symlink => append_link(archive, &name.join(&path), root, &path),
                Kind::Other => {
                    skipped.files += 1;
                    Ok(())
                }
            };
            match appended {
                Err(error) if error.downcast_ref::<FileError>().is_some_and(is_gone) => {}
                appended => appended
                    .with_context(|| format!("cannot back up {}", name.join(&path).display()))?,
            }
        }
    }
    Ok(())
}

/// Whether the entry disappeared, or was replaced by one of another type.
fn is_gone(error: &FileError) -> bool {
    match error {
        FileError::Io { source, .. } => matches!(
            source.raw_os_error(),
            Some(nix::libc::ENOENT | nix::libc::ENOTDIR | nix::libc::ELOOP)
        ),
        FileError::Escapes { .. } | FileError::Mounted { .. } | FileError::TooLarge { .. } => false,
    }
}

fn header(found: &Stat, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(found.st_mode & MODE);
    header.set_uid(found.st_uid.into());
    header.set_gid(found.st_gid.into());
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    header
}

fn append_directory(
    archive: &mut tar::Builder<impl Write>,
    name: &Path,
    root: &Root,
    path: &Path,
) -> anyhow::Result<()> {
    let found = match path.as_os_str().is_empty() {
        true => rustix::fs::stat(root.path())?,
        false => rustix::fs::fstat(&root.pin(path, Links::Refuse)?)?,
    };
    let mut header = header(&found, tar::EntryType::Directory);
    archive.append_data(&mut header, name, std::io::empty())?;
    Ok(())
}

fn append_file(
    archive: &mut tar::Builder<impl Write>,
    name: &Path,
    root: &Root,
    path: &Path,
) -> anyhow::Result<()> {
    let file = root.open_regular(path)?;
    let found = rustix::fs::fstat(&file)?;
    let size = u64::try_from(found.st_size)?;
    let mut header = header(&found, tar::EntryType::Regular);
    header.set_size(size);
    // A file that is written meanwhile has the size that it had at first.
    let content = file.take(size).chain(std::io::repeat(0)).take(size);
    archive.append_data(&mut header, name, content)?;
    Ok(())
}

fn append_link(
    archive: &mut tar::Builder<impl Write>,
    name: &Path,
    root: &Root,
    path: &Path,
) -> anyhow::Result<()> {
    let pinned = root.pin_entry(path)?;
    let target = rustix::fs::readlinkat(&pinned, "", Vec::new())?;
    let target = Path::new(std::ffi::OsStr::new(target.to_str()?)).to_owned();
    let mut header = header(&rustix::fs::fstat(&pinned)?, tar::EntryType::Symlink);
    archive.append_link(&mut header, name, target)?;
    Ok(())
}
