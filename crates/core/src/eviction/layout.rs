//! Layouts of file systems: which of them holds images, writable layers and volumes.

use super::signal::Signal;

/// Where the runtime keeps images and writable layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskLayout {
    /// Everything is on the file system of the root directory.
    Single,
    /// Images and writable layers are on a file system of their own.
    Dedicated,
    /// Only images are.
    Split,
}

/// What may be removed before a pod is evicted, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimable {
    DeadContainers,
    UnusedImages,
}

/// The parts of a pod's disk usage that are on the file system of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub layers: bool,
    pub logs: bool,
    pub volumes: bool,
}

const EVERYTHING: Parts = Parts { layers: true, logs: true, volumes: true };
const LOGS_AND_VOLUMES: Parts = Parts { layers: false, logs: true, volumes: true };
const LAYERS: Parts = Parts { layers: true, logs: false, volumes: false };
const NOTHING: Parts = Parts { layers: false, logs: false, volumes: false };

/// The kind of file system that a signal is about.
#[derive(Clone, Copy, PartialEq)]
enum Disk {
    Node,
    Images,
    Containers,
}

fn disk(signal: Signal) -> Option<Disk> {
    match signal {
        Signal::NodeFs | Signal::NodeFsInodes => Some(Disk::Node),
        Signal::ImageFs | Signal::ImageFsInodes => Some(Disk::Images),
        Signal::ContainerFs | Signal::ContainerFsInodes => Some(Disk::Containers),
        Signal::Memory | Signal::AllocatableMemory | Signal::Pids => None,
    }
}

impl DiskLayout {
    /// From the devices of the file systems, if they are known.
    pub fn of(root: u64, images: u64, layers: Option<u64>) -> Self {
        if root == images {
            return Self::Single;
        }
        match layers {
            Some(layers) if layers == root => Self::Split,
            Some(_) | None => Self::Dedicated,
        }
    }

    /// The signal of writable layers whose threshold follows from that of `signal`.
    pub fn container_signal(self, signal: Signal) -> Option<Signal> {
        match (self, signal) {
            (Self::Single | Self::Split, Signal::NodeFs) | (Self::Dedicated, Signal::ImageFs) => {
                Some(Signal::ContainerFs)
            }
            (Self::Single | Self::Split, Signal::NodeFsInodes)
            | (Self::Dedicated, Signal::ImageFsInodes) => Some(Signal::ContainerFsInodes),
            _ => None,
        }
    }

    /// What frees space on the file system of a signal.
    pub fn reclaimable(self, signal: Signal) -> &'static [Reclaimable] {
        use Reclaimable::{DeadContainers, UnusedImages};
        match (self, disk(signal)) {
            (_, None) | (Self::Dedicated, Some(Disk::Node)) => &[],
            (Self::Single, Some(_)) | (Self::Dedicated, Some(Disk::Images | Disk::Containers)) => {
                &[DeadContainers, UnusedImages]
            }
            (Self::Split, Some(Disk::Images)) => &[UnusedImages],
            (Self::Split, Some(Disk::Node | Disk::Containers)) => &[DeadContainers],
        }
    }

    /// What of a pod's usage counts for a signal.
    pub fn parts(self, signal: Signal) -> Parts {
        match (self, disk(signal)) {
            (Self::Single, _) | (Self::Split, Some(Disk::Node | Disk::Containers)) => EVERYTHING,
            (Self::Dedicated, Some(Disk::Node)) => LOGS_AND_VOLUMES,
            (Self::Dedicated, Some(Disk::Images | Disk::Containers)) => LAYERS,
            (Self::Split, Some(Disk::Images)) | (_, None) => NOTHING,
        }
    }

    /// Whether the limit of a container covers its writable layer.
    pub fn limits_layers(self) -> bool {
        match self {
            Self::Single | Self::Split => true,
            Self::Dedicated => false,
        }
    }
}
