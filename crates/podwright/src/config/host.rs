//! The few facts about the machine that a configuration is checked against.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// What the machine says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub hostname: String,
    /// What relative paths on the command line are relative to.
    pub current_dir: PathBuf,
    pub cgroups: CgroupVersion,
    /// Active swap devices and files.
    pub swap: Vec<String>,
    /// Kernel settings that are not as a node wants them, each with what it is and should be.
    pub kernel: Vec<String>,
}

/// What upstream's kubelet sets, or with `protectKernelDefaults` insists on: memory is given out
/// before it is used, and a kernel that is broken restarts instead of limping on.
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
    /// The old hierarchy, also where the new one is mounted beside it ("hybrid").
    V1,
    V2,
}

impl Host {
    /// Looks at this machine.
    pub fn observe() -> io::Result<Self> {
        Ok(Self {
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            current_dir: std::env::current_dir()?,
            cgroups: CgroupVersion::at(Path::new("/sys/fs/cgroup")),
            swap: active_swap(Path::new("/proc/swaps")),
            kernel: other_kernel_settings(Path::new("/proc/sys")),
        })
    }
}

impl CgroupVersion {
    /// Which hierarchy is mounted at a place; the unified one always has this file at its root.
    pub fn at(mount_point: &Path) -> Self {
        if mount_point.join("cgroup.controllers").exists() { Self::V2 } else { Self::V1 }
    }
}

/// The active swap devices, by the kernel's list. No list: a kernel without swap.
pub fn active_swap(list: &Path) -> Vec<String> {
    let text = fs::read_to_string(list).unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The kernel settings below a folder that differ from what a node wants.
pub fn other_kernel_settings(folder: &Path) -> Vec<String> {
    let differs = |(name, want): (&str, &str)| match fs::read_to_string(
        folder.join(name.replace('.', "/")),
    ) {
        Ok(found) if found.trim() == want => None,
        Ok(found) => Some(format!("{name} is {}, not {want}", found.trim())),
        Err(error) => Some(format!("{name} cannot be read ({error}), and should be {want}")),
    };
    KERNEL.into_iter().filter_map(differs).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn kernel_settings_that_differ_or_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, want) in KERNEL {
            let file = folder.path().join(name.replace('.', "/"));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{want}\n")).unwrap();
        }
        assert_eq!(other_kernel_settings(folder.path()), [""; 0]);
        fs::write(folder.path().join("kernel/panic"), "0\n").unwrap();
        fs::remove_file(folder.path().join("vm/panic_on_oom")).unwrap();
        let told = other_kernel_settings(folder.path());
        assert!(told[0].starts_with("vm.panic_on_oom cannot be read"), "{told:?}");
        assert_eq!(told[1..], ["kernel.panic is 0, not 10"]);
    }

    #[test]
    fn swap_is_what_the_kernel_lists_below_the_heading() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("swaps");
        assert_eq!(active_swap(&list), Vec::<String>::new());
        fs::write(&list, "Filename\tType\tSize\tUsed\tPriority\n").unwrap();
        assert_eq!(active_swap(&list), Vec::<String>::new());
        fs::write(&list, "Filename Type Size\n/dev/sda2 partition 1\n/swap.img file 2\n").unwrap();
        assert_eq!(active_swap(&list), ["/dev/sda2", "/swap.img"]);
    }

    #[test]
    fn the_unified_hierarchy_is_known_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(CgroupVersion::at(folder.path()), CgroupVersion::V1);
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(CgroupVersion::at(folder.path()), CgroupVersion::V2);
    }
}
