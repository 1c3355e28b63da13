//! Machine facts: capacity, identity, usage.
//!
//! Everything is read from files below one root, so a test describes a machine as a directory.
//! Optional facts (swap, huge pages, a firmware UUID) are absent or zero, not an error; for facts
//! that every Linux has, the error names the file.

mod block;
mod network;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use self::block::{BlockDevice, Filesystem};
pub use self::network::{
    DefaultRoute, InterfaceAddress, default_routes, interface_addresses, node_addresses,
};

#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub cpus: u32,
    /// The CPUs that are online, as the kernel writes them: `0-3,8`.
    pub cpu_list: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes; zero if there is none.
    pub swap: u64,
    /// Pages by page size in bytes, of every size that the machine supports.
    pub hugepages: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
}

/// Limit and number of processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    pub pid_max: u64,
    pub threads_max: u64,
    pub current: u64,
}

/// A filesystem, in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    /// Space available to an unprivileged user.
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} does not say {what}", path.display())]
    Unexpected { path: PathBuf, what: &'static str },
    #[error("cannot stat the filesystem of {}", path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error("cannot list the network interfaces' addresses")]
    Interfaces { source: io::Error },
}

pub type Result<T> = std::result::Result<T, MachineError>;

impl Machine {
    /// This machine if `root` is `/`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn capacity(&self) -> Result<Capacity> {
        let memory = self.memory()?;
        let meminfo = self.read("proc/meminfo")?;
        let online = "sys/devices/system/cpu/online";
        let cpu_list = self.read(online)?.trim().to_owned();
        let cpus = count_cpus(&cpu_list)
            .ok_or_else(|| self.unexpected(online, "which CPUs are online"))?;
        Ok(Capacity {
            cpus,
            cpu_list,
            memory,
            swap: kilobytes(&meminfo, "SwapTotal:").unwrap_or(0),
            hugepages: self.hugepages()?,
        })
    }

    /// Bytes of swap in use; zero on a machine without swap.
    pub fn swap_in_use(&self) -> Result<u64> {
        let meminfo = self.read("proc/meminfo")?;
        let of = |key| kilobytes(&meminfo, key).unwrap_or(0);
        Ok(of("SwapTotal:").saturating_sub(of("SwapFree:")))
    }

    /// Bytes of memory.
    pub fn memory(&self) -> Result<u64> {
        let total = kilobytes(&self.read("proc/meminfo")?, "MemTotal:");
        total.ok_or_else(|| self.unexpected("proc/meminfo", "how much memory there is"))
    }

    fn hugepages(&self) -> Result<BTreeMap<u64, u64>> {
        let mut pages = BTreeMap::new();
        for size in hugepage_sizes(&self.root)? {
            let file = format!("sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", size >> 10);
            let count = self.read(&file)?.trim().parse();
            pages.insert(size, count.map_err(|_| self.unexpected(&file, "a number"))?);
        }
        Ok(pages)
    }

    pub fn identity(&self) -> Result<Identity> {
        let machine_id = self
            .first_of(&["etc/machine-id", "var/lib/dbus/machine-id"])
            .ok_or_else(|| self.unexpected("etc/machine-id", "the machine's id"))?;
        let system_uuid = self.first_of(&[
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "proc/device-tree/vm,uuid",
        ]);
        Ok(Identity {
            // Virtual machines may have no firmware UUID.
            system_uuid: system_uuid.unwrap_or_else(|| machine_id.clone()),
            machine_id,
            boot_id: self.read("proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            kernel_version: self.read("proc/sys/kernel/osrelease")?.trim().to_owned(),
            os_image: self.os_image(),
        })
    }

    fn os_image(&self) -> String {
        let release = self.first_of(&["etc/os-release", "usr/lib/os-release"]).unwrap_or_default();
        let pretty = release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
        match pretty.map(unquote) {
            Some(name) if !name.is_empty() => name,
            _ => "Linux".to_owned(),
        }
    }

    /// Whether AppArmor is enabled.
    pub fn has_apparmor(&self) -> bool {
        let enabled = self.read("sys/module/apparmor/parameters/enabled");
        enabled.is_ok_and(|text| text.trim_start().starts_with('Y'))
    }

    pub fn tasks(&self) -> Result<Tasks> {
        let number = |file: &str| -> Result<u64> {
            let parsed = self.read(file)?.trim().parse();
            parsed.map_err(|_| self.unexpected(file, "a number"))
        };
        // `0.20 0.18 0.12 1/80 11206`: of 80 tasks one runs
        let loadavg = self.read("proc/loadavg")?;
        let current = loadavg.split_ascii_whitespace().nth(3);
        let current = current.and_then(|pair| pair.split_once('/')?.1.parse().ok());
        Ok(Tasks {
            pid_max: number("proc/sys/kernel/pid_max")?,
            threads_max: number("proc/sys/kernel/threads-max")?,
            current: current
                .ok_or_else(|| self.unexpected("proc/loadavg", "how many tasks there are"))?,
        })
    }

    /// Default routes of the network namespace that this process is in, the best first.
    pub fn default_routes(&self) -> Result<Vec<DefaultRoute>> {
        let v4 = self.read("proc/net/route")?;
        // Absent if the kernel does not support IPv6.
        let v6 = self.read("proc/net/ipv6_route").unwrap_or_default();
        Ok(default_routes(&v4, &v6))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.root.join(file);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(MachineError::Read { path, source }),
        }
    }

    /// The first of these files that can be read and is not empty.
    fn first_of(&self, files: &[&str]) -> Option<String> {
        // Device trees end their strings with a zero.
        let read = |file: &&str| {
            let text = self.read(file).ok()?;
            let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            (!text.is_empty()).then(|| text.to_owned())
        };
        files.iter().find_map(read)
    }

    fn unexpected(&self, file: &str, what: &'static str) -> MachineError {
        MachineError::Unexpected { path: self.root.join(file), what }
    }
}

