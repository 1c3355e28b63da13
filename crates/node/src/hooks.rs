//! Lifecycle hooks: what a container wants done right after its start and right before its stop.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podwright_core::ids::ContainerId;
use podwright_core::pod::{Container, Pod};

use crate::http_get::{self, Question, Scheme};
use crate::tools::Tools;

const USER_AGENT: &str = "kube-lifecycle/1.36";

/// The container a hook belongs to.
pub struct Place<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub instance: &'a ContainerId,
    /// `None` on the node's own network.
    pub pod_ip: Option<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

/// Runs one hook to its end. It has no time-out of its own; the caller bounds it.
pub async fn run(
    tools: &Tools,
    place: &Place<'_>,
    handler: &v1::LifecycleHandler,
) -> Result<(), HookError> {
    if let Some(exec) = &handler.exec {
        return self::exec(tools, place, exec.command.clone().unwrap_or_default()).await;
    }
    if let Some(http) = &handler.http_get {
        return self::http(tools, place, http).await;
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(HookError(format!("container {}: the hook says nothing to do", place.container.name)))
}

async fn exec(tools: &Tools, place: &Place<'_>, command: Vec<String>) -> Result<(), HookError> {
    let shown = command.join(" ");
    let failed = |error: String, output: &str| {
        HookError(format!(
            "Exec lifecycle hook ([{shown}]) for Container {:?} in Pod {:?} failed - error: {error}, message: {output:?}",
            &*place.container.name,
            place.pod.described(),
        ))
    };
    let result = tools.runtime.exec(place.instance, command.clone(), None).await;
    let output = result.map_err(|error| failed(error.rpc_text(), ""))?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = format!("command '{shown}' exited with {}: {errors}", output.exit_code);
    Err(failed(error, &(said + &errors)))
}

/// Any answer at all is a success.
async fn http(
    tools: &Tools,
    place: &Place<'_>,
    action: &v1::HTTPGetAction,
) -> Result<(), HookError> {
    let host = match action.host.as_deref().filter(|host| !host.is_empty()) {
        Some(host) => host.to_owned(),
        None => {
            let node = tools.settings.addresses.host_ips.first().copied();
            let ip = place.pod_ip.or(node.filter(|_| place.pod.host_network));
            let missing = || HookError("failed to find networking container".into());
            ip.ok_or_else(missing)?.to_string()
        }
    };
    let headers = action.http_headers.iter().flatten();
    let question = Question {
        scheme: Scheme::parse(action.scheme.as_deref()),
        host,
        port: port(&action.port, place.container)?,
        path: action.path.clone().unwrap_or_default(),
        headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        user_agent: USER_AGENT,
    };
    http_get::get(&question, 10 * 1024)
        .await
        .map(drop)
        .map_err(|error| HookError(error.to_string()))
}

/// A number, or the name of one of the container's own ports.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, HookError> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.spec.ports.iter().flatten();
            let mut named = ports.filter(|port| port.name.as_deref() == Some(name));
            named.next().map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    let valid = number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    valid.ok_or_else(|| HookError(format!("invalid port: {}", shown(port))))
}

fn shown(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}
