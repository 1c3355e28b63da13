//! Container statuses: state, last state, restart count.
//!
//! The runtime has the current instance and perhaps one before; the last report has the rest. If
//! the runtime lost something that was reported, the status says so: "never ran" and "ran, but its
//! exit is unknown" differ for a job that must not run twice.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::phase::hold;
use super::{StatusSources, conditions, readiness, resources, text};
use crate::observed::{Exit, Instance, State, User};
use crate::pod::{Container, ContainerKind};
use crate::resize::Amounts;

pub(super) const BLOCKED: &str = "Blocked";
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Reason of a termination that was not observed.
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const UNKNOWN_CODE: i32 = 137;

pub(super) const CREATING: &str = "ContainerCreating";
pub(super) const INITIALIZING: &str = "PodInitializing";
const LOST: &str = "The container could not be located when the pod was terminated";
const LOST_WHILE_RUNNING: &str = "The container could not be located when the pod was deleted.  \
                                  The container used to be Running";
const REMOVED_TO_RESTART: &str = "The container was removed because all containers start over";
const INIT_FORGOTTEN: &str = "Unable to get init container status from container runtime and \
                              pod has been initialized, treat it as exited normally";

/// The container statuses that phase and conditions are computed from.
#[derive(Clone, Copy, Debug)]
pub struct ContainerStatuses<'a> {
    pub init: &'a [ContainerStatus],
    pub regular: &'a [ContainerStatus],
}

impl<'a> ContainerStatuses<'a> {
    pub fn of(status: &'a PodStatus) -> Self {
        Self {
            init: status.init_container_statuses.as_deref().unwrap_or_default(),
            regular: status.container_statuses.as_deref().unwrap_or_default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.init.is_empty() && self.regular.is_empty()
    }
}

/// The list that has the containers of this kind.
fn list_of(status: &PodStatus, kind: ContainerKind) -> &[ContainerStatus] {
    let list = match kind {
        ContainerKind::Init | ContainerKind::Sidecar => &status.init_container_statuses,
        ContainerKind::Regular => &status.container_statuses,
        ContainerKind::Ephemeral => &status.ephemeral_container_statuses,
    };
    list.as_deref().unwrap_or_default()
}

/// The status of a container in a pod's status.
pub(super) fn status_of<'a>(
    status: &'a PodStatus,
    container: &Container,
) -> Option<&'a ContainerStatus> {
    find(list_of(status, container.kind), &container.name)
}

pub(super) fn find<'a>(list: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    list.iter().find(|status| status.name == name)
}

#[derive(Debug, Default)]
pub(super) struct Statuses {
    /// In spec order.
    pub init: Vec<ContainerStatus>,
    /// By name.
    pub regular: Vec<ContainerStatus>,
    /// By name.
    pub ephemeral: Vec<ContainerStatus>,
}

impl Statuses {
    pub(super) fn shown(&self) -> ContainerStatuses<'_> {
        ContainerStatuses { init: &self.init, regular: &self.regular }
    }
}

pub(super) fn all(sources: &StatusSources<'_>) -> Statuses {
    let builder = StatusBuilder::new(sources);
    let mut all = Statuses::default();
    for container in &sources.pod().containers {
        let old = sources.old().and_then(|old| status_of(old, container));
        let status = builder.status(container, old);
        match container.kind {
            ContainerKind::Init | ContainerKind::Sidecar => all.init.push(status),
            ContainerKind::Regular => all.regular.push(status),
            ContainerKind::Ephemeral => all.ephemeral.push(status),
        }
    }
    all.regular.sort_by(|a, b| a.name.cmp(&b.name));
    all.ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Builds the status of each container.
struct StatusBuilder<'a> {
    sources: &'a StatusSources<'a>,
    /// All containers are being restarted.
    restarting: bool,
    /// Some regular container was created.
    past_init: bool,
    /// Waiting reason before the first attempt.
    first_wait: &'static str,
}

impl<'a> StatusBuilder<'a> {
    fn new(sources: &'a StatusSources<'a>) -> Self {
        let pod = sources.pod();
        let past_init = pod.regular_containers().any(|container| {
            let newest = sources.inputs.observed.newest(&container.name);
            newest.is_some_and(|newest| match newest.state {
                State::Created | State::Running { .. } | State::Exited(_) => true,
                State::Unknown => false,
            })
        });
        let has_init = pod.init_containers().next().is_some();
        Self {
            sources,
            restarting: conditions::is_restarting_all(sources),
            past_init,
            first_wait: if has_init { INITIALIZING } else { CREATING },
        }
    }

    fn status(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let mut instances = self.sources.inputs.observed.instances_of(&container.name);
        let newest = instances.next();
        let mut status = match newest {
            Some(newest) => self.with_instance(container, old, newest, instances.next()),
            None => self.without_instance(container, old),
        };
        self.explain_wait(&mut status, container, newest);
        readiness::apply(&mut status, self.sources, container, newest, old);
        status
    }

