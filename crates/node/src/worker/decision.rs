//! Decision of a pod worker in three parts: the inputs are gathered, `core` decides, and what
//! follows from the decision itself is applied.

use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_core::attempts::Attempts;
use podwright_core::lifecycle::Lifecycle;
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{self, Inputs, LocalState, Plan};
use podwright_core::pod::{Pod, hold};
use podwright_core::probe::ProbeVerdicts;
use podwright_core::resize::allocation::summary;
use podwright_core::resize::{self, ResizeProgress};
use podwright_core::status::{self, NodeAddresses, StatusSources};
use podwright_core::time::{Now, Stopwatch};

use super::Worker;
use super::context::WorkerSettings;
use crate::pods::pod_handle::Desired;
use crate::report::events::Severity;

/// Inputs of a decision besides the attempts, read at one moment.
pub(super) struct Gathered<'a> {
    view: &'a ObservedPod,
    desired: &'a Desired,
    probed: &'a ProbeVerdicts,
    local_state: LocalState,
    /// The resize that `view` shows to be complete.
    completed: Option<ResizeProgress>,
    old: Option<Arc<v1::PodStatus>>,
    addresses: NodeAddresses,
    recursive_read_only: bool,
    now: Now,
}

/// A plan with the inputs needed to execute it.
pub(super) struct Decision {
    pub(super) pod: Arc<Pod>,
    pub(super) lifecycle: Lifecycle,
    pub(super) plan: Plan,
    pub(super) status: v1::PodStatus,
    completed: Option<ResizeProgress>,
}

impl Gathered<'_> {
    /// Depends on nothing but its arguments.
    pub(super) fn decide(self, attempts: &Attempts, settings: &WorkerSettings) -> Decision {
        let Self { view, desired, probed, local_state, completed, old, .. } = self;
        let inputs = Inputs {
            pod: &desired.pod,
            observed: view,
            attempts,
            lifecycle: &desired.lifecycle,
            probed,
            local_state: &local_state,
            crash_backoff: &settings.crash_backoff,
            now: self.now,
        };
        let plan = plan::decide(&inputs);
        let status = status::generate(&StatusSources {
            inputs: &inputs,
            plan: &plan,
            old: old.as_deref(),
            node: &self.addresses,
            agent_started: settings.agent_started,
            runtime: status::Runtime {
                name: &settings.runtime_name,
                recursive_read_only: self.recursive_read_only,
            },
        });
        let (pod, lifecycle) = (desired.pod.clone(), desired.lifecycle.clone());
        Decision { pod, lifecycle, plan, status, completed }
    }
}

impl Worker {
    /// Reads the inputs of the next decision, and notes in the attempts what `view` shows.
    pub(super) fn gather<'a>(
        &mut self,
        view: &'a ObservedPod,
        desired: &'a Desired,
        probed: &'a ProbeVerdicts,
        network: Result<(), String>,
        cgroup: bool,
        now: Now,
    ) -> Gathered<'a> {
        let pod = &desired.pod;
        self.handle.attempts.lock().note_observed(pod, view, now);
        let old = self.context.reporting.status.last_report(pod);
        let first_report = old.as_ref().and_then(|status| status.start_time.as_ref());
        if let Some(first) = first_report
            && self.active.is_none_or(|(known, _)| known != first.0)
        {
            self.active = Some((first.0, Stopwatch::running_since(first.0, now)));
        }
        let resizing = self.context.resources.allocations.resizing(&self.uid);
        let completed = resize::completed(pod, view, &resizing, desired.lifecycle.stage());
        let resizing = if completed.is_some() { resizing.without_progress() } else { resizing };
        let handler = view.newest_sandbox().map_or("", |sandbox| sandbox.handler.as_str());
        let recursive_read_only = self.context.supports_recursive_read_only(handler);
        let addresses = self.context.addresses.borrow().clone();
        let (hold, active) = (hold::current_hold(pod), self.active.map(|(_, since)| since));
        let features = self.context.settings.features;
        let local_state = LocalState { network, cgroup, hold, active, resizing, features };
        Gathered {
            view,
            desired,
            probed,
            local_state,
            completed,
            old,
            addresses,
            recursive_read_only,
            now,
        }
    }

    /// Applies what follows from a decision itself: counts exits and ends a completed resize.
    pub(super) fn apply(&mut self, decision: &Decision, view: &ObservedPod) {
        let pod = &decision.pod;
        self.count_exits(pod, view);
        if let Some(completed) = &decision.completed {
            self.context.resources.allocations.note_done(&self.uid, completed);
            let text =
                format!("Pod resize completed: {}", summary(pod, completed.generation, None));
            let events = &self.context.reporting.events;
            events.pod(pod, Severity::Normal, "ResizeCompleted", text);
        }
    }

    /// Counts each exit once. Exits before this agent started were counted by the previous one.
    fn count_exits(&mut self, pod: &Pod, view: &ObservedPod) {
        for container in &pod.containers {
            let Some(newest) = view.newest(&container.name) else { continue };
            let Some(exit) = newest.exit() else { continue };
            if self.counted_exits.get(&container.name) == Some(&newest.id) {
                continue;
            }
            self.counted_exits.insert(container.name.clone(), newest.id.clone());
            if exit.finished >= self.context.settings.agent_started {
                let starts = &self.context.reporting.metrics.starts;
                starts.ended(container.kind, exit.code, &exit.reason);
            }
        }
    }
}
