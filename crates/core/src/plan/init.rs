//! Init containers and sidecars: one after the other, then the regular containers may start.
//!
//! The runtime may have forgotten finished init containers, so the question "how far did we get"
//! is answered from the last container backwards: whatever has a trace proves that everything
//! before it is done.

use super::regular::{Actions, restart, stop};
use super::{Inputs, StopCause};
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, Container, ContainerKind, ProbeKind};
use crate::probe::Verdict;
use crate::resize;

/// Whether the regular containers may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Complete,
    Underway,
    /// An init container failed for good: the pod is over.
    Failed,
}

/// What one container's state says about its turn.
enum Turn {
    /// Its part is done; the next one may start.
    Passed,
    Pending,
    FailedForGood,
}

pub(super) fn decide<'a>(inputs: &Inputs<'a>, actions: &mut Actions<'a>) -> Progress {
    let containers: Vec<&Container> = inputs.pod.init_containers().collect();
    let Some(last) = containers.len().checked_sub(1) else { return Progress::Complete };
    let mut complete = has_started_regular(inputs);
    let mut passed = complete;
    let mut starts = Vec::new();
    for (index, container) in containers.iter().copied().enumerate().rev() {
        let sidecar = container.kind == ContainerKind::Sidecar;
        let Some(instance) = inputs.observed.newest(&container.name) else {
            if passed && sidecar {
                starts.push(restart(container, None));
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let turn = if sidecar {
            sidecar_turn(inputs, container, instance, actions, &mut starts)
        } else {
            init_turn(inputs, container, instance, actions, &mut starts)
        };
        match turn {
            Turn::FailedForGood => return Progress::Failed,
            Turn::Pending => {}
            Turn::Passed if index == last => complete = true,
            Turn::Passed if !passed => {
                let next = containers.get(index + 1);
                starts.extend(next.map(|next| restart(next, inputs.observed.newest(&next.name))));
            }
            Turn::Passed => {}
        }
        passed = true;
    }
    if !passed {
        starts.extend(containers.first().map(|first| restart(first, None)));
    }
    starts.reverse();
    actions.starts.extend(starts);
    if complete { Progress::Complete } else { Progress::Underway }
}

/// An exited regular container proves nothing: it may belong to a sandbox before this one.
fn has_started_regular(inputs: &Inputs<'_>) -> bool {
    inputs.pod.regular_containers().any(|c| {
        let newest = inputs.observed.newest(&c.name).map(|i| &i.state);
        matches!(newest, Some(State::Created | State::Running { .. }))
    })
}

fn init_turn<'a>(
    inputs: &Inputs<'a>,
    container: &'a Container,
    instance: &'a Instance,
    actions: &mut Actions<'a>,
    starts: &mut Vec<super::regular::Restart<'a>>,
) -> Turn {
    match &instance.state {
        State::Created => starts.push(restart(container, Some(instance))),
        State::Running { .. } => match resize_need(inputs, container, instance) {
            // Only what stays may ask for a restart; validation sees to it.
            resize::Need::Nothing | resize::Need::Restart => {}
            resize::Need::InPlace(update) => actions.resize.updates.push(update),
        },
        State::Exited(exit) if !exit.failed() => return Turn::Passed,
        State::Exited(exit) => match container.after_exit(exit.code, inputs.pod.restart_policy) {
            AfterExit::Restart | AfterExit::RestartAll => {
                starts.push(restart(container, Some(instance)));
            }
            AfterExit::Stay => return Turn::FailedForGood,
        },
        // Its exit code is lost; a failure is the safe guess.
        State::Unknown => match container.after_exit(UNKNOWN_CODE, inputs.pod.restart_policy) {
            AfterExit::Restart | AfterExit::RestartAll => {
                actions.stops.push(stop(inputs, container, instance, StopCause::Unknown));
                starts.push(restart(container, Some(instance)));
            }
            AfterExit::Stay => return Turn::FailedForGood,
        },
    }
    Turn::Pending
}

/// The exit code that stands for "nobody knows", as in container statuses.
const UNKNOWN_CODE: i32 = 137;

fn sidecar_turn<'a>(
    inputs: &Inputs<'a>,
    container: &'a Container,
    instance: &'a Instance,
    actions: &mut Actions<'a>,
    starts: &mut Vec<super::regular::Restart<'a>>,
) -> Turn {
    let mut again = |cause: Option<StopCause>| {
        if let Some(cause) = cause {
            actions.stops.push(stop(inputs, container, instance, cause));
        }
        starts.push(restart(container, Some(instance)));
    };
    match &instance.state {
        State::Created | State::Exited(_) => again(None),
        State::Unknown => again(Some(StopCause::Unknown)),
        State::Running { .. } => {
            if container.probe(ProbeKind::Startup).is_some() {
                match inputs.probed.verdict(&instance.id, ProbeKind::Startup) {
                    Some(Verdict::Success) => {}
                    Some(Verdict::Failure) => {
                        again(Some(StopCause::StartupFailed));
                        return Turn::Pending;
                    }
                    Some(Verdict::Unknown) | None => return Turn::Pending,
                }
            }
            if instance.hash.is_some_and(|h| h != container.hash) {
                again(Some(StopCause::SpecChanged));
            } else if inputs.probed.failed(&instance.id, ProbeKind::Liveness) {
                again(Some(StopCause::LivenessFailed));
            } else {
                match resize_need(inputs, container, instance) {
                    resize::Need::Nothing => {}
                    resize::Need::InPlace(update) => actions.resize.updates.push(update),
                    resize::Need::Restart => {
                        again(Some(StopCause::Resized));
                        actions.resize.whole = true;
                    }
                }
            }
            return Turn::Passed;
        }
    }
    Turn::Pending
}

fn resize_need(inputs: &Inputs<'_>, container: &Container, instance: &Instance) -> resize::Need {
    resize::need(inputs.pod, container, instance, &inputs.surroundings.resizing.applied)
}