    /// The runtime has an instance of the container, and perhaps the one `before`.
    fn with_instance(
        &self,
        container: &Container,
        old: Option<&ContainerStatus>,
        newest: &Instance,
        before: Option<&Instance>,
    ) -> ContainerStatus {
        let id = self.id_of(newest);
        let same = old.filter(|old| old.container_id.as_deref() == Some(&id));
        let attempt = i32::try_from(newest.attempt).unwrap_or(i32::MAX);
        let reported = old.map_or(0, |old| old.restart_count);
        let mut restart_count = attempt.max(reported);
        let old_end = old.and_then(end_of);
        let state = match &newest.state {
            State::Created => waiting(None, None),
            State::Running { started } => {
                // The previous instance is no longer in the runtime, and its attempt number with
                // it.
                let uncounted = old_end.is_some_and(|end| !is_unknown(end)) && same.is_none();
                if uncounted && reported >= attempt {
                    restart_count = reported.saturating_add(1);
                }
                running(*started)
            }
            State::Exited(exit) => terminated(ended(exit, &id, old)),
            State::Unknown => match (old_end.filter(|_| same.is_some()), old) {
                (Some(end), _) => terminated(end.clone()),
                (None, Some(old)) if is_running(old) => {
                    restart_count = restart_count.max(reported.saturating_add(1));
                    let reason = if self.restarting { RESTARTING_ALL } else { STATUS_UNKNOWN };
                    terminated(unobserved_end(reason, LOST))
                }
                (None, _) => waiting(None, None),
            },
        };
        // While it waited, its own termination was shown as the last state; that is not its
        // predecessor's.
        let is_its_own = |end: &&ContainerStateTerminated| end.container_id.as_deref() == Some(&id);
        let inherited = || match old_end.filter(|_| same.is_none()) {
            Some(end) => Some(end.clone()),
            None => old.and_then(last_end_of).filter(|end| !is_its_own(end)).cloned(),
        };
        let exit_before = before.and_then(|before| Some((before.exit()?, self.id_of(before))));
        let last_end = exit_before.map(|(exit, id)| ended(exit, &id, old)).or_else(inherited);
        let features = self.sources.inputs.local_state.features;
        ContainerStatus {
            name: container.name.to_string(),
            image: newest.image.clone(),
            image_id: newest.image_ref.clone(),
            restart_count,
            state: Some(state),
            last_state: Some(ContainerState { terminated: last_end, ..ContainerState::default() }),
            resources: Some(resources::of_container(
                container,
                newest,
                same,
                self.applied(container),
            )),
            allocated_resources: resources::requests(container),
            user: newest.user.as_ref().map(user),
            stop_signal: newest.stop_signal.clone().filter(|_| features.container_stop_signals),
            volume_mounts: self.volume_mounts(container, old),
            container_id: Some(id),
            ..ContainerStatus::default()
        }
    }

    /// The runtime has no instance of the container: it was not created yet, or it was removed.
    fn without_instance(
        &self,
        container: &Container,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut status = match old {
            // The last report; nothing newer is known.
            Some(old) if end_of(old).is_some() => old.clone(),
            Some(_) | None => self.fresh(container, old),
        };
        let removed = self.restarting && container.kind != ContainerKind::Ephemeral;
        match old {
            Some(old) if removed && !is_waiting(old) => {
                status.state = Some(waiting(text(RESTARTING_ALL), text(REMOVED_TO_RESTART)));
                status.last_state =
                    Some(terminated(unobserved_end(RESTARTING_ALL, REMOVED_TO_RESTART)));
                status.restart_count = old.restart_count.saturating_add(1);
            }
            // It is not started again, so it does not wait.
            Some(old) if is_running(old) && container.kind == ContainerKind::Ephemeral => {
                status.state = Some(terminated(unobserved_end(STATUS_UNKNOWN, LOST_WHILE_RUNNING)));
            }
            Some(old) if is_running(old) => {
                status.last_state =
                    Some(terminated(unobserved_end(STATUS_UNKNOWN, LOST_WHILE_RUNNING)));
                if !self.is_ending() {
                    status.restart_count = old.restart_count.saturating_add(1);
                }
            }
            Some(_) | None => {}
        }
        let passed = container.kind == ContainerKind::Init && self.past_init && !self.restarting;
        if passed && is_waiting(&status) {
            status.state = Some(terminated(ContainerStateTerminated {
                exit_code: 0,
                reason: text("Completed"),
                message: text(INIT_FORGOTTEN),
                ..ContainerStateTerminated::default()
            }));
        } else if passed && self.sources.pod().is_static() {
            // Only its mirror pod has the termination.
            let end = status.state.as_mut().and_then(|state| state.terminated.as_mut());
            if let Some(end) = end.filter(|end| end.exit_code == 0) {
                end.message.get_or_insert_with(|| INIT_FORGOTTEN.into());
            }
        }
        status
    }

