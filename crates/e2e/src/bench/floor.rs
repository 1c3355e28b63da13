//! What the runtime needs for the same pods with no agent at all: nobody can be faster.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use podwright_proto::cri::{StopContainerRequest, StopPodSandboxRequest};
use serde::Serialize;
use serde_json::json;

use super::pods::{self, COMMAND, IMAGE};
use super::quantiles::Quantiles;
use crate::bed::Bed;
use crate::cri::Cri;

/// What the API server does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    None,
    /// For each pod its creation, two status patches, three events and one token request.
    Api,
}

impl Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing else happens",
            Self::Api => "the API server busy",
        })
    }
}

/// The quickest way found: the best of one, four and all pods at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Floor {
    pub pods: usize,
    pub load: Load,
    pub at_a_time: usize,
    /// Of one pod from the beginning of the batch.
    pub start: Quantiles,
    pub all_started: f64,
    pub all_stopped: f64,
}

impl Floor {
    pub async fn measure(pods: usize, load: Load) -> Result<Self> {
        let mut ways = vec![1, 4, pods];
        ways.retain(|way| *way <= pods);
        ways.dedup();
        let mut best: Option<Self> = None;
        for at_a_time in ways {
            let floor = Self::one_way(pods, load, at_a_time).await?;
            if best.is_none_or(|best| floor.all_started < best.all_started) {
                best = Some(floor);
            }
        }
        best.context("no pods were asked for")
    }

    async fn one_way(pods: usize, load: Load, at_a_time: usize) -> Result<Self> {
        let bed = match load {
            Load::None => Bed::builder().start().await?,
            Load::Api => Bed::builder().control_plane().start().await?,
        };
        let loader = match load {
            Load::None => None,
            Load::Api => Some(Arc::new(Loader { client: bed.client().await? })),
        };
        let cri = bed.cri().await?;
        let numbers = futures::stream::iter(0..pods);
        let began = Instant::now();
        let made: Vec<(String, String, Duration)> = numbers
            .map(|number| start(cri.clone(), loader.clone(), number, began))
            .buffer_unordered(at_a_time)
            .try_collect()
            .await?;
        let all_started = began.elapsed();
        let times: Vec<Duration> = made.iter().map(|(_, _, took)| *took).collect();
        let began = Instant::now();
        futures::stream::iter(made)
            .map(|(sandbox, container, _)| stop(cri.clone(), sandbox, container))
            .buffer_unordered(at_a_time)
            .try_collect::<()>()
            .await?;
        let all_stopped = began.elapsed();
        bed.close()?;
        Ok(Self {
            pods,
            load,
            at_a_time,
            start: Quantiles::of(&times).context("no pods were asked for")?,
            all_started: all_started.as_secs_f64(),
            all_stopped: all_stopped.as_secs_f64(),
        })
    }
}

async fn start(
    cri: Cri,
    loader: Option<Arc<Loader>>,
    number: usize,
    began: Instant,
) -> Result<(String, String, Duration)> {
    let name = format!("floor-{number}");
    let runtime = async {
        let config = cri.sandbox(&name);
        let sandbox = cri.run_sandbox(config.clone()).await?;
        let container = cri.run_container(&sandbox, &config, "app", IMAGE, &COMMAND).await?;
        anyhow::Ok((sandbox, container))
    };
    let requests = async {
        match &loader {
            Some(loader) => loader.requests_of(&name).await,
            None => Ok(()),
        }
    };
    let ((sandbox, container), ()) = tokio::try_join!(runtime, requests)?;
    Ok((sandbox, container, began.elapsed()))
}

async fn stop(cri: Cri, sandbox: String, container: String) -> Result<()> {
    let mut runtime = cri.runtime.clone();
    let request = StopContainerRequest { container_id: container, timeout: 30 };
    runtime.stop_container(request).await.context("stopping a container")?;
    let request = StopPodSandboxRequest { pod_sandbox_id: sandbox };
    runtime.stop_pod_sandbox(request).await.context("stopping a sandbox")?;
    Ok(())
}

/// Keeps the API server as busy as a kubelet would.
struct Loader {
    client: kube::Client,
}

impl Loader {
    async fn requests_of(&self, name: &str) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let (post, params) = (PostParams::default(), PatchParams::default());
        api.create(&post, &serde_json::from_value(pods::plain(name, "nobody"))?).await?;
        for phase in ["Pending", "Running"] {
            let status = Patch::Strategic(json!({ "status": { "phase": phase } }));
            api.patch_status(name, &params, &status).await?;
        }
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        for reason in ["pulled", "created", "started"] {
            let event = json!({
                "metadata": { "name": format!("{name}.{reason}") },
                "involvedObject": { "kind": "Pod", "namespace": "default", "name": name },
                "reason": reason, "message": "the container of a measured pod", "type": "Normal",
            });
            events.create(&post, &serde_json::from_value(event)?).await?;
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        let request: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [] } }))?;
        accounts.create_token_request("default", &post, &request).await?;
        api.delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}
