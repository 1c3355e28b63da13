//! Final status of a pod, reported when nothing of it is left on the node.
//!
//! A container whose exit was never observed counts as failed: a job that runs again is better
//! than one that wrongly counts as succeeded. The regular containers of a pod that never finished
//! its init containers keep their state; the failed init container explains it.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::container::{
    end_of, is_running, is_waiting, last_end_of, lost_end, status_of, terminated,
};
use super::phase_of;
use crate::pod::{ContainerKind, Phase, Pod};

/// The final status of a pod. `last` is the last report, or the API's copy if there is none.
pub fn terminate_pod(pod: &Pod, last: &PodStatus) -> PodStatus {
    let mut status = last.clone();
    if was_initialized(pod) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    if let Some(init) = &mut status.init_container_statuses {
        let has_trace =
            |status: &ContainerStatus| !is_waiting(status) || last_end_of(status).is_some();
        let begun = init.iter().rposition(has_trace).unwrap_or(0);
        init.iter_mut().take(begun + 1).for_each(end);
    }
    if !pod.is_static() && !phase_of(&status).is_terminal() {
        status.phase = Some(Phase::Failed.as_str().into());
    }
    status
}

/// The status of a mirror pod without a terminal phase: a static pod that was rejected, or
/// that ended under another agent, is judged again by what the node shows of it now.
pub fn without_end(mut status: PodStatus) -> PodStatus {
    if phase_of(&status).is_terminal() {
        (status.phase, status.reason, status.message) = (None, None, None);
    }
    status
}

fn end(status: &mut ContainerStatus) {
    if end_of(status).is_none() {
        status.state = Some(terminated(lost_end()));
    }
}

/// The API's copy shows that the pod finished initialization.
fn was_initialized(pod: &Pod) -> bool {
    let Some(last_init) = pod.init_containers().next_back() else { return true };
    let Some(status) = &pod.object.status else { return false };
    let began = |status: &ContainerStatus| last_end_of(status).is_some() || !is_waiting(status);
    let succeeded = |status: &ContainerStatus| {
        [end_of(status), last_end_of(status)].into_iter().flatten().any(|end| end.exit_code == 0)
    };
    status.container_statuses.iter().flatten().any(began)
        || status_of(status, last_init).is_some_and(|status| match last_init.kind {
            ContainerKind::Sidecar => is_running(status) && status.started == Some(true),
            ContainerKind::Init | ContainerKind::Regular | ContainerKind::Ephemeral => {
                succeeded(status)
            }
        })
}
