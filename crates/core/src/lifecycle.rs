//! Pod lifecycle on this node: stages, termination requests, and what may be cleaned up.
//!
//! ```text
//!            delete, evict, kill,           no container             volumes and
//!            terminal phase, orphan         is running               cgroup are removed
//!  Syncing ------------------> Terminating ------------> Terminated ------------> Finished
//!     \____________________________________________________^
//!       first observed with a terminal phase and nothing running
//! ```
//!
//! Stages only advance: a terminating pod never starts a container again. Requests are merged,
//! never overwritten: the first cause stays, the grace period only shrinks. A UID that is
//! recreated after its end gets a new lifecycle once this one is finished and dropped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pod::Pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    #[serde(rename = "Syncing")]
    Syncing,
    #[serde(rename = "Terminating")]
    Terminating,
    #[serde(rename = "Terminated")]
    Terminated,
    #[serde(rename = "Finished")]
    Finished,
}

/// Cause of a pod's termination. Only the first cause counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminationCause {
    /// Deletion was requested in the API.
    #[serde(rename = "Deleted")]
    Deleted,
    /// The node reclaims its resources.
    #[serde(rename = "Evicted")]
    Evicted,
    /// All containers have finished, or the API already shows a terminal phase.
    #[serde(rename = "Completed")]
    Completed,
    /// The pod left its source without a deletion, or the node agent ended it.
    #[serde(rename = "Killed")]
    Killed,
    /// Only the runtime has this pod.
    #[serde(rename = "Orphaned")]
    Orphaned,
    /// The whole node is being stopped. The pod stays desired and resumes, with its volumes, when
    /// the node starts.
    #[serde(rename = "NodeStop")]
    NodeStop,
}

/// Reason and message that the status reports for a pod that the node ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationReason {
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
    /// Message of the condition DisruptionTarget with reason TerminationByKubelet, if it is added.
    #[serde(rename = "disruption")]
    pub disruption: Option<String>,
}

/// Termination request from within the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    #[serde(rename = "grace")]
    pub grace: Option<Duration>,
    #[serde(rename = "evict")]
    pub evict: bool,
    #[serde(rename = "obituary")]
    pub termination_reason: Option<TerminationReason>,
}

impl Kill {
    /// Eviction: the pod becomes Failed with this reason and gets the condition DisruptionTarget.
    /// Without a grace period the one of the pod's spec applies.
    pub fn evict(
        reason: impl Into<String>,
        message: impl Into<String>,
        grace: Option<Duration>,
    ) -> Self {
        let (reason, message) = (reason.into(), message.into());
        let disruption = Some(message.clone());
        let termination_reason = Some(TerminationReason { reason, message, disruption });
        Self { grace, evict: true, termination_reason }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The pod appeared in its source.
    Create,
    /// The object changed, or a dependency of it did.
    Update,
    Kill(Kill),
    /// The node is being stopped: the pod ends with the grace period of its spec and keeps its
    /// volumes.
    StopNode,
}

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The pod started terminating.
    Terminates,
    /// It was already terminating and now has a shorter grace period.
    GraceShortened,
}

/// Minimum grace period; zero would mean an immediate SIGKILL.
const MIN_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    #[serde(rename = "stage")]
    stage: Stage,
    #[serde(rename = "cause")]
    cause: Option<TerminationCause>,
    /// `None`: each container has the grace period of its spec.
    #[serde(rename = "grace")]
    grace: Option<Duration>,
    #[serde(rename = "obituary")]
    termination_reason: Option<TerminationReason>,
    /// No source names the pod any more.
    #[serde(rename = "unwanted")]
    removed_from_source: bool,
    /// The same UID appeared again while this pod was terminating.
    #[serde(rename = "wanted_again")]
    recreated: bool,
}

impl Lifecycle {
    /// A pod observed for the first time. `alive`: the runtime shows something of it running.
    pub fn begin(pod: &Pod, alive: bool) -> Self {
        let over = pod.api_phase.is_terminal() && !alive;
        Self {
            stage: if over { Stage::Terminated } else { Stage::Syncing },
            cause: over.then_some(TerminationCause::Completed),
            grace: None,
            termination_reason: None,
            removed_from_source: false,
            recreated: false,
        }
    }

    /// A pod that only the runtime has: it is terminated.
    pub fn orphan() -> Self {
        Self {
            stage: Stage::Terminating,
            cause: Some(TerminationCause::Orphaned),
            grace: Some(MIN_GRACE),
            termination_reason: None,
            removed_from_source: true,
            recreated: false,
        }
    }

