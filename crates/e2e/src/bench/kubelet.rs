//! What one kubelet needs: time, memory, CPU and requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::quantiles::Quantiles;
use super::stopwatch::Stopwatch;
use super::usage::{self, Memory};
use super::{Options, pods};
use crate::agent::Agent;
use crate::bed::Bed;
use crate::wait;

pub(super) const NODE: &str = "node-1";
const NAMESPACE: &str = "default";
const LIMIT: Duration = Duration::from_secs(200);

#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub kubelet: String,
    pub idle: Idle,
    /// One pod at a time, on an otherwise empty node.
    pub single: Single,
    pub batches: Vec<Batch>,
    /// From the edit of a ConfigMap to the file in the volume.
    pub config_map_seen: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    pub memory: Memory,
    pub millicores: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Single {
    pub start: Quantiles,
    pub delete: Quantiles,
    /// From the process's own end to the phase that a watcher sees.
    pub exit: Quantiles,
}

#[derive(Clone, Debug, Serialize)]
pub struct Batch {
    pub pods: usize,
    pub start: Quantiles,
    pub all_ready: f64,
    pub all_gone: f64,
    /// Of the agent, for starting them all, in seconds.
    pub start_cpu: f64,
    pub loaded: Idle,
    /// By verb, resource and subresource, for each pod.
    pub start_requests: BTreeMap<String, f64>,
    pub delete_requests: BTreeMap<String, f64>,
}

/// A kubelet on a bed of its own.
struct Bench {
    bed: Bed,
    agent: Agent,
    pods: Api<Pod>,
    client: kube::Client,
}

impl Figures {
    pub async fn measure(
        name: &str,
        program: Option<&Path>,
        options: &Options,
        say: &impl Fn(&str),
    ) -> Result<Self> {
        let bench = Bench::set_up(program).await?;
        say("  idle");
        // What it reads and builds at start is settled after a while.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let idle = bench.idle(options.idle).await?;
        say("  single pods");
        let single = bench.singles(options.singles).await?;
        let mut batches = Vec::new();
        for &pods in &options.pods {
            say(&format!("  {pods} pods at once"));
            batches.push(bench.batch(pods, options.idle).await?);
        }
        say("  an edited ConfigMap");
        let config_map_seen = bench.config_map().await?.map(|took| took.as_secs_f64());
        let Bench { bed, agent, .. } = bench;
        drop(agent);
        bed.close()?;
        Ok(Self { kubelet: name.to_owned(), idle, single, batches, config_map_seen })
    }
}

impl Bench {
    async fn set_up(program: Option<&Path>) -> Result<Self> {
        let bed = Bed::builder().control_plane().start().await?;
        let client = bed.client().await?;
        // Made here, so that registering is not measured.
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
        nodes.create(&PostParams::default(), &node).await?;
        let mut agent = bed.agent(NODE).joined()?.configure(json!({ "maxPods": 250 }));
        if let Some(program) = program {
            agent = agent.program(program);
        }
        let agent = agent.start()?;
        agent.healthy().await?;
        let pods = Api::namespaced(client.clone(), NAMESPACE);
        Ok(Self { bed, agent, pods, client })
    }

    async fn idle(&self, over: Duration) -> Result<Idle> {
        let pid = self.agent.daemon().pid();
        let millicores = usage::millicores(pid, over).await?;
        Ok(Idle { memory: Memory::of(pid)?, millicores })
    }

