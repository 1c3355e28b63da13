//! Connection to the container runtime.

use std::time::Duration;

use anyhow::Context;
use podwright_cri::{Client, Endpoint, Kind, Timeouts, Version};
use podwright_proto::cri::CgroupDriver as ReportedDriver;

use super::AgentOptions;
use crate::config::kubelet::KubeletConfiguration;
use crate::standalone::runtime as shared;

/// Delay between attempts to connect to a runtime that is not available yet.
const RUNTIME_POLL: Duration = Duration::from_secs(1);
/// Attempts, and the delay between them, of calls that fail while the runtime is starting.
const RUNTIME_ATTEMPTS: u32 = 3;
const RUNTIME_RETRY: Duration = Duration::from_secs(2);

/// Connects to the runtime, which is waited for.
pub(super) async fn connect(
    configuration: &KubeletConfiguration,
    agent_options: &AgentOptions,
) -> anyhow::Result<(Client, Version)> {
    let endpoint: Endpoint = configuration.container_runtime_endpoint.parse()?;
    let call = configuration.runtime_request_timeout.to_std();
    let mut runtime = Client::new(&endpoint, Timeouts { call });
    if configuration.image_endpoint() != configuration.container_runtime_endpoint {
        runtime = runtime.with_images_at(&configuration.image_endpoint().parse()?);
    }
    let version = wait_for(&runtime, &endpoint).await?;
    tracing::info!(
        runtime = version.runtime_name,
        version = version.runtime_version,
        "connected to container runtime"
    );
    if agent_options.shared_runtime {
        if !agent_options.stop_pods {
            check_shared_runtime(&runtime, &configuration.cgroup_root).await?;
        }
        runtime = runtime.shared_with_others(shared::is_own(&configuration.cgroup_root));
    }
    Ok((runtime, version))
}

/// Waits for the runtime, which may start after the agent. A runtime that does not implement CRI v1
/// is an error, because waiting does not help.
async fn wait_for(runtime: &Client, endpoint: &Endpoint) -> anyhow::Result<Version> {
    let mut logged = false;
    let socket = endpoint.path().display();
    loop {
        let probe = async {
            let version = runtime.version().await?;
            runtime.image_fs_info().await.map(|_| version)
        };
        match probe.await {
            Ok(version) => return Ok(version),
            Err(error) if matches!(error.kind, Kind::BadReply | Kind::Unimplemented) => {
                let context = format!("validate CRI v1 runtime API for endpoint {socket}");
                return Err(error).context(context);
            }
            Err(error) if !logged => {
                logged = true;
                tracing::warn!(%error, %socket, "waiting for the container runtime");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RUNTIME_POLL).await;
    }
}

/// Repeats the check of `up`, which is skipped there if the runtime does not respond. Retries,
/// because a runtime that is starting may not list its pods yet.
async fn check_shared_runtime(runtime: &Client, cgroup_root: &str) -> anyhow::Result<()> {
    for _ in 1..RUNTIME_ATTEMPTS {
        match shared::refuse_pods_of_others(runtime, cgroup_root).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "cannot use the shared container runtime, retrying"
            ),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    shared::refuse_pods_of_others(runtime, cgroup_root).await.context("cannot use the runtime")
}

/// The cgroup driver that the runtime reports; none if it does not support the request.
pub(super) async fn reported_driver(
    runtime: &Client,
) -> Result<Option<ReportedDriver>, podwright_cri::Error> {
    for _ in 1..RUNTIME_ATTEMPTS {
        match runtime.cgroup_driver().await {
            Ok(driver) => return Ok(driver),
            Err(error) => {
                tracing::warn!(%error, "cannot read the cgroup driver of the runtime, retrying");
            }
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    runtime.cgroup_driver().await
}