    /// Merges a request. The result does not depend on order or repetition of requests.
    pub fn request(&mut self, request: Request, pod: &Pod) -> Change {
        match (self.stage, request) {
            (Stage::Finished, Request::Update | Request::Kill(_) | Request::StopNode) => {
                Change::Nothing
            }
            (Stage::Terminating | Stage::Terminated | Stage::Finished, Request::Create) => {
                self.recreated = true;
                Change::Nothing
            }
            (Stage::Terminated, Request::Update | Request::Kill(_) | Request::StopNode) => {
                Change::Nothing
            }
            // A pod that is already terminating keeps its first cause.
            (Stage::Terminating, Request::StopNode) => Change::Nothing,
            (Stage::Syncing, Request::StopNode) => {
                let cause = match pod.deletion {
                    Some(_) => TerminationCause::Deleted,
                    None if pod.api_phase.is_terminal() => TerminationCause::Completed,
                    None => TerminationCause::NodeStop,
                };
                self.terminate(cause, pod, Kill::default())
            }
            (Stage::Syncing, Request::Create | Request::Update) => {
                let cause = match pod.deletion {
                    Some(_) => TerminationCause::Deleted,
                    None if pod.api_phase.is_terminal() => TerminationCause::Completed,
                    None => return Change::Nothing,
                };
                self.terminate(cause, pod, Kill::default())
            }
            (Stage::Syncing, Request::Kill(kill)) => {
                let cause = match pod.deletion {
                    Some(_) => TerminationCause::Deleted,
                    None if pod.api_phase.is_terminal() => TerminationCause::Completed,
                    None if kill.evict => TerminationCause::Evicted,
                    None => TerminationCause::Killed,
                };
                self.terminate(cause, pod, kill)
            }
            (Stage::Terminating, Request::Update) => self.shorten(pod, None),
            (Stage::Terminating, Request::Kill(kill)) => {
                if kill.termination_reason.is_some() {
                    self.termination_reason = kill.termination_reason;
                }
                self.shorten(pod, kill.grace)
            }
        }
    }

    fn terminate(&mut self, cause: TerminationCause, pod: &Pod, kill: Kill) -> Change {
        self.stage = Stage::Terminating;
        self.cause = Some(cause);
        self.termination_reason = kill.termination_reason;
        self.shorten(pod, kill.grace);
        // The grace period of the spec applies only if no request sets one.
        self.grace.get_or_insert(pod.grace.max(MIN_GRACE));
        Change::Terminates
    }

    /// The shortest requested grace period counts; without a request nothing changes.
    fn shorten(&mut self, pod: &Pod, requested: Option<Duration>) -> Change {
        let deletion = pod.deletion.and_then(|deletion| deletion.grace);
        let Some(least) = [deletion, requested].into_iter().flatten().min() else {
            return Change::Nothing;
        };
        let new = self.grace.map_or(least, |old| old.min(least)).max(MIN_GRACE);
        let shortened = self.grace.is_none_or(|old| new < old);
        self.grace = Some(new);
        if shortened { Change::GraceShortened } else { Change::Nothing }
    }

    /// All containers have finished: the pod terminates, each container with its own grace period.
    pub fn complete(&mut self) {
        if self.stage == Stage::Syncing {
            self.stage = Stage::Terminating;
            self.cause = Some(TerminationCause::Completed);
        }
    }

    /// The runtime shows nothing of it running. A pod that only the runtime had is then finished.
    pub fn stopped(&mut self) {
        if self.stage == Stage::Terminating {
            let runtime_only = self.cause == Some(TerminationCause::Orphaned);
            self.stage = if runtime_only { Stage::Finished } else { Stage::Terminated };
        }
    }

    /// Its volumes and cgroup on this node are released.
    pub fn released(&mut self) {
        if self.stage == Stage::Terminated {
            self.stage = Stage::Finished;
        }
    }

