//! Events that follow from a decision rather than from a runtime call.

use k8s_openapi::api::core::v1::PodStatus;
use podwright_core::attempts::StartError;
use podwright_core::plan::{Plan, Topic, WaitReason, Waiting};
use podwright_core::pod::{Container, Pod};
use podwright_core::status::phase::DEADLINE_EXCEEDED;

use crate::report::events::{Recorder, Severity};

/// Emits events for what is new in this plan compared with the last one.
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
    let why = &now.why;
    if why.topic == Topic::NetworkNotReady && before.is_none_or(|plan| plan.why != *why) {
        events.pod(pod, Severity::Warning, "NetworkNotReady", why.text.clone());
    }
}

/// Emits an event, once, when the node ended the pod.
pub(super) fn end(events: &Recorder, pod: &Pod, before: Option<&PodStatus>, now: &PodStatus) {
    let known = before.and_then(|status| status.reason.as_deref());
    if now.reason.as_deref() == Some(DEADLINE_EXCEEDED) && known != Some(DEADLINE_EXCEEDED) {
        let text = now.message.clone().unwrap_or_default();
        events.pod(pod, Severity::Normal, DEADLINE_EXCEEDED, text);
    }
}

fn container_waits(events: &Recorder, pod: &Pod, container: &Container, waiting: &Waiting) {
    if waiting.reason == WaitReason::NotStarted(StartError::CrashLoopBackOff) {
        let text = format!(
            "Back-off restarting failed container {} in pod {}",
            container.name,
            pod.described()
        );
        events.container(pod, container, Severity::Warning, "BackOff", text);
    } else if waiting.reason == WaitReason::NotStarted(StartError::ImagePullBackOff) {
        // Only the message names the image (the container's or a volume's); the error was already
        // reported.
        let parts = waiting.message.split_once("\": ");
        let text = parts.map_or_else(|| waiting.message.clone(), |(image, _)| format!("{image}\""));
        events.container(pod, container, Severity::Normal, "BackOff", text);
        let text = format!("Error: {}", waiting.reason.as_str());
        events.container(pod, container, Severity::Warning, "Failed", text);
    }
}
