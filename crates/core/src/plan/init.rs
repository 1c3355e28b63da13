//! Init containers and sidecars: started one after the other, before the regular containers.
//!
//! The runtime may have removed finished init containers, so progress is determined from the last
//! container backwards: an instance of one container proves that all before it are done.

use super::regular::{Actions, restart, stop};
use super::{Inputs, StopCause};
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, Container, ContainerKind, ProbeKind, RestartPolicy};
use crate::probe::ProbeVerdict;
use crate::resize;

/// Progress of initialization: whether the regular containers may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitProgress {
    Complete,
    Underway,
    /// An init container failed and is not restarted: the pod has failed.
    Failed,
}

/// State of one init container or sidecar.
enum InitState {
    /// Finished, or a started sidecar: the next container may start.
    Done,
    Pending,
    Failed,
}

pub(super) fn decide<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) -> InitProgress {
    let containers: Vec<&Container> = inputs.pod.init_containers().collect();
    let Some(last) = containers.len().checked_sub(1) else { return InitProgress::Complete };
    let mut complete = has_started_regular(inputs);
    let mut passed = complete;
    let mut starts = Vec::new();
    for (index, container) in containers.iter().copied().enumerate().rev() {
        let sidecar = container.kind == ContainerKind::Sidecar;
        let own_start = starts.len();
        let Some(instance) = newest_in_sandbox(inputs, container) else {
            if passed && sidecar {
                starts.push(restart(container, None));
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let state = if sidecar {
            sync_sidecar(inputs, container, instance, actions, &mut starts)
        } else {
            sync_init(inputs, container, instance, actions, &mut starts)
        };
        match state {
            InitState::Failed => return InitProgress::Failed,
            InitState::Pending => {}
            InitState::Done if index == last => complete = true,
            InitState::Done if !passed => {
                // Before its own restart, if there is one: the list is reversed at the end.
                if let Some(next) = containers.get(index + 1) {
                    let follows = newest_in_sandbox(inputs, next);
                    starts.insert(own_start, restart(next, follows));
                }
            }
            InitState::Done => {}
        }
        passed = true;
    }
    if !passed {
        starts.extend(containers.first().map(|first| restart(first, None)));
    }
    starts.reverse();
    actions.starts.extend(starts);
    if complete { InitProgress::Complete } else { InitProgress::Underway }
}

/// An exited regular container proves nothing, and neither does one that was only created in an
/// earlier sandbox: every new sandbox is initialized from the beginning.
fn has_started_regular(inputs: &Inputs<'_>) -> bool {
    inputs.pod.regular_containers().any(|c| {
        let newest = newest_in_sandbox(inputs, c).map(|i| &i.state);
        matches!(newest, Some(State::Created | State::Running { .. }))
    })
}

/// The newest instance of a container, unless it belongs to an earlier sandbox.
fn newest_in_sandbox<'a>(inputs: &Inputs<'a>, container: &Container) -> Option<&'a Instance> {
    let sandbox = inputs.observed.newest_sandbox()?;
    let newest = inputs.observed.newest(&container.name)?;
    (newest.sandbox == sandbox.id).then_some(newest)
}

fn sync_init<'a>(
    inputs: &Inputs<'a>,
    container: &'a Container,
    instance: &'a Instance,
    actions: &mut Actions<'a>,
    starts: &mut Vec<super::regular::Restart<'a>>,
) -> InitState {
    match &instance.state {
        State::Created => starts.push(restart(container, Some(instance))),
        State::Running { .. } => match resize_need(inputs, container, instance) {
            // Validation allows a resize that restarts only for containers that keep running.
            resize::ResizeNeed::Nothing | resize::ResizeNeed::Restart => {}
            resize::ResizeNeed::InPlace(update) => actions.resize.updates.push(update),
        },
        State::Exited(exit) if !exit.failed() => return InitState::Done,
        State::Exited(exit) => match container.after_exit(exit.code, inputs.pod.restart_policy) {
            AfterExit::Restart | AfterExit::RestartAll => {
                starts.push(restart(container, Some(instance)));
            }
            AfterExit::Stay => return InitState::Failed,
        },
        // There is no exit code that a restart rule could match, so the policy decides alone.
        State::Unknown => match container.policy.unwrap_or(inputs.pod.restart_policy) {
            RestartPolicy::Always | RestartPolicy::OnFailure => {
                actions.stops.push(stop(inputs, container, instance, StopCause::Unknown));
                starts.push(restart(container, Some(instance)));
            }
            RestartPolicy::Never => return InitState::Failed,
        },
    }
    InitState::Pending
}

fn sync_sidecar<'a>(
    inputs: &Inputs<'a>,
    container: &'a Container,
    instance: &'a Instance,
    actions: &mut Actions<'a>,
    starts: &mut Vec<super::regular::Restart<'a>>,
) -> InitState {
    let mut restart_after = |cause: Option<StopCause>| {
        if let Some(cause) = cause {
            actions.stops.push(stop(inputs, container, instance, cause));
        }
        starts.push(restart(container, Some(instance)));
    };
    match &instance.state {
        State::Created | State::Exited(_) => restart_after(None),
        State::Unknown => restart_after(Some(StopCause::Unknown)),
        State::Running { .. } => {
            if container.probe(ProbeKind::Startup).is_some() {
                match inputs.probed.verdict(&instance.id, ProbeKind::Startup) {
                    Some(ProbeVerdict::Success) => {}
                    Some(ProbeVerdict::Failure) => {
                        restart_after(Some(StopCause::StartupFailed));
                        return InitState::Pending;
                    }
                    Some(ProbeVerdict::Unknown) | None => return InitState::Pending,
                }
            }
            if instance.hash.is_some_and(|h| h != container.hash) {
                restart_after(Some(StopCause::SpecChanged));
            } else if inputs.probed.failed(&instance.id, ProbeKind::Liveness) {
                restart_after(Some(StopCause::LivenessFailed));
            } else {
                match resize_need(inputs, container, instance) {
                    resize::ResizeNeed::Nothing => {}
                    resize::ResizeNeed::InPlace(update) => actions.resize.updates.push(update),
                    resize::ResizeNeed::Restart => {
                        restart_after(Some(StopCause::Resized));
                        actions.resize.whole = true;
                    }
                }
            }
            return InitState::Done;
        }
    }
    InitState::Pending
}

fn resize_need(
    inputs: &Inputs<'_>,
    container: &Container,
    instance: &Instance,
) -> resize::ResizeNeed {
    resize::need(inputs.pod, container, instance, &inputs.local_state.resizing.applied)
}

#[cfg(test)]
mod tests;
