//! The rules of the status manager, which keeps the last report of each pod and sends it.
//!
//! It does not trust its callers: a report that contradicts an earlier one is refused, one that
//! says nothing new is dropped, and what the agent does not own is left out. What is left gets a
//! number; the API server is owed every pod whose number it has not been sent.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod as ApiPod, PodCondition, PodStatus};

use super::conditions::{self, ALL_RESTARTING, Owner, READY, condition, owner};
use super::container::{CREATING, INITIALIZING, Shown, end_of, is_running};
use super::dropped::{Dropped, without_empties};
use super::normal::{equal, normalise, seconds};
use super::{phase_of, transition};
use crate::attempts::StartError;
use crate::ids::PodName;
use crate::pod::{ANNOTATION_MIRROR, Pod};
use crate::time::{Mono, Now};

/// The last report of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub status: Arc<PodStatus>,
    /// Counts reports, so that "what was sent" is a number.
    pub version: u64,
    /// When the first change came that was not sent yet.
    pub changed_at: Option<Mono>,
    /// Everything the pod held on this node is released.
    pub finished: bool,
}

impl Entry {
    /// The API server has this version now. Returns since when it waited; a later change starts its own clock.
    pub fn note_sent(&mut self, version: u64) -> Option<Mono> {
        if self.version == version { self.changed_at.take() } else { None }
    }
}

/// What a report comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The pod was synced (upstream: SetPodStatus).
    Sync,
    /// A probe changed its mind (SetContainerReadiness, SetContainerStartup).
    Probe,
    /// Nothing of the pod is left on the node (TerminatePod).
    End,
}

/// Where a report is to be filed.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    pub pod: &'a Pod,
    pub cached: Option<&'a Entry>,
    /// The status that the API shows of a static pod.
    pub mirror: Option<&'a PodStatus>,
    pub occasion: Occasion,
    pub now: Now,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    Accepted {
        entry: Entry,
        /// Types of conditions the agent does not own and tried to set; they were left out.
        left_out: Vec<String>,
    },
    /// It says nothing new.
    Unchanged,
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "status of pod {pod} refused: container {container} has terminated for good, \
     and the new status lets it run again"
)]
pub struct Refusal {
    pub pod: PodName,
    pub container: String,
}

/// Files a report, if it is legal and says anything.
pub fn accept(update: &Update<'_>, mut new: PodStatus) -> Acceptance {
    let Update { pod, cached, mirror, occasion, now } = *update;
    let nothing = PodStatus::default();
    let known = cached.map(|entry| &*entry.status).or(mirror).or(pod.object.status.as_ref());
    let old = known.unwrap_or(&nothing);
    if let Some(container) = transition::illegal(pod, old, &new) {
        let container = container.to_owned();
        return Acceptance::Refused(Refusal { pod: pod.name.clone(), container });
    }
    let left_out = leave_out_foreign(&mut new, [pod.object.status.as_ref(), Some(old)]);
    for condition in new.conditions.iter_mut().flatten() {
        date(condition, old, now);
    }
    let begin = old.start_time.clone().or_else(|| new.start_time.take());
    new.start_time = Some(begin.unwrap_or_else(|| seconds(now.wall)));
    new.observed_generation = new.observed_generation.max(old.observed_generation);
    normalise(pod, &mut new);
    let forced = match occasion {
        // A deleted pod may have nothing new to say and still wait for its deletion.
        Occasion::Sync => pod.deletion.is_some(),
        Occasion::Probe => false,
        Occasion::End => true,
    };
    if !forced && cached.is_some_and(|cached| equal(&cached.status, &new)) {
        return Acceptance::Unchanged;
    }
    // A static pod may come back under the same uid, and then it is not finished any more.
    let was_finished = cached.is_some_and(|cached| cached.finished) && !pod.is_static();
    let entry = Entry {
        status: Arc::new(new),
        version: cached.map_or(0, |cached| cached.version) + 1,
        changed_at: cached.and_then(|cached| cached.changed_at).or(Some(now.mono)),
        finished: occasion == Occasion::End || was_finished,
    };
    Acceptance::Accepted { entry, left_out }
}

/// Conditions of others may be carried along as they are, but not written.
fn leave_out_foreign(new: &mut PodStatus, told: [Option<&PodStatus>; 2]) -> Vec<String> {
    let carried = |new: &PodCondition| {
        told.into_iter().flatten().any(|told| condition(told, &new.type_) == Some(new))
    };
    let mut left_out = Vec::new();
    if let Some(conditions) = &mut new.conditions {
        conditions.retain(|condition| {
            let keep = owner(&condition.type_) != Owner::Foreign || carried(condition);
            if !keep {
                left_out.push(condition.type_.clone());
            }
            keep
        });
    }
    left_out
}

