//! Access to the Linux kernel: files, mounts, cgroups, processes.
//!
//! Everything here acts on the machine and decides nothing: which limits, names and mounts is
//! decided in `podwright-core`, and carried out here. Functions that read the machine take the root
//! directory as a parameter, so that a test can pass a directory.

pub mod cgroup;
pub mod change;
pub mod checkpoint;
pub mod clock;
pub mod detach;
pub mod disk_usage;
pub mod files;
pub mod kernel_log;
pub mod login;
pub mod machine;
pub mod mounts;
pub mod process;
pub mod self_usage;
pub mod swap;
pub mod sysctl;
pub mod threads;
pub mod trusted_path;
