//! Image garbage collection: selects the images to remove and their order.
//!
//! The runtime does not report when an image was first detected or last used, so this is tracked in
//! memory. After a restart of the agent every image has its minimum age again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::time::Mono;

/// `imageGCHighThresholdPercent` and related settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Disk usage in percent at which images are removed; 100 disables it.
    pub high: u8,
    /// Disk usage in percent down to which images are removed.
    pub low: u8,
    /// Minimum age of an image before it may be removed.
    pub min_age: Duration,
    /// Images unused for longer than this are removed regardless of disk usage; `None` disables it.
    pub max_age: Option<Duration>,
}

impl ImagePolicy {
    /// Whether any collection is enabled.
    pub fn is_on(&self) -> bool {
        self.high < 100 || self.max_age.is_some()
    }
}

/// An image as listed by the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    pub id: String,
    /// Full tags and digests.
    pub names: Vec<String>,
    pub size: u64,
    /// The runtime is configured to keep it.
    pub pinned: bool,
}

/// Filesystem of the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
}

impl Disk {
    /// Disk usage in percent.
    pub fn used_percent(&self) -> Result<u8, DiskError> {
        if self.capacity == 0 {
            return Err(DiskError::NoCapacity);
        }
        let available = u128::from(self.available.min(self.capacity));
        let free = available * 100 / u128::from(self.capacity);
        Ok(100 - u8::try_from(free).unwrap_or(100))
    }

    /// Bytes to free to reach the low threshold; zero while usage is below the high threshold.
    pub fn excess(&self, policy: &ImagePolicy) -> Result<u64, DiskError> {
        if self.used_percent()? < policy.high {
            return Ok(0);
        }
        let wanted = u128::from(self.capacity) * u128::from(100 - policy.low.min(100)) / 100;
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        Ok(wanted.saturating_sub(self.available))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovalReason {
    Age,
    Space,
}

impl RemovalReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space => "space",
        }
    }
}

/// An image to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRemoval {
    pub id: String,
    pub size: u64,
    pub why: RemovalReason,
}

/// Amount to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Just enough.
    Bytes(u64),
    /// The disk is almost full: all unused images that have their minimum age.
    Everything,
}

impl Reclaim {
    /// Whether collection can stop. Only freed bytes count: an image that cannot be removed frees
    /// nothing, and the next one is removed instead.
    pub fn is_met(self, freed: u64) -> bool {
        match self {
            Self::Bytes(bytes) => freed >= bytes,
            Self::Everything => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    first_seen: Mono,
    last_used: Option<Mono>,
    size: u64,
    pinned: bool,
    in_use: bool,
}

/// Tracked images of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecords {
    images: BTreeMap<String, Record>,
}

impl ImageRecords {
    /// Updates the records from the current listing. `in_use` holds ids and full names.
    pub fn note(&mut self, images: &[ListedImage], in_use: &BTreeSet<String>, now: Mono) {
        let mut seen = BTreeMap::new();
        for image in images {
            let known = self.images.get(&image.id);
            let used = std::iter::once(&image.id).chain(&image.names).any(|n| in_use.contains(n));
            let record = Record {
                first_seen: known.map_or(now, |record| record.first_seen),
                last_used: if used { Some(now) } else { known.and_then(|r| r.last_used) },
                size: image.size,
                pinned: image.pinned,
                in_use: used,
            };
            seen.insert(image.id.clone(), record);
        }
        self.images = seen;
    }

    /// Images unused for longer than the maximum age. None if the agent has run for less than that.
    pub fn outdated(
        &self,
        policy: &ImagePolicy,
        agent_age: Duration,
        now: Mono,
    ) -> Vec<ImageRemoval> {
        let Some(max_age) = policy.max_age.filter(|max_age| agent_age > *max_age) else {
            return Vec::new();
        };
        let old = |record: &Record| match record.last_used {
            Some(used) => now.since(used) > max_age,
            None => true,
        };
        let outdated = self.in_order().into_iter().filter(|(_, record)| old(record));
        outdated.map(|(id, record)| removal(id, record, RemovalReason::Age)).collect()
    }

    /// Images that may be removed to free space, the longest unused first. [`Reclaim::is_met`]
    /// decides how many of them are removed. One that is younger than its minimum age is kept: it
    /// was probably just pulled for a pod.
    pub fn reclaimable(&self, policy: &ImagePolicy, now: Mono) -> Vec<ImageRemoval> {
        let order = self.in_order().into_iter();
        let old_enough = order.filter(|(_, record)| now.since(record.first_seen) >= policy.min_age);
        old_enough.map(|(id, record)| removal(id, record, RemovalReason::Space)).collect()
    }

    /// Ids of the tracked images.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.images.keys().map(String::as_str)
    }

    /// Removes the records of deleted images.
    pub fn forget(&mut self, gone: &BTreeSet<String>) {
        self.images.retain(|id, _| !gone.contains(id));
    }

    /// Images that may be removed, in removal order.
    fn in_order(&self) -> Vec<(&String, &Record)> {
        let mut images: Vec<_> =
            self.images.iter().filter(|(_, record)| !record.in_use && !record.pinned).collect();
        images.sort_by_key(|(_, record)| (record.last_used, record.first_seen));
        images
    }
}

fn removal(id: &str, record: &Record, why: RemovalReason) -> ImageRemoval {
    ImageRemoval { id: id.to_owned(), size: record.size, why }
}
