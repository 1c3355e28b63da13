//! Events that follow from a decision rather than from an act.

use podwright_core::attempts::StartError;
use podwright_core::plan::{Plan, Waiting};
use podwright_core::pod::{Container, Pod};

use crate::events::{Recorder, Severity};

/// Tells what began with this plan; what already held with the last one was told then.
pub(super) fn changes(events: &Recorder, pod: &Pod, before: Option<&Plan>, now: &Plan) {
    for (name, waiting) in &now.waiting {
        let known = before.and_then(|plan| plan.waiting.get(name));
        if known == Some(waiting) {
            continue;
        }
        if let Some(container) = pod.container(name) {
            container_waits(events, pod, container, waiting);
        }
    }
    let text = &now.why.text;
    let is_new = before.is_none_or(|plan| plan.why.text != *text);
    if is_new && text.starts_with("network is not ready: ") {
        events.pod(pod, Severity::Warning, "NetworkNotReady", text.clone());
    }
}

fn container_waits(events: &Recorder, pod: &Pod, container: &Container, waiting: &Waiting) {
    if waiting.reason == StartError::CrashLoopBackOff.as_str() {
        let text = format!(
            "Back-off restarting failed container {} in pod {}",
            container.name,
            pod.described()
        );
        events.container(pod, container, Severity::Warning, "BackOff", text);
    } else if waiting.reason == StartError::ImagePullBackOff.as_str() {
        let text = format!("Back-off pulling image {:?}", &*container.image);
        events.container(pod, container, Severity::Normal, "BackOff", text);
        let text = format!("Error: {}", waiting.reason);
        events.container(pod, container, Severity::Warning, "Failed", text);
    }
}
