//! In-memory file systems: tmpfs and hugetlbfs.

use std::path::Path;

use podwright_host::mounts::{self, MountError};
use rustix::mount::MountFlags;

/// Mounts a tmpfs on `path`, unless something is mounted there already.
pub(super) fn mount(path: &Path, size: Option<u64>) -> Result<(), MountError> {
    if mounts::is_mount_point(path)? {
        return Ok(());
    }
    let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let with = |more: &str| {
        let options = format!("mode=1777{size}{more}");
        mounts::mount("tmpfs", "tmpfs", path, MountFlags::empty(), &options)
    };
    match with(",noswap") {
        // Kernels before 6.4 do not support `noswap`.
        Err(error) if error.is_invalid() => with(""),
        result => result,
    }
}

pub(super) fn mount_huge_pages(path: &Path, page: u64) -> Result<(), MountError> {
    if mounts::is_mount_point(path)? {
        return Ok(());
    }
    let options = format!("pagesize={page}");
    mounts::mount("hugetlbfs", "nodev", path, MountFlags::empty(), &options)
}