    /// No source names the pod any more. It terminates, unless it already does.
    pub fn remove_from_source(&mut self) -> Change {
        self.removed_from_source = true;
        match self.stage {
            Stage::Syncing => {
                self.stage = Stage::Terminating;
                self.cause = Some(TerminationCause::Killed);
                Change::Terminates
            }
            Stage::Terminating | Stage::Terminated | Stage::Finished => Change::Nothing,
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn cause(&self) -> Option<TerminationCause> {
        self.cause
    }

    pub fn grace(&self) -> Option<Duration> {
        self.grace
    }

    pub fn termination_reason(&self) -> Option<&TerminationReason> {
        self.termination_reason.as_ref()
    }

    pub fn is_removed_from_source(&self) -> bool {
        self.removed_from_source
    }

    pub fn is_recreated(&self) -> bool {
        self.recreated
    }

    pub fn is_ending(&self) -> bool {
        self.stage != Stage::Syncing
    }

    /// It ends because the node is being stopped: its status and its volumes stay.
    pub fn resumes_later(&self) -> bool {
        self.cause == Some(TerminationCause::NodeStop) && !self.removed_from_source
    }
}

/// Cleanup permissions for a pod, whether it has a lifecycle or not.
///
/// For a pod without a lifecycle nothing is certain until every source has delivered its pods and
/// every desired pod has a worker (`all_pods_known`): until then nothing may be removed.
#[derive(Clone, Copy, Debug)]
pub struct CleanupPolicy<'a> {
    pub lifecycle: Option<&'a Lifecycle>,
    pub all_pods_known: bool,
}

impl CleanupPolicy<'_> {
    pub fn could_have_running_containers(self) -> bool {
        self.lifecycle.map_or(!self.all_pods_known, |l| l.stage < Stage::Terminated)
    }

    pub fn is_known_terminated(self) -> bool {
        self.lifecycle.is_some_and(|l| l.stage >= Stage::Terminated)
    }

    pub fn is_termination_requested(self) -> bool {
        self.lifecycle.is_some_and(Lifecycle::is_ending)
    }

    pub fn containers_should_be_terminating(self) -> bool {
        self.lifecycle.map_or(self.all_pods_known, Lifecycle::is_ending)
    }

    /// Volumes may be unmounted.
    pub fn runtime_may_be_removed(self) -> bool {
        self.lifecycle.map_or(self.all_pods_known, |l| l.stage >= Stage::Terminated)
    }

    /// Dead containers, sandboxes and logs may be removed: no status needs them any more.
    pub fn content_may_be_removed(self) -> bool {
        self.lifecycle.map_or(self.all_pods_known, |l| {
            let deleted = l.cause == Some(TerminationCause::Deleted) || l.removed_from_source;
            l.cause == Some(TerminationCause::Evicted) || (deleted && l.stage >= Stage::Terminated)
        })
    }