/// Huge page sizes in bytes that the machine below `root` supports.
pub fn hugepage_sizes(root: &Path) -> Result<Vec<u64>> {
    let path = root.join("sys/kernel/mm/hugepages");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(MachineError::Read { path, source }),
    };
    let size = |name: &str| -> Option<u64> {
        let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        kilobytes.checked_mul(1 << 10)
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut sizes: Vec<_> = names.filter_map(|name| size(&name)).collect();
    sizes.sort_unstable();
    Ok(sizes)
}

/// Device number of the filesystem of a file; `None` if it cannot be read, or has no device.
pub fn device_of(path: &Path) -> Option<(u32, u32)> {
    let device = rustix::fs::stat(path).ok()?.st_dev;
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    (number.0 > 0).then_some(number)
}

/// The filesystem that holds `path`.
pub fn disk(path: &Path) -> Result<Disk> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|errno| MachineError::Disk { path: path.into(), source: errno.into() })?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Disk {
        capacity: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// The device of a path's filesystem.
pub fn device(path: &Path) -> Result<u64> {
    let stat = rustix::fs::stat(path)
        .map_err(|errno| MachineError::Disk { path: path.into(), source: errno.into() })?;
    Ok(stat.st_dev)
}

/// The machine's architecture in Go's naming, which the API uses.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => other,
    }
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = rest.trim().trim_end_matches("kB").trim_end().parse().ok()?;
    number.checked_mul(1 << 10)
}

/// `0-3,8` is five. `None` if it is not a list of CPUs.
pub fn count_cpus(list: &str) -> Option<u32> {
    let mut count: u32 = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Shell quoting, as in os-release(5).
fn unquote(value: &str) -> String {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            let mut plain = String::with_capacity(inner.len());
            let mut chars = inner.chars();
            while let Some(c) = chars.next() {
                match c {
                    '\\' if quote == '"' => plain.extend(chars.next()),
                    c => plain.push(c),
                }
            }
            return plain;
        }
    }
    value.to_owned()
}

#[cfg(test)]
mod tests;
