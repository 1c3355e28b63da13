//! Lifecycle hooks: what a container wants done right after its start and right before its stop.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::ids::ContainerId;
use podwright_core::pod::{Container, Pod};
use podwright_core::probe::check::HttpCheck;

use crate::events::Severity;
use crate::http_get::{self, GetError, Question, without_credentials};
use crate::metrics::Counter;
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
    let (container, pod) = (&*place.container.name, place.pod.described());
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        return self::exec(tools, place, command).await.map_err(|(error, output)| {
            HookError(format!(
                "Exec lifecycle hook ([{shown}]) for Container {container:?} in Pod {pod:?} \
                 failed - error: {error}, message: {output:?}"
            ))
        });
    }
    if let Some(http) = &handler.http_get {
        let path = http.path.as_deref().unwrap_or_default();
        return self::http(tools, place, http).await.map_err(|error| {
            HookError(format!(
                "HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} \
                 failed - error: {error}"
            ))
        });
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        self::sleep(&tools.metrics.hooks.sleeps_cut_short, Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(HookError(format!("Cannot run handler: container {container}: it says nothing to do")))
}

/// On failure, why and what it printed.
async fn exec(
    tools: &Tools,
    place: &Place<'_>,
    command: Vec<String>,
) -> Result<(), (String, String)> {
    let shown = command.join(" ");
    let result = tools.runtime.exec(place.instance, command, None).await;
    let output = result.map_err(|error| (error.rpc_text(), String::new()))?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = format!("command '{shown}' exited with {}: {errors}", output.exit_code);
    Err((error, said + &errors))
}

/// Any answer at all is a success.
async fn http(tools: &Tools, place: &Place<'_>, action: &v1::HTTPGetAction) -> Result<(), String> {
    let node = tools.settings.addresses.host_ips.first().copied();
    let address = place.pod_ip.or(node.filter(|_| place.pod.host_network));
    let check = HttpCheck::of(place.container, action).map_err(|error| error.to_string())?;
    // A check that names its host needs no address of the pod.
    let unused = check.host.is_some().then_some(IpAddr::from([0; 16]));
    let missing = || "failed to find networking container".to_owned();
    let address = address.or(unused).ok_or_else(missing)?;
    let question = Question::of(&check, address, USER_AGENT);
    match http_get::get(&question).await {
        Ok(_) => Ok(()),
        Err(GetError::NoTls { url }) => match in_plain_text(&question).await {
            Ok(()) => {
                told_fallback(tools, place.pod, &question);
                Ok(())
            }
            Err(_) => Err(GetError::NoTls { url }.to_string()),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// Hooks were written as HTTPS for servers that never spoke it, back when nobody checked.
async fn in_plain_text(question: &Question<'_>) -> Result<(), GetError> {
    let headers = without_credentials(question.headers);
    let mut plain = Question { headers: &headers, ..question.clone() };
    plain.place.https = false;
    http_get::get(&plain).await.map(drop)
}

fn told_fallback(tools: &Tools, pod: &Pod, question: &Question<'_>) {
    tools.metrics.hooks.http_fallbacks.inc();
    let host = http_get::authority(&question.place.host, question.place.port);
    let text = format!(
        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
    );
    tools.events.pod(pod, Severity::Warning, "LifecycleHTTPFallback", text);
}

/// Counts a sleep that somebody did not wait for.
async fn sleep(cut_short: &Counter, duration: Duration) {
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
    async fn a_sleep_that_is_cut_short_is_counted() {
        let cut = Counter::default();
        sleep(&cut, Duration::from_secs(5)).await;
        assert_eq!(cut.get(), 0);
        let long = sleep(&cut, Duration::from_secs(5));
        assert!(tokio::time::timeout(Duration::from_secs(1), long).await.is_err());
        assert_eq!(cut.get(), 1);
    }
}
