//! Admission of new pods: admits, rejects or parks them until preempted pods have ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::admission::{ActivePods, AdmissionDecision, Rejection, preemption};
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Kill, Request, TerminationReason};
use podwright_core::pod::Pod;
use podwright_core::status;
use podwright_core::time::Mono;

use super::{PodManager, ending};
use crate::report::events::Severity;

/// A pod that is neither admitted nor rejected yet.
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

/// How long a new label may take to arrive by the watch.
const LABEL_DELAY: Duration = Duration::from_secs(1);

impl PodManager {
    /// Whether the pod was admitted before or is already running; then admission does not run
    /// again.
    pub(super) fn is_settled(&self, pod: &Pod) -> bool {
        pod.was_reported()
            || self.dependencies.runtime.pleg.is_alive(&pod.uid)
            || matches!(self.dependencies.admission.earlier_decision(&pod.uid), Some(Ok(())))
    }

    pub(super) fn admit(&mut self, pod: Arc<Pod>) {
        if self.is_settled(&pod) {
            if let Some(why) = &pod.unreadable {
                let text = format!(
                    "{why}; its running containers are left alone until the pod is deleted"
                );
                tracing::warn!(pod = %pod.name, uid = %pod.uid, reason = text, "validate pod: rejected, its containers are left alone");
                self.dependencies.reporting.events.pod(
                    &pod,
                    Severity::Warning,
                    "FailedValidation",
                    text,
                );
            }
            self.accept(pod);
        } else if let Some(Err(rejection)) = self.dependencies.admission.earlier_decision(&pod.uid)
            // Earlier builds remembered rejections of static pods, too.
            && !pod.is_static()
        {
            self.reject(&pod, &rejection);
        } else {
            self.decide(pod, true);
        }
    }

    /// `recheck_labels`: a rejection because of node labels is checked again before it is final.
    fn decide(&mut self, pod: Arc<Pod>, recheck_labels: bool) {
        if !self.dependencies.admission.can_decide(&pod) {
            return self.parked.push(Parked { pod, until: ParkedUntil::NodeKnown });
        }
        // Resources freed by preemption are reserved for the pod that preempted.
        let waiting =
            self.parked.iter().filter(|parked| matches!(parked.until, ParkedUntil::Ended(_)));
        let more: Vec<Arc<Pod>> =
            waiting.map(|parked| parked.pod.clone()).chain(self.queued()).collect();
        let granted = self.dependencies.resources.allocations.granted(&pod);
        let decision = self.pod_index.with_usage(|usage| {
            let list = || self.pod_index.active_pods();
            let active = ActivePods { usage, list: &list, more: &more };
            self.dependencies.admission.decide(&granted, active)
        });
        match decision {
            AdmissionDecision::Admitted => self.accept(pod),
            AdmissionDecision::Rejected(rejection)
                if recheck_labels && rejection.is_about_labels() =>
            {
                let since = self.dependencies.runtime.clock.now().mono;
                self.parked.push(Parked { pod, until: ParkedUntil::LabelsChecked { since } });
            }
            AdmissionDecision::Rejected(rejection) => {
                // A static pod is judged again after a restart: its UID does not change when an
                // administrator changes the node for it.
                if !pod.is_static() {
                    self.dependencies.admission.record(&pod.uid, Err(&rejection));
                }
                self.reject(&pod, &rejection);
            }
            AdmissionDecision::AfterPreemption { victims, lacking } => {
                let now = self.dependencies.runtime.clock.now().mono;
                let mut preempted = Vec::new();
                for uid in victims {
                    self.dependencies.reporting.metrics.pods.preempted(&lacking);
                    self.preempt(&uid);
                    let grace = self.pod_index.pod(&uid).map_or(Duration::ZERO, |pod| pod.grace);
                    let deadline = now + ending::wait_limit(grace);
                    preempted.push(Victim { uid, deadline });
                }
                self.parked.push(Parked { pod, until: ParkedUntil::Ended(preempted) });
            }
        }
    }

    fn accept(&mut self, pod: Arc<Pod>) {
        self.dependencies.admission.record(&pod.uid, Ok(()));
        self.dependencies.reporting.metrics.starts.pod_admitted(pod.regular_containers().count());
        self.start_in_order(pod);
    }

    /// Admits a critical pod although some preempted pods still run: a pod that cannot be stopped
    /// must not block it. Stopping them continues.
    fn accept_despite(&mut self, pod: Arc<Pod>, running: &[&PodUid]) {
        for victim in running.iter().filter_map(|uid| self.pod_index.pod(uid)) {
            tracing::warn!(
                pod = %pod.name, victim = %victim.name,
                "preempt pod: not stopped in time, admitting the critical pod anyway"
            );
            ending::report_exceeded(&self.dependencies.reporting.events, &victim, victim.grace);
        }
        self.accept(pod);
    }

    fn reject(&self, pod: &Pod, rejection: &Rejection) {
        let Rejection { reason, message } = rejection;
        self.dependencies.reporting.metrics.starts.pod_rejected(rejection.counted_as());
        self.dependencies.reporting.events.pod(
            pod,
            Severity::Warning,
            reason.clone(),
            message.clone(),
        );
        self.dependencies.reporting.status.set(pod, status::rejected(pod, reason, message));
    }

    /// Kills a pod to make room for one of higher priority.
    fn preempt(&self, uid: &PodUid) {
        let Some(handle) = self.pod_index.handle(uid) else { return };
        let (reason, message) = (preemption::REASON, preemption::MESSAGE);
        self.dependencies.reporting.events.pod(
            &handle.pod(),
            Severity::Warning,
            reason,
            message.to_owned(),
        );
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

    /// Repeats admission for parked pods whose wait is over.
    pub(super) fn retry_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let now = self.dependencies.runtime.clock.now().mono;
        let victims = self.parked.iter().flat_map(|parked| match &parked.until {
            ParkedUntil::Ended(victims) => victims.as_slice(),
            ParkedUntil::NodeKnown | ParkedUntil::LabelsChecked { .. } => &[],
        });
        let active: BTreeSet<PodUid> = victims
            .filter(|victim| self.pod_index.is_active(&victim.uid))
            .map(|victim| victim.uid.clone())
            .collect();
        let is_over = |until: &ParkedUntil, pod: &Pod| match until {
            ParkedUntil::NodeKnown => self.dependencies.admission.can_decide(pod),
            ParkedUntil::Ended(victims) => {
                victims.iter().all(|victim| now >= victim.deadline || !active.contains(&victim.uid))
            }
            ParkedUntil::LabelsChecked { since } => now.since(*since) >= LABEL_DELAY,
        };
        let all = std::mem::take(&mut self.parked);
        let (due, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|parked| is_over(&parked.until, &parked.pod));
        self.parked = waiting;
        for Parked { pod, until } in due {
            // A change of the status alone does not reach what is parked.
            let pod = self.pod_index.pod(&pod.uid).unwrap_or(pod);
            match until {
                ParkedUntil::NodeKnown => self.decide(pod, true),
                ParkedUntil::Ended(victims) => {
                    let running = victims.iter().filter(|victim| active.contains(&victim.uid));
                    let running: Vec<&PodUid> = running.map(|victim| &victim.uid).collect();
                    match running.is_empty() {
                        true => self.decide(pod, true),
                        false => self.accept_despite(pod, &running),
                    }
                }
                ParkedUntil::LabelsChecked { .. } => self.decide(pod, false),
            }
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
