//! Which pods are not well, and why, by the status in the API alone.
//!
//! For pods without a worker on this node, such as pending ones, and for clients that reach the API
//! and not the agent.

use k8s_openapi::api::core::v1;

/// Characters of a message that are shown.
const SHOWN: usize = 300;

/// `None`: the pod runs and is ready, or it has completed.
pub fn reason(pod: &v1::Pod) -> Option<String> {
    let text = raw(pod)?;
    Some(super::excerpt(&text, SHOWN))
}

fn raw(pod: &v1::Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let phase = status.phase.as_deref().unwrap_or_default();
    let with_reason = |fallback: &str| {
        let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
        let message = status.message.as_deref().filter(|message| !message.is_empty());
        match (reason, message) {
            (Some(reason), Some(message)) => format!("{message} ({reason})"),
            (Some(only), None) | (None, Some(only)) => only.to_owned(),
            (None, None) => fallback.to_owned(),
        }
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("stopping: deleted".to_owned());
    }
    if phase == "Succeeded" {
        return None;
    }
    if phase == "Failed" {
        return Some(match status.reason {
            Some(_) => with_reason("failed"),
            None => ended(status).unwrap_or_else(|| with_reason("failed")),
        });
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unmet = |kind: &str| conditions.iter().find(|it| it.type_ == kind && it.status != "True");
    if let Some(unscheduled) = unmet("PodScheduled") {
        let fallback = unscheduled.reason.as_deref().unwrap_or("not scheduled");
        let message = unscheduled.message.as_deref().filter(|message| !message.is_empty());
        return Some(message.unwrap_or(fallback).to_owned());
    }
    if let Some(waiting) = waiting(status) {
        return Some(waiting);
    }
    let running = phase == "Running" && unmet("Ready").is_none();
    if running {
        return None;
    }
    if let Some(not_ready) = unmet("Ready") {
        let message = not_ready.message.as_deref().filter(|message| !message.is_empty());
        return Some(message.or(not_ready.reason.as_deref()).unwrap_or("not ready").to_owned());
    }
    Some(with_reason(if phase.is_empty() { "Pending" } else { phase }))
}

fn statuses(status: &v1::PodStatus) -> impl Iterator<Item = &v1::ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// The first container that waits for something other than its turn.
fn waiting(status: &v1::PodStatus) -> Option<String> {
    statuses(status).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if matches!(reason, "" | "PodInitializing" | "ContainerCreating") {
            return None;
        }
        let message = waiting.message.as_deref().filter(|message| !message.is_empty());
        let name = &container.name;
        Some(match message {
            Some(message) => format!("{name}: {message} ({reason})"),
            None => format!("{name}: {reason}"),
        })
    })
}

/// The first container that failed.
fn ended(status: &v1::PodStatus) -> Option<String> {
    statuses(status).find_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref()?;
        let reason = end.reason.as_deref().unwrap_or("Error");
        let failed = end.exit_code != 0 || reason == "OOMKilled";
        let message = end.message.as_deref().filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let (name, code) = (&container.name, end.exit_code);
        failed.then(|| format!("{name} exited with {code} ({reason}){message}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn container(state: Value) -> Value {
        json!({"name": "c", "ready": false, "restartCount": 0, "image": "i", "imageID": "",
            "state": state})
    }

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn pod(status: Value) -> v1::Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn reason_follows_the_status() {
        let condition = |kind: &str, status: &str, message: &str| json!([{"type": kind, "status": status, "reason": "R", "message": message}]);
        let crash = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let ready = condition("Ready", "True", "");
        for (status, want) in [
            (json!({"phase": "Running", "conditions": ready}), None),
            (json!({"phase": "Succeeded"}), None),
            (
                json!({"phase": "Pending", "conditions": condition("PodScheduled", "False", "0/1 nodes")}),
                Some("0/1 nodes"),
            ),
            (
                json!({"phase": "Running", "containerStatuses": [container(crash)]}),
                Some("c: back-off 10s (CrashLoopBackOff)"),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": [container(creating)],
                    "conditions": condition("Ready", "False", "containers with unready status: [c]")}),
                Some("containers with unready status: [c]"),
            ),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                Some("low on memory (Evicted)"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [container(failed)]}),
                Some("c exited with 3 (Error)"),
            ),
            (json!({"phase": "Failed"}), Some("failed")),
            (json!({}), Some("Pending")),
        ] {
            assert_eq!(reason(&pod(status.clone())).as_deref(), want, "{status}");
        }
        let mut deleted = pod(json!({"phase": "Running"}));
        deleted.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(reason(&deleted).as_deref(), Some("stopping: deleted"));
        assert_eq!(reason(&v1::Pod::default()), None);
    }
}
