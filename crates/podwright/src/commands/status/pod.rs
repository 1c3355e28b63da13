//! A pod in the status: every figure is that of `kubectl get pods`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use podwright_apiserver::registry::PODS;
use podwright_apiserver::table;
use podwright_core::explain::unwell;
use podwright_core::observed::{Instance, ObservedPod, State};
use podwright_node::server::debug_socket::PodReason;
use serde::Serialize;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct PodLine {
    #[serde(rename = "namespace")]
    pub(in crate::commands) namespace: String,
    #[serde(rename = "name")]
    pub(in crate::commands) name: String,
    #[serde(rename = "uid")]
    pub(in crate::commands) uid: String,
    #[serde(rename = "readySandbox")]
    pub(in crate::commands) ready_sandbox: bool,
    #[serde(rename = "ip")]
    pub(in crate::commands) ip: Option<String>,
    /// Containers that are ready, as in the column READY.
    #[serde(rename = "ready")]
    pub(in crate::commands) ready: usize,
    /// Number of running containers.
    #[serde(rename = "running")]
    pub(in crate::commands) running: usize,
    /// Containers that may be ready: sidecars count, init containers do not.
    #[serde(rename = "containers")]
    pub(in crate::commands) containers: usize,
    /// The column STATUS, such as `CrashLoopBackOff` or `Init:0/1`.
    #[serde(rename = "status")]
    pub(in crate::commands) status: String,
    /// Why the pod is not well; none if it is.
    #[serde(rename = "reason")]
    pub(in crate::commands) reason: Option<String>,
    #[serde(rename = "restarts")]
    pub(in crate::commands) restarts: u32,
    /// Its creation; without the API server that of its sandbox.
    #[serde(rename = "since")]
    pub(in crate::commands) since: Option<Timestamp>,
    /// The column RESTARTS with the time of the last one.
    #[serde(skip)]
    pub(in crate::commands) restarts_text: String,
    #[serde(skip)]
    pub(in crate::commands) age: String,
}

/// The pods of the API. `reasons`: what the agent says, by UID.
pub(in crate::commands) fn of_api(
    pods: &[Pod],
    reasons: &[PodReason],
    now: Timestamp,
) -> Vec<PodLine> {
    let reasons: BTreeMap<&str, &PodReason> =
        reasons.iter().map(|reason| (reason.uid.as_str(), reason)).collect();
    let mut lines: Vec<PodLine> = pods.iter().map(|pod| line(pod, &reasons, now)).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
}

fn line(pod: &Pod, reasons: &BTreeMap<&str, &PodReason>, now: Timestamp) -> PodLine {
    let cells = cells(pod, now);
    let cell = |index: usize| match cells.get(index) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (ready, containers) = {
        let text = cell(1);
        let (ready, total) = text.split_once('/').unwrap_or_default();
        (ready.parse().unwrap_or(0), total.parse().unwrap_or(0))
    };
    let restarts_text = cell(3);
    let restarts = restarts_text.split(' ').next().and_then(|count| count.parse().ok());
    let metadata = &pod.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let status = pod.status.as_ref();
    PodLine {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        ready_sandbox: status.is_some_and(has_sandbox),
        ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
        ready,
        running: status.map_or(0, running),
        containers,
        status: cell(2),
        reason: reason(pod, &uid, reasons),
        restarts: restarts.unwrap_or(0),
        since: metadata.creation_timestamp.as_ref().map(|time| time.0),
        restarts_text,
        age: cell(4),
        uid,
    }
}

/// The columns of `kubectl get pods`, from the code that serves them.
fn cells(pod: &Pod, now: Timestamp) -> Vec<Value> {
    let object = serde_json::to_value(pod).unwrap_or_default();
    let table = table::rows(&PODS, &[object], now);
    let cells = table.pointer("/rows/0/cells").and_then(Value::as_array);
    cells.cloned().unwrap_or_default()
}

/// The agent knows more than the status in the API, such as the answer of a probe.
fn reason(pod: &Pod, uid: &str, reasons: &BTreeMap<&str, &PodReason>) -> Option<String> {
    let of_api = unwell::reason(pod);
    // A static pod has another UID than its mirror pod.
    let source = pod.metadata.annotations.as_ref();
    let source = source.and_then(|it| it.get(podwright_api::annotations::ANNOTATION_MIRROR));
    let of_agent = reasons.get(uid).or_else(|| reasons.get(source?.as_str()));
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    match of_agent.filter(|reason| !reason.well || is_deleted) {
        Some(reason) => Some(reason.why.clone()),
        None => of_api,
    }
}

