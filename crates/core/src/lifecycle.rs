//! The life of one pod on this node, and what may still be asked of it.
//!
//! ```text
//!            delete, evict, kill,           nothing of it            volumes and
//!            terminal phase, orphan         runs any more            cgroup are gone
//!  Syncing ------------------> Terminating ------------> Terminated ------------> Finished
//!     \____________________________________________________^
//!       first seen with a terminal phase and nothing running
//! ```
//!
//! There is no way back: a pod that began to end never starts a container again. Requests are
//! merged, never overwritten: the first cause stays, grace only ever shrinks. A UID that is wanted
//! again after its end starts a new life, once this one is finished and forgotten.

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

/// Why a pod's life began to end. Only the first cause counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Deletion was requested in the API.
    #[serde(rename = "Deleted")]
    Deleted,
    /// The node needs its resources back.
    #[serde(rename = "Evicted")]
    Evicted,
    /// All its containers are done, or the API already calls it terminal.
    #[serde(rename = "Completed")]
    Completed,
    /// It left its source without a deletion, or someone on the node asked for it.
    #[serde(rename = "Killed")]
    Killed,
    /// Only the runtime knows it.
    #[serde(rename = "Orphaned")]
    Orphaned,
    /// The whole node is being stopped. The pod is still wanted and runs again, with its volumes,
    /// when the node starts.
    #[serde(rename = "NodeStop")]
    NodeStop,
}

/// What a pod that was ended by the node reports of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obituary {
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
    /// The message of the condition DisruptionTarget with reason TerminationByKubelet, if that is
    /// added.
    #[serde(rename = "disruption")]
    pub disruption: Option<String>,
}

/// A request to end the pod from within the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    #[serde(rename = "grace")]
    pub grace: Option<Duration>,
    #[serde(rename = "evict")]
    pub evict: bool,
    #[serde(rename = "obituary")]
    pub obituary: Option<Obituary>,
}

impl Kill {
    /// The node takes the pod away: Failed with this reason, and the condition DisruptionTarget.
    /// Without a grace of its own the pod's spec says how long it takes.
    pub fn evict(
        reason: impl Into<String>,
        message: impl Into<String>,
        grace: Option<Duration>,
    ) -> Self {
        let (reason, message) = (reason.into(), message.into());
        let disruption = Some(message.clone());
        let obituary = Some(Obituary { reason, message, disruption });
        Self { grace, evict: true, obituary }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The pod appeared in its source.
    Create,
    /// Its object changed, or something it depends on did.
    Update,
    Kill(Kill),
    /// The node is being stopped: the pod ends with the grace of its spec and keeps its volumes.
    StopNode,
}

/// What a request changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The pod began to end.
    Terminates,
    /// It was ending already, and now has less time.
    GraceShortened,
}

/// A stop is never quicker than this; zero would mean an immediate SIGKILL.
const LEAST_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    #[serde(rename = "stage")]
    stage: Stage,
    #[serde(rename = "cause")]
    cause: Option<Cause>,
    /// `None`: each container has the grace of its spec.
    #[serde(rename = "grace")]
    grace: Option<Duration>,
    #[serde(rename = "obituary")]
    obituary: Option<Obituary>,
    /// No source wants it any more.
    #[serde(rename = "unwanted")]
    unwanted: bool,
    /// The same UID appeared again while this life was ending.
    #[serde(rename = "wanted_again")]
    wanted_again: bool,
}

impl Lifecycle {
    /// A pod seen for the first time. `alive`: the runtime shows something of it running.
    pub fn begin(pod: &Pod, alive: bool) -> Self {
        let over = pod.api_phase.is_terminal() && !alive;
        Self {
            stage: if over { Stage::Terminated } else { Stage::Syncing },
            cause: over.then_some(Cause::Completed),
            grace: None,
            obituary: None,
            unwanted: false,
            wanted_again: false,
        }
    }

    /// A pod that only the runtime knows: it is there to be ended.
    pub fn orphan() -> Self {
        Self {
            stage: Stage::Terminating,
            cause: Some(Cause::Orphaned),
            grace: Some(LEAST_GRACE),
            obituary: None,
            unwanted: true,
            wanted_again: false,
        }
    }

