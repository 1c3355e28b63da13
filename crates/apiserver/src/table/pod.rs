//! Table row of a pod: the state of its containers in one word.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::duration::since;
use super::{age, list, or, text};

/// Marks finished pods, so that clients can leave them out.
pub(super) fn completed(pod: &Value) -> Option<Value> {
    let message = match text(pod, "/status/phase") {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    let reason = text(pod, "/status/phase");
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.restarts.last {
        Some(last) if summary.restarts.count != 0 => {
            format!("{} ({} ago)", summary.restarts.count, since(last, now))
        }
        _ => summary.restarts.count.to_string(),
    };
    let ip = list(pod, "/status/podIPs").first().map_or("", |ip| text(ip, "/ip"));
    vec![
        json!(text(pod, "/metadata/name")),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(restarts),
        json!(age(pod, now)),
        json!(or(ip, "<none>")),
        json!(or(text(pod, "/spec/nodeName"), "<none>")),
        json!(or(text(pod, "/status/nominatedNodeName"), "<none>")),
        json!(readiness_gates(pod)),
    ]
}

/// Values of a pod's columns.
struct Summary<'a> {
    reason: String,
    ready: usize,
    total: usize,
    restarts: Restarts<'a>,
}

/// Number of restarts, and time of the last one.
#[derive(Clone, Copy, Default)]
struct Restarts<'a> {
    count: i64,
    last: Option<&'a str>,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, status: &'a Value) {
        self.count += number(status, "/restartCount");
        let ended = text(status, "/lastState/terminated/finishedAt");
        // times in one format and zone compare as text
        if !ended.is_empty() && self.last.is_none_or(|last| last < ended) {
            self.last = Some(ended);
        }
    }
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Self {
        let phase = text(pod, "/status/phase");
        let mut summary = Self {
            reason: or(text(pod, "/status/reason"), phase).to_owned(),
            ready: 0,
            total: list(pod, "/spec/containers").len(),
            restarts: Restarts::default(),
        };
        let gated = |it: &Value| {
            text(it, "/type") == "PodScheduled" && text(it, "/reason") == "SchedulingGated"
        };
        if list(pod, "/status/conditions").iter().any(gated) {
            summary.reason = "SchedulingGated".to_owned();
        }
        let (initializing, of_sidecars) = summary.init_containers(pod);
        if !initializing || condition_is_true(pod, "Initialized") {
            summary.restarts = of_sidecars;
            summary.containers(pod);
        }
        if !text(pod, "/metadata/deletionTimestamp").is_empty() {
            if text(pod, "/status/reason") == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if phase != "Succeeded" && phase != "Failed" {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Returns whether an init container keeps the pod waiting, and the restarts of the sidecars.
    fn init_containers(&mut self, pod: &'a Value) -> (bool, Restarts<'a>) {
        let specs = list(pod, "/spec/initContainers");
        let is_sidecar = |spec: &Value| text(spec, "/restartPolicy") == "Always";
        self.total += specs.iter().filter(|spec| is_sidecar(spec)).count();
        let mut of_sidecars = Restarts::default();
        for (index, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let name = text(status, "/name");
            let sidecar = specs.iter().any(|spec| text(spec, "/name") == name && is_sidecar(spec));
            self.restarts.add(status);
            if sidecar {
                of_sidecars.add(status);
            }
            let ended = status.pointer("/state/terminated").filter(|state| state.is_object());
            let waiting = text(status, "/state/waiting/reason");
            self.reason = match ended {
                Some(end) if number(end, "/exitCode") == 0 => continue,
                _ if sidecar && status.get("started") == Some(&Value::Bool(true)) => {
                    self.ready += usize::from(status.get("ready") == Some(&Value::Bool(true)));
                    continue;
                }
                Some(end) => format!("Init:{}", end_reason(end)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    format!("Init:{waiting}")
                }
                None => format!("Init:{index}/{}", specs.len()),
            };
            return (true, of_sidecars);
        }
        (false, of_sidecars)
    }

    fn containers(&mut self, pod: &'a Value) {
        let mut running = false;
        let mut failure = None;
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waiting = text(status, "/state/waiting/reason");
            let ended = status.pointer("/state/terminated").filter(|state| state.is_object());
            let runs = status.pointer("/state/running").is_some_and(Value::is_object);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if let Some(end) = ended {
                self.reason = end_reason(end);
                if number(end, "/exitCode") != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if runs && status.get("ready") == Some(&Value::Bool(true)) {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && condition_is_true(pod, "Ready") {
                self.reason = "Running".to_owned();
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if running {
                self.reason = "NotReady".to_owned();
            }
        }
    }
}

fn end_reason(end: &Value) -> String {
    match (text(end, "/reason"), number(end, "/signal")) {
        ("", 0) => format!("ExitCode:{}", number(end, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open =
        gates.iter().filter(|gate| condition_is_true(pod, text(gate, "/conditionType"))).count();
    format!("{open}/{}", gates.len())
}

fn condition_is_true(pod: &Value, kind: &str) -> bool {
    let mut conditions = list(pod, "/status/conditions").iter();
    conditions.find(|it| text(it, "/type") == kind).is_some_and(|it| text(it, "/status") == "True")
}

fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}
