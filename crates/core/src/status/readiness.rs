//! Whether a container has started, and whether it may be sent traffic.
//!
//! Probes answer that, but not at once: after a restart of the agent every container is unprobed.
//! Until its probe has spoken, a container stays what it was last reported to be, so that the
//! agent's own restart is nothing that users of a service notice.

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;

use super::container::end_of;
use super::{Sources, conditions};
use crate::observed::{Instance, State};
use crate::pod::{Container, ContainerKind, ProbeKind};
use crate::probe::Verdict;

/// A container this much older than the agent was started by the agent's predecessor.
const ADOPTED: Duration = Duration::from_secs(10);

pub(super) fn apply(
    status: &mut ContainerStatus,
    sources: &Sources<'_>,
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

/// `old` is the last report of this very instance.
fn is_started(
    sources: &Sources<'_>,
    container: &Container,
    newest: &Instance,
    old: Option<&ContainerStatus>,
) -> bool {
    if container.probe(ProbeKind::Startup).is_none() {
        return true;
    }
    match sources.inputs.probed.verdict(&newest.id, ProbeKind::Startup) {
        Some(Verdict::Success) => true,
        Some(Verdict::Failure) => false,
        Some(Verdict::Unknown) | None => match old {
            Some(old) => old.started == Some(true),
            // As for readiness: what a static pod was, its mirror tells later.
            None => is_adopted(sources, newest) && sources.pod().is_static(),
        },
    }
}

fn is_ready(
    sources: &Sources<'_>,
    container: &Container,
    newest: &Instance,
    old: Option<&ContainerStatus>,
) -> bool {
    if container.probe(ProbeKind::Readiness).is_none() {
        return true;
    }
    match sources.inputs.probed.verdict(&newest.id, ProbeKind::Readiness) {
        Some(Verdict::Success) => true,
        Some(Verdict::Failure) => false,
        Some(Verdict::Unknown) | None => match old {
            Some(old) => old.ready,
            // It runs since before the agent, yet was never reported: the pod's word must do. Of a
            // static pod the word is in its mirror, which may come later than the pod itself.
            None => {
                let trusted = was_pod_ready(sources) || sources.pod().is_static();
                is_adopted(sources, newest) && trusted
            }
        },
    }
}

fn is_adopted(sources: &Sources<'_>, newest: &Instance) -> bool {
    match newest.state {
        State::Running { started } => {
            sources.agent_started.duration_since(started) > ADOPTED.try_into().unwrap_or_default()
        }
        State::Created | State::Exited(_) | State::Unknown => false,
    }
}

fn was_pod_ready(sources: &Sources<'_>) -> bool {
    sources.api().is_some_and(|api| conditions::is_true(api, conditions::READY))
}