    /// Folds a request in. Order and repetition of requests do not matter for where it leads.
    pub fn request(&mut self, request: Request, pod: &Pod) -> Change {
        match (self.stage, request) {
            (Stage::Finished, Request::Update | Request::Kill(_) | Request::StopNode) => {
                Change::Nothing
            }
            (Stage::Terminating | Stage::Terminated | Stage::Finished, Request::Create) => {
                self.wanted_again = true;
                Change::Nothing
            }
            (Stage::Terminated, Request::Update | Request::Kill(_) | Request::StopNode) => {
                Change::Nothing
            }
            // A pod that ends for another reason ends as that reason asks.
            (Stage::Terminating, Request::StopNode) => Change::Nothing,
            (Stage::Syncing, Request::StopNode) => {
                let cause = match pod.deletion {
                    Some(_) => Cause::Deleted,
                    None if pod.api_phase.is_terminal() => Cause::Completed,
                    None => Cause::NodeStop,
                };
                self.terminate(cause, pod, Kill::default())
            }
            (Stage::Syncing, Request::Create | Request::Update) => {
                let cause = match pod.deletion {
                    Some(_) => Cause::Deleted,
                    None if pod.api_phase.is_terminal() => Cause::Completed,
                    None => return Change::Nothing,
                };
                self.terminate(cause, pod, Kill::default())
            }
            (Stage::Syncing, Request::Kill(kill)) => {
                let cause = match pod.deletion {
                    Some(_) => Cause::Deleted,
                    None if pod.api_phase.is_terminal() => Cause::Completed,
                    None if kill.evict => Cause::Evicted,
                    None => Cause::Killed,
                };
                self.terminate(cause, pod, kill)
            }
            (Stage::Terminating, Request::Update) => self.shorten(pod, None),
            (Stage::Terminating, Request::Kill(kill)) => {
                if kill.obituary.is_some() {
                    self.obituary = kill.obituary;
                }
                self.shorten(pod, kill.grace)
            }
        }
    }

    fn terminate(&mut self, cause: Cause, pod: &Pod, kill: Kill) -> Change {
        self.stage = Stage::Terminating;
        self.cause = Some(cause);
        self.obituary = kill.obituary;
        self.shorten(pod, kill.grace);
        // The spec's own grace only if nobody asked.
        self.grace.get_or_insert(pod.grace.max(LEAST_GRACE));
        Change::Terminates
    }

    /// The least of what was ever asked for counts; if nobody asks, nothing changes.
    fn shorten(&mut self, pod: &Pod, asked: Option<Duration>) -> Change {
        let deletion = pod.deletion.and_then(|deletion| deletion.grace);
        let Some(least) = [deletion, asked].into_iter().flatten().min() else {
            return Change::Nothing;
        };
        let new = self.grace.map_or(least, |old| old.min(least)).max(LEAST_GRACE);
        let shortened = self.grace.is_none_or(|old| new < old);
        self.grace = Some(new);
        if shortened { Change::GraceShortened } else { Change::Nothing }
    }

    /// The status shows that all its containers are done: it ends by itself, with no hurry.
    pub fn complete(&mut self) {
        if self.stage == Stage::Syncing {
            self.stage = Stage::Terminating;
            self.cause = Some(Cause::Completed);
        }
    }

    /// The runtime shows nothing of it running. A pod only the runtime knew is finished by that.
    pub fn stopped(&mut self) {
        if self.stage == Stage::Terminating {
            let runtime_only = self.cause == Some(Cause::Orphaned);
            self.stage = if runtime_only { Stage::Finished } else { Stage::Terminated };
        }
    }

    /// Everything it held on this node is released.
    pub fn released(&mut self) {
        if self.stage == Stage::Terminated {
            self.stage = Stage::Finished;
        }
    }

    /// No source names the pod any more. It ends, if it was not ending yet.
    pub fn abandon(&mut self) -> Change {
        self.unwanted = true;
        match self.stage {
            Stage::Syncing => {
                self.stage = Stage::Terminating;
                self.cause = Some(Cause::Killed);
                Change::Terminates
            }
            Stage::Terminating | Stage::Terminated | Stage::Finished => Change::Nothing,
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }

    pub fn grace(&self) -> Option<Duration> {
        self.grace
    }

    pub fn obituary(&self) -> Option<&Obituary> {
        self.obituary.as_ref()
    }

    pub fn is_unwanted(&self) -> bool {
        self.unwanted
    }

    pub fn is_wanted_again(&self) -> bool {
        self.wanted_again
    }

    pub fn is_ending(&self) -> bool {
        self.stage != Stage::Syncing
    }

    /// It ends because the node is being stopped: its status and its volumes stay as they are.
    pub fn resumes_later(&self) -> bool {
        self.cause == Some(Cause::NodeStop) && !self.unwanted
    }
}

/// What the rest of the node may do about a pod, known or not.
///
/// Of a pod without a life nothing is certain until every source was heard and every wanted pod
/// has a worker (`all_pods_known`): until then the answer is the one that destroys nothing.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub life: Option<&'a Lifecycle>,
    pub all_pods_known: bool,
}

