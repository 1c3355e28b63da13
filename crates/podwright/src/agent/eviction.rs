//! Settings of the eviction manager.

use std::collections::BTreeMap;

use anyhow::Context;
use podwright_core::eviction::{Sources, Thresholds};
use podwright_host::machine::Machine;
use podwright_node::eviction::{EvictionSettings, real_filesystem};

use crate::config::duration::GoDuration;
use crate::config::kubelet::{Enforcement, KubeletConfiguration};

/// The endpoint of a runtime that tells apart the file systems of images and of writable layers.
const CRI_O: &str = "run/crio/crio.sock";

pub(super) fn thresholds(configuration: &KubeletConfiguration) -> anyhow::Result<Thresholds> {
    let mut soft_grace = BTreeMap::new();
    for (signal, period) in &configuration.eviction_soft_grace_period {
        let field = || format!("evictionSoftGracePeriod[{signal:?}]");
        let period: GoDuration = period.parse().with_context(field)?;
        let millis = i64::try_from(period.to_std().as_millis()).unwrap_or(i64::MAX);
        soft_grace.insert(signal.clone(), if period.is_negative() { -1 } else { millis });
    }
    let sources = Sources {
        hard: configuration.eviction_hard.clone(),
        soft: configuration.eviction_soft.clone(),
        soft_grace,
        minimum_reclaim: configuration.eviction_minimum_reclaim.clone(),
        enforce_pods: configuration.enforce_node_allocatable.contains(&Enforcement::Pods),
    };
    Ok(Thresholds::parse(&sources)?)
}

/// `standalone`: images may have been loaded by hand, so none is removed.
pub(super) fn settings(
    configuration: &KubeletConfiguration,
    standalone: bool,
) -> anyhow::Result<EvictionSettings> {
    Ok(EvictionSettings {
        thresholds: thresholds(configuration)?,
        transition: configuration.eviction_pressure_transition_period.to_std(),
        max_pod_grace: configuration.eviction_max_pod_grace_period.into(),
        local_storage: configuration.local_storage_capacity_isolation,
        reclaim_images: !standalone,
        split_images: configuration.container_runtime_endpoint.ends_with(CRI_O),
        machine: Machine::at("/"),
        filesystem: real_filesystem,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_core::eviction::Signal;

    use super::*;

    #[test]
    fn thresholds_follow_from_the_configuration() {
        let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let mut configuration = KubeletConfiguration {
            eviction_hard: map("memory.available", "100Mi"),
            eviction_soft: map("nodefs.available", "20%"),
            eviction_soft_grace_period: map("nodefs.available", "1m30s"),
            ..KubeletConfiguration::default()
        };
        let found = thresholds(&configuration).unwrap();
        let list: Vec<(Signal, u64)> =
            found.iter().map(|threshold| (threshold.signal, threshold.grace.as_secs())).collect();
        let want = [(Signal::Memory, 0), (Signal::NodeFs, 90), (Signal::AllocatableMemory, 0)];
        assert_eq!(list, want);
        configuration.eviction_soft_grace_period = map("nodefs.available", "-1s");
        assert!(thresholds(&configuration).is_err());
    }

    #[test]
    fn standalone_node_removes_no_images() {
        let configuration = KubeletConfiguration::default();
        assert!(!settings(&configuration, true).unwrap().reclaim_images);
        assert!(settings(&configuration, false).unwrap().reclaim_images);
    }
}
