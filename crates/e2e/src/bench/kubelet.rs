//! Figures of one kubelet: time, memory, CPU and requests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::Options;
use super::pods::{self, NAMESPACE};
use super::quantiles::Quantiles;
use super::stopwatch::Stopwatch;
use super::usage::{self, Memory};
use crate::agent::Agent;
use crate::bed::Bed;
use crate::wait;

pub(super) const NODE: &str = "node-1";
const LIMIT: Duration = Duration::from_secs(200);
/// Few, because a kubelet may take more than a minute per edit.
const EDITS: usize = 5;
/// Long enough for the agent to remove the leftovers of ten pods.
const CLEAN_UP: Duration = Duration::from_secs(6);

#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub kubelet: String,
    pub idle: Idle,
    /// One pod at a time, on an otherwise empty node.
    pub single: Single,
    pub batches: Vec<Batch>,
    /// `None`: this kubelet does not mount ConfigMaps.
    pub config_map: Option<ConfigMaps>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    pub memory: Memory,
    pub millicores: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConfigMaps {
    /// From an edit to the changed file in the volume.
    pub edited: Quantiles,
    /// From the creation of a missing ConfigMap to the waiting pod being Ready.
    pub missing: Quantiles,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Single {
    pub start: Quantiles,
    pub delete: Quantiles,
    /// From the exit of the process to the phase that a watcher sees.
    pub exit: Quantiles,
}

/// Several rounds: quantiles over all pods, medians of the rest.
#[derive(Clone, Debug, Serialize)]
pub struct Batch {
    pub pods: usize,
    pub start: Quantiles,
    pub all_ready: f64,
    pub all_gone: f64,
    /// CPU seconds of the agent for starting them all.
    pub start_cpu: f64,
    pub loaded: Idle,
    /// Per pod, by verb, resource and subresource.
    pub start_requests: BTreeMap<String, f64>,
    pub delete_requests: BTreeMap<String, f64>,
}

/// One round of pods created at once.
struct CreatedRound {
    /// From the creation to each pod being Ready.
    each: Vec<Duration>,
    /// CPU of the agent.
    cpu: Duration,
    requests: Requests,
}

/// One round of pods deleted at once.
struct DeletedRound {
    all: Duration,
    requests: Requests,
}

/// A kubelet on its own bed.
struct Bench {
    bed: Bed,
    agent: Agent,
    pods: Api<Pod>,
    client: kube::Client,
}

impl Figures {
    pub async fn measure(
        name: &str,
        command_line: &[OsString],
        options: &Options,
        report_progress: &impl Fn(&str),
    ) -> Result<Self> {
        let bench = Bench::set_up(command_line).await?;
        report_progress("  idle");
        // Lets the work at start-up finish first.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let idle = bench.idle(options.idle).await?;
        report_progress("  single pods");
        let single = bench.singles(options.singles).await?;
        let mut batches = Vec::new();
        for &pods in &options.pods {
            report_progress(&format!("  {pods} pods at once"));
            batches.push(bench.batch(pods, options.idle).await?);
        }
        report_progress("  an edited ConfigMap");
        let config_map = bench.config_maps(options.singles.min(EDITS)).await?;
        let Bench { bed, agent, .. } = bench;
        drop(agent);
        bed.close()?;
        Ok(Self { kubelet: name.to_owned(), idle, single, batches, config_map })
    }
}

impl Bench {
    async fn set_up(command_line: &[OsString]) -> Result<Self> {
        let bed = Bed::builder().without_bystanders().fresh_control_plane().start().await?;
        let client = bed.client().await?;
        // Created here so that registration is not measured.
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
        nodes.create(&PostParams::default(), &node).await?;
        let agent = bed
            .agent(NODE)
            .command_line(command_line.iter().cloned())
            .joined()?
            // The results must not depend on how full the machine's disk is.
            .configure(json!({
                "maxPods": 250,
                "evictionHard": {
                    "imagefs.available": "0%",
                    "memory.available": "100Mi",
                    "nodefs.available": "0%",
                },
            }))
            // As on production nodes: verbose logs for tests have a cost.
            .argument("--v=2")
            .start()?;
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

    /// A container that exits when a file appears on the node.
    async fn exit(&self, stopwatch: &mut Stopwatch, name: String) -> Result<Duration> {
        let directory = self.bed.path(&name);
        std::fs::create_dir(&directory)?;
        self.create(pods::that_ends(&name, NODE, &directory)).await?;
        let name = [name];
        stopwatch.all(&name, "ready", |m| m.ready).await?;
        let began = Instant::now();
        std::fs::write(directory.join("end"), "")?;
        let took = since(began, &stopwatch.all(&name, "ended", |m| m.ended).await?);
        self.pods.delete(&name[0], &DeleteParams::default()).await?;
        stopwatch.all(&name, "gone", |m| m.gone).await?;
        Ok(took)
    }

    async fn batch(&self, count: usize, idle: Duration) -> Result<Batch> {
        let rounds = pods::rounds(count);
        let names: Vec<String> =
            (0..count).map(|number| format!("batch-{count}-{number}")).collect();
        let mut stopwatch = Stopwatch::start(self.pods.clone()).await?;
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        let mut loaded = None;
        for round in 1..=rounds {
            let names: Vec<String> = names.iter().map(|name| format!("{name}-{round}")).collect();
            starts.push(self.come(&mut stopwatch, &names).await?);
            if round == rounds {
                loaded = Some(self.idle(idle).await?);
            }
            ends.push(self.go(&mut stopwatch, &names).await?);
            // Leftovers are removed later and must not affect the next round.
            tokio::time::sleep(CLEAN_UP).await;
        }
        let quantiles = |times: &[Duration]| Quantiles::of(times).context("no pods requested");
        let median = |times: Vec<Duration>| anyhow::Ok(quantiles(&times)?.p50);
        let each: Vec<Duration> = starts.iter().flat_map(|start| start.each.clone()).collect();
        let slowest = |start: &CreatedRound| start.each.iter().max().copied().unwrap_or_default();
        Ok(Batch {
            pods: count,
            start: quantiles(&each)?,
            all_ready: median(starts.iter().map(slowest).collect())?,
            all_gone: median(ends.iter().map(|end| end.all).collect())?,
            start_cpu: median(starts.iter().map(|start| start.cpu).collect())?,
            loaded: loaded.context("no rounds")?,
            start_requests: per_pod(starts.iter().map(|start| &start.requests), each.len()),
            delete_requests: per_pod(ends.iter().map(|end| &end.requests), each.len()),
        })
    }

    async fn come(&self, stopwatch: &mut Stopwatch, names: &[String]) -> Result<CreatedRound> {
        let pid = self.agent.daemon().pid();
        let (cpu, before) = (usage::cpu(pid)?, self.requests()?);
        let began = Instant::now();
        futures::future::try_join_all(
            names.iter().map(|name| self.create(pods::plain(name, NODE))),
        )
        .await?;
        let ready = stopwatch.all(names, "ready", |m| m.ready).await?;
        let cpu = usage::cpu(pid)?.saturating_sub(cpu);
        // The last requests of a start follow the status change that is waited for.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let each = ready.iter().map(|seen| seen.duration_since(began)).collect();
        Ok(CreatedRound { each, cpu, requests: new_since(&before, &self.requests()?) })
    }

    async fn go(&self, stopwatch: &mut Stopwatch, names: &[String]) -> Result<DeletedRound> {
        let before = self.requests()?;
        let began = Instant::now();
        let params = DeleteParams::default();
        futures::future::try_join_all(names.iter().map(|name| self.pods.delete(name, &params)))
            .await?;
        let all = since(began, &stopwatch.all(names, "gone", |m| m.gone).await?);
        Ok(DeletedRound { all, requests: new_since(&before, &self.requests()?) })
    }

    /// Requests of the agent to the API server so far, without watches.
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

    /// `None` if this kubelet does not mount ConfigMaps: the pod did not start.
    async fn config_maps(&self, count: usize) -> Result<Option<ConfigMaps>> {
        let Some(edited) = self.edited(count).await? else { return Ok(None) };
        let missing = self.missing(count).await?;
        let quantiles = |times: &[Duration]| Quantiles::of(times).context("no edits");
        Ok(Some(ConfigMaps { edited: quantiles(&edited)?, missing: quantiles(&missing)? }))
    }

    async fn edited(&self, count: usize) -> Result<Option<Vec<Duration>>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        maps.create(&PostParams::default(), &words("edited", "none")?).await?;
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
        let mut times = Vec::new();
        for number in 0..count {
            let word = format!("word-{number}");
            let began = Instant::now();
            let edit = Patch::Merge(json!({ "data": { "word": word } }));
            maps.patch("edited", &PatchParams::default(), &edit).await?;
            let seen = async || Ok(std::fs::read_to_string(&file)? == word);
            wait::until_true("the edited ConfigMap in the volume", LIMIT, seen).await?;
            times.push(began.elapsed());
        }
        self.pods.delete("reader", &DeleteParams::default()).await?;
        stopwatch.all(&name, "gone", |m| m.gone).await?;
        Ok(Some(times))
    }

    async fn missing(&self, count: usize) -> Result<Vec<Duration>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut stopwatch = Stopwatch::start(self.pods.clone()).await?;
        let mut times = Vec::new();
        for number in 0..count {
            let map = format!("missing-{number}");
            let name = [format!("waits-{number}")];
            self.create(pods::that_reads(&name[0], NODE, &map)).await?;
            // Long enough for the kubelet to have found it missing.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            let began = Instant::now();
            maps.create(&PostParams::default(), &words(&map, "here")?).await?;
            times.push(since(began, &stopwatch.all(&name, "ready", |m| m.ready).await?));
            self.pods.delete(&name[0], &DeleteParams::default()).await?;
            stopwatch.all(&name, "gone", |m| m.gone).await?;
        }
        Ok(times)
    }
}

/// A ConfigMap with one key.
fn words(name: &str, word: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "word": word } }))?)
}

type Requests = BTreeMap<String, u32>;

fn new_since(before: &Requests, after: &Requests) -> Requests {
    let grown = after.iter().map(|(what, now)| {
        (what.clone(), now.saturating_sub(before.get(what).copied().unwrap_or(0)))
    });
    grown.filter(|(_, new)| *new > 0).collect()
}

fn per_pod<'a>(rounds: impl Iterator<Item = &'a Requests>, pods: usize) -> BTreeMap<String, f64> {
    let pods = f64::from(u32::try_from(pods).unwrap_or(u32::MAX));
    let mut each = BTreeMap::new();
    for (what, count) in rounds.flatten() {
        *each.entry(what.clone()).or_default() += f64::from(*count) / pods;
    }
    each
}

pub(super) fn since(began: Instant, seen: &[Instant]) -> Duration {
    seen.iter().map(|seen| seen.duration_since(began)).max().unwrap_or_default()
}
