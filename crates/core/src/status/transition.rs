//! Legal container transitions: which containers may leave the state "terminated".
//!
//! A report in which a finished container runs again would contradict what a job controller
//! already counted; it results from a bug and is refused as a whole.

use k8s_openapi::api::core::v1::PodStatus;

use super::conditions::could_restart_all;
use super::container::{end_of, status_of};
use crate::pod::{AfterExit, Container, ContainerKind, Pod, RestartPolicy};

/// The first container that has finished in `old` but not in `new`.
pub(super) fn illegal<'a>(pod: &'a Pod, old: &PodStatus, new: &PodStatus) -> Option<&'a str> {
    if pod.restart_policy == RestartPolicy::Always || could_restart_all(pod) {
        return None;
    }
    let revived = |container: &&Container| match container.kind {
        ContainerKind::Sidecar | ContainerKind::Ephemeral => false,
        ContainerKind::Init | ContainerKind::Regular => is_revived(pod, container, old, new),
    };
    pod.containers.iter().find(revived).map(|container| &*container.name)
}

fn is_revived(pod: &Pod, container: &Container, old: &PodStatus, new: &PodStatus) -> bool {
    let end = status_of(old, container).and_then(end_of);
    let (Some(end), Some(new)) = (end, status_of(new, container)) else { return false };
    let failed = end.exit_code != 0 && pod.restart_policy == RestartPolicy::OnFailure;
    let stays = container.after_exit(end.exit_code, pod.restart_policy) == AfterExit::Stay;
    !failed && stays && end_of(new).is_none()
}