/// A condition dates from when its answer last changed.
fn date(new: &mut PodCondition, old: &PodStatus, now: Now) {
    let dated_by_others = match owner(&new.type_) {
        Owner::Foreign => true,
        // Who resizes a pod dates it: there a new reason counts as a change.
        Owner::Agent => {
            matches!(&*new.type_, conditions::RESIZE_PENDING | conditions::RESIZE_IN_PROGRESS)
        }
        Owner::Shared => false,
    };
    if dated_by_others && new.last_transition_time.is_some() {
        return;
    }
    let same = condition(old, &new.type_).filter(|old| old.status == new.status);
    let since = same.and_then(|old| old.last_transition_time.clone());
    new.last_transition_time = Some(since.unwrap_or_else(|| seconds(now.wall)));
}

/// The status after a readiness probe's verdict; `None` if that is no news.
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
    for new in conditions::readiness(pod, Shown::of(&status), &conditions, phase) {
        conditions::put(&mut conditions, new);
    }
    status.conditions = Some(conditions);
    Some(status)
}

/// The status after a startup probe's verdict; `None` if that is no news.
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
    let shown = Shown::of(status);
    shown.regular.iter().chain(shown.init).find(|c| this(c)).filter(|c| differs(c))?;
    let mut status = status.clone();
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().filter(|c| this(c)).for_each(change);
    Some(status)
}

/// What of a pod is still on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// A container of it runs or might be started.
    pub containers: bool,
    /// A volume is mounted, or its folder is there.
    pub volumes: bool,
    pub cgroup: bool,
}

/// Nothing the pod used is in use any more, and its status does not claim otherwise.
pub fn resources_are_reclaimed(status: &PodStatus, remains: Remains) -> bool {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    remains == Remains::default() && !lists.into_iter().flatten().flatten().any(is_running)
}

/// The object may go: deletion was asked for, the API shows how the pod ended, nothing is left.
/// `api` is the newest API copy; a mirror goes when its static pod goes.
pub fn can_be_deleted(api: &ApiPod, entry: &Entry, remains: Remains) -> bool {
    let annotations = api.metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|all| all.contains_key(ANNOTATION_MIRROR));
    let shows_the_end = api.status.as_ref().is_some_and(|status| phase_of(status).is_terminal());
    api.metadata.deletion_timestamp.is_some()
        && !is_mirror
        && shows_the_end
        && entry.finished
        && resources_are_reclaimed(&entry.status, remains)
}

/// The object that now has the pod's name is the one that the report with this uid is about.
/// Otherwise the pod was deleted and made anew, and the report is nobody's business any more.
pub fn is_same_object(api: &ApiPod, uid: &str) -> bool {
    api.metadata.uid.as_deref() == Some(uid)
}

/// The API server has not been sent this version, or the pod waits for nothing but its deletion.
pub fn needs_update(
    entry: &Entry,
    sent: Option<u64>,
    api: Option<&ApiPod>,
    remains: Remains,
) -> bool {
    sent.is_none_or(|sent| sent < entry.version)
        || api.is_some_and(|api| can_be_deleted(api, entry, remains))
}

/// Someone changed our part of the status: `api` (the mirror's, for a static pod) says otherwise.
pub fn needs_reconcile(pod: &Pod, api: &PodStatus, entry: &Entry, dropped: &Dropped) -> bool {
    let mut api = api.clone();
    normalise(pod, &mut api);
    if equal(&api, &entry.status) {
        return false;
    }
    !equal(&without_empties(&api), &dropped.strip(&entry.status))
}

/// A change of Ready moves traffic, so it is sent before all others.
pub fn changes_ready(api: &PodStatus, ours: &PodStatus) -> bool {
    answer(api, READY) != answer(ours, READY)
}

fn answer<'a>(status: &'a PodStatus, of: &str) -> Option<&'a str> {
    condition(status, of).map(|condition| condition.status.as_str())
}

/// What containers wait for that somebody may have to mend. A pull is tried again and again, and
/// has several words for it.
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

/// Whether someone may act on this change, so that it must not wait for more.
pub fn is_urgent(old: Option<&PodStatus>, new: &PodStatus, occasion: Occasion) -> bool {
    match (occasion, old) {
        (Occasion::End, _) => true,
        (Occasion::Sync | Occasion::Probe, Some(old)) => {
            changes_ready(old, new)
                || phase_of(old) != phase_of(new)
                || begun_ephemeral(old).ne(begun_ephemeral(new))
                || answer(old, ALL_RESTARTING) != answer(new, ALL_RESTARTING)
                || obstacles(old).ne(obstacles(new))
        }
        (Occasion::Sync | Occasion::Probe, None) => phase_of(new).is_terminal(),
    }
}

/// Ephemeral containers that run or have ended: whoever asked for one waits to attach to it.
fn begun_ephemeral(status: &PodStatus) -> impl Iterator<Item = (&str, bool)> {
    let all = status.ephemeral_container_statuses.iter().flatten();
    let begun = all.filter(|container| is_running(container) || end_of(container).is_some());
    begun.map(|container| (container.name.as_str(), is_running(container)))
}
