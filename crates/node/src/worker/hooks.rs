//! Lifecycle hooks: postStart and preStop.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::ids::ContainerId;
use podwright_core::pod::{Container, Pod};
use podwright_core::probe::check::HttpCheck;

use super::context::WorkerContext;
use crate::client::http_get::{self, GetError, GetRequest, GetResponse, without_credentials};
use crate::report::events::Severity;
use crate::telemetry::metrics::Counter;

const USER_AGENT: &str = "kube-lifecycle/1.36";

/// The container a hook belongs to.
pub struct HookTarget<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub instance: &'a ContainerId,
    /// `None` in the host network.
    pub pod_ip: Option<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

/// Runs one hook to its end. The caller limits the time.
pub async fn run(
    context: &WorkerContext,
    target: &HookTarget<'_>,
    handler: &v1::LifecycleHandler,
) -> Result<(), HookError> {
    let (container, pod) = (&*target.container.name, target.pod.described());
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        return self::exec(context, target, command).await.map_err(|(error, output)| {
            HookError(format!(
                "Exec lifecycle hook ([{shown}]) for Container {container:?} in Pod {pod:?} \
                 failed - error: {error}, message: {output:?}"
            ))
        });
    }
    if let Some(http) = &handler.http_get {
        let path = http.path.as_deref().unwrap_or_default();
        return self::http(context, target, http).await.map_err(|error| {
            HookError(format!(
                "HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} \
                 failed - error: {error}"
            ))
        });
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        let cut_short = &context.reporting.metrics.hooks.sleeps_cut_short;
        self::sleep(cut_short, Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(HookError(format!("Cannot run handler: container {container}: no action is set")))
}

/// On failure, the error and the output.
async fn exec(
    context: &WorkerContext,
    target: &HookTarget<'_>,
    command: Vec<String>,
) -> Result<(), (String, String)> {
    let shown = command.join(" ");
    let result = context.runtime.exec(target.instance, command, None).await;
    let output = result.map_err(|error| (error.rpc_text(), String::new()))?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = format!("command '{shown}' exited with {}: {errors}", output.exit_code);
    Err((error, printed + &errors))
}

/// Any response is a success.
async fn http(
    context: &WorkerContext,
    target: &HookTarget<'_>,
    action: &v1::HTTPGetAction,
) -> Result<(), String> {
    let node = context.addresses.borrow().host_ips.first().copied();
    let address = target.pod_ip.or(node.filter(|_| target.pod.host_network));
    let check = HttpCheck::of(target.container, action).map_err(|error| error.to_string())?;
    // A hook that names its host does not use the address of the pod.
    let unused = check.host.is_some().then_some(IpAddr::from([0; 16]));
    let missing = || "failed to find networking container".to_owned();
    let address = address.or(unused).ok_or_else(missing)?;
    let request = GetRequest::of(&check, address, USER_AGENT);
    match ignore_body(http_get::get(&request).await) {
        Ok(()) => Ok(()),
        Err(GetError::NoTls { url }) => match in_plain_text(&request).await {
            Ok(()) => {
                report_fallback(context, target.pod, &request);
                Ok(())
            }
            Err(_) => Err(GetError::NoTls { url }.to_string()),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// Retries an HTTPS hook with HTTP, as upstream does: older kubelets ignored the scheme.
async fn in_plain_text(request: &GetRequest<'_>) -> Result<(), GetError> {
    let headers = without_credentials(request.headers);
    let mut plain = GetRequest { headers: &headers, ..request.clone() };
    plain.target.https = false;
    ignore_body(http_get::get(&plain).await)
}

/// A hook succeeds when the head of its response arrives, even if the body is incomplete.
fn ignore_body(response: Result<GetResponse, GetError>) -> Result<(), GetError> {
    match response {
        Ok(_) | Err(GetError::Body { .. }) => Ok(()),
        Err(error @ (GetError::Failed { .. } | GetError::NoTls { .. })) => Err(error),
    }
}

fn report_fallback(context: &WorkerContext, pod: &Pod, request: &GetRequest<'_>) {
    context.reporting.metrics.hooks.http_fallbacks.inc();
    let host = http_get::authority(&request.target.host, request.target.port);
    let text = format!(
        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
    );
    context.reporting.events.pod(pod, Severity::Warning, "LifecycleHTTPFallback", text);
}

/// A sleep hook, or what an earlier attempt left of it. Counts one whose future is dropped before
/// it ends.
pub async fn sleep(cut_short: &Counter, duration: Duration) {
    struct Unfinished<'a>(Option<&'a Counter>);
    impl Drop for Unfinished<'_> {
        fn drop(&mut self) {
            if let Some(cut_short) = self.0 {
                cut_short.inc();
            }
        }
    }
    let mut unfinished = Unfinished(Some(cut_short));
    tokio::time::sleep(duration).await;
    unfinished.0 = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn aborted_sleep_is_counted() {
        let cut = Counter::default();
        sleep(&cut, Duration::from_secs(5)).await;
        assert_eq!(cut.get(), 0);
        let long = sleep(&cut, Duration::from_secs(5));
        assert!(tokio::time::timeout(Duration::from_secs(1), long).await.is_err());
        assert_eq!(cut.get(), 1);
    }

    #[tokio::test]
    async fn http_hook_succeeds_when_the_head_of_its_response_arrives() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        for (case, response, want) in [
            ("incomplete body", "HTTP/1.1 200 OK\r\nContent-Length: 98\r\n\r\nhalf", true),
            ("incomplete head", "HTTP/1.1 200 OK\r\nContent-Le", false),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                while stream.read_u8().await.unwrap() != b'\n' {}
                stream.write_all(response.as_bytes()).await.unwrap();
            });
            let (https, host, path) = (false, None, "/".to_owned());
            let check = HttpCheck { https, host, port: address.port(), path, headers: vec![] };
            let request = GetRequest::of(&check, address.ip(), USER_AGENT);
            let result = in_plain_text(&request).await;
            assert_eq!(result.is_ok(), want, "{case}: {result:?}");
        }
    }
}
