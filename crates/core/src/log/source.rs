//! Selection of the container instance whose log a request refers to.

use k8s_openapi::api::core::v1;

use crate::attempts::StartError;
use crate::ids::ContainerId;

/// Reason why there is no log. Users and tools match on these messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogUnavailable {
    #[error("container {container:?} in pod {pod:?} is not available")]
    Unavailable { container: String, pod: String },
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { container: String, pod: String },
    #[error("container {container:?} in pod {pod:?} is terminated")]
    Terminated { container: String, pod: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting { container: String, pod: String, reason: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start - no logs yet")]
    NotYet { container: String, pod: String },
}

/// Instance whose log to read: the one before the current one if `previous`, else the one that is
/// running or ran last.
pub fn instance_to_read(
    pod: &str,
    status: &v1::PodStatus,
    container: &str,
    previous: bool,
) -> Result<ContainerId, LogUnavailable> {
    let names = || (container.to_owned(), pod.to_owned());
    let all = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let found = all.into_iter().flatten().flatten().find(|status| status.name == container);
    let Some(found) = found else {
        let (container, pod) = names();
        return Err(LogUnavailable::Unavailable { container, pod });
    };
    let terminated = |state: &Option<v1::ContainerState>| {
        state.as_ref().and_then(|state| state.terminated.clone())
    };
    let last = terminated(&found.last_state);
    let last_id = last.as_ref().and_then(|end| id(end.container_id.as_deref()));
    if previous {
        let (container, pod) = names();
        return last_id.ok_or(LogUnavailable::NoPrevious { container, pod });
    }
    let terminated_error = || {
        let (container, pod) = names();
        LogUnavailable::Terminated { container, pod }
    };
    let state = found.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return id(found.container_id.as_deref()).ok_or_else(terminated_error);
    }
    if let Some(end) = terminated(&found.state) {
        // Without an id the next instance was never created, so the previous one is the last.
        return id(end.container_id.as_deref()).or(last_id).ok_or_else(terminated_error);
    }
    if last.is_some() {
        return last_id.ok_or_else(terminated_error);
    }
    let (container, pod) = names();
    Err(match state.and_then(|state| state.waiting.as_ref()) {
        Some(waiting) => {
            let reason = waiting.reason.clone().unwrap_or_default();
            let reason = match reason.as_str() {
                _ if reason == StartError::ErrImagePull.as_str() => "image can't be pulled".into(),
                _ if reason == StartError::ImagePullBackOff.as_str() => {
                    "trying and failing to pull image".into()
                }
                _ => reason,
            };
            LogUnavailable::Waiting { container, pod, reason }
        }
        None => LogUnavailable::NotYet { container, pod },
    })
}

/// Parses `containerd://<id>`.
fn id(text: Option<&str>) -> Option<ContainerId> {
    let (_, id) = text?.split_once("://")?;
    (!id.is_empty()).then(|| ContainerId::new(id))
}
