//! Garbage collection policy: selects the dead containers, sandboxes, logs and images to remove.
//!
//! A dead container is kept for its logs and exit code, a dead sandbox for its attempt number, an
//! image because another pod may need it. All of them cost disk space. This module selects from a
//! listing what to remove first; it does no I/O.

mod images;
mod logs;

pub use images::{
    Disk, DiskError, ImagePolicy, ImageRecords, ImageRemoval, ListedImage, Reclaim, RemovalReason,
};
pub use logs::{LogLink, log_directory_owner, log_link_container};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{ListedState, ObservedPod};

/// How many dead containers are kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Containers younger than this are kept.
    pub min_age: Duration,
    /// Dead instances kept of each container of a pod; `None` keeps all.
    pub per_container: Option<usize>,
    /// Dead containers kept on the whole node; `None` keeps all.
    pub in_total: Option<usize>,
}

impl Default for ContainerPolicy {
    fn default() -> Self {
        Self { min_age: Duration::ZERO, per_container: Some(1), in_total: None }
    }
}

/// A container as listed by the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: ContainerId,
    pub pod: PodUid,
    pub container: Arc<str>,
    pub sandbox: SandboxId,
    /// Restart count at creation.
    pub attempt: u32,
    pub created: Timestamp,
    pub state: ListedState,
}

impl ListedContainer {
    /// Increases with each instance of one container, even if the wall clock is set back.
    fn age_key(&self) -> (u32, Timestamp, &ContainerId) {
        (self.attempt, self.created, &self.id)
    }
}

/// A sandbox as listed by the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    pub id: SandboxId,
    pub pod: PodUid,
    pub attempt: u32,
    pub created: Timestamp,
    pub ready: bool,
}

impl ListedSandbox {
    fn age_key(&self) -> (u32, Timestamp, &SandboxId) {
        (self.attempt, self.created, &self.id)
    }
}

/// A container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRemoval {
    pub id: ContainerId,
    /// The runtime does not know its state, so it is stopped first.
    pub stop_first: bool,
}

/// Dead containers to remove, the oldest instance of each first. Nothing is kept of pods for which
/// `is_finished` is true.
pub fn containers(
    listed: &[ListedContainer],
    policy: &ContainerPolicy,
    is_finished: impl Fn(&PodUid) -> bool,
    now: Timestamp,
) -> Vec<ContainerRemoval> {
    let mut removed: Vec<&ListedContainer> = Vec::new();
    let mut units: BTreeMap<(&PodUid, &str), Vec<&ListedContainer>> = BTreeMap::new();
    let mut newest: BTreeMap<(&PodUid, &str), &ListedContainer> = BTreeMap::new();
    for container in listed {
        let newest = newest.entry((&container.pod, &container.container)).or_insert(container);
        if newest.age_key() < container.age_key() {
            *newest = container;
        }
    }
    let is_next = |c: &ListedContainer| {
        let newest = newest.get(&(&c.pod, &*c.container));
        c.state == ListedState::Created && newest.is_some_and(|newest| newest.id == c.id)
    };
    for container in listed.iter().filter(|c| is_dead(c.state) && is_old(c, policy, now)) {
        // About to be started: it does not count as dead.
        if is_next(container) && !is_finished(&container.pod) {
            continue;
        }
        units.entry((&container.pod, &container.container)).or_default().push(container);
    }
    for unit in units.values_mut() {
        unit.sort_by(|a, b| b.age_key().cmp(&a.age_key()));
    }
    units.retain(|(pod, _), unit| {
        let finished = is_finished(pod);
        if finished {
            removed.append(unit);
        }
        !finished
    });
    if let Some(keep) = policy.per_container {
        keep_newest(&mut units, keep, &mut removed);
    }
    if let Some(most) = policy.in_total {
        let total = |units: &BTreeMap<_, Vec<_>>| units.values().map(Vec::len).sum::<usize>();
        if total(&units) > most {
            // Removes the same number from every container before any loses its last instance.
            let each = (most / units.len().max(1)).max(1);
            keep_newest(&mut units, each, &mut removed);
        }
        if total(&units) > most {
            // One instance is left of each container; attempts of different containers are not
            // comparable.
            let mut rest: Vec<&ListedContainer> = units.into_values().flatten().collect();
            rest.sort_by_key(|c| std::cmp::Reverse(c.created));
            removed.extend(rest.into_iter().skip(most));
        }
    }
    let unit = |c: &ListedContainer| (c.pod.clone(), c.container.clone());
    removed.sort_by(|a, b| unit(a).cmp(&unit(b)).then(a.age_key().cmp(&b.age_key())));
    let removal = |c: &ListedContainer| ContainerRemoval {
        id: c.id.clone(),
        stop_first: c.state == ListedState::Unknown,
    };
    removed.into_iter().map(removal).collect()
}

fn keep_newest<'a>(
    units: &mut BTreeMap<(&'a PodUid, &'a str), Vec<&'a ListedContainer>>,
    keep: usize,
    removed: &mut Vec<&'a ListedContainer>,
) {
    for unit in units.values_mut() {
        removed.extend(unit.drain(keep.min(unit.len())..));
    }
}

fn is_dead(state: ListedState) -> bool {
    match state {
        ListedState::Running => false,
        ListedState::Created | ListedState::Exited | ListedState::Unknown => true,
    }
}

fn is_old(container: &ListedContainer, policy: &ContainerPolicy, now: Timestamp) -> bool {
    let age = now.duration_since(container.created);
    // A creation time in the future means that the clock was set back; the age is unknown and
    // counts as old.
    age.is_negative() || age.unsigned_abs() >= policy.min_age
}

/// Dead sandboxes to remove, the oldest of each pod first. The newest one of a pod is kept as long
/// as the pod exists: the next attempt number is derived from it.
pub fn sandboxes(
    listed: &[ListedSandbox],
    containers: &[ListedContainer],
    is_finished: impl Fn(&PodUid) -> bool,
) -> Vec<SandboxId> {
    let occupied: BTreeSet<&SandboxId> = containers.iter().map(|c| &c.sandbox).collect();
    let mut pods: BTreeMap<&PodUid, Vec<&ListedSandbox>> = BTreeMap::new();
    for sandbox in listed {
        pods.entry(&sandbox.pod).or_default().push(sandbox);
    }
    let mut removed = Vec::new();
    for (pod, mut sandboxes) in pods {
        sandboxes.sort_by(|a, b| b.age_key().cmp(&a.age_key()));
        let kept = usize::from(!is_finished(pod));
        removed.extend(sandboxes.into_iter().skip(kept).rev());
    }
    removed.retain(|sandbox| !sandbox.ready && !occupied.contains(&sandbox.id));
    removed.into_iter().map(|sandbox| sandbox.id.clone()).collect()
}

/// Whether a pod has more dead instances of a container than the policy keeps. In a crash loop they
/// would accumulate until the next regular collection.
pub fn has_surplus(pod: &ObservedPod, policy: &ContainerPolicy) -> bool {
    let Some(keep) = policy.per_container else { return false };
    let mut dead: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in pod.instances.iter().filter(|i| i.exit().is_some()) {
        *dead.entry(&instance.container).or_default() += 1;
    }
    dead.values().any(|count| *count > keep)
}

#[cfg(test)]
mod tests;
