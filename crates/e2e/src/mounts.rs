//! Mount table, from /proc/self/mountinfo.

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
    /// Root of the mount: for a namespace, `net:[4026532000]`.
    pub(crate) root: String,
    /// Device number of the file system, such as `0:45`: shared by all mounts of one file system.
    pub(crate) device: String,
    pub(crate) source: String,
    /// Options of this mount, then those of the file system.
    pub(crate) options: String,
    /// Peer group that this mount sends events to and receives them from.
    pub(crate) shared: Option<u32>,
    /// Peer group that this mount only receives events from.
    pub(crate) master: Option<u32>,
    pub(crate) unbindable: bool,
}

/// All mounts, in the order of creation.
pub(crate) fn all() -> Result<Vec<Mount>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("reading the mount table")?;
    Ok(table.lines().filter_map(parse).collect())
}

/// The mounts at or below `directory`, in the order of creation.
pub(crate) fn below(directory: &Path) -> Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.point.starts_with(directory)).collect())
}

/// One line of mountinfo:
/// `36 35 98:0 /root /point options shared:1 master:2 - kind source super-options`.
fn parse(line: &str) -> Option<Mount> {
    let (own, system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(2);
    let (device, root, point) = (own.next()?, own.next()?, own.next()?);
    let options = own.next()?;
    let tags: Vec<&str> = own.collect();
    let group = |name: &str| {
        let value = tags.iter().find_map(|tag| tag.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.parse().ok())
    };
    let mut system = system.split(' ');
    let (kind, source) = (system.next()?, system.next()?);
    let of_system = system.next().unwrap_or_default();
    Some(Mount {
        point: unescape(point),
        kind: kind.to_owned(),
        root: root.to_owned(),
        device: device.to_owned(),
        source: source.to_owned(),
        options: format!("{options} {of_system}"),
        shared: group("shared"),
        master: group("master"),
        unbindable: tags.contains(&"unbindable"),
    })
}

/// Decodes the kernel's octal escapes, such as `\040` for a space.
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
        let read = |line: &str| {
            let mount = parse(line)?;
            let point = mount.point.display().to_string();
            Some((point, mount.kind, mount.root, mount.shared, mount.master))
        };
        let mount = |point: &str, kind: &str, root: &str, shared, master| {
            Some((point.to_owned(), kind.to_owned(), root.to_owned(), shared, master))
        };
        for (line, want) in [
            (
                "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw",
                mount("/mnt2", "ext3", "/mnt1", None, Some(1)),
            ),
            (
                "36 35 98:0 / /mnt2 rw shared:7 master:1 - ext3 /dev/root rw",
                mount("/mnt2", "ext3", "/", Some(7), Some(1)),
            ),
            (
                "40 1 0:4 net:[42] /a\\040b rw - nsfs nsfs rw",
                mount("/a b", "nsfs", "net:[42]", None, None),
            ),
            ("40 1 0:4 / /a\\b rw - tmpfs x rw", mount("/a\\b", "tmpfs", "/", None, None)),
            ("garbage", None),
        ] {
            assert_eq!(read(line), want, "{line}");
        }
    }
}
