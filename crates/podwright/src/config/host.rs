//! Host facts that a configuration is validated against.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Facts about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub hostname: String,
    /// Base of relative paths on the command line.
    pub current_dir: PathBuf,
    pub cgroups: CgroupVersion,
    /// Active swap devices and files.
    pub swap: Vec<String>,
    /// Kernel settings that differ from upstream's, each with its actual and expected value.
    pub kernel: Vec<String>,
    /// Kernel settings that keep the machine from rebooting after an error of the kernel.
    pub stays_down: Option<String>,
}

/// Kernel settings that upstream's kubelet sets, or requires with `protectKernelDefaults`: memory
/// overcommit, and a reboot after a kernel panic.
const KERNEL: [(&str, &str); 6] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// The v1 hierarchy, also if v2 is mounted beside it ("hybrid").
    V1,
    V2,
}

impl Host {
    /// Reads the facts of this machine.
    pub fn observe() -> io::Result<Self> {
        Ok(Self {
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            current_dir: std::env::current_dir()?,
            cgroups: CgroupVersion::at(Path::new("/sys/fs/cgroup")),
            swap: active_swap(Path::new("/proc/swaps"))?,
            kernel: other_kernel_settings(Path::new("/proc/sys")),
            stays_down: stays_down(Path::new("/proc/sys")),
        })
    }
}

impl CgroupVersion {
    /// The version mounted at a path; v2 always has this file at its root.
    pub fn at(mount_point: &Path) -> Self {
        if mount_point.join("cgroup.controllers").exists() { Self::V2 } else { Self::V1 }
    }
}

/// The active swap devices in the kernel's list; a missing list means a kernel without swap.
pub fn active_swap(list: &Path) -> io::Result<Vec<String>> {
    let text = match fs::read(list) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let devices = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    Ok(devices.map(str::to_owned).collect())
}

/// The kernel settings below a directory that differ from [`KERNEL`].
pub fn other_kernel_settings(directory: &Path) -> Vec<String> {
    let differs = |(name, want): (&str, &str)| match fs::read_to_string(
        directory.join(name.replace('.', "/")),
    ) {
        Ok(found) if found.trim() == want => None,
        Ok(found) => Some(format!("{name} is {}, not {want}", found.trim())),
        Err(error) => Some(format!("{name} cannot be read ({error}), and should be {want}")),
    };
    KERNEL.into_iter().filter_map(differs).collect()
}

/// The settings below a directory with which a machine does not reboot after an error of the kernel.
/// A setting that cannot be read is not judged.
pub fn stays_down(directory: &Path) -> Option<String> {
    let read = |name: &str| {
        let text = fs::read_to_string(directory.join("kernel").join(name)).ok()?;
        text.trim().parse::<i64>().ok()
    };
    // Zero seconds until the reboot means that there is none.
    match (read("panic_on_oops")?, read("panic")?) {
        (0, 0) => Some("kernel.panic_on_oops and kernel.panic are 0".to_owned()),
        (0, _) => Some("kernel.panic_on_oops is 0".to_owned()),
        (_, 0) => Some("kernel.panic is 0".to_owned()),
        (_, _) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_prevent_a_reboot_after_a_kernel_error_are_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("kernel")).unwrap();
        assert_eq!(stays_down(directory.path()), None, "not known");
        for (oops, panic, want) in [
            ("1", "10", None),
            ("1", "-1", None),
            ("1", "0", Some("kernel.panic is 0")),
            ("0", "10", Some("kernel.panic_on_oops is 0")),
            ("0", "0", Some("kernel.panic_on_oops and kernel.panic are 0")),
        ] {
            for (name, value) in [("panic_on_oops", oops), ("panic", panic)] {
                fs::write(directory.path().join("kernel").join(name), format!("{value}\n"))
                    .unwrap();
            }
            assert_eq!(stays_down(directory.path()).as_deref(), want, "{oops} {panic}");
        }
    }

    #[test]
    fn kernel_settings_that_differ_or_cannot_be_read_are_named() {
        let directory = tempfile::tempdir().unwrap();
        for (name, want) in KERNEL {
            let file = directory.path().join(name.replace('.', "/"));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{want}\n")).unwrap();
        }
        assert_eq!(other_kernel_settings(directory.path()), [""; 0]);
        fs::write(directory.path().join("kernel/panic"), "0\n").unwrap();
        fs::remove_file(directory.path().join("vm/panic_on_oom")).unwrap();
        let found = other_kernel_settings(directory.path());
        assert!(found[0].starts_with("vm.panic_on_oom cannot be read"), "{found:?}");
        assert_eq!(found[1..], ["kernel.panic is 0, not 10"]);
    }

    #[test]
    fn swap_devices_are_read_below_the_heading() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("swaps");
        assert_eq!(active_swap(&list).unwrap(), [""; 0]);
        fs::write(&list, "Filename\tType\tSize\tUsed\tPriority\n").unwrap();
        assert_eq!(active_swap(&list).unwrap(), [""; 0]);
        fs::write(&list, "Filename Type Size\n/dev/sda2 partition 1\n/swap.img file 2\n").unwrap();
        assert_eq!(active_swap(&list).unwrap(), ["/dev/sda2", "/swap.img"]);
        active_swap(directory.path()).unwrap_err();
    }

    #[test]
    fn cgroup_v2_is_detected_by_its_controllers_file() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(CgroupVersion::at(directory.path()), CgroupVersion::V1);
        fs::write(directory.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(CgroupVersion::at(directory.path()), CgroupVersion::V2);
    }
}
