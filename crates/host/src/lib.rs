//! The kernel, as Podwright uses it.
//!
//! Everything that acts on this machine and nothing that chooses: which limits, which names and
//! which mounts is decided in `podwright-core`, and carried out here. Whatever reads the machine
//! takes the root of what it reads as a parameter, so that a test can hand it a folder.

pub mod cgroup;
pub mod change;
pub mod checkpoint;
pub mod clock;
pub mod detach;
pub mod disk_usage;
pub mod files;
pub mod machine;
pub mod mounts;
pub mod process;
pub mod self_usage;
pub mod sysctl;
pub mod threads;