    pub fn is_finished(self) -> bool {
        self.lifecycle.map_or(self.all_pods_known, |l| l.stage == Stage::Finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Source;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pod(edit: impl FnOnce(&mut serde_json::Value)) -> Pod {
        let mut object = serde_json::json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        edit(&mut object);
        Pod::parse(serde_json::from_value(object).unwrap(), Source::Api).unwrap()
    }

    fn deleting(grace: i64) -> Pod {
        pod(|o| {
            o["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            o["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        })
    }

    #[test]
    fn grace_only_shrinks_and_is_never_zero() {
        let mut lifecycle = Lifecycle::begin(&pod(|_| {}), true);
        assert_eq!(lifecycle.request(Request::Update, &deleting(30)), Change::Terminates);
        assert_eq!(lifecycle.grace(), Some(s(30)));
        assert_eq!(lifecycle.request(Request::Update, &deleting(5)), Change::GraceShortened);
        assert_eq!(lifecycle.request(Request::Update, &deleting(60)), Change::Nothing);
        assert_eq!(lifecycle.grace(), Some(s(5)));
        lifecycle.request(Request::Update, &deleting(0));
        assert_eq!(lifecycle.grace(), Some(s(1)));
    }

    #[test]
    fn first_termination_cause_stays() {
        let mut lifecycle = Lifecycle::begin(&pod(|_| {}), true);
        lifecycle.request(Request::Update, &deleting(30));
        let termination_reason = TerminationReason {
            reason: "Evicted".into(),
            message: String::new(),
            disruption: None,
        };
        let evict = Kill {
            grace: Some(s(1)),
            evict: true,
            termination_reason: Some(termination_reason.clone()),
        };
        assert_eq!(lifecycle.request(Request::Kill(evict), &deleting(30)), Change::GraceShortened);
        assert_eq!(
            (lifecycle.cause(), lifecycle.termination_reason()),
            (Some(TerminationCause::Deleted), Some(&termination_reason))
        );
        let policy = CleanupPolicy { lifecycle: Some(&lifecycle), all_pods_known: true };
        assert!(!policy.content_may_be_removed(), "its containers are still stopping");
    }

    #[test]
    fn terminal_pod_without_running_containers_begins_terminated() {
        let succeeded = pod(|o| o["status"] = serde_json::json!({ "phase": "Succeeded" }));
        assert_eq!(Lifecycle::begin(&succeeded, false).stage(), Stage::Terminated);
        let mut alive = Lifecycle::begin(&succeeded, true);
        assert_eq!(alive.request(Request::Create, &succeeded), Change::Terminates);
    }

    #[test]
    fn recreated_uid_waits_until_the_old_pod_has_finished() {
        let mut lifecycle = Lifecycle::begin(&pod(|_| {}), true);
        lifecycle.request(Request::Kill(Kill::default()), &pod(|_| {}));
        assert_eq!(lifecycle.request(Request::Create, &pod(|_| {})), Change::Nothing);
        assert!(lifecycle.is_recreated() && lifecycle.stage() == Stage::Terminating);
    }

    #[test]
    fn completion_keeps_the_grace_period_of_each_container() {
        let mut lifecycle = Lifecycle::begin(&pod(|_| {}), true);
        lifecycle.complete();
        assert_eq!((lifecycle.stage(), lifecycle.grace()), (Stage::Terminating, None));
    }

    #[test]
    fn node_stop_uses_the_grace_period_of_the_spec_and_resumes_later() {
        let slow = pod(|o| o["spec"]["terminationGracePeriodSeconds"] = 45.into());
        let mut lifecycle = Lifecycle::begin(&slow, true);
        assert_eq!(lifecycle.request(Request::StopNode, &slow), Change::Terminates);
        assert_eq!(
            (lifecycle.grace(), lifecycle.cause()),
            (Some(s(45)), Some(TerminationCause::NodeStop))
        );
        assert!(lifecycle.resumes_later());
        assert_eq!(lifecycle.request(Request::StopNode, &slow), Change::Nothing, "second request");
        let mut gone = lifecycle.clone();
        gone.remove_from_source();
        assert!(!gone.resumes_later(), "its manifest was removed in the meantime");
    }

    #[test]
    fn node_stop_does_not_change_the_cause_of_a_terminating_pod() {
        let mut lifecycle = Lifecycle::begin(&pod(|_| {}), true);
        lifecycle.request(Request::Update, &deleting(5));
        assert_eq!(lifecycle.request(Request::StopNode, &deleting(5)), Change::Nothing);
        assert_eq!(
            (lifecycle.cause(), lifecycle.resumes_later()),
            (Some(TerminationCause::Deleted), false)
        );
        let mut deleted_unseen = Lifecycle::begin(&deleting(5), true);
        deleted_unseen.request(Request::StopNode, &deleting(5));
        assert_eq!(deleted_unseen.cause(), Some(TerminationCause::Deleted));
    }

    #[test]
    fn orphan_is_finished_once_it_is_stopped() {
        let mut lifecycle = Lifecycle::orphan();
        assert_eq!(lifecycle.grace(), Some(s(1)));
        lifecycle.stopped();
        assert_eq!(lifecycle.stage(), Stage::Finished);
    }

    #[test]
    fn unknown_pod_is_not_cleaned_up_until_all_pods_are_known() {
        let early = CleanupPolicy { lifecycle: None, all_pods_known: false };
        assert!(early.could_have_running_containers());
        assert!(!early.runtime_may_be_removed() && !early.content_may_be_removed());
        assert!(!early.containers_should_be_terminating() && !early.is_finished());
        let late = CleanupPolicy { lifecycle: None, all_pods_known: true };
        assert!(!late.could_have_running_containers());
        assert!(late.runtime_may_be_removed() && late.content_may_be_removed());
    }

    #[test]
    fn content_of_an_evicted_pod_may_be_removed_at_once() {
        let pod = pod(|_| {});
        let mut evicted = Lifecycle::begin(&pod, true);
        evicted.request(Request::Kill(Kill::evict("Evicted", "no memory", None)), &pod);
        let mut completed = Lifecycle::begin(&pod, true);
        completed.complete();
        for (lifecycle, want) in [(&evicted, true), (&completed, false)] {
            let policy = CleanupPolicy { lifecycle: Some(lifecycle), all_pods_known: true };
            assert_eq!(policy.content_may_be_removed(), want, "{lifecycle:?}");
        }
    }
}
