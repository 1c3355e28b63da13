//! Scaling of the agent with the number of pods.
//!
//! The fake runtime takes no time, so thousands of pods fit on a small machine and only the agent
//! is measured: it runs in its own process, while the fake runtime and the embedded API server run
//! in this one.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use podwright_fake_runtime::{Fake, FakeOptions, wall_from};
use serde::Serialize;
use serde_json::json;
use tokio::net::UnixListener;

use super::kubelet::{Idle, NODE, since};
use super::pods;
use super::stopwatch::Stopwatch;
use super::usage::{self, Memory};
use crate::bed::Bed;
use crate::embedded::Embedded;

/// High enough not to affect the figures.
const MAX_PODS: usize = 10_000;
/// Pending status reports and writes of the start are done by then.
const START_SETTLES: Duration = Duration::from_secs(25);
/// Directories and logs of the deleted pods are removed by then; nothing in the API shows that.
const DELETE_SETTLES: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Growth {
    pub pods: usize,
    pub all_ready: f64,
    pub all_gone: f64,
    /// CPU seconds of the agent for starting them all.
    pub start_cpu: f64,
    /// CPU seconds of the agent for deleting them all.
    pub delete_cpu: f64,
    pub loaded: Idle,
}

impl Growth {
    pub async fn measure(count: usize, idle: Duration) -> Result<Self> {
        let bed = Bed::builder().without_bystanders().start().await?;
        let api = Embedded::start(&bed).await?;
        let fake = Fake::start(FakeOptions {
            wall: wall_from(jiff::Timestamp::now()),
            keep_calls: 1_000,
            // The agent would keep asking the runtime to reopen a missing log.
            writes_below: Some(bed.path("")),
            ..FakeOptions::default()
        });
        fake.images().add(pods::IMAGE).context("the image of the pods")?;
        let socket = bed.path("fake.sock");
        let listener = UnixListener::bind(&socket)?;
        let runtime = fake.clone();
        let listening = tokio::spawn(async move { runtime.listen(listener).await });
        let agent = bed
            .agent(NODE)
            .kubeconfig(api.kubeconfig())
            .configure(json!({
                "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
                "maxPods": MAX_PODS,
            }))
            .argument("--v=2")
            .start()?;
        agent.healthy().await?;
        let pod_api: Api<Pod> = Api::default_namespaced(api.client());
        let mut stopwatch = Stopwatch::start(pod_api.clone()).await?;
        let pid = agent.daemon().pid();
        let names: Vec<String> = (0..count).map(|number| format!("pod-{number}")).collect();
        let (cpu, began) = (usage::cpu(pid)?, Instant::now());
        for name in &names {
            let pod = serde_json::from_value(pods::plain(name, NODE))?;
            pod_api.create(&PostParams::default(), &pod).await?;
        }
        let all_ready = since(began, &stopwatch.all(&names, "ready", |m| m.ready).await?);
        let start_cpu = usage::cpu(pid)?.saturating_sub(cpu);
        tokio::time::sleep(START_SETTLES).await;
        let millicores = usage::millicores(pid, idle).await?;
        let loaded = Idle { memory: Memory::of(pid)?, millicores };
        let (cpu, deleted) = (usage::cpu(pid)?, Instant::now());
        for name in &names {
            pod_api.delete(name, &DeleteParams::default()).await?;
        }
        let all_gone = since(deleted, &stopwatch.all(&names, "gone", |m| m.gone).await?);
        tokio::time::sleep(DELETE_SETTLES).await;
        let delete_cpu = usage::cpu(pid)?.saturating_sub(cpu);
        drop((agent, api));
        listening.abort();
        bed.close()?;
        Ok(Self {
            pods: count,
            all_ready: all_ready.as_secs_f64(),
            all_gone: all_gone.as_secs_f64(),
            start_cpu: start_cpu.as_secs_f64(),
            delete_cpu: delete_cpu.as_secs_f64(),
            loaded,
        })
    }
}

impl Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, all_ready, all_gone, start_cpu, delete_cpu, loaded } = self;
        let each = |seconds: &f64| seconds * 1e3 / (*pods).max(1) as f64;
        write!(
            f,
            "{pods} pods on a fake runtime: ready {all_ready:.1} s, gone {all_gone:.1} s; \
             agent CPU: start {start_cpu:.1} s, {:.2} ms each, delete {delete_cpu:.1} s, \
             {:.2} ms each; idle between: {:.1} MB ({:.1} anonymous), {:.2} millicores",
            each(start_cpu),
            each(delete_cpu),
            loaded.memory.resident,
            loaded.memory.anonymous,
            loaded.millicores
        )
    }
}
