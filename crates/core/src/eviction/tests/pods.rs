//! Pods with usage, for the tests of eviction.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{ContainerUsage, DiskUsage, PodUsage, PodUsed, VolumeUsage};
use crate::builders::{PodBuilder, pod};
use crate::stats::Used;

pub(super) fn requesting(name: &str, resource: &str, amount: &str) -> PodBuilder {
    let resources = json!({ "resources": { "requests": { resource: amount } } });
    pod(name).container_with("c", resources)
}

pub(super) fn limited(name: &str, limit: &str) -> PodBuilder {
    let resources = json!({ "resources": { "limits": { "ephemeral-storage": limit } } });
    pod(name).container_with("c", resources)
}

pub(super) fn priority(builder: PodBuilder, priority: i32) -> PodBuilder {
    builder.spec("priority", json!(priority))
}

pub(super) fn empty_dirs(builder: PodBuilder, volumes: &[(&str, Value)]) -> PodBuilder {
    let volume =
        |(name, size): &(&str, Value)| json!({ "name": name, "emptyDir": { "sizeLimit": size } });
    builder.spec("volumes", volumes.iter().map(volume).collect())
}

pub(super) fn unmeasured(builder: PodBuilder) -> PodUsage {
    PodUsage { pod: Arc::new(builder.build()), used: None }
}

pub(super) fn using(builder: PodBuilder, memory: u64) -> PodUsage {
    let container = ContainerUsage { name: "c".into(), memory: Some(memory), ..Default::default() };
    let used = PodUsed { memory: Some(memory), containers: vec![container], ..PodUsed::default() };
    PodUsage { pod: Arc::new(builder.build()), used: Some(used) }
}

pub(super) fn running(builder: PodBuilder, processes: u64) -> PodUsage {
    let used = PodUsed { processes: Some(processes), ..PodUsed::default() };
    PodUsage { pod: Arc::new(builder.build()), used: Some(used) }
}

/// With this in the layer, the logs and the volume "v".
pub(super) fn storing(builder: PodBuilder, layer: u64, logs: u64, volume: u64) -> PodUsage {
    let used = |bytes: u64| Used { bytes, inodes: bytes };
    let container = ContainerUsage {
        name: "c".into(),
        memory: None,
        layer: Some(used(layer)),
        logs: Some(used(logs)),
    };
    let volumes = vec![VolumeUsage { name: "v".to_owned(), used: used(volume) }];
    let disk = Some(DiskUsage { volumes, local: used(volume) });
    let used = PodUsed { containers: vec![container], disk, ..PodUsed::default() };
    PodUsage { pod: Arc::new(builder.build()), used: Some(used) }
}
