//! Which images may go, and in which order.
//!
//! When an image was first seen and last used is known only to us: the runtime does not tell. It
//! is kept in memory; an agent that restarts gives every image its minimum age again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::time::Mono;

/// `imageGCHighThresholdPercent` and its kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// At this use of the disk, in percent, images begin to go; 100 is never.
    pub high: u8,
    /// Down to this.
    pub low: u8,
    /// An image must be known this long before it may go.
    pub min_age: Duration,
    /// Unused for longer than this, it goes with any disk; `None` is never.
    pub max_age: Option<Duration>,
}

impl ImagePolicy {
    /// Whether there is anything to do at all.
    pub fn is_on(&self) -> bool {
        self.high < 100 || self.max_age.is_some()
    }
}

/// An image as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    pub id: String,
    /// Tags and digests, in full.
    pub names: Vec<String>,
    pub size: u64,
    /// The runtime was told to keep it.
    pub pinned: bool,
}

/// The file system that images are on.
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
    /// What is used, in percent.
    pub fn used_percent(&self) -> Result<u8, DiskError> {
        if self.capacity == 0 {
            return Err(DiskError::NoCapacity);
        }
        let available = u128::from(self.available.min(self.capacity));
        let free = available * 100 / u128::from(self.capacity);
        Ok(100 - u8::try_from(free).unwrap_or(100))
    }

    /// Bytes to free until `policy` is content; zero while it is.
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
pub struct Removal {
    pub id: String,
    pub size: u64,
    pub why: RemovalReason,
}

/// How much of what may go should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Just enough.
    Bytes(u64),
    /// The disk is all but full: everything, whatever its age.
    Everything,
}

impl Reclaim {
    /// Whether it may end there. What counts is what is gone: an image that cannot be removed
    /// frees nothing, and the next one has to go in its place.
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

/// What is known of the images on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecords {
    images: BTreeMap<String, Record>,
}

impl ImageRecords {
    /// Takes in what is there now. `in_use` holds ids and full names.
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

    /// Images unused for too long. An agent younger than that age cannot know yet.
    pub fn outdated(&self, policy: &ImagePolicy, agent_age: Duration, now: Mono) -> Vec<Removal> {
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

    /// What may be removed for space, the longest unused first; how far down the list is for
    /// [`Reclaim::is_met`] to say.
    pub fn reclaimable(&self, what: Reclaim, policy: &ImagePolicy, now: Mono) -> Vec<Removal> {
        let min_age = match what {
            Reclaim::Bytes(_) => policy.min_age,
            Reclaim::Everything => Duration::ZERO,
        };
        let order = self.in_order().into_iter();
        let old_enough = order.filter(|(_, record)| now.since(record.first_seen) >= min_age);
        old_enough.map(|(id, record)| removal(id, record, RemovalReason::Space)).collect()
    }

    /// What is there, as far as is known.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.images.keys().map(String::as_str)
    }

    /// These were removed.
    pub fn forget(&mut self, gone: &BTreeSet<String>) {
        self.images.retain(|id, _| !gone.contains(id));
    }

    /// What may go at all, in the order in which it would.
    fn in_order(&self) -> Vec<(&String, &Record)> {
        let mut images: Vec<_> =
            self.images.iter().filter(|(_, record)| !record.in_use && !record.pinned).collect();
        images.sort_by_key(|(_, record)| (record.last_used, record.first_seen));
        images
    }
}

fn removal(id: &str, record: &Record, why: RemovalReason) -> Removal {
    Removal { id: id.to_owned(), size: record.size, why }
}
