//! Floor: the time that the runtime needs for the same pods without an agent, the lower bound for
//! any kubelet.

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

use super::pods::{self, COMMAND, IMAGE, NAMESPACE};
use super::quantiles::Quantiles;
use crate::bed::Bed;
use crate::cri::Cri;

/// Load on the API server during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    None,
    /// Per pod: on start its creation, two status patches, three events and a token; on stop its
    /// deletion, a status patch, an event and the removal of the object.
    Api,
}

impl Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no other load",
            Self::Api => "API server under load",
        })
    }
}

/// One, four and all pods at a time; the fastest of each is the floor.
#[derive(Clone, Debug, Serialize)]
pub struct Floor {
    pub pods: usize,
    pub load: Load,
    pub starts: Vec<Start>,
    pub stops: Vec<Stop>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Start {
    pub at_a_time: usize,
    /// Of one pod, from the start of its batch.
    pub each: Quantiles,
    /// Of a batch; the median if there were several.
    pub all: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Stop {
    pub at_a_time: usize,
    pub all: f64,
}

impl Floor {
    pub async fn measure(pods: usize, load: Load, report_progress: &impl Fn(&str)) -> Result<Self> {
        let mut ways = vec![1, 4, pods];
        ways.retain(|way| *way <= pods);
        ways.dedup();
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for at_a_time in ways {
            let (start, stop) = measure_with(pods, load, at_a_time).await?;
            let (started, stopped) = (start.all, stop.all);
            report_progress(&format!(
                "  {at_a_time} at a time: {started:.2} s, stopped {stopped:.2} s"
            ));
            starts.push(start);
            stops.push(stop);
        }
        Ok(Self { pods, load, starts, stops })
    }

    /// The concurrency with which all were running first.
    pub fn start(&self) -> Option<&Start> {
        self.starts.iter().min_by(|a, b| a.all.total_cmp(&b.all))
    }

    /// The concurrency with which all were removed first.
    pub fn stop(&self) -> Option<&Stop> {
        self.stops.iter().min_by(|a, b| a.all.total_cmp(&b.all))
    }
}

/// One pod after the other, without other load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Singles {
    pub start: Quantiles,
    pub stop: Quantiles,
}

impl Singles {
    pub async fn measure(count: usize) -> Result<Self> {
        let bed = Bed::builder().without_bystanders().start().await?;
        let cri = bed.cri().await?;
        warm_up(&cri).await?;
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for number in 0..count {
            let began = Instant::now();
            let made = start(cri.clone(), None, format!("floor-{number}")).await?;
            starts.push(began.elapsed());
            let began = Instant::now();
            stop(cri.clone(), None, made).await?;
            stops.push(began.elapsed());
        }
        bed.close()?;
        let quantiles = |times: &[Duration]| Quantiles::of(times).context("no single pods");
        Ok(Self { start: quantiles(&starts)?, stop: quantiles(&stops)? })
    }
}

/// The first pod of a runtime sets up what stays, such as the bridge.
async fn warm_up(cri: &Cri) -> Result<()> {
    let made = start(cri.clone(), None, "first".to_owned()).await?;
    stop(cri.clone(), None, made).await
}

async fn measure_with(pods: usize, load: Load, at_a_time: usize) -> Result<(Start, Stop)> {
    let bed = match load {
        Load::None => Bed::builder().without_bystanders().start().await?,
        Load::Api => Bed::builder().without_bystanders().fresh_control_plane().start().await?,
    };
    let loader = match load {
        Load::None => None,
        Load::Api => Some(Arc::new(Loader { client: bed.client().await? })),
    };
    let cri = bed.cri().await?;
    warm_up(&cri).await?;
    let (mut each, mut all_started, mut all_stopped) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..pods::rounds(pods) {
        let began = Instant::now();
        let made: Vec<(FloorPod, Duration)> = futures::stream::iter(0..pods)
            .map(|number| {
                let made = start(cri.clone(), loader.clone(), format!("floor-{round}-{number}"));
                async move { anyhow::Ok((made.await?, began.elapsed())) }
            })
            .buffer_unordered(at_a_time)
            .try_collect()
            .await?;
        all_started.push(began.elapsed());
        each.extend(made.iter().map(|(_, took)| *took));
        let began = Instant::now();
        futures::stream::iter(made)
            .map(|(made, _)| stop(cri.clone(), loader.clone(), made))
            .buffer_unordered(at_a_time)
            .try_collect::<()>()
            .await?;
        all_stopped.push(began.elapsed());
    }
    bed.close()?;
    let quantiles = |times: &[Duration]| Quantiles::of(times).context("no pods requested");
    let start = Start { at_a_time, each: quantiles(&each)?, all: quantiles(&all_started)?.p50 };
    Ok((start, Stop { at_a_time, all: quantiles(&all_stopped)?.p50 }))
}

/// A pod created by bare CRI calls.
struct FloorPod {
    name: String,
    sandbox: String,
    container: String,
}

async fn start(cri: Cri, loader: Option<Arc<Loader>>, name: String) -> Result<FloorPod> {
    let runtime = async {
        let config = cri.sandbox(&name);
        let sandbox = cri.run_sandbox(config.clone()).await?;
        let container = cri.run_container(&sandbox, &config, "app", IMAGE, &COMMAND).await?;
        anyhow::Ok((sandbox, container))
    };
    let requests = async {
        match &loader {
            Some(loader) => loader.start_requests(&name).await,
            None => Ok(()),
        }
    };
    let ((sandbox, container), ()) = tokio::try_join!(runtime, requests)?;
    Ok(FloorPod { name, sandbox, container })
}

async fn stop(cri: Cri, loader: Option<Arc<Loader>>, made: FloorPod) -> Result<()> {
    let FloorPod { name, sandbox, container } = made;
    let runtime = async {
        let mut runtime = cri.runtime.clone();
        let request = StopContainerRequest { container_id: container, timeout: 30 };
        runtime.stop_container(request).await.context("stopping a container")?;
        let request = StopPodSandboxRequest { pod_sandbox_id: sandbox };
        runtime.stop_pod_sandbox(request).await.context("stopping a sandbox")?;
        anyhow::Ok(())
    };
    let requests = async {
        match &loader {
            Some(loader) => loader.stop_requests(&name).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(runtime, requests)?;
    Ok(())
}

/// Loads the API server as a user and a kubelet would.
struct Loader {
    client: kube::Client,
}

impl Loader {
    async fn start_requests(&self, name: &str) -> Result<()> {
        self.pods()
            .create(&PostParams::default(), &serde_json::from_value(pods::plain(name, "nobody"))?)
            .await?;
        for phase in ["Pending", "Running"] {
            self.report(name, phase).await?;
        }
        for reason in ["Pulled", "Created", "Started"] {
            self.event(name, reason).await?;
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let request: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [] } }))?;
        accounts.create_token_request("default", &PostParams::default(), &request).await?;
        Ok(())
    }

    async fn stop_requests(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        self.event(name, "Killing").await?;
        self.report(name, "Succeeded").await?;
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn report(&self, name: &str, phase: &str) -> Result<()> {
        let status = Patch::Strategic(json!({ "status": { "phase": phase } }));
        self.pods().patch_status(name, &PatchParams::default(), &status).await?;
        Ok(())
    }

    async fn event(&self, name: &str, reason: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let event = json!({
            "metadata": { "name": format!("{name}.{}", reason.to_lowercase()) },
            "involvedObject": { "kind": "Pod", "namespace": NAMESPACE, "name": name },
            "reason": reason, "message": "the container of a measured pod", "type": "Normal",
        });
        events.create(&PostParams::default(), &serde_json::from_value(event)?).await?;
        Ok(())
    }
}
