//! The kernel's notifications about memory.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use podwright_core::cgroup::CgroupName;
use podwright_core::eviction::{EvictionThreshold, Signal, Thresholds};
use podwright_host::cgroup::{MemoryUsage, PolledWatch};

use super::signals::GroupMemory;
use crate::error_chain::chain;
use crate::resources::cgroups::Cgroups;

/// Registration waits for every CPU, so an amount that moved by less than this part of the threshold
/// is kept; what it misses, the periodic looks find.
const TOLERANCE: u64 = 64;

/// One watch for each threshold of memory.
#[derive(Default)]
pub(super) struct Watches {
    list: Vec<Registered>,
    /// The kernel cannot notify; logged once.
    failed: bool,
}

struct Registered {
    signal: Signal,
    soft: bool,
    bytes: u64,
    watch: PolledWatch,
}

impl Watches {
    /// Registers thresholds at the memory use at which they are met. That moves with the file pages
    /// that count as available.
    pub(super) async fn renew(
        &mut self,
        thresholds: &Thresholds,
        memory: &GroupMemory,
        cgroups: &Arc<Cgroups>,
    ) {
        if self.failed {
            return;
        }
        let mut kept = Vec::new();
        for threshold in thresholds.iter() {
            let (group, usage, capacity) = match threshold.signal {
                Signal::Memory => (CgroupName::ROOT, memory.root, memory.total),
                Signal::AllocatableMemory => {
                    let limit = memory.pods.and_then(|pods| pods.limit);
                    (cgroups.tree().all().clone(), memory.pods, limit)
                }
                _ => continue,
            };
            let (Some(usage), Some(capacity)) = (usage, capacity) else { continue };
            let bytes = met_at(threshold, &usage, capacity);
            let tolerance = (threshold.amount(capacity) / TOLERANCE).max(1 << 20);
            let known = self.list.iter().position(|known| {
                known.signal == threshold.signal
                    && known.soft == threshold.soft
                    && known.bytes.abs_diff(bytes) < tolerance
            });
            if let Some(known) = known {
                kept.push(self.list.swap_remove(known));
                continue;
            }
            match self.register(&group, bytes, cgroups).await {
                Ok(Some(watch)) => {
                    let (signal, soft) = (threshold.signal, threshold.soft);
                    kept.push(Registered { signal, soft, bytes, watch });
                }
                Ok(None) => {}
                Err(error) => {
                    self.failed = true;
                    tracing::warn!(error, "cannot watch memory, reading it periodically only");
                }
            }
        }
        self.list = kept;
    }

    async fn register(
        &self,
        group: &CgroupName,
        bytes: u64,
        cgroups: &Cgroups,
    ) -> Result<Option<PolledWatch>, String> {
        let watch = cgroups.host().watch_memory(group, bytes).await;
        let watch = watch.map_err(|error| chain(&error))?;
        watch.map(|watch| watch.polled().map_err(|error| error.to_string())).transpose()
    }

    /// Waits for the next notification; forever if there are no watches. Cancel-safe.
    pub(super) async fn notified(&mut self) {
        let mut waits: FuturesUnordered<_> =
            self.list.iter().map(|registered| registered.watch.notified()).collect();
        let first = waits.next().await;
        drop(waits);
        match first {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "watching memory failed, reading it periodically only");
                self.list.clear();
                self.failed = true;
            }
            None => std::future::pending().await,
        }
    }
}

/// The memory use of a group at which a threshold is met.
fn met_at(threshold: &EvictionThreshold, usage: &MemoryUsage, capacity: u64) -> u64 {
    let reclaimable = usage.usage.saturating_sub(usage.working_set);
    capacity.saturating_sub(threshold.amount(capacity)).saturating_add(reclaimable)
}
