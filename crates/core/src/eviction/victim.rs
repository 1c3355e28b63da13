//! What an evicted pod is told, and how long it gets.

use std::time::Duration;

use podwright_api::qos::{MEMORY, PodResources, ResourceList, amount};
use podwright_api::quantity::Quantity;

use super::pass::{Met, Verdict};
use super::signal::{Resource, Signal};
use super::usage::{ContainerUsage, PodUsage};
use crate::lifecycle::Kill;
use crate::node_status::resources::EPHEMERAL_STORAGE;
use crate::pod::Pod;

/// Reason of the status and the event.
pub const REASON: &str = "Evicted";

/// Grace period of pods that are evicted at once.
const AT_ONCE: Duration = Duration::from_secs(1);

const OFFENDING_CONTAINERS: &str = "offending_containers";
const OFFENDING_CONTAINERS_USAGE: &str = "offending_containers_usage";
const OFFENDING_POD: &str = "offending_pod";
const OFFENDING_POD_USAGE: &str = "offending_pod_usage";
const STARVED_RESOURCE: &str = "starved_resource";

/// An eviction for the lack of something on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    pub message: String,
    /// Of the event.
    pub annotations: Vec<(&'static str, String)>,
    pub grace: Duration,
}

impl Eviction {
    /// `verdict`: the thresholds that are acted on, of which `met` is the one that ends this pod.
    pub fn new(victim: &PodUsage, met: &Met, verdict: &Verdict, most_grace: i64) -> Self {
        let resource = met.threshold.signal.resource();
        let mut message = format!("The node was low on resource: {}. ", resource.as_str());
        let first = verdict.due.iter().find(|met| met.threshold.signal.resource() == resource);
        if let Some(Met { threshold, observation }) = first {
            let quantity = threshold.quantity(observation.capacity);
            let available = threshold.signal.quantity(observation.available);
            message += &format!("Threshold quantity: {quantity}, available: {available}. ");
        }
        let mut annotations = Vec::new();
        if let Some(used) = &victim.used {
            let resources = victim.resources();
            if resource == Resource::Memory
                && let Some((usage, request)) = pod_level_memory(&resources, used.memory)
            {
                let name = &victim.pod.name.name;
                message += &consumption(&format!("Pod {name}"), usage, request, resource);
                if usage > request {
                    annotations.push((OFFENDING_POD, name.to_string()));
                    annotations.push((OFFENDING_POD_USAGE, usage.to_string()));
                }
            }
            let (mut names, mut usages) = (Vec::new(), Vec::new());
            for (name, usage, request) in offenders(&resources, &used.containers, resource) {
                message += &consumption(&format!("Container {name}"), usage, request, resource);
                names.push(name.to_owned());
                usages.push(usage.to_string());
            }
            annotations.push((OFFENDING_CONTAINERS, names.join(",")));
            annotations.push((OFFENDING_CONTAINERS_USAGE, usages.join(",")));
            annotations.push((STARVED_RESOURCE, resource.as_str().to_owned()));
        }
        let grace = match met.threshold.grace.is_zero() {
            true => AT_ONCE,
            false => soft_grace(&victim.pod, most_grace),
        };
        Self { message, annotations, grace }
    }

    pub fn kill(&self) -> Kill {
        Kill::evict(REASON, self.message.clone(), Some(self.grace))
    }
}

/// An eviction of a pod that exceeded its own limits: the node lacks nothing.
pub fn kill_for_limit(message: &str) -> Kill {
    let mut kill = Kill::evict(REASON, message, Some(AT_ONCE));
    if let Some(reason) = &mut kill.termination_reason {
        reason.disruption = None;
    }
    kill
}

/// The shorter of the pod's grace period and `evictionMaxPodGracePeriod`, at least a second.
fn soft_grace(pod: &Pod, most: i64) -> Duration {
    let own = pod.object.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = own.map_or(most, |own| own.min(most));
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).max(AT_ONCE)
}

fn consumption(holder: &str, usage: Quantity, request: Quantity, resource: Resource) -> String {
    let resource = resource.as_str();
    format!(
        "{holder} was using {usage}, request is {request}, has larger consumption of {resource}. "
    )
}

/// Memory that a pod uses and requested at pod level, if it uses more.
fn pod_level_memory(resources: &PodResources, used: Option<u64>) -> Option<(Quantity, Quantity)> {
    let request = *resources.pod.as_ref()?.requests.get(MEMORY)?;
    let usage = Quantity::from_bytes(used?);
    (usage > request).then_some((usage, request))
}

/// Init and regular containers that use more than they requested.
fn offenders<'a>(
    resources: &'a PodResources,
    used: &[ContainerUsage],
    resource: Resource,
) -> Vec<(&'a str, Quantity, Quantity)> {
    let regular = resources.containers.iter();
    let regular = regular.map(|c| (c.name.as_str(), &c.resources.requests));
    let init = resources.init.iter().map(|c| (c.name.as_str(), &c.resources.requests));
    let containers = init.chain(regular);
    let offender = |(name, requests): (&'a str, &ResourceList)| {
        let usage = used.iter().find(|container| &*container.name == name)?;
        let (usage, key) = match resource {
            Resource::Memory => (usage.memory?, MEMORY),
            Resource::EphemeralStorage => {
                (usage.layer?.bytes.saturating_add(usage.logs?.bytes), EPHEMERAL_STORAGE)
            }
            Resource::Inodes | Resource::Pids => return None,
        };
        let (usage, request) = (Quantity::from_bytes(usage), amount(requests, key));
        (usage > request).then_some((name, usage, request))
    };
    containers.filter_map(offender).collect()
}

/// The text of the node's event.
pub fn threshold_met(signal: Signal) -> String {
    format!("Attempting to reclaim {}", signal.resource().as_str())
}
