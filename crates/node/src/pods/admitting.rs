//! Admission of new pods: admits, rejects or parks them until preempted pods have ended.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::admission::{ActivePods, AdmissionDecision, Rejection, preemption};
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Kill, Request, TerminationReason};
use podwright_core::pod::Pod;
use podwright_core::status;
use podwright_core::time::Mono;

use super::admission::Admission;
use super::allocations::Allocations;
use super::{PodIndex, ending};
use crate::report::Reporting;
use crate::report::events::Severity;
use crate::runtime::RuntimeAccess;

/// A pod whose admission waits.
pub(super) struct Parked {
    pod: Arc<Pod>,
    until: ParkedUntil,
}

enum ParkedUntil {
    /// The Node object is known.
    NodeKnown,
    /// The preempted pods have ended, or their deadlines have passed.
    Ended(Vec<Victim>),
    /// The labels of the Node object may be newer than our copy of them.
    LabelsChecked { since: Mono },
}

/// A pod that is preempted by a critical one.
struct Victim {
    uid: PodUid,
    /// From then on the critical pod no longer waits for it.
    deadline: Mono,
}

/// What a mismatch of node labels means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLabels {
    /// Our copy of the labels may be old, so the check is repeated before the pod is rejected.
    CheckAgain,
    Reject,
}

/// How long a new label may take to arrive by the watch.
const LABEL_DELAY: Duration = Duration::from_secs(1);

/// Admission of pods, with those that are neither admitted nor rejected yet.
pub(super) struct Admitting {
    pub pod_index: Arc<PodIndex>,
    pub admission: Arc<Admission>,
    pub allocations: Arc<Allocations>,
    pub reporting: Reporting,
    pub runtime: RuntimeAccess,
    pub parked: Vec<Parked>,
}

impl Admitting {
    /// Whether the pod was admitted before or is already running; then admission does not run
    /// again.
    pub(super) fn is_settled(&self, pod: &Pod) -> bool {
        pod.was_reported()
            || self.runtime.pleg.is_alive(&pod.uid)
            || matches!(self.admission.earlier_decision(&pod.uid), Some(Ok(())))
    }

    /// Returns the pod if it may start. `queued`: admitted pods that have not started.
    pub(super) fn admit(&mut self, pod: Arc<Pod>, queued: &[Arc<Pod>]) -> Option<Arc<Pod>> {
        if self.is_settled(&pod) {
            if let Some(why) = &pod.unreadable {
                let text = format!(
                    "{why}; its running containers are left alone until the pod is deleted"
                );
                tracing::warn!(pod = %pod.name, uid = %pod.uid, reason = text, "validate pod: rejected, its containers are left alone");
                self.reporting.events.pod(&pod, Severity::Warning, "FailedValidation", text);
            }
            Some(self.accept(pod))
        } else if let Some(Err(rejection)) = self.admission.earlier_decision(&pod.uid)
            // Earlier builds remembered rejections of static pods, too.
            && !pod.is_static()
        {
            self.reject(&pod, &rejection);
            None
        } else {
            self.decide(pod, OnLabels::CheckAgain, queued)
        }
    }

    fn decide(
        &mut self,
        pod: Arc<Pod>,
        on_labels: OnLabels,
        queued: &[Arc<Pod>],
    ) -> Option<Arc<Pod>> {
        if !self.admission.can_decide(&pod) {
            self.parked.push(Parked { pod, until: ParkedUntil::NodeKnown });
            return None;
        }
        // Resources freed by preemption are reserved for the pod that preempted.
        let waiting =
            self.parked.iter().filter(|parked| matches!(parked.until, ParkedUntil::Ended(_)));
        let more: Vec<Arc<Pod>> =
            waiting.map(|parked| parked.pod.clone()).chain(queued.iter().cloned()).collect();
        let granted = self.allocations.granted(&pod);
        let decision = self.pod_index.with_usage(|usage| {
            let list = || self.pod_index.active_pods();
            let active = ActivePods { usage, list: &list, more: &more };
            self.admission.decide(&granted, active)
        });
        match decision {
            AdmissionDecision::Admitted => return Some(self.accept(pod)),
            AdmissionDecision::Rejected(rejection)
                if on_labels == OnLabels::CheckAgain && rejection.is_about_labels() =>
            {
                let since = self.runtime.clock.now().mono;
                self.parked.push(Parked { pod, until: ParkedUntil::LabelsChecked { since } });
            }
            AdmissionDecision::Rejected(rejection) => {
                // A static pod is judged again after a restart: its UID does not change when an
                // administrator changes the node for it.
                if !pod.is_static() {
                    self.admission.record(&pod.uid, Err(&rejection));
                }
                self.reject(&pod, &rejection);
            }
            AdmissionDecision::AfterPreemption { victims, lacking } => {
                let now = self.runtime.clock.now().mono;
                let mut preempted = Vec::new();
                for uid in victims {
                    self.reporting.metrics.pods.preempted(&lacking);
                    self.preempt(&uid);
                    let grace = self.pod_index.pod(&uid).map_or(Duration::ZERO, |pod| pod.grace);
                    let deadline = now + ending::wait_limit(grace);
                    preempted.push(Victim { uid, deadline });
                }
                self.parked.push(Parked { pod, until: ParkedUntil::Ended(preempted) });
            }
        }
        None
    }

