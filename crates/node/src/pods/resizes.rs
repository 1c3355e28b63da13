//! In-place resize requests: granted if they fit, retried if they were deferred.

use std::collections::BTreeSet;
use std::sync::Arc;

use podwright_api::qos::ResourceList;
use podwright_core::config::NodeFacts;
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::Request;
use podwright_core::node_status::Pressure;
use podwright_core::pod::Pod;
use podwright_core::pod::features::PodFeatures;
use podwright_core::resize::PendingReason;
use podwright_core::resize::allocation::summary;
use podwright_core::resize::fit::{self, ResizeCapacity};
use podwright_host::clock::Clock;

use super::PodIndex;
use super::admission::Admission;
use crate::pods::allocations::{Allocations, ResizeDecision};
use crate::report::events::{Recorder, Severity};

/// What resizes can be granted from.
pub struct NodeCapacity {
    allocatable: ResourceList,
    /// Containers may use swap.
    swap: bool,
    features: PodFeatures,
}

impl NodeCapacity {
    pub fn of(facts: &NodeFacts, features: PodFeatures) -> Self {
        let ResizeCapacity { allocatable, swap, features, pressure: _ } =
            ResizeCapacity::of(facts, features);
        Self { allocatable: allocatable.clone(), swap, features }
    }
}

/// Resize requests of this node.
pub(super) struct Resizes {
    pub pod_index: Arc<PodIndex>,
    pub admission: Arc<Admission>,
    pub allocations: Arc<Allocations>,
    pub events: Recorder,
    pub clock: Clock,
    pub capacity: NodeCapacity,
    /// Pods with a resize request that was not evaluated yet.
    pub undecided: BTreeSet<PodUid>,
    /// [`PodIndex::usage_version`] and the pressure when the deferred ones were last evaluated.
    pub evaluated: Option<(u64, Pressure)>,
}

impl Resizes {
    /// The pod with its allocated resources. Nothing is granted before all sources have delivered:
    /// until then the allocations of other pods are unknown.
    pub(super) fn resized(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.pod_index.sources_ready() {
            self.evaluate(pod);
        } else {
            self.evaluate_later(&pod.uid);
        }
        self.allocations.granted(pod)
    }

    pub(super) fn evaluate_later(&mut self, uid: &PodUid) {
        self.undecided.insert(uid.clone());
    }

    /// Evaluates new requests, and deferred ones again. These cannot be granted as long as no pod
    /// and no pressure has changed.
    pub(super) fn retry(&mut self) {
        let mut waiting = std::mem::take(&mut self.undecided);
        let version = Some((self.pod_index.usage_version(), self.admission.pressure()));
        if std::mem::replace(&mut self.evaluated, version) != version {
            waiting.extend(self.allocations.deferred());
        }
        let mut waiting: Vec<Arc<Pod>> =
            waiting.iter().filter_map(|uid| self.pod_index.pod(uid)).collect();
        let allocations = &self.allocations;
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
        let NodeCapacity { allocatable, swap, features } = &self.capacity;
        let pressure = self.admission.pressure();
        let room = ResizeCapacity { allocatable, swap: *swap, features: *features, pressure };
        let now = self.clock.now().wall;
        let others = || self.pod_index.active_pods();
        match self.allocations.request_resize(pod, others, room, now) {
            ResizeDecision::Nothing => {}
            ResizeDecision::Granted => {
                let text = format!("Pod resize started: {}", summary(pod, pod.generation(), None));
                self.events.pod(pod, Severity::Normal, "ResizeStarted", text);
            }
            ResizeDecision::Refused { why, message, is_new: true } => {
                let details = summary(pod, pod.generation(), Some(&message));
                let text = format!("Pod resize {}: {details}", why.as_str());
                let reason = match why {
                    PendingReason::Deferred => "ResizeDeferred",
                    PendingReason::Infeasible => "ResizeInfeasible",
                };
                self.events.pod(pod, Severity::Warning, reason, text);
            }
            ResizeDecision::Refused { is_new: false, .. } => {}
        }
    }
}
