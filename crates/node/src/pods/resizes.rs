//! In-place resize requests: granted if they fit, retried if they were deferred.

use std::sync::Arc;

use podwright_api::qos::ResourceList;
use podwright_core::config::{CgroupVersion, NodeFacts, SwapBehaviour};
use podwright_core::lifecycle::Request;
use podwright_core::pod::Pod;
use podwright_core::resize::PendingReason;
use podwright_core::resize::allocation::summary;
use podwright_core::resize::fit::{self, ResizeCapacity};

use super::PodManager;
use crate::pods::allocations::ResizeDecision;
use crate::report::events::Severity;

/// What resizes can be granted from.
pub struct NodeCapacity {
    allocatable: ResourceList,
    /// Containers may use swap.
    swap: bool,
}

impl NodeCapacity {
    pub fn of(facts: &NodeFacts) -> Self {
        let machine = &facts.machine;
        let swap = machine.swap.is_some_and(|swap| match (swap.behaviour, machine.cgroups) {
            (SwapBehaviour::LimitedSwap, CgroupVersion::V2) => true,
            (SwapBehaviour::LimitedSwap, CgroupVersion::V1) | (SwapBehaviour::NoSwap, _) => false,
        });
        Self { allocatable: facts.allocatable.clone(), swap }
    }
}

impl PodManager {
    /// The pod with its allocated resources. Nothing is granted before all sources have delivered:
    /// until then the allocations of other pods are unknown.
    pub(super) fn resized(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.pod_index.sources_ready() {
            self.evaluate(pod);
        } else {
            self.undecided.insert(pod.uid.clone());
        }
        self.dependencies.resources.allocations.granted(pod)
    }

    /// Retries deferred resizes. Costs nothing while there are none.
    pub(super) fn retry_resizes(&mut self) {
        let allocations = &self.dependencies.resources.allocations;
        let mut waiting = std::mem::take(&mut self.undecided);
        waiting.extend(allocations.deferred());
        let mut waiting: Vec<Arc<Pod>> =
            waiting.iter().filter_map(|uid| self.pod_index.pod(uid)).collect();
        waiting.sort_by_cached_key(|pod| {
            let since =
                allocations.resizing(&pod.uid).pending.as_ref().map(|pending| pending.since);
            fit::rank(pod, &allocations.granted(pod), since)
        });
        for pod in waiting {
            let Some(handle) = self.pod_index.handle(&pod.uid) else { continue };
            let before = allocations.resizing(&pod.uid);
            self.evaluate(&pod);
            if allocations.resizing(&pod.uid) != before {
                handle.update(allocations.granted(&pod), Request::Update);
            }
        }
    }

    fn evaluate(&self, pod: &Arc<Pod>) {
        let NodeCapacity { allocatable, swap } = &self.dependencies.capacity;
        let room = ResizeCapacity { allocatable, swap: *swap };
        let (allocations, events) =
            (&self.dependencies.resources.allocations, &self.dependencies.reporting.events);
        let now = self.dependencies.runtime.clock.now().wall;
        match allocations.request_resize(pod, || self.pod_index.active_pods(), room, now) {
            ResizeDecision::Nothing => {}
            ResizeDecision::Granted => {
                let text = format!("Pod resize started: {}", summary(pod, pod.generation(), None));
                events.pod(pod, Severity::Normal, "ResizeStarted", text);
            }
            ResizeDecision::Refused { why, message, is_new: true } => {
                let details = summary(pod, pod.generation(), Some(&message));
                let text = format!("Pod resize {}: {details}", why.as_str());
                let reason = match why {
                    PendingReason::Deferred => "ResizeDeferred",
                    PendingReason::Infeasible => "ResizeInfeasible",
                };
                events.pod(pod, Severity::Warning, reason, text);
            }
            ResizeDecision::Refused { is_new: false, .. } => {}
        }
    }
}
