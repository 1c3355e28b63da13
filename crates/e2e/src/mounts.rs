//! What is mounted, as the kernel tells it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    /// Type of the file system, such as `overlay`.
    pub(crate) kind: String,
    /// What is mounted: for a namespace, `net:[4026532000]`.
    pub(crate) root: String,
}

/// Every mount, in the order they were made.
pub(crate) fn all() -> Result<Vec<Mount>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("reading the mount table")?;
    Ok(table.lines().filter_map(parse).collect())
}

/// The mounts at or below `folder`, in the order they were made.
pub(crate) fn below(folder: &Path) -> Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.point.starts_with(folder)).collect())
}

/// One line of mountinfo: `36 35 98:0 /root /point options … - kind source super-options`.
fn parse(line: &str) -> Option<Mount> {
    let (own, system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(3);
    let (root, point) = (own.next()?, own.next()?);
    let kind = system.split(' ').next()?;
    Some(Mount { point: unescape(point), kind: kind.to_owned(), root: root.to_owned() })
}

/// Undoes the kernel's `\040` for a space, and its kin.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_mount_table_is_read() {
        let mount = |point: &str, kind: &str, root: &str| {
            Some(Mount { point: point.into(), kind: kind.into(), root: root.into() })
        };
        for (line, want) in [
            (
                "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw",
                mount("/mnt2", "ext3", "/mnt1"),
            ),
            ("40 1 0:4 net:[42] /a\\040b rw - nsfs nsfs rw", mount("/a b", "nsfs", "net:[42]")),
            ("40 1 0:4 / /a\\b rw - tmpfs x rw", mount("/a\\b", "tmpfs", "/")),
            ("garbage", None),
        ] {
            assert_eq!(parse(line), want, "{line}");
        }
    }
}