    fn accept(&self, pod: Arc<Pod>) -> Arc<Pod> {
        self.admission.record(&pod.uid, Ok(()));
        self.reporting.metrics.starts.pod_admitted(pod.regular_containers().count());
        pod
    }

    /// Admits a critical pod although some preempted pods still run: a pod that cannot be stopped
    /// must not block it. Stopping them continues.
    fn accept_despite(&self, pod: Arc<Pod>, running: &[Victim]) -> Arc<Pod> {
        for victim in running.iter().filter_map(|victim| self.pod_index.pod(&victim.uid)) {
            tracing::warn!(
                pod = %pod.name, victim = %victim.name,
                "preempt pod: not stopped in time, admitting the critical pod anyway"
            );
            ending::report_exceeded(&self.reporting.events, &victim, victim.grace);
        }
        self.accept(pod)
    }

    fn reject(&self, pod: &Pod, rejection: &Rejection) {
        let Rejection { reason, message } = rejection;
        self.reporting.metrics.starts.pod_rejected(rejection.counted_as());
        self.reporting.events.pod(pod, Severity::Warning, reason.clone(), message.clone());
        self.reporting.status.set(pod, status::rejected(pod, reason, message));
    }

    /// Kills a pod to make room for one of higher priority.
    fn preempt(&self, uid: &PodUid) {
        let Some(handle) = self.pod_index.handle(uid) else { return };
        let (reason, message) = (preemption::REASON, preemption::MESSAGE);
        self.reporting.events.pod(&handle.pod(), Severity::Warning, reason, message.to_owned());
        handle.request(Request::Kill(Kill {
            grace: None,
            evict: true,
            termination_reason: Some(TerminationReason {
                reason: reason.to_owned(),
                message: message.to_owned(),
                disruption: Some(preemption::DISRUPTION.to_owned()),
            }),
        }));
    }

    /// Takes the parked pods whose wait is over, each for [`Self::admit_parked`].
    pub(super) fn take_due(&mut self) -> Vec<Parked> {
        if self.parked.is_empty() {
            return Vec::new();
        }
        let now = self.runtime.clock.now().mono;
        let runs = |victim: &Victim| self.pod_index.is_active(&victim.uid);
        let is_over = |parked: &mut Parked| match &parked.until {
            ParkedUntil::NodeKnown => self.admission.can_decide(&parked.pod),
            ParkedUntil::Ended(victims) => {
                victims.iter().all(|victim| now >= victim.deadline || !runs(victim))
            }
            ParkedUntil::LabelsChecked { since } => now.since(*since) >= LABEL_DELAY,
        };
        let mut due: Vec<Parked> = self.parked.extract_if(.., is_over).collect();
        for parked in &mut due {
            if let ParkedUntil::Ended(victims) = &mut parked.until {
                victims.retain(runs);
            }
        }
        due
    }

    /// Repeats the admission of a pod. Returns it if it may start.
    pub(super) fn admit_parked(&mut self, parked: Parked, queued: &[Arc<Pod>]) -> Option<Arc<Pod>> {
        let Parked { pod, until } = parked;
        // A change of the status alone does not reach what is parked.
        let pod = self.pod_index.pod(&pod.uid).unwrap_or(pod);
        match until {
            ParkedUntil::NodeKnown => self.decide(pod, OnLabels::CheckAgain, queued),
            ParkedUntil::Ended(running) if running.is_empty() => {
                self.decide(pod, OnLabels::CheckAgain, queued)
            }
            ParkedUntil::Ended(running) => Some(self.accept_despite(pod, &running)),
            ParkedUntil::LabelsChecked { .. } => self.decide(pod, OnLabels::Reject, queued),
        }
    }

    /// Updates a parked pod; returns false if the pod is not parked.
    pub(super) fn update_parked(&mut self, pod: &Arc<Pod>) -> bool {
        match self.parked.iter_mut().find(|parked| parked.pod.uid == pod.uid) {
            Some(parked) if pod.deletion.is_none() => {
                parked.pod = pod.clone();
                true
            }
            Some(_) | None => {
                self.forget_parked(&pod.uid);
                false
            }
        }
    }

    pub(super) fn forget_parked(&mut self, uid: &PodUid) {
        self.parked.retain(|parked| parked.pod.uid != *uid);
    }
}