    async fn create(&self, pod: Value) -> Result<()> {
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    async fn singles(&self, count: usize) -> Result<Single> {
        let (mut start, mut delete, mut exit) = (Vec::new(), Vec::new(), Vec::new());
        let mut stopwatch = Stopwatch::start(self.pods.clone()).await?;
        for number in 0..count {
            let name = [format!("single-{number}")];
            let began = Instant::now();
            self.create(pods::plain(&name[0], NODE)).await?;
            start.push(since(began, &stopwatch.all(&name, "ready", |m| m.ready).await?));
            let began = Instant::now();
            self.pods.delete(&name[0], &DeleteParams::default()).await?;
            delete.push(since(began, &stopwatch.all(&name, "gone", |m| m.gone).await?));

            exit.push(self.exit(&mut stopwatch, format!("ends-{number}")).await?);
        }
        let quantiles = |times: &[Duration]| Quantiles::of(times).context("no single pods");
        Ok(Single {
            start: quantiles(&start)?,
            delete: quantiles(&delete)?,
            exit: quantiles(&exit)?,
        })
    }

    /// A container that ends by itself when a file appears on the node.
    async fn exit(&self, stopwatch: &mut Stopwatch, name: String) -> Result<Duration> {
        let folder = self.bed.path(&name);
        std::fs::create_dir(&folder)?;
        self.create(pods::that_ends(&name, NODE, &folder)).await?;
        let name = [name];
        stopwatch.all(&name, "ready", |m| m.ready).await?;
        let began = Instant::now();
        std::fs::write(folder.join("end"), "")?;
        let took = since(began, &stopwatch.all(&name, "ended", |m| m.ended).await?);
        self.pods.delete(&name[0], &DeleteParams::default()).await?;
        stopwatch.all(&name, "gone", |m| m.gone).await?;
        Ok(took)
    }

    async fn batch(&self, count: usize, idle: Duration) -> Result<Batch> {
        let names: Vec<String> =
            (0..count).map(|number| format!("batch-{count}-{number}")).collect();
        let mut stopwatch = Stopwatch::start(self.pods.clone()).await?;
        let pid = self.agent.daemon().pid();
        let (cpu, requests) = (usage::cpu(pid)?, self.requests()?);
        let began = Instant::now();
        futures::future::try_join_all(
            names.iter().map(|name| self.create(pods::plain(name, NODE))),
        )
        .await?;
        let ready = stopwatch.all(&names, "ready", |m| m.ready).await?;
        let start_cpu = usage::cpu(pid)?.saturating_sub(cpu);
        // The last requests of a start come after what they tell of.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let started = self.requests()?;
        let loaded = self.idle(idle).await?;

        let before = self.requests()?;
        let deleted = Instant::now();
        let params = DeleteParams::default();
        futures::future::try_join_all(names.iter().map(|name| self.pods.delete(name, &params)))
            .await?;
        let gone = stopwatch.all(&names, "gone", |m| m.gone).await?;
        let each = |from: &Requests, to: &Requests| per_pod(from, to, count);
        let times: Vec<Duration> = ready.iter().map(|seen| seen.duration_since(began)).collect();
        Ok(Batch {
            pods: count,
            start: Quantiles::of(&times).context("no pods were asked for")?,
            all_ready: since(began, &ready).as_secs_f64(),
            all_gone: since(deleted, &gone).as_secs_f64(),
            start_cpu: start_cpu.as_secs_f64(),
            loaded,
            start_requests: each(&requests, &started),
            delete_requests: each(&before, &self.requests()?),
        })
    }

    /// What the agent has asked the API server so far, watches aside.
    fn requests(&self) -> Result<Requests> {
        let mut requests = Requests::new();
        let user = format!("system:node:{NODE}");
        for asked in self.bed.control_plane()?.audit()? {
            if asked.user == user && asked.verb != "watch" {
                let what = match asked.subresource.as_str() {
                    "" => format!("{} {}", asked.verb, asked.resource),
                    sub => format!("{} {}/{sub}", asked.verb, asked.resource),
                };
                *requests.entry(what).or_default() += 1;
            }
        }
        Ok(requests)
    }

    /// `None`: this kubelet mounts no ConfigMaps, and said so by not starting the pod.
    async fn config_map(&self) -> Result<Option<Duration>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let map = json!({ "metadata": { "name": "edited" }, "data": { "word": "old" } });
        maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        let mut stopwatch = Stopwatch::start(self.pods.clone()).await?;
        self.create(pods::that_reads("reader", NODE, "edited")).await?;
        let name = ["reader".to_owned()];
        let ready = stopwatch.all(&name, "ready", |m| m.ready);
        let Ok(ready) = tokio::time::timeout(Duration::from_secs(20), ready).await else {
            return Ok(None);
        };
        ready?;
        let uid = self.pods.get("reader").await?.metadata.uid.context("a pod has a UID")?;
        let volumes = format!("pods/{uid}/volumes/kubernetes.io~configmap/words/word");
        let file = self.agent.root_dir().join(volumes);
        let began = Instant::now();
        let edit = Patch::Merge(json!({ "data": { "word": "new" } }));
        maps.patch("edited", &PatchParams::default(), &edit).await?;
        let seen = async || Ok(std::fs::read_to_string(&file)? == "new");
        wait::until_true("the edited ConfigMap in the volume", LIMIT, seen).await?;
        let took = began.elapsed();
        self.pods.delete("reader", &DeleteParams::default()).await?;
        stopwatch.all(&name, "gone", |m| m.gone).await?;
        Ok(Some(took))
    }
}

type Requests = BTreeMap<String, u32>;

fn per_pod(before: &Requests, after: &Requests, pods: usize) -> BTreeMap<String, f64> {
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    let grown = after.iter().filter_map(|(what, now)| {
        let new = now - before.get(what).copied().unwrap_or(0);
        (new > 0).then(|| (what.clone(), f64::from(new) / f64::from(pods)))
    });
    grown.collect()
}

pub(super) fn since(began: Instant, seen: &[Instant]) -> Duration {
    seen.iter().map(|seen| seen.duration_since(began)).max().unwrap_or_default()
}
