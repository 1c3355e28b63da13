//! Mounts and files of a user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::mounts;

/// A file system that a user has mounted and made shared, as all mounts are on a machine with
/// systemd.
pub(super) struct UserMount {
    point: PathBuf,
    /// Device number of the file system, as in the mount table and `stat`.
    device: String,
    number: u64,
}

impl UserMount {
    pub(super) fn mount(point: &Path) -> Result<Self> {
        let failed = || format!("bystander: mounting a tmpfs at {}", point.display());
        fs::create_dir_all(point).with_context(failed)?;
        mount("user-disk", point, "tmpfs", MountFlags::empty(), c"size=1m,mode=755")
            .with_context(failed)?;
        mount_change(point, MountPropagationFlags::SHARED).with_context(failed)?;
        let table = mounts::below(point)?;
        let mounted = table.iter().rfind(|mount| mount.point == point).with_context(failed)?;
        let number = fs::symlink_metadata(point).with_context(failed)?.dev();
        Ok(Self { point: point.to_owned(), device: mounted.device.clone(), number })
    }

    /// An agent may bind its root directory onto itself, as upstream does: then the user's file
    /// system is mounted there twice. It must be the visible one.
    pub(super) fn damage(&self) -> Option<String> {
        let point = self.point.display();
        let table = match mounts::below(&self.point) {
            Ok(table) => table,
            Err(error) => return Some(format!("mount {point}: cannot inspect: {error:#}")),
        };
        let top = table.iter().rfind(|mount| mount.point == self.point);
        match top {
            None => Some(format!("mount {point}: a user's file system was unmounted")),
            Some(top) if top.device != self.device => Some(format!(
                "mount {point}: {} {} was mounted over a user's file system",
                top.kind, top.source
            )),
            Some(_) if !self.is_visible() => {
                Some(format!("mount {point}: a user's file system is hidden or was unmounted"))
            }
            Some(top) if top.shared.is_none() => {
                Some(format!("mount {point}: a user's shared mount was made private"))
            }
            Some(top) if !top.options.starts_with("rw") => {
                Some(format!("mount {point}: a user's mount is now {}", top.options))
            }
            Some(_) => None,
        }
    }
}

impl UserMount {
    fn is_visible(&self) -> bool {
        fs::symlink_metadata(&self.point).is_ok_and(|metadata| metadata.dev() == self.number)
    }
}

/// A file that a user has written, readable by its owner only.
pub(super) struct UserFile {
    path: PathBuf,
    inode: u64,
}

const MODE: u32 = 0o600;
const CONTENT: &str = "written by a user, not by a node\n";

impl UserFile {
    pub(super) fn write(path: &Path) -> Result<Self> {
        let failed = || format!("bystander: writing {}", path.display());
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(failed)?;
        }
        fs::write(path, CONTENT).with_context(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).with_context(failed)?;
        let inode = fs::symlink_metadata(path).with_context(failed)?.ino();
        Ok(Self { path: path.to_owned(), inode })
    }

    pub(super) fn damage(&self) -> Option<String> {
        let path = self.path.display();
        let metadata = match fs::symlink_metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) => return Some(format!("file {path}: a user's file is gone: {error}")),
        };
        let mode = metadata.mode() & 0o7777;
        let owner = (metadata.uid(), metadata.gid());
        let content = fs::read(&self.path).unwrap_or_default();
        if !metadata.is_file() || metadata.ino() != self.inode {
            Some(format!("file {path}: a user's file was replaced"))
        } else if content != CONTENT.as_bytes() {
            Some(format!("file {path}: the content of a user's file was changed"))
        } else if mode != MODE {
            Some(format!("file {path}: the mode of a user's file was changed to {mode:o}"))
        } else if owner != (0, 0) {
            Some(format!("file {path}: the owner of a user's file was changed to {owner:?}"))
        } else {
            None
        }
    }
}
