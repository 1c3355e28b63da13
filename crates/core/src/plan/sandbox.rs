//! Sandbox decision: keep the pod's sandbox or create a new one.

use crate::ids::SandboxId;
use crate::observed::ObservedPod;
use crate::pod::Pod;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxDecision {
    Keep(SandboxId),
    Create {
        attempt: u32,
        /// Replaces an existing sandbox of this pod, which is reported as an event.
        replaces: bool,
    },
}

pub fn decide(pod: &Pod, observed: &ObservedPod) -> SandboxDecision {
    let Some(newest) = observed.newest_sandbox() else {
        return SandboxDecision::Create { attempt: 0, replaces: false };
    };
    let attempt = newest.attempt.saturating_add(1);
    let ready = observed.sandboxes.iter().filter(|s| s.ready).count();
    if ready > 1 || !newest.ready {
        return SandboxDecision::Create { attempt, replaces: true };
    }
    if newest.host_network.is_some_and(|host| host != pod.host_network) {
        return SandboxDecision::Create { attempt, replaces: false };
    }
    // `None` means the sandbox was not inspected yet, which proves nothing.
    if !pod.host_network && newest.ips.as_ref().is_some_and(Vec::is_empty) {
        return SandboxDecision::Create { attempt, replaces: true };
    }
    SandboxDecision::Keep(newest.id.clone())
}
