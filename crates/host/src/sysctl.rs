//! Kernel settings under `/proc/sys`.
//!
//! Names are written as in `sysctl.conf`: dots between parts, or slashes where a part has a dot of
//! its own (`net/ipv4/conf/eth0.100/forwarding`).

use std::io;
use std::path::PathBuf;

use crate::files::{FileError, Links, Root};

/// Larger than any setting.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub struct Sysctls {
    root: Root,
}

#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    #[error("cannot use kernel settings")]
    Unavailable { source: FileError },
    #[error("cannot read kernel setting {name}")]
    Read { name: String, source: FileError },
    #[error("cannot find kernel setting {name} to write it")]
    Open { name: String, source: FileError },
    #[error("cannot set kernel setting {name} to {value:?}")]
    Write { name: String, value: String, source: io::Error },
}

impl Sysctls {
    /// `root` is `/proc/sys`, or a directory that stands in for it.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self, SysctlError> {
        Root::open(root)
            .map(|root| Self { root })
            .map_err(|source| SysctlError::Unavailable { source })
    }

    pub fn read(&self, name: &str) -> Result<String, SysctlError> {
        match self.root.read(path_of(name), MAX_BYTES) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(source) => Err(SysctlError::Read { name: name.to_owned(), source }),
        }
    }

    pub fn write(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        let path = path_of(name);
        let file = self
            .root
            .open_for_writing(&path, Links::Refuse)
            .map_err(|source| SysctlError::Open { name: name.to_owned(), source })?;
        // The kernel takes a setting in one write.
        io::Write::write_all(&mut &file, value.as_bytes()).map_err(|source| SysctlError::Write {
            name: name.to_owned(),
            value: value.to_owned(),
            source,
        })
    }
}

fn path_of(name: &str) -> PathBuf {
    // The first separator decides between the two notations.
    let slashes = name.find(['.', '/']).is_some_and(|at| name.as_bytes().get(at) == Some(&b'/'));
    if slashes { name.into() } else { name.replace('.', "/").into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::path::Path;

    use super::*;

    fn fixture() -> (tempfile::TempDir, Sysctls) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net/ipv4/conf/eth0.1");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("forwarding"), "0\n").unwrap();
        std::fs::write(dir.path().join("net/ipv4/ip_forward"), "0\n").unwrap();
        let sysctls = Sysctls::at(dir.path()).unwrap();
        (dir, sysctls)
    }

    #[test]
    fn settings_are_read_and_written_by_either_spelling() {
        let (_dir, sysctls) = fixture();
        for name in
            ["net.ipv4.ip_forward", "net/ipv4/ip_forward", "net/ipv4/conf/eth0.1/forwarding"]
        {
            assert_eq!(sysctls.read(name).unwrap(), "0", "{name}");
            sysctls.write(name, "1").unwrap();
            assert_eq!(sysctls.read(name).unwrap(), "1", "{name}");
            sysctls.write(name, "0").unwrap();
        }
    }

    #[test]
    fn missing_setting_is_named_and_not_created() {
        let (dir, sysctls) = fixture();
        let error = sysctls.write("net.ipv4.none", "1").unwrap_err();
        assert_eq!(error.to_string(), "cannot find kernel setting net.ipv4.none to write it");
        assert!(!dir.path().join("net/ipv4/none").exists());
        sysctls.read("net.ipv4").unwrap_err();
    }

    #[test]
    fn name_cannot_leave_the_directory() {
        let (dir, _) = fixture();
        let sysctls = Sysctls::at(dir.path().join("net")).unwrap();
        std::fs::write(dir.path().join("secret"), "").unwrap();
        for name in ["../secret", "ipv4/../../secret", "/etc/hostname", "..", ""] {
            sysctls.read(name).expect_err(name);
            sysctls.write(name, "x").expect_err(name);
        }
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"");
    }

    #[test]
    fn this_machines_settings_can_be_read() {
        let sysctls = Sysctls::at(Path::new("/proc/sys")).unwrap();
        assert!(!sysctls.read("kernel.osrelease").unwrap().is_empty());
    }
}
