//! Takes pods, turns them away, or lets them wait for room.

use std::sync::Arc;

use podwright_core::admission::{Rejection, Verdict, preemption};
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Kill, Obituary, Request};
use podwright_core::pod::Pod;
use podwright_core::status;
use podwright_core::time::Mono;

use super::Pods;
use crate::events::Severity;

/// A pod that is neither taken nor turned away yet.
pub(super) struct Parked {
    pod: Arc<Pod>,
    until: Until,
}

enum Until {
    /// The node's object is known.
    NodeKnown,
    /// These have ended.
    Ended(Vec<PodUid>),
    /// The labels of the node may have been newer than our copy of them.
    LookedAgain { since: Mono },
}

/// How long a new label may take to get here.
const LABELS: std::time::Duration = std::time::Duration::from_secs(1);

impl Pods {
    /// Decided before, or known to run: such a pod is not asked again.
    pub(super) fn is_settled(&self, pod: &Pod) -> bool {
        pod.was_reported()
            || self.tools.pleg.is_alive(&pod.uid)
            || matches!(self.tools.admission.earlier(&pod.uid), Some(Ok(())))
    }

    pub(super) fn admit(&mut self, pod: Arc<Pod>) {
        if self.is_settled(&pod) {
            if let Some(why) = &pod.unreadable {
                let text = format!("{why}; what runs of it is left alone until it is deleted");
                tracing::warn!(pod = %pod.name, uid = %pod.uid, reason = text, "cannot read this pod");
                self.tools.events.pod(&pod, Severity::Warning, "FailedValidation", text);
            }
            self.take(pod);
        } else if let Some(Err(rejection)) = self.tools.admission.earlier(&pod.uid) {
            self.reject(&pod, &rejection);
        } else {
            self.judge(pod, true);
        }
    }

    /// `patient`: what may be a matter of moments is asked again before it is final.
    fn judge(&mut self, pod: Arc<Pod>, patient: bool) {
        if !self.tools.admission.can_decide(&pod) {
            return self.parked.push(Parked { pod, until: Until::NodeKnown });
        }
        let mut active = self.directory.active_pods();
        // Room that is being made is not for the next one who comes.
        let waiting = self.parked.iter().filter(|parked| matches!(parked.until, Until::Ended(_)));
        active.extend(waiting.map(|parked| parked.pod.clone()));
        match self.tools.admission.decide(&self.tools.allocations.granted(&pod), &active) {
            Verdict::Admitted => self.take(pod),
            Verdict::Rejected(rejection) if patient && rejection.is_about_labels() => {
                let since = self.tools.clock.now().mono;
                self.parked.push(Parked { pod, until: Until::LookedAgain { since } });
            }
            Verdict::Rejected(rejection) => {
                self.tools.admission.remember(&pod.uid, Err(&rejection));
                self.reject(&pod, &rejection);
            }
            Verdict::After { victims, lacking } => {
                for victim in &victims {
                    self.tools.metrics.pods.preempted(&lacking);
                    self.preempt(victim);
                }
                self.parked.push(Parked { pod, until: Until::Ended(victims) });
            }
        }
    }

    fn take(&mut self, pod: Arc<Pod>) {
        self.tools.admission.remember(&pod.uid, Ok(()));
        self.tools.metrics.starts.pod_taken(pod.regular_containers().count());
        self.start_in_order(pod);
    }

    fn reject(&self, pod: &Pod, rejection: &Rejection) {
        let Rejection { reason, message } = rejection;
        self.tools.metrics.starts.pod_rejected(rejection.counted_as());
        self.tools.events.pod(pod, Severity::Warning, reason.clone(), message.clone());
        self.tools.status.set(pod, status::rejected(pod, reason, message));
    }

    /// Ends a pod for a more important one.
    fn preempt(&self, uid: &PodUid) {
        let Some(cell) = self.directory.cell(uid) else { return };
        let (reason, message) = (preemption::REASON, preemption::MESSAGE);
        self.tools.events.pod(&cell.pod(), Severity::Warning, reason, message.to_owned());
        cell.request(Request::Kill(Kill {
            grace: None,
            evict: true,
            obituary: Some(Obituary {
                reason: reason.to_owned(),
                message: message.to_owned(),
                disruption: Some(preemption::DISRUPTION.to_owned()),
            }),
        }));
    }

    /// Asks again for whoever waited long enough.
    pub(super) fn judge_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let now = self.tools.clock.now().mono;
        let active: Vec<PodUid> =
            self.directory.active_pods().iter().map(|pod| pod.uid.clone()).collect();
        let over = |until: &Until, pod: &Pod| match until {
            Until::NodeKnown => self.tools.admission.can_decide(pod),
            Until::Ended(victims) => victims.iter().all(|victim| !active.contains(victim)),
            Until::LookedAgain { since } => now.since(*since) >= LABELS,
        };
        let all = std::mem::take(&mut self.parked);
        let (due, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|parked| over(&parked.until, &parked.pod));
        self.parked = waiting;
        for Parked { pod, until } in due {
            match until {
                Until::NodeKnown | Until::Ended(_) => self.judge(pod, true),
                Until::LookedAgain { .. } => self.judge(pod, false),
            }
        }
    }

    /// A parked pod changed; false if it is none.
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