    /// A container without an instance. Only restart count and last state are kept.
    fn fresh(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let last_state = old.and_then(|old| old.last_state.clone());
        ContainerStatus {
            name: container.name.to_string(),
            image: container.image.to_string(),
            state: Some(waiting(text(self.first_wait), None)),
            last_state: Some(last_state.unwrap_or_default()),
            restart_count: old.map_or(0, |old| old.restart_count),
            volume_mounts: self.volume_mounts(container, old),
            ..ContainerStatus::default()
        }
    }

    /// A container that should be running but waits shows the reason; its termination becomes the
    /// last state.
    fn explain_wait(
        &self,
        status: &mut ContainerStatus,
        container: &Container,
        newest: Option<&Instance>,
    ) {
        if self.sources.pod().deletion.is_some() || newest.is_some_and(Instance::is_running) {
            return;
        }
        let Some(why) = self.sources.plan.waiting.get(&container.name) else { return };
        // A held pod starts nothing; a terminated container stays terminated.
        if hold(self.sources.inputs).is_some() && !is_waiting(status) {
            return;
        }
        let state = status.state.replace(waiting(text(why.reason.as_str()), text(&why.message)));
        if let Some(state) = state.filter(|state| state.terminated.is_some()) {
            status.last_state = Some(state);
        }
    }

    /// The mounts of a container do not change, so the reported ones stay.
    fn volume_mounts(
        &self,
        container: &Container,
        old: Option<&ContainerStatus>,
    ) -> Option<Vec<VolumeMountStatus>> {
        if let Some(reported) = old.and_then(|old| old.volume_mounts.as_ref()) {
            return Some(reported.clone());
        }
        let mounts = container.spec.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
        let recursive = self.sources.runtime.recursive_read_only;
        Some(mounts.iter().map(|mount| mount_status(mount, recursive)).collect())
    }

    /// The resources that the agent last applied to a container, if it did.
    fn applied(&self, container: &Container) -> Option<&Amounts> {
        let resizing = &self.sources.inputs.local_state.resizing;
        resizing.applied.containers.get(&container.name)
    }

    fn id_of(&self, instance: &Instance) -> String {
        format!("{}://{}", self.sources.runtime.name, instance.id)
    }

    fn is_ending(&self) -> bool {
        self.sources.pod().deletion.is_some() || self.sources.inputs.lifecycle.is_ending()
    }
}

fn mount_status(mount: &VolumeMount, runtime_can_recurse: bool) -> VolumeMountStatus {
    let read_only = mount.read_only == Some(true);
    let private = mount.mount_propagation.as_deref().is_none_or(|mode| mode == "None");
    let recursive = match mount.recursive_read_only.as_deref() {
        Some("Enabled" | "IfPossible") => private && runtime_can_recurse,
        Some(_) | None => false,
    };
    let mode = if recursive { "Enabled" } else { "Disabled" };
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: read_only.then_some(true),
        recursive_read_only: read_only.then(|| mode.into()),
        volume_status: None,
    }
}

fn user(user: &User) -> ContainerUser {
    let groups = &user.supplemental_groups;
    let supplemental_groups = (!groups.is_empty()).then(|| groups.clone());
    ContainerUser {
        linux: Some(LinuxContainerUser { uid: user.uid, gid: user.gid, supplemental_groups }),
    }
}

fn waiting(reason: Option<String>, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason, message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn running(started: Timestamp) -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(Time(started)) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}

pub(super) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(end), ..ContainerState::default() }
}

/// Termination of an instance. A message that was already reported is kept after its file is gone.
fn ended(exit: &Exit, id: &str, old: Option<&ContainerStatus>) -> ContainerStateTerminated {
    let reported = || {
        let ends = old.into_iter().flat_map(|old| [end_of(old), last_end_of(old)]).flatten();
        let mut same = ends.filter(|end| end.container_id.as_deref() == Some(id));
        same.find_map(|end| end.message.clone())
    };
    ContainerStateTerminated {
        exit_code: exit.code,
        reason: text(&exit.reason),
        message: text(&exit.message).or_else(reported),
        started_at: Some(Time(exit.started)),
        finished_at: Some(Time(exit.finished)),
        container_id: text(id),
        signal: None,
    }
}

fn unobserved_end(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: UNKNOWN_CODE,
        reason: text(reason),
        message: text(message),
        ..ContainerStateTerminated::default()
    }
}

/// Termination assumed for a container of a finished pod whose exit was not observed.
pub(super) fn lost_end() -> ContainerStateTerminated {
    unobserved_end(STATUS_UNKNOWN, LOST)
}

fn is_unknown(end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() == Some(STATUS_UNKNOWN)
}

pub(super) fn end_of(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

pub(super) fn last_end_of(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref()?.terminated.as_ref()
}

pub(super) fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}
