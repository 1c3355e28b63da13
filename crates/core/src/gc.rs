//! What is left over on the node, and which of it may go.
//!
//! A dead container is kept for its logs and its exit code, a dead sandbox for its place in the
//! count, an image because the next pod may want it. Each of them costs disk. What is here says,
//! from a list of what there is, what goes first; nothing here asks or removes.

mod images;
mod logs;

pub use images::{
    Disk, DiskError, ImagePolicy, ImageRecords, ListedImage, Reclaim, Removal, RemovalReason,
};
pub use logs::{LogLink, log_directory_owner, log_link_container};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{Glance, ObservedPod};

/// How many dead containers stay, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Younger ones are left alone.
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

/// A container as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: ContainerId,
    pub pod: PodUid,
    pub container: Arc<str>,
    pub sandbox: SandboxId,
    /// The restart count it was created with.
    pub attempt: u32,
    pub created: Timestamp,
    pub state: Glance,
}

impl ListedContainer {
    /// Grows with each instance of one container, whatever happens to the wall clock.
    fn age_key(&self) -> (u32, Timestamp, &ContainerId) {
        (self.attempt, self.created, &self.id)
    }
}

/// A sandbox as the runtime lists it.
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
pub struct Eviction {
    pub id: ContainerId,
    /// Nobody knows whether it runs: stop it first, to be sure.
    pub stop_first: bool,
}

/// The dead containers to remove, the oldest instance of each first. `is_over` says of which pods nothing is kept.
pub fn containers(
    listed: &[ListedContainer],
    policy: &ContainerPolicy,
    is_over: impl Fn(&PodUid) -> bool,
    now: Timestamp,
) -> Vec<Eviction> {
    let mut evicted: Vec<&ListedContainer> = Vec::new();
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
        c.state == Glance::Created && newest.is_some_and(|newest| newest.id == c.id)
    };
    for container in listed.iter().filter(|c| is_dead(c.state) && is_old(c, policy, now)) {
        // About to be started: it is not dead yet, and takes no dead one's place.
        if is_next(container) && !is_over(&container.pod) {
            continue;
        }
        units.entry((&container.pod, &container.container)).or_default().push(container);
    }
    for unit in units.values_mut() {
        unit.sort_by(|a, b| b.age_key().cmp(&a.age_key()));
    }
    units.retain(|(pod, _), unit| {
        let over = is_over(pod);
        if over {
            evicted.append(unit);
        }
        !over
    });
    if let Some(keep) = policy.per_container {
        keep_newest(&mut units, keep, &mut evicted);
    }
    if let Some(most) = policy.in_total {
        let total = |units: &BTreeMap<_, Vec<_>>| units.values().map(Vec::len).sum::<usize>();
        if total(&units) > most {
            // Every container loses equally, before any loses its last.
            let each = (most / units.len().max(1)).max(1);
            keep_newest(&mut units, each, &mut evicted);
        }
        if total(&units) > most {
            // One is left of each container; attempts of different ones do not compare.
            let mut rest: Vec<&ListedContainer> = units.into_values().flatten().collect();
            rest.sort_by_key(|c| std::cmp::Reverse(c.created));
            evicted.extend(rest.into_iter().skip(most));
        }
    }
    let unit = |c: &ListedContainer| (c.pod.clone(), c.container.clone());
    evicted.sort_by(|a, b| unit(a).cmp(&unit(b)).then(a.age_key().cmp(&b.age_key())));
    let eviction =
        |c: &ListedContainer| Eviction { id: c.id.clone(), stop_first: c.state == Glance::Unknown };
    evicted.into_iter().map(eviction).collect()
}

fn keep_newest<'a>(
    units: &mut BTreeMap<(&'a PodUid, &'a str), Vec<&'a ListedContainer>>,
    keep: usize,
    evicted: &mut Vec<&'a ListedContainer>,
) {
    for unit in units.values_mut() {
        evicted.extend(unit.drain(keep.min(unit.len())..));
    }
}

fn is_dead(state: Glance) -> bool {
    match state {
        Glance::Running => false,
        Glance::Created | Glance::Exited | Glance::Unknown => true,
    }
}

fn is_old(container: &ListedContainer, policy: &ContainerPolicy, now: Timestamp) -> bool {
    let age = now.duration_since(container.created);
    // One that seems to come from the future is as old as we can tell: the clock was set back.
    age.is_negative() || age.unsigned_abs() >= policy.min_age
}

/// The dead sandboxes to remove, the oldest of each pod first. The newest of a pod stays while the pod does: its
/// attempt number is where the next one counts on.
pub fn sandboxes(
    listed: &[ListedSandbox],
    containers: &[ListedContainer],
    is_over: impl Fn(&PodUid) -> bool,
) -> Vec<SandboxId> {
    let inhabited: BTreeSet<&SandboxId> = containers.iter().map(|c| &c.sandbox).collect();
    let mut pods: BTreeMap<&PodUid, Vec<&ListedSandbox>> = BTreeMap::new();
    for sandbox in listed {
        pods.entry(&sandbox.pod).or_default().push(sandbox);
    }
    let mut evicted = Vec::new();
    for (pod, mut sandboxes) in pods {
        sandboxes.sort_by(|a, b| b.age_key().cmp(&a.age_key()));
        let kept = usize::from(!is_over(pod));
        evicted.extend(sandboxes.into_iter().skip(kept).rev());
    }
    evicted.retain(|sandbox| !sandbox.ready && !inhabited.contains(&sandbox.id));
    evicted.into_iter().map(|sandbox| sandbox.id.clone()).collect()
}

/// Whether a pod has more dead instances of a container than may stay, so that waiting for the
/// next round would let a crash loop pile them up.
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
