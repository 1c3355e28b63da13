//! Readiness of a container: whether it has started, and whether it may receive traffic.
//!
//! After a restart of the agent no probe has run yet. Until its probe has finished, a container
//! keeps its last reported readiness, so that a restart of the agent does not affect services.

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;

use super::container::end_of;
use super::{StatusSources, conditions};
use crate::observed::{Instance, State};
use crate::pod::{Container, ContainerKind, ProbeKind};
use crate::probe::ProbeVerdict;

/// A container that is this much older than the agent was started by an earlier agent process.
const ADOPTED: Duration = Duration::from_secs(10);

pub(super) fn apply(
    status: &mut ContainerStatus,
    sources: &StatusSources<'_>,
    container: &Container,
    newest: Option<&Instance>,
    old: Option<&ContainerStatus>,
) {
    let old = old.filter(|old| old.container_id == status.container_id);
    let running = newest.filter(|newest| newest.is_running());
    let started = running.is_some_and(|newest| is_started(sources, container, newest, old));
    let ready = || running.is_some_and(|newest| is_ready(sources, container, newest, old));
    match container.kind {
        ContainerKind::Sidecar | ContainerKind::Regular => {
            status.started = Some(started);
            status.ready = started && ready();
        }
        ContainerKind::Init => {
            status.started = Some(started);
            status.ready = end_of(status).is_some_and(|end| end.exit_code == 0);
        }
        ContainerKind::Ephemeral => {
            status.started = None;
            status.ready = false;
        }
    }
}

/// `old` is the last report about this instance.
fn is_started(
    sources: &StatusSources<'_>,
    container: &Container,
    newest: &Instance,
    old: Option<&ContainerStatus>,
) -> bool {
    if container.probe(ProbeKind::Startup).is_none() {
        return true;
    }
    match sources.inputs.probed.verdict(&newest.id, ProbeKind::Startup) {
        Some(ProbeVerdict::Success) => true,
        Some(ProbeVerdict::Failure) => false,
        Some(ProbeVerdict::Unknown) | None if !keeps_reported(sources) => false,
        Some(ProbeVerdict::Unknown) | None => match old {
            Some(old) => old.started == Some(true),
            // As for readiness: the mirror pod of a static pod may be delivered later than the
            // pod.
            None => is_adopted(sources, newest) && sources.pod().is_static(),
        },
    }
}

fn is_ready(
    sources: &StatusSources<'_>,
    container: &Container,
    newest: &Instance,
    old: Option<&ContainerStatus>,
) -> bool {
    if container.probe(ProbeKind::Readiness).is_none() {
        return true;
    }
    match sources.inputs.probed.verdict(&newest.id, ProbeKind::Readiness) {
        Some(ProbeVerdict::Success) => true,
        Some(ProbeVerdict::Failure) => false,
        Some(ProbeVerdict::Unknown) | None if !keeps_reported(sources) => false,
        Some(ProbeVerdict::Unknown) | None => match old {
            Some(old) => old.ready,
            // It is older than the agent but was never reported: use the pod's readiness. For a
            // static pod that is in its mirror pod, which may be delivered later than the pod
            // itself.
            None => {
                let trusted = was_pod_ready(sources) || sources.pod().is_static();
                is_adopted(sources, newest) && trusted
            }
        },
    }
}

/// With the deprecated feature gate a container counts as not started and not ready until its probes
/// have succeeded once since the agent started.
fn keeps_reported(sources: &StatusSources<'_>) -> bool {
    !sources.inputs.local_state.features.change_container_status_on_kubelet_restart
}

fn is_adopted(sources: &StatusSources<'_>, newest: &Instance) -> bool {
    match newest.state {
        State::Running { started } => {
            sources.agent_started.duration_since(started) > ADOPTED.try_into().unwrap_or_default()
        }
        State::Created | State::Exited(_) | State::Unknown => false,
    }
}

fn was_pod_ready(sources: &StatusSources<'_>) -> bool {
    sources.api().is_some_and(|api| conditions::is_true(api, conditions::READY))
}
