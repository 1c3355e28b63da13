//! Swap: what is active, and whether memory-backed volumes stay out of it.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsconfig_set_flag, fsopen};

/// Whether swap is in use; `proc` is where procfs is mounted. A kernel without swap has no list.
pub fn is_on(proc: &Path) -> io::Result<bool> {
    match std::fs::read_to_string(proc.join("swaps")) {
        Ok(list) => Ok(list.lines().skip(1).any(|line| !line.trim().is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this kernel has tmpfs with the option `noswap`, from Linux 6.4 on. Nothing is mounted.
pub fn tmpfs_has_noswap() -> io::Result<bool> {
    has_option("tmpfs", "noswap")
}

fn has_option(fs_type: &str, option: &str) -> io::Result<bool> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
    match fsconfig_set_flag(&context, option) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_on_if_the_list_has_more_than_its_heading() {
        let proc = tempfile::tempdir().unwrap();
        assert!(!is_on(proc.path()).unwrap(), "no list");
        let list = proc.path().join("swaps");
        std::fs::write(&list, "Filename\tType\n\n").unwrap();
        assert!(!is_on(proc.path()).unwrap());
        std::fs::write(&list, "Filename\tType\n/dev/vdb\tpartition\n").unwrap();
        assert!(is_on(proc.path()).unwrap());
        std::fs::write(&list, b"\xff\n\xff\n").unwrap();
        is_on(proc.path()).unwrap_err();
    }

    #[test]
    fn option_of_a_file_system_is_probed_without_a_mount() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        assert!(has_option("tmpfs", "inode64").unwrap_or(true));
        assert!(!has_option("tmpfs", "no-such-option").unwrap());
        has_option("no-such-file-system", "x").unwrap_err();
        let release = rustix::system::uname();
        let mut numbers = release.release().to_str().unwrap().split(['.', '-']);
        let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
        if (number(), number()) >= (6, 4) {
            assert!(tmpfs_has_noswap().unwrap());
        }
    }
}
