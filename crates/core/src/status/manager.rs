//! Rules of the status manager, which caches the last report of each pod and sends it.
//!
//! Callers are not trusted: a report that contradicts an earlier one is refused, an unchanged one
//! is dropped, and foreign conditions are left out. An accepted report gets a version; a pod whose
//! version was not sent yet must be updated in the API.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod as ApiPod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podwright_api::annotations::ANNOTATION_MIRROR;

use super::conditions::{
    self, ALL_RESTARTING, ConditionOwner, READY, READY_TO_START, condition, owner,
};
use super::container::{CREATING, ContainerStatuses, INITIALIZING, end_of, is_running};
use super::delay::Urgency;
use super::dropped::{Dropped, without_empties};
use super::normal::{equal, normalise, seconds};
use super::{phase_of, transition};
use crate::attempts::StartError;
use crate::ids::PodName;
use crate::pod::Pod;
use crate::time::{Mono, Now};

/// The last report of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedStatus {
    pub status: Arc<PodStatus>,
    /// Counts reports, to record which one was sent.
    pub version: u64,
    /// Time of the first change that was not sent yet.
    pub changed_at: Option<Mono>,
    /// Volumes and cgroup of the pod are released.
    pub finished: bool,
    /// The pod was being deleted when this was reported.
    pub deleting: bool,
    /// It builds on the status in the API. That of a static pod is in its mirror pod, which may be
    /// delivered after the first report.
    pub continues: bool,
}

impl CachedStatus {
    /// The API server has this version. Returns since when it was pending, unless a later change
    /// is.
    pub fn note_sent(&mut self, version: u64) -> Option<Mono> {
        if self.version == version { self.changed_at.take() } else { None }
    }

    /// Continues the status that the mirror pod of a static pod had before this agent was started:
    /// the pod neither starts nor becomes ready again because its agent was restarted. Once only: a
    /// later status of the mirror pod is ours.
    pub fn continue_mirror(&mut self, mirror: &PodStatus) {
        if std::mem::replace(&mut self.continues, true) {
            return;
        }
        let status = Arc::make_mut(&mut self.status);
        if mirror.start_time.is_some() {
            status.start_time.clone_from(&mirror.start_time);
        }
        for condition in status.conditions.iter_mut().flatten() {
            if let Some(since) = unchanged_since(condition, mirror) {
                condition.last_transition_time = Some(since);
            }
        }
    }
}

/// What triggered a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportTrigger {
    /// The pod was synced (upstream: SetPodStatus).
    Sync,
    /// The sandbox became ready; image pulls may still take a while.
    SandboxReady,
    /// A probe verdict changed (SetContainerReadiness, SetContainerStartup).
    Probe,
    /// Nothing of the pod is left on the node (TerminatePod).
    End,
}

/// A report together with the state it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct StatusUpdate<'a> {
    pub pod: &'a Pod,
    pub cached: Option<&'a CachedStatus>,
    /// The API status of a static pod's mirror pod, if that is of the same manifest.
    pub mirror: Option<&'a PodStatus>,
    pub occasion: ReportTrigger,
    pub now: Now,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    Accepted {
        entry: CachedStatus,
        /// Foreign condition types that the report tried to set; they were left out.
        left_out: Vec<String>,
    },
    /// Nothing changed.
    Unchanged,
    Refused(IllegalTransition),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "status of pod {pod} refused: container {container} has terminated for good, \
     and the new status lets it run again"
)]
pub struct IllegalTransition {
    pub pod: PodName,
    pub container: String,
}

/// Accepts a report if it is legal and changes anything.
pub fn accept(update: &StatusUpdate<'_>, mut new: PodStatus) -> Acceptance {
    let StatusUpdate { pod, cached, mirror, occasion, now } = *update;
    let nothing = PodStatus::default();
    let known = cached.map(|entry| &*entry.status).or(mirror).or(pod.object.status.as_ref());
    let old = known.unwrap_or(&nothing);
    if let Some(container) = transition::illegal(pod, old, &new) {
        let container = container.to_owned();
        return Acceptance::Refused(IllegalTransition { pod: pod.name.clone(), container });
    }
    let left_out = leave_out_foreign(&mut new, [pod.object.status.as_ref(), Some(old)]);
    for condition in new.conditions.iter_mut().flatten() {
        set_transition_time(condition, old, now);
    }
    let begin = old.start_time.clone().or_else(|| new.start_time.take());
    new.start_time = Some(begin.unwrap_or_else(|| seconds(now.wall)));
    new.observed_generation = new.observed_generation.max(old.observed_generation);
    normalise(pod, &mut new);
    let forced = match occasion {
        // The first report after a deletion request may be all that the deletion still needs.
        ReportTrigger::Sync | ReportTrigger::SandboxReady => {
            pod.deletion.is_some() && !cached.is_some_and(|cached| cached.deleting)
        }
        ReportTrigger::Probe => false,
        ReportTrigger::End => true,
    };
    if !forced && cached.is_some_and(|cached| equal(&cached.status, &new)) {
        return Acceptance::Unchanged;
    }
    // A static pod may return with the same UID, and then it is not finished any more.
    let was_finished = cached.is_some_and(|cached| cached.finished) && !pod.is_static();
    let entry = CachedStatus {
        status: Arc::new(new),
        version: cached.map_or(0, |cached| cached.version) + 1,
        changed_at: cached.and_then(|cached| cached.changed_at).or(Some(now.mono)),
        finished: occasion == ReportTrigger::End || was_finished,
        deleting: pod.deletion.is_some(),
        continues: cached.map_or(mirror.is_some() || !pod.is_static(), |cached| cached.continues),
    };
    Acceptance::Accepted { entry, left_out }
}

