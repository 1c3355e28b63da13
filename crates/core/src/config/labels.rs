//! Labels and annotations of sandboxes and containers.
//!
//! They identify the pod of a sandbox or container, for this agent after a restart and for another
//! node agent that takes over the node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use crate::labels;
use crate::pod::{Container, Pod};

type Map = BTreeMap<String, String>;

/// The pod's own labels and its identity.
pub fn of_sandbox(pod: &Pod) -> Map {
    let mut all = pod.object.metadata.labels.clone().unwrap_or_default();
    all.extend(identity(pod));
    all
}

/// The pod's identity without the pod's own labels.
pub fn of_container(pod: &Pod, container: &Container) -> Map {
    let mut all = Map::from(identity(pod));
    all.insert(labels::CONTAINER_NAME.to_owned(), container.name.to_string());
    all
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (labels::POD_NAME.to_owned(), pod.name.name.to_string()),
        (labels::POD_NAMESPACE.to_owned(), pod.name.namespace.to_string()),
        (labels::POD_UID.to_owned(), pod.uid.to_string()),
    ]
}

/// What is needed to stop the container and to report on it after its pod is gone. Device plugins
/// may add annotations but not change these.
pub fn annotations_of_container(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    granted: &[(String, String)],
) -> Map {
    let spec = &container.spec;
    let mut all: Map = granted.iter().cloned().collect();
    let mut set = |key: &str, value: String| {
        all.insert(key.to_owned(), value);
    };
    set(labels::CONTAINER_HASH, container.hash.to_string());
    set(labels::RESTART_COUNT, attempt.to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    set(labels::TERMINATION_MESSAGE_PATH, text(&spec.termination_message_path));
    set(labels::TERMINATION_MESSAGE_POLICY, text(&spec.termination_message_policy));
    if let Some(grace) = pod.object.metadata.deletion_grace_period_seconds {
        set(labels::DELETION_GRACE, grace.to_string());
    }
    let spec_of_pod = pod.object.spec.as_ref();
    if let Some(grace) = spec_of_pod.and_then(|spec| spec.termination_grace_period_seconds) {
        set(labels::TERMINATION_GRACE, grace.to_string());
    }
    if let Some(json) = container.pre_stop().and_then(|hook| json(&Handler::from(hook))) {
        set(labels::PRE_STOP_HANDLER, json);
    }
    let ports: Vec<_> = spec.ports.iter().flatten().map(Port::from).collect();
    if let Some(json) = json(&ports).filter(|_| !ports.is_empty()) {
        set(labels::PORTS, json);
    }
    all
}

/// JSON with Go's escapes, which are safe inside HTML. These types always serialize.
fn json(value: &impl Serialize) -> Option<String> {
    let plain = serde_json::to_string(value).ok()?;
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    Some(out)
}

/// A port with its fields in upstream's order, so that the text is identical.
#[derive(Serialize)]
struct Port<'a> {
    #[serde(rename = "name", skip_serializing_if = "is_empty")]
    name: Option<&'a str>,
    #[serde(rename = "hostPort", skip_serializing_if = "is_zero")]
    host_port: Option<i32>,
    #[serde(rename = "containerPort")]
    container_port: i32,
    #[serde(rename = "protocol", skip_serializing_if = "is_empty")]
    protocol: Option<&'a str>,
    #[serde(rename = "hostIP", skip_serializing_if = "is_empty")]
    host_ip: Option<&'a str>,
}

impl<'a> From<&'a v1::ContainerPort> for Port<'a> {
    fn from(port: &'a v1::ContainerPort) -> Self {
        Self {
            name: port.name.as_deref(),
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: port.protocol.as_deref(),
            host_ip: port.host_ip.as_deref(),
        }
    }
}

/// A lifecycle hook with its fields in upstream's order.
#[derive(Serialize)]
struct Handler<'a> {
    #[serde(rename = "exec", skip_serializing_if = "Option::is_none")]
    exec: Option<&'a v1::ExecAction>,
    #[serde(rename = "httpGet", skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpGet<'a>>,
    #[serde(rename = "tcpSocket", skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpSocket<'a>>,
    #[serde(rename = "sleep", skip_serializing_if = "Option::is_none")]
    sleep: Option<&'a v1::SleepAction>,
}

#[derive(Serialize)]
struct HttpGet<'a> {
    #[serde(rename = "path", skip_serializing_if = "is_empty")]
    path: Option<&'a str>,
    #[serde(rename = "port")]
    port: &'a IntOrString,
    #[serde(rename = "host", skip_serializing_if = "is_empty")]
    host: Option<&'a str>,
    #[serde(rename = "scheme", skip_serializing_if = "is_empty")]
    scheme: Option<&'a str>,
    #[serde(rename = "httpHeaders", skip_serializing_if = "<[_]>::is_empty")]
    http_headers: &'a [v1::HTTPHeader],
}

#[derive(Serialize)]
struct TcpSocket<'a> {
    #[serde(rename = "port")]
    port: &'a IntOrString,
    #[serde(rename = "host", skip_serializing_if = "is_empty")]
    host: Option<&'a str>,
}

