//! Regular and ephemeral containers: which to keep, stop, start or restart.
//!
//! `container_action` decides whether a container is restarted.

use super::{Inputs, NextAttempt, Start, Stop, StopCause, kill};
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, Container, ProbeKind};
use crate::resize::{self, ContainerResize, Resize};

/// Actions for the pod's containers, before back-off is applied.
#[derive(Debug, Default)]
pub(super) struct Actions<'a> {
    pub stops: Vec<Stop>,
    pub resize: Resize,
    pub starts: Vec<Restart<'a>>,
}

/// A container to start, and its previous instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart<'a> {
    pub container: &'a Container,
    pub follows: Option<&'a Instance>,
}

pub(super) fn restart<'a>(container: &'a Container, follows: Option<&'a Instance>) -> Restart<'a> {
    Restart { container, follows }
}

impl Restart<'_> {
    pub(super) fn step(&self, inputs: &Inputs<'_>) -> Start {
        let attempts = inputs.attempts;
        let taken = attempts.attempt_taken(&self.container.name);
        let free = taken.map_or(0, |n| n.saturating_add(1));
        // Higher than any existing instance: the highest attempt marks the current instance.
        let highest = inputs.observed.instances_of(&self.container.name).map(|i| i.attempt).max();
        let attempt = match highest {
            Some(highest) => NextAttempt::Number(highest.saturating_add(1).max(free)),
            None => NextAttempt::PastLogs(free),
        };
        // An instance that this plan stops has not exited on its own; the back-off counts the one
        // before.
        let after = inputs.observed.last_exited(&self.container.name).map(|i| i.id.clone());
        Start { container: self.container.name.clone(), attempt, after }
    }
}

/// Adds the actions for regular containers; returns how many keep running unchanged.
pub(super) fn decide<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) -> usize {
    let mut kept = 0;
    for container in inputs.pod.regular_containers() {
        let instance = inputs.observed.newest(&container.name);
        match container_action(inputs, container, instance) {
            ContainerAction::Nothing => {}
            ContainerAction::Keep => kept += 1,
            ContainerAction::Resize(update) => {
                actions.resize.updates.push(update);
                kept += 1;
            }
            ContainerAction::Start => actions.starts.push(restart(container, instance)),
            ContainerAction::Stop { cause, start } => {
                if let Some(instance) = instance {
                    actions.stops.push(stop(inputs, container, instance, cause));
                }
                actions.resize.whole |= cause == StopCause::Resized;
                if start {
                    actions.starts.push(restart(container, instance));
                }
            }
        }
    }
    kept
}

/// Ephemeral containers run once, whenever there is a sandbox. One that was reported as started is
/// not started again when the runtime has lost it.
pub(super) fn ephemeral<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) {
    let status = inputs.pod.object.status.as_ref();
    let reported = status.and_then(|status| status.ephemeral_container_statuses.as_deref());
    let has_run = |container: &Container| {
        let mut named = reported.unwrap_or_default().iter().filter(|s| s.name == *container.name);
        named.any(|status| {
            let state = status.state.as_ref();
            state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
        })
    };
    let unseen = |c: &&Container| inputs.observed.newest(&c.name).is_none() && !has_run(c);
    let containers = inputs.pod.ephemeral_containers().filter(unseen);
    actions.starts.extend(containers.map(|c| restart(c, None)));
}

/// What to do about one regular container.
enum ContainerAction {
    Nothing,
    Keep,
    Resize(ContainerResize),
    Start,
    Stop { cause: StopCause, start: bool },
}

/// Decides whether a regular container is kept, resized, stopped, started or restarted.
fn container_action(
    inputs: &Inputs<'_>,
    container: &Container,
    instance: Option<&Instance>,
) -> ContainerAction {
    let pod = inputs.pod;
    let running = instance.is_some_and(Instance::is_running);
    if !running && pod.deletion.is_some() {
        return ContainerAction::Nothing;
    }
    let Some(instance) = instance else { return ContainerAction::Start };
    let after_probe = || container.restarts_after_probe_failure(pod.restart_policy);
    match &instance.state {
        State::Created => ContainerAction::Start,
        // A container in unknown state may still be running: stop it first, so that never two run.
        State::Unknown => ContainerAction::Stop { cause: StopCause::Unknown, start: true },
        State::Exited(exit) => match container.after_exit(exit.code, pod.restart_policy) {
            AfterExit::Restart | AfterExit::RestartAll => ContainerAction::Start,
            AfterExit::Stay => ContainerAction::Nothing,
        },
        State::Running { .. } => {
            if instance.hash.is_some_and(|h| h != container.hash) {
                ContainerAction::Stop { cause: StopCause::SpecChanged, start: true }
            } else if inputs.probed.failed(&instance.id, ProbeKind::Liveness) {
                ContainerAction::Stop { cause: StopCause::LivenessFailed, start: after_probe() }
            } else if inputs.probed.failed(&instance.id, ProbeKind::Startup) {
                ContainerAction::Stop { cause: StopCause::StartupFailed, start: after_probe() }
            } else {
                let applied = &inputs.local_state.resizing.applied;
                match resize::need(pod, container, instance, applied) {
                    resize::ResizeNeed::Nothing => ContainerAction::Keep,
                    resize::ResizeNeed::InPlace(update) => ContainerAction::Resize(update),
                    resize::ResizeNeed::Restart => {
                        ContainerAction::Stop { cause: StopCause::Resized, start: true }
                    }
                }
            }
        }
    }
}

/// A stop of one container, with upstream's event text.
pub(super) fn stop(
    inputs: &Inputs<'_>,
    container: &Container,
    instance: &Instance,
    cause: StopCause,
) -> Stop {
    let name = &container.name;
    let restarts = container.restarts_after_probe_failure(inputs.pod.restart_policy);
    let (subject, will_restart, after_probe) = match container.kind.is_init() {
        true => ("Init container", "", ""),
        false if restarts => ("Container", ", will be restarted", ", will be restarted"),
        false => ("Container", ", will be restarted", ""),
    };
    let message = match cause {
        StopCause::SpecChanged => format!("{subject} {name} definition changed{will_restart}"),
        StopCause::LivenessFailed => {
            format!("{subject} {name} failed liveness probe{after_probe}")
        }
        StopCause::StartupFailed => format!("{subject} {name} failed startup probe{after_probe}"),
        StopCause::Unknown => {
            format!("{subject} is in \"unknown\" state, try killing it before restart")
        }
        StopCause::Resized => format!("Container {name} resize requires restart"),
        StopCause::PostStartFailed => "FailedPostStartHook".into(),
        StopCause::Duplicate => {
            format!("Container {name} runs twice, the older one is stopped")
        }
        StopCause::Pod | StopCause::RestartingAll => format!("Stopping container {name}"),
    };
    kill::container(inputs.pod, container, instance, cause, message)
}

#[cfg(test)]
mod tests;