/// Foreign conditions may be carried over unchanged, but not set.
fn leave_out_foreign(new: &mut PodStatus, known: [Option<&PodStatus>; 2]) -> Vec<String> {
    let carried = |new: &PodCondition| {
        known.into_iter().flatten().any(|known| condition(known, &new.type_) == Some(new))
    };
    let mut left_out = Vec::new();
    if let Some(conditions) = &mut new.conditions {
        conditions.retain(|condition| {
            let keep = owner(&condition.type_) != ConditionOwner::Foreign || carried(condition);
            if !keep {
                left_out.push(condition.type_.clone());
            }
            keep
        });
    }
    left_out
}

/// Sets the transition time: when the status of the condition last changed.
fn set_transition_time(new: &mut PodCondition, old: &PodStatus, now: Now) {
    let dated_elsewhere = match owner(&new.type_) {
        ConditionOwner::Foreign => true,
        // Resize conditions carry their own time: a new reason counts as a change.
        ConditionOwner::Agent => {
            matches!(&*new.type_, conditions::RESIZE_PENDING | conditions::RESIZE_IN_PROGRESS)
        }
        ConditionOwner::Shared => false,
    };
    if dated_elsewhere && new.last_transition_time.is_some() {
        return;
    }
    let since = unchanged_since(new, old);
    new.last_transition_time = Some(since.unwrap_or_else(|| seconds(now.wall)));
}

/// Since when the condition has its status, if `old` has the same.
fn unchanged_since(new: &PodCondition, old: &PodStatus) -> Option<Time> {
    let same = condition(old, &new.type_).filter(|old| old.status == new.status);
    same.and_then(|old| old.last_transition_time.clone())
}

/// The status after a verdict of a readiness probe; `None` if nothing changes.
///
/// `container_id` has the runtime's scheme, as statuses show it.
pub fn set_container_readiness(
    pod: &Pod,
    status: &PodStatus,
    container_id: &str,
    ready: bool,
) -> Option<PodStatus> {
    let mut status = changed(status, container_id, |c| c.ready != ready, |c| c.ready = ready)?;
    let mut conditions = status.conditions.take().unwrap_or_default();
    let phase = phase_of(&status);
    for new in conditions::readiness(pod, ContainerStatuses::of(&status), &conditions, phase) {
        conditions::put(&mut conditions, new);
    }
    status.conditions = Some(conditions);
    Some(status)
}

/// The status once the sandbox is ready; `None` if nothing changes.
pub fn set_sandbox_ready(status: &PodStatus) -> Option<PodStatus> {
    let shown = condition(status, READY_TO_START)?;
    if shown.status == "True" {
        return None;
    }
    let mut status = status.clone();
    let conditions = status.conditions.iter_mut().flatten();
    for condition in conditions.filter(|condition| condition.type_ == READY_TO_START) {
        condition.status = "True".into();
        (condition.reason, condition.message) = (None, None);
    }
    Some(status)
}

/// The status after a verdict of a startup probe; `None` if nothing changes.
pub fn set_container_startup(
    status: &PodStatus,
    container_id: &str,
    started: bool,
) -> Option<PodStatus> {
    let started = Some(started);
    changed(status, container_id, |c| c.started != started, |c| c.started = started)
}

fn changed(
    status: &PodStatus,
    container_id: &str,
    differs: impl Fn(&ContainerStatus) -> bool,
    change: impl Fn(&mut ContainerStatus),
) -> Option<PodStatus> {
    let this = |c: &ContainerStatus| c.container_id.as_deref() == Some(container_id);
    let shown = ContainerStatuses::of(status);
    shown.regular.iter().chain(shown.init).find(|c| this(c)).filter(|c| differs(c))?;
    let mut status = status.clone();
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().filter(|c| this(c)).for_each(change);
    Some(status)
}