impl<'a> From<&'a v1::LifecycleHandler> for Handler<'a> {
    fn from(hook: &'a v1::LifecycleHandler) -> Self {
        Self {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref().map(|http| HttpGet {
                path: http.path.as_deref(),
                port: &http.port,
                host: http.host.as_deref(),
                scheme: http.scheme.as_deref(),
                http_headers: http.http_headers.as_deref().unwrap_or_default(),
            }),
            tcp_socket: hook
                .tcp_socket
                .as_ref()
                .map(|tcp| TcpSocket { port: &tcp.port, host: tcp.host.as_deref() }),
            sleep: hook.sleep.as_ref(),
        }
    }
}

fn is_empty(text: &Option<&str>) -> bool {
    text.is_none_or(str::is_empty)
}

fn is_zero(number: &Option<i32>) -> bool {
    number.is_none_or(|number| number == 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;
    use crate::pod::Source;

    fn labelled() -> Pod {
        let meta = json!({"name": "web", "labels": {"app": "x", labels::POD_NAME: "a lie"},
            "deletionGracePeriodSeconds": 7});
        sample::parsed(meta, json!({}), Source::Api)
    }

    #[test]
    fn identity_wins_over_the_pods_own_labels() {
        let want = [
            ("app", "x"),
            (labels::POD_NAME, "web"),
            (labels::POD_NAMESPACE, "default"),
            (labels::POD_UID, "u1"),
        ];
        let want: Map = want.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(of_sandbox(&labelled()), want);
    }

    #[test]
    fn containers_carry_no_labels_of_the_pod() {
        let pod = labelled();
        let keys: Vec<_> = of_container(&pod, &pod.containers[0]).into_keys().collect();
        let want =
            [labels::CONTAINER_NAME, labels::POD_NAME, labels::POD_NAMESPACE, labels::POD_UID];
        assert_eq!(keys, want);
    }

    #[test]
    fn annotations_contain_what_is_needed_to_stop_the_container() {
        let pod = labelled();
        let granted = [
            ("vendor".to_owned(), "v".to_owned()),
            (labels::RESTART_COUNT.to_owned(), "99".to_owned()),
        ];
        let got = annotations_of_container(&pod, &pod.containers[0], 3, &granted);
        let want = [
            ("vendor", "v"),
            (labels::CONTAINER_HASH, &pod.containers[0].hash.to_string()),
            (labels::RESTART_COUNT, "3"),
            (labels::TERMINATION_MESSAGE_PATH, ""),
            (labels::TERMINATION_MESSAGE_POLICY, ""),
            (labels::DELETION_GRACE, "7"),
            (labels::TERMINATION_GRACE, "30"),
        ];
        let want: Map = want.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(got, want);
    }

    #[test]
    fn hooks_and_ports_are_serialized_as_go_does() {
        let header = json!([{"name": "X", "value": "y"}]);
        for (key, container, want) in [
            (
                labels::PRE_STOP_HANDLER,
                json!({"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "a <b> && c"]}}}}),
                r#"{"exec":{"command":["sh","-c","a \u003cb\u003e \u0026\u0026 c"]}}"#,
            ),
            (
                labels::PRE_STOP_HANDLER,
                json!({"lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/bye",
                    "host": "h", "scheme": "HTTPS", "httpHeaders": header}}}}),
                r#"{"httpGet":{"path":"/bye","port":"web","host":"h","scheme":"HTTPS","httpHeaders":[{"name":"X","value":"y"}]}}"#,
            ),
            (
                labels::PRE_STOP_HANDLER,
                json!({"lifecycle": {"preStop": {"tcpSocket": {"port": 80, "host": "h"}}}}),
                r#"{"tcpSocket":{"port":80,"host":"h"}}"#,
            ),
            (
                labels::PRE_STOP_HANDLER,
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}),
                r#"{"sleep":{"seconds":5}}"#,
            ),
            (
                labels::PORTS,
                json!({"ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"},
                    {"containerPort": 8080, "hostPort": 18080, "hostIP": "127.0.0.1"}]}),
                r#"[{"name":"http","containerPort":80,"protocol":"TCP"},{"hostPort":18080,"containerPort":8080,"hostIP":"127.0.0.1"}]"#,
            ),
        ] {
            let pod = sample::pod_of(container);
            let got = annotations_of_container(&pod, &pod.containers[0], 0, &[]);
            assert_eq!(got.get(key).map(String::as_str), Some(want));
        }
    }

    #[test]
    fn without_hooks_and_ports_there_are_no_annotations_for_them() {
        let pod = sample::pod_of(
            json!({"ports": [], "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}),
        );
        let got: Value = json!(annotations_of_container(&pod, &pod.containers[0], 0, &[]));
        assert_eq!(
            (&got[labels::PORTS], &got[labels::PRE_STOP_HANDLER]),
            (&json!(null), &json!(null))
        );
    }
}
