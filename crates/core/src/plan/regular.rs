//! Regular and ephemeral containers: which to keep, stop, start.

use super::{Inputs, NextAttempt, Start, Stop, StopCause, kill};
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, Container, ProbeKind};
use crate::resize::{self, Resize, Update};

/// What the pod's containers need, before back-off has its say.
#[derive(Debug, Default)]
pub(super) struct Actions<'a> {
    pub stops: Vec<Stop>,
    pub resize: Resize,
    pub starts: Vec<Restart<'a>>,
}

/// A container that should start, and the instance it follows.
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
        // Past every instance there is: the attempt says which of them is the current one.
        let highest = inputs.observed.instances_of(&self.container.name).map(|i| i.attempt).max();
        let attempt = match highest {
            Some(highest) => NextAttempt::Number(highest.saturating_add(1).max(free)),
            None => NextAttempt::PastLogs(free),
        };
        // One that we stop now did not exit by itself; its next restart counts the one before.
        let after = inputs.observed.last_exited(&self.container.name).map(|i| i.id.clone());
        Start { container: self.container.name.clone(), attempt, after }
    }
}

/// Adds what the regular containers need; returns how many run on as they are.
pub(super) fn decide<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) -> usize {
    let mut kept = 0;
    for container in inputs.pod.regular_containers() {
        let instance = inputs.observed.newest(&container.name);
        match need(inputs, container, instance) {
            Need::Nothing => {}
            Need::Keep => kept += 1,
            Need::Resize(update) => {
                actions.resize.updates.push(update);
                kept += 1;
            }
            Need::Start => actions.starts.push(restart(container, instance)),
            Need::Stop { cause, start } => {
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

/// Ephemeral containers run once, whenever the sandbox is there.
pub(super) fn ephemeral<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) {
    let unseen = |c: &&Container| inputs.observed.newest(&c.name).is_none();
    let containers = inputs.pod.ephemeral_containers().filter(unseen);
    actions.starts.extend(containers.map(|c| restart(c, None)));
}

enum Need {
    Nothing,
    Keep,
    Resize(Update),
    Start,
    Stop { cause: StopCause, start: bool },
}

fn need(inputs: &Inputs<'_>, container: &Container, instance: Option<&Instance>) -> Need {
    let pod = inputs.pod;
    let running = instance.is_some_and(Instance::is_running);
    if !running && pod.deletion.is_some() {
        return Need::Nothing;
    }
    let Some(instance) = instance else { return Need::Start };
    let after_probe = || container.restarts_after_probe_failure(pod.restart_policy);
    match &instance.state {
        State::Created => Need::Start,
        // Never risk two live copies.
        State::Unknown => Need::Stop { cause: StopCause::Unknown, start: true },
        State::Exited(exit) => match container.after_exit(exit.code, pod.restart_policy) {
            AfterExit::Restart | AfterExit::RestartAll => Need::Start,
            AfterExit::Stay => Need::Nothing,
        },
        State::Running { .. } => {
            if instance.hash.is_some_and(|h| h != container.hash) {
                Need::Stop { cause: StopCause::SpecChanged, start: true }
            } else if inputs.probed.failed(&instance.id, ProbeKind::Liveness) {
                Need::Stop { cause: StopCause::LivenessFailed, start: after_probe() }
            } else if inputs.probed.failed(&instance.id, ProbeKind::Startup) {
                Need::Stop { cause: StopCause::StartupFailed, start: after_probe() }
            } else {
                let applied = &inputs.surroundings.resizing.applied;
                match resize::need(pod, container, instance, applied) {
                    resize::Need::Nothing => Need::Keep,
                    resize::Need::InPlace(update) => Need::Resize(update),
                    resize::Need::Restart => Need::Stop { cause: StopCause::Resized, start: true },
                }
            }
        }
    }
}

/// Stops one container, with the event text users know.
pub(super) fn stop(
    inputs: &Inputs<'_>,
    container: &Container,
    instance: &Instance,
    cause: StopCause,
) -> Stop {
    let name = &container.name;
    let back = container.restarts_after_probe_failure(inputs.pod.restart_policy);
    let (who, comes_back, after_probe) = match container.kind.is_init() {
        true => ("Init container", "", ""),
        false if back => ("Container", ", will be restarted", ", will be restarted"),
        false => ("Container", ", will be restarted", ""),
    };
    let message = match cause {
        StopCause::SpecChanged => format!("{who} {name} definition changed{comes_back}"),
        StopCause::LivenessFailed => format!("{who} {name} failed liveness probe{after_probe}"),
        StopCause::StartupFailed => format!("{who} {name} failed startup probe{after_probe}"),
        StopCause::Unknown => {
            format!("{who} is in \"unknown\" state, try killing it before restart")
        }
        StopCause::Resized => format!("Container {name} resize requires restart"),
        StopCause::PostStartFailed => "FailedPostStartHook".into(),
        StopCause::Double => format!("Container {name} runs twice, the older one is stopped"),
        StopCause::Pod | StopCause::RestartingAll => format!("Stopping container {name}"),
    };
    kill::container(inputs.pod, container, instance, cause, message)
}
