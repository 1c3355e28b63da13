//! Implementations of the commands, one module each.

pub mod backup;
pub mod doctor;
pub mod down;
pub mod images;
pub mod install;
pub mod kubeconfig;
pub mod kubelet;
mod objects;
pub mod plan;
pub mod reset;
pub mod status;
pub mod top;
pub mod up;
pub mod version;
pub mod why;
