//! Whether the pod's sandbox will do, or a new one is needed.

use crate::ids::SandboxId;
use crate::observed::ObservedPod;
use crate::pod::Pod;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Keep(SandboxId),
    New {
        attempt: u32,
        /// A sandbox of this pod exists and is replaced: worth an event.
        replaces: bool,
    },
}

pub fn decide(pod: &Pod, observed: &ObservedPod) -> Need {
    let Some(newest) = observed.newest_sandbox() else {
        return Need::New { attempt: 0, replaces: false };
    };
    let attempt = newest.attempt.saturating_add(1);
    let ready = observed.sandboxes.iter().filter(|s| s.ready).count();
    if ready > 1 || !newest.ready {
        return Need::New { attempt, replaces: true };
    }
    if newest.host_network.is_some_and(|host| host != pod.host_network) {
        return Need::New { attempt, replaces: false };
    }
    // `None` means nobody asked yet, which proves nothing.
    if !pod.host_network && newest.ips.as_ref().is_some_and(Vec::is_empty) {
        return Need::New { attempt, replaces: true };
    }
    Need::Keep(newest.id.clone())
}
