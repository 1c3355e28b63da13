//! Eviction signals, and what was measured for them.

use std::collections::BTreeMap;
use std::fmt;

use podwright_api::quantity::{Format, Quantity};

use crate::time::Mono;

/// A measured amount that can have thresholds. Memory comes first: it is acted on first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    Memory,
    /// Memory of the cgroup of all pods.
    AllocatableMemory,
    NodeFs,
    NodeFsInodes,
    ImageFs,
    ImageFsInodes,
    ContainerFs,
    ContainerFsInodes,
    Pids,
}

/// What is scarce, in the words of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

impl Resource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl Signal {
    pub const ALL: [Self; 9] = [
        Self::Memory,
        Self::AllocatableMemory,
        Self::NodeFs,
        Self::NodeFsInodes,
        Self::ImageFs,
        Self::ImageFsInodes,
        Self::ContainerFs,
        Self::ContainerFsInodes,
        Self::Pids,
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::NodeFs => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFs => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::ContainerFs => "containerfs.available",
            Self::ContainerFsInodes => "containerfs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    pub fn resource(self) -> Resource {
        match self {
            Self::Memory | Self::AllocatableMemory => Resource::Memory,
            Self::NodeFs | Self::ImageFs | Self::ContainerFs => Resource::EphemeralStorage,
            Self::NodeFsInodes | Self::ImageFsInodes | Self::ContainerFsInodes => Resource::Inodes,
            Self::Pids => Resource::Pids,
        }
    }

    /// Follows from another signal; never configured.
    pub fn is_derived(self) -> bool {
        matches!(self, Self::ContainerFs | Self::ContainerFsInodes)
    }

    /// An observed amount, in the format of messages.
    pub fn quantity(self, amount: u64) -> Quantity {
        match self.resource() {
            Resource::Memory | Resource::EphemeralStorage => Quantity::from_bytes(amount),
            Resource::Inodes | Resource::Pids => {
                Quantity::new(i64::try_from(amount).unwrap_or(i64::MAX), Format::DecimalSi)
            }
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When a signal was measured. Only a newer sample may end a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleTime {
    /// By us.
    Measured(Mono),
    /// By the runtime, in nanoseconds of its clock.
    Reported(i64),
}

impl SampleTime {
    /// A time of the runtime's clock that differs is newer, even if that clock was set back.
    pub fn is_newer_than(self, earlier: Self) -> bool {
        match (self, earlier) {
            (Self::Measured(this), Self::Measured(that)) => this > that,
            (Self::Reported(this), Self::Reported(that)) => this != that,
            (Self::Measured(_), Self::Reported(_)) | (Self::Reported(_), Self::Measured(_)) => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: u64,
    pub capacity: u64,
    pub at: SampleTime,
}

/// What was measured; a signal that could not be measured is absent.
pub type Observations = BTreeMap<Signal, Observation>;

/// Values that cannot be true. Nothing is evicted because of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AbsurdValue {
    #[error("the total is 0")]
    NoCapacity,
    #[error("{available} of {capacity} are said to be available")]
    MoreThanAll { available: u64, capacity: u64 },
    #[error("{used} of {capacity} are said to be in use")]
    MoreUsed { used: u64, capacity: u64 },
}

impl Observation {
    pub fn new(available: u64, capacity: u64, at: SampleTime) -> Result<Self, AbsurdValue> {
        if capacity == 0 {
            return Err(AbsurdValue::NoCapacity);
        }
        if available > capacity {
            return Err(AbsurdValue::MoreThanAll { available, capacity });
        }
        Ok(Self { available, capacity, at })
    }

    /// From what is in use.
    pub fn of_used(used: u64, capacity: u64, at: SampleTime) -> Result<Self, AbsurdValue> {
        match capacity.checked_sub(used) {
            Some(available) => Self::new(available, capacity, at),
            None => Err(AbsurdValue::MoreUsed { used, capacity }),
        }
    }

    /// Memory of a cgroup below its limit. Unlike the whole machine's, its use may be above a limit
    /// that was lowered.
    pub fn of_limited(used: u64, limit: u64, at: SampleTime) -> Result<Self, AbsurdValue> {
        Self::new(limit.saturating_sub(used), limit, at)
    }
}