impl Standing<'_> {
    pub fn could_have_running_containers(self) -> bool {
        self.life.map_or(!self.all_pods_known, |l| l.stage < Stage::Terminated)
    }

    pub fn is_known_terminated(self) -> bool {
        self.life.is_some_and(|l| l.stage >= Stage::Terminated)
    }

    pub fn is_termination_requested(self) -> bool {
        self.life.is_some_and(Lifecycle::is_ending)
    }

    pub fn containers_should_be_terminating(self) -> bool {
        self.life.map_or(self.all_pods_known, Lifecycle::is_ending)
    }

    /// Volumes may be unmounted.
    pub fn runtime_may_be_removed(self) -> bool {
        self.life.map_or(self.all_pods_known, |l| l.stage >= Stage::Terminated)
    }

    /// Dead containers, sandboxes and logs may go: nobody will ask for them.
    pub fn content_may_be_removed(self) -> bool {
        self.life.map_or(self.all_pods_known, |l| {
            let deleted = l.cause == Some(Cause::Deleted) || l.unwanted;
            l.cause == Some(Cause::Evicted) || (deleted && l.stage >= Stage::Terminated)
        })
    }

    pub fn is_finished(self) -> bool {
        self.life.map_or(self.all_pods_known, |l| l.stage == Stage::Finished)
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
        let mut life = Lifecycle::begin(&pod(|_| {}), true);
        assert_eq!(life.request(Request::Update, &deleting(30)), Change::Terminates);
        assert_eq!(life.grace(), Some(s(30)));
        assert_eq!(life.request(Request::Update, &deleting(5)), Change::GraceShortened);
        assert_eq!(life.request(Request::Update, &deleting(60)), Change::Nothing);
        assert_eq!(life.grace(), Some(s(5)));
        life.request(Request::Update, &deleting(0));
        assert_eq!(life.grace(), Some(s(1)));
    }

    #[test]
    fn the_first_cause_stays() {
        let mut life = Lifecycle::begin(&pod(|_| {}), true);
        life.request(Request::Update, &deleting(30));
        let obituary =
            Obituary { reason: "Evicted".into(), message: String::new(), disruption: None };
        let evict = Kill { grace: Some(s(1)), evict: true, obituary: Some(obituary.clone()) };
        assert_eq!(life.request(Request::Kill(evict), &deleting(30)), Change::GraceShortened);
        assert_eq!((life.cause(), life.obituary()), (Some(Cause::Deleted), Some(&obituary)));
        let standing = Standing { life: Some(&life), all_pods_known: true };
        assert!(!standing.content_may_be_removed(), "its containers are still stopping");
    }

    #[test]
    fn a_terminal_pod_with_nothing_running_has_nothing_left_to_stop() {
        let succeeded = pod(|o| o["status"] = serde_json::json!({ "phase": "Succeeded" }));
        assert_eq!(Lifecycle::begin(&succeeded, false).stage(), Stage::Terminated);
        let mut alive = Lifecycle::begin(&succeeded, true);
        assert_eq!(alive.request(Request::Create, &succeeded), Change::Terminates);
    }

    #[test]
    fn a_uid_wanted_again_waits_for_the_end_of_its_first_life() {
        let mut life = Lifecycle::begin(&pod(|_| {}), true);
        life.request(Request::Kill(Kill::default()), &pod(|_| {}));
        assert_eq!(life.request(Request::Create, &pod(|_| {})), Change::Nothing);
        assert!(life.is_wanted_again() && life.stage() == Stage::Terminating);
    }

    #[test]
    fn natural_completion_leaves_each_container_its_own_grace() {
        let mut life = Lifecycle::begin(&pod(|_| {}), true);
        life.complete();
        assert_eq!((life.stage(), life.grace()), (Stage::Terminating, None));
    }

    #[test]
    fn node_stop_gives_each_pod_its_own_grace_and_resumes_later() {
        let slow = pod(|o| o["spec"]["terminationGracePeriodSeconds"] = 45.into());
        let mut life = Lifecycle::begin(&slow, true);
        assert_eq!(life.request(Request::StopNode, &slow), Change::Terminates);
        assert_eq!((life.grace(), life.cause()), (Some(s(45)), Some(Cause::NodeStop)));
        assert!(life.resumes_later());
        assert_eq!(life.request(Request::StopNode, &slow), Change::Nothing, "asked once more");
        let mut gone = life.clone();
        gone.abandon();
        assert!(!gone.resumes_later(), "its manifest was removed meanwhile");
    }

    #[test]
    fn node_stop_leaves_a_pod_that_is_ending_already_to_its_first_cause() {
        let mut life = Lifecycle::begin(&pod(|_| {}), true);
        life.request(Request::Update, &deleting(5));
        assert_eq!(life.request(Request::StopNode, &deleting(5)), Change::Nothing);
        assert_eq!((life.cause(), life.resumes_later()), (Some(Cause::Deleted), false));
        let mut deleted_unseen = Lifecycle::begin(&deleting(5), true);
        deleted_unseen.request(Request::StopNode, &deleting(5));
        assert_eq!(deleted_unseen.cause(), Some(Cause::Deleted));
    }

    #[test]
    fn an_orphan_is_finished_when_it_stopped() {
        let mut life = Lifecycle::orphan();
        assert_eq!(life.grace(), Some(s(1)));
        life.stopped();
        assert_eq!(life.stage(), Stage::Finished);
    }

    #[test]
    fn of_an_unknown_pod_nothing_is_removed_until_all_pods_are_known() {
        let early = Standing { life: None, all_pods_known: false };
        assert!(early.could_have_running_containers());
        assert!(!early.runtime_may_be_removed() && !early.content_may_be_removed());
        assert!(!early.containers_should_be_terminating() && !early.is_finished());
        let late = Standing { life: None, all_pods_known: true };
        assert!(!late.could_have_running_containers());
        assert!(late.runtime_may_be_removed() && late.content_may_be_removed());
    }
}