fn has_sandbox(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.find(|it| it.type_ == "PodReadyToStartContainers");
    ready.map_or(status.pod_ip.is_some(), |ready| ready.status == "True")
}

fn running(status: &PodStatus) -> usize {
    let runs = |it: &&ContainerStatus| it.state.as_ref().is_some_and(|it| it.running.is_some());
    let init = status.init_container_statuses.iter().flatten();
    status.container_statuses.iter().flatten().chain(init).filter(runs).count()
}

/// A pod as the runtime has it, while the API server does not respond.
pub(in crate::commands) fn of_runtime(pod: &ObservedPod, now: Timestamp) -> PodLine {
    let mut names: Vec<&str> = pod.instances.iter().map(|i| &*i.container).collect();
    names.sort_unstable();
    names.dedup();
    let current: Vec<&Instance> = names.iter().filter_map(|name| pod.newest(name)).collect();
    let sandbox = pod.ready_sandbox();
    let ip = sandbox.and_then(|s| s.ips.as_ref()?.first().map(ToString::to_string));
    let running = current.iter().filter(|i| matches!(i.state, State::Running { .. })).count();
    let restarts: u32 = current.iter().map(|i| i.attempt).fold(0, u32::saturating_add);
    let since = pod.newest_sandbox().map(|s| s.created);
    PodLine {
        namespace: pod.name.namespace.to_string(),
        name: pod.name.name.to_string(),
        uid: pod.uid.to_string(),
        ready_sandbox: sandbox.is_some(),
        ip,
        ready: running,
        running,
        containers: current.len(),
        status: if running > 0 { "Running" } else { "Stopped" }.to_owned(),
        reason: None,
        restarts,
        since,
        restarts_text: restarts.to_string(),
        age: since.map_or_else(|| "<unknown>".to_owned(), |since| table::age_of(since, now)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn container(name: &str, ready: bool, restarts: u32, state: Value) -> Value {
        json!({"name": name, "ready": ready, "started": ready, "restartCount": restarts,
            "image": "i", "imageID": "", "state": state})
    }

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn pod(spec: Value, status: Value) -> Pod {
        let metadata = json!({"name": "p", "namespace": "default", "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .unwrap()
    }

    #[test]
    fn figures_are_those_of_kubectl() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let spec = json!({"containers": [{"name": "app"}],
            "initContainers": [{"name": "a"}, {"name": "b"}]});
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let runs = json!({"running": {"startedAt": "2026-01-01T00:00:05Z"}});
        let crashed = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let well = pod(
            spec.clone(),
            json!({"phase": "Running", "podIP": "10.0.0.2", "conditions": ready,
                "initContainerStatuses": [container("a", true, 0, done.clone()),
                    container("b", true, 0, done)],
                "containerStatuses": [container("app", true, 2, runs)]}),
        );
        let crashing = pod(
            json!({"containers": [{"name": "app"}]}),
            json!({"phase": "Running", "containerStatuses": [container("app", false, 3, crashed)]}),
        );
        let starting = pod(
            spec,
            json!({"phase": "Pending",
            "initContainerStatuses": [container("a", false, 0, json!({"running": {}}))]}),
        );
        for (pod, ready, status, restarts, reason) in [
            (&well, "1/1", "Running", 2, None),
            (&crashing, "0/1", "CrashLoopBackOff", 3, Some("app: back-off 10s (CrashLoopBackOff)")),
            (&starting, "0/1", "Init:0/2", 0, Some("Pending")),
        ] {
            let line = line(pod, &BTreeMap::new(), now);
            assert_eq!(format!("{}/{}", line.ready, line.containers), ready, "{status}");
            assert_eq!((line.status.as_str(), line.restarts), (status, restarts));
            assert_eq!(line.reason.as_deref(), reason, "{status}");
            assert_eq!(line.age, "5m");
        }
    }

    #[test]
    fn reason_of_the_agent_comes_first() {
        let now = Timestamp::UNIX_EPOCH;
        let pod = pod(json!({"containers": []}), json!({"phase": "Pending"}));
        let why = |well| PodReason {
            namespace: "default".into(),
            name: "p".into(),
            uid: "u".into(),
            well,
            stuck: false,
            why: "held: maintenance".into(),
            since: None,
        };
        let reason = |well| of_api(std::slice::from_ref(&pod), &[why(well)], now).remove(0).reason;
        assert_eq!(reason(false).as_deref(), Some("held: maintenance"));
        assert_eq!(reason(true).as_deref(), Some("Pending"));
    }
}
