//! Probe check, parsed from the probe's spec.

use std::time::Duration;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::config::env;
use crate::explain::excerpt;
use crate::pod::Container;

/// Number of immediate attempts of a probe that cannot be run.
pub const TRIES: u32 = 3;
/// Maximum length of a probe's output or response that is kept.
pub const OUTPUT_LIMIT: usize = 10 * 1024;
/// Characters of an answer that users see.
pub const EXCERPT: usize = 160;
/// User-Agent header of probes.
pub const USER_AGENT: &str = "kube-probe/1.36";

/// One check of a container. Without a host, the pod's address is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    Exec { command: Vec<String> },
    Http(HttpCheck),
    Tcp { host: Option<String>, port: u16 },
    Grpc { port: u16, service: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    pub https: bool,
    pub host: Option<String>,
    pub port: u16,
    /// Path and query.
    pub path: String,
    pub headers: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheck {
    #[error("missing probe handler for container {container}")]
    NoHandler { container: String },
    #[error("invalid port number: {0}")]
    PortNumber(i64),
    #[error("port {0:?} not found")]
    PortName(String),
}

impl Check {
    pub fn of(container: &Container, probe: &v1::Probe) -> Result<Self, BadCheck> {
        if let Some(exec) = &probe.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            return Ok(Self::Exec { command: env::probe_command(container, command) });
        }
        if let Some(http) = &probe.http_get {
            return Ok(Self::Http(HttpCheck::of(container, http)?));
        }
        if let Some(tcp) = &probe.tcp_socket {
            let port = port(&tcp.port, container)?;
            return Ok(Self::Tcp { host: given(tcp.host.as_deref()), port });
        }
        if let Some(grpc) = &probe.grpc {
            let port = port(&IntOrString::Int(grpc.port), container)?;
            return Ok(Self::Grpc { port, service: grpc.service.clone().unwrap_or_default() });
        }
        Err(BadCheck::NoHandler { container: container.name.to_string() })
    }
}

impl HttpCheck {
    /// Also used for HTTP lifecycle hooks.
    pub fn of(container: &Container, action: &v1::HTTPGetAction) -> Result<Self, BadCheck> {
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            https: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: given(action.host.as_deref()),
            port: port(&action.port, container)?,
            path: action.path.clone().unwrap_or_default(),
            headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        })
    }
}

fn given(host: Option<&str>) -> Option<String> {
    host.filter(|host| !host.is_empty()).map(str::to_owned)
}

/// A port number, or the name of one of the container's own ports.
fn port(port: &IntOrString, container: &Container) -> Result<u16, BadCheck> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.spec.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_deref() == Some(name));
            let number = named.map(|port| port.container_port).or_else(|| name.parse().ok());
            number.ok_or_else(|| BadCheck::PortName(name.clone()))?
        }
    };
    let valid = u16::try_from(number).ok().filter(|port| *port > 0);
    valid.ok_or_else(|| BadCheck::PortNumber(number.into()))
}

/// When a probe runs, and how many equal outcomes in a row settle its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub successes: u32,
    pub failures: u32,
}

impl Timing {
    /// Applies the API server's defaults to missing and invalid values.
    pub fn of(probe: &v1::Probe) -> Self {
        let positive =
            |value: Option<i32>| value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0);
        let seconds = |value: Option<i32>, default: u32| {
            Duration::from_secs(positive(value).unwrap_or(default).into())
        };
        Self {
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            successes: positive(probe.success_threshold).unwrap_or(1),
            failures: positive(probe.failure_threshold).unwrap_or(3),
        }
    }
}

/// The kept part of an output, as text.
pub fn kept(output: &[u8]) -> String {
    let kept = output.get(..OUTPUT_LIMIT).unwrap_or(output);
    String::from_utf8_lossy(kept).into_owned()
}

/// What a user sees of a command's end: `exit code 1: no such file`.
pub fn exec_answer(code: i32, output: &str) -> String {
    match excerpt(output, EXCERPT).as_str() {
        "" => format!("exit code {code}"),
        output => format!("exit code {code}: {output}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    fn check(container: Value, probe: Value) -> Result<Check, String> {
        let pod = pod("p").container_with("c", container).build();
        let probe: v1::Probe = serde_json::from_value(probe).unwrap();
        Check::of(pod.container("c").unwrap(), &probe).map_err(|error| error.to_string())
    }

    #[test]
    fn each_probe_handler_is_parsed() {
        let ports = json!({ "ports": [{ "name": "web", "containerPort": 8080 }] });
        let env =
            json!({ "env": [{ "name": "A", "value": "x" }, { "name": "F", "valueFrom": {} }] });
        for (case, container, probe, want) in [
            (
                "only literal variables are expanded in a command",
                env,
                json!({ "exec": { "command": ["$(A)", "$(F)", "$(NO)", "$$(A)"] } }),
                Ok(Check::Exec { command: ["x", "", "$(NO)", "$(A)"].map(str::to_owned).to_vec() }),
            ),
            (
                "a named port",
                ports.clone(),
                json!({ "tcpSocket": { "port": "web" } }),
                Ok(Check::Tcp { host: None, port: 8080 }),
            ),
            (
                "a numeric string",
                ports.clone(),
                json!({ "tcpSocket": { "port": "81", "host": "h" } }),
                Ok(Check::Tcp { host: Some("h".into()), port: 81 }),
            ),
            (
                "an unknown name",
                ports,
                json!({ "tcpSocket": { "port": "nope" } }),
                Err("port \"nope\" not found".to_owned()),
            ),
            (
                "a port out of range",
                json!({}),
                json!({ "httpGet": { "port": 65536 } }),
                Err("invalid port number: 65536".to_owned()),
            ),
            (
                "http",
                json!({}),
                json!({ "httpGet": { "port": 80, "scheme": "HTTPS", "path": "/a?b=c", "host": "",
                    "httpHeaders": [{ "name": "X", "value": "1" }] } }),
                Ok(Check::Http(HttpCheck {
                    https: true,
                    host: None,
                    port: 80,
                    path: "/a?b=c".into(),
                    headers: vec![("X".into(), "1".into())],
                })),
            ),
            (
                "grpc",
                json!({}),
                json!({ "grpc": { "port": 9000, "service": "s" } }),
                Ok(Check::Grpc { port: 9000, service: "s".into() }),
            ),
            (
                "nothing",
                json!({}),
                json!({}),
                Err("missing probe handler for container c".to_owned()),
            ),
        ] {
            assert_eq!(check(container, probe), want, "{case}");
        }
    }

    #[test]
    fn invalid_timing_values_are_defaulted() {
        let probe = v1::Probe {
            period_seconds: Some(0),
            timeout_seconds: Some(-1),
            failure_threshold: Some(0),
            ..v1::Probe::default()
        };
        let seconds = Duration::from_secs;
        let want = Timing {
            delay: seconds(0),
            period: seconds(10),
            timeout: seconds(1),
            successes: 1,
            failures: 3,
        };
        assert_eq!(Timing::of(&probe), want);
    }

    #[test]
    fn output_is_cut_at_ten_kibibytes() {
        assert_eq!(kept(&vec![b'x'; 20_000]).len(), OUTPUT_LIMIT);
        assert_eq!(kept(b"short"), "short");
        assert_eq!(kept(b"\xffbad"), "\u{fffd}bad");
    }
}