/// What is left of a pod on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodLeftovers {
    /// A container of it is running or may be started.
    pub containers: bool,
    /// A volume is mounted, or its directory exists.
    pub volumes: bool,
    pub cgroup: bool,
}

/// Nothing of the pod is left, and its status shows no running container.
pub fn resources_are_reclaimed(status: &PodStatus, leftovers: PodLeftovers) -> bool {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    leftovers == PodLeftovers::default() && !lists.into_iter().flatten().flatten().any(is_running)
}

/// The API object may be deleted: deletion was requested, the API shows a terminal phase, and
/// nothing is left. `api` is the newest API copy. A mirror pod is deleted with its static pod.
pub fn can_be_deleted(api: &ApiPod, entry: &CachedStatus, leftovers: PodLeftovers) -> bool {
    let annotations = api.metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|all| all.contains_key(ANNOTATION_MIRROR));
    let shows_the_end = api.status.as_ref().is_some_and(|status| phase_of(status).is_terminal());
    api.metadata.deletion_timestamp.is_some()
        && !is_mirror
        && shows_the_end
        && entry.finished
        && resources_are_reclaimed(&entry.status, leftovers)
}

/// This version was not sent yet, or only the deletion of the pod is left to do.
pub fn needs_update(
    entry: &CachedStatus,
    sent: Option<u64>,
    api: Option<&ApiPod>,
    leftovers: PodLeftovers,
) -> bool {
    sent.is_none_or(|sent| sent < entry.version)
        || api.is_some_and(|api| can_be_deleted(api, entry, leftovers))
}

/// Another writer changed the agent's part of the status in `api` (for a static pod, its mirror
/// pod).
pub fn needs_reconcile(
    pod: &Pod,
    api: &PodStatus,
    entry: &CachedStatus,
    dropped: &Dropped,
) -> bool {
    let mut api = api.clone();
    normalise(pod, &mut api);
    if equal(&api, &entry.status) {
        return false;
    }
    !equal(&without_empties(&api), &dropped.strip(&entry.status))
}

/// A change of Ready affects traffic, so it is sent first.
pub fn changes_ready(api: &PodStatus, ours: &PodStatus) -> bool {
    condition_status(api, READY) != condition_status(ours, READY)
}

fn condition_status<'a>(status: &'a PodStatus, of: &str) -> Option<&'a str> {
    condition(status, of).map(|condition| condition.status.as_str())
}

/// Waiting reasons that may need action by the user. A failed pull alternates between two reasons,
/// which count as one.
fn obstacles(status: &PodStatus) -> impl Iterator<Item = (&str, &str)> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    let reasons = all.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((container.name.as_str(), waiting.reason.as_deref()?))
    });
    let obstacles = reasons.filter(|(_, reason)| ![CREATING, INITIALIZING].contains(reason));
    let pull = StartError::ErrImagePull.as_str();
    obstacles.map(move |(name, reason)| match reason == StartError::ImagePullBackOff.as_str() {
        true => (name, pull),
        false => (name, reason),
    })
}

/// Whether users or controllers may act on this change, so that it is sent without delay.
pub fn urgency(old: Option<&PodStatus>, new: &PodStatus, occasion: ReportTrigger) -> Urgency {
    if is_urgent(old, new, occasion) { Urgency::Urgent } else { Urgency::Minor }
}

fn is_urgent(old: Option<&PodStatus>, new: &PodStatus, occasion: ReportTrigger) -> bool {
    use ReportTrigger::{End, Probe, SandboxReady, Sync};
    match (occasion, old) {
        (End, _) => true,
        (Sync | SandboxReady | Probe, Some(old)) => {
            changes_ready(old, new)
                || phase_of(old) != phase_of(new)
                || begun_ephemeral(old).ne(begun_ephemeral(new))
                || condition_status(old, ALL_RESTARTING) != condition_status(new, ALL_RESTARTING)
                || obstacles(old).ne(obstacles(new))
        }
        (Sync | SandboxReady | Probe, None) => phase_of(new).is_terminal(),
    }
}

/// Ephemeral containers that run or have terminated: a client may wait to attach to one.
fn begun_ephemeral(status: &PodStatus) -> impl Iterator<Item = (&str, bool)> {
    let all = status.ephemeral_container_statuses.iter().flatten();
    let begun = all.filter(|container| is_running(container) || end_of(container).is_some());
    begun.map(|container| (container.name.as_str(), is_running(container)))
}
