//! `podwright status`: summary of the node and its pods.
//!
//! Pods are read from the runtime, so that they are shown even when the agent is down; requested
//! resources are read from the API server, if it responds.

pub(super) mod node;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::image::download::ImageDownload;
use podwright_core::observed::{Instance, ObservedPod, State};
use podwright_core::time::Mono;
use podwright_cri::Client;
use serde::Serialize;

use self::node::NodeLine;
use super::images::list::bytes;
use crate::cli::{Output, StatusArgs};
use crate::printable::printable;
use crate::service;
use crate::standalone::Layout;
use crate::standalone::agent::Agent;
use crate::standalone::runtime::Runtime;
use crate::standalone::supervisor::SupervisionNote;

/// Longer than a healthy runtime needs for hundreds of pods.
const PODS_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than a healthy containerd needs.
const DOWNLOADS_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
struct PodLine {
    #[serde(rename = "namespace")]
    namespace: String,
    #[serde(rename = "name")]
    name: String,
    #[serde(rename = "uid")]
    uid: String,
    #[serde(rename = "readySandbox")]
    ready_sandbox: bool,
    #[serde(rename = "ip")]
    ip: Option<String>,
    /// Number of running containers.
    #[serde(rename = "running")]
    running: usize,
    #[serde(rename = "containers")]
    containers: usize,
    #[serde(rename = "restarts")]
    restarts: u32,
    #[serde(rename = "since")]
    since: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct Status {
    #[serde(rename = "agent")]
    agent: bool,
    #[serde(rename = "runtime")]
    runtime: bool,
    /// The private containerd, as its supervisor reports it; none without an agent.
    #[serde(rename = "containerd", skip_serializing_if = "Option::is_none")]
    containerd: Option<SupervisionNote>,
    /// As reported by the API server; none if it does not respond.
    #[serde(rename = "node")]
    node: Option<NodeLine>,
    #[serde(rename = "pods")]
    pods: Vec<PodLine>,
    /// Images that are being pulled, if the runtime is containerd.
    #[serde(rename = "pulling")]
    pulling: Vec<ImageDownload>,
}

pub fn run(arguments: &StatusArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let (mut runtime, mut pods, mut pulling) = (false, Vec::new(), Vec::new());
    if let Some(record) = layout.record()? {
        let of_node = Runtime::of(&layout, &record)?;
        runtime = service::runtime()?.block_on(of_node.is_up())?;
        if runtime {
            let read = service::runtime()?.block_on(async {
                let client = of_node.client()?;
                let pods = tokio::time::timeout(PODS_TIMEOUT, self::pods(&client)).await??;
                // Other runtimes do not report it.
                let pulling = tokio::time::timeout(DOWNLOADS_TIMEOUT, client.downloads()).await;
                anyhow::Ok((pods, pulling.ok().and_then(Result::ok).unwrap_or_default()))
            });
            match read {
                Ok(read) => (pods, pulling) = read,
                // It is hanging or starting: the agent says which.
                Err(_) => runtime = false,
            }
        }
    }
    let agent = Agent::of(&layout).daemon().running()?.is_some();
    let node = match agent {
        true => service::runtime()?.block_on(node::read(&layout.kubeconfig())),
        false => None,
    };
    let containerd = agent.then(|| SupervisionNote::read(&layout)).flatten();
    let status = Status { agent, runtime, containerd, node, pods, pulling };
    let mut out = std::io::stdout();
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        Output::Text => write!(out, "{}", text(&status, Timestamp::now()))?,
    }
    Ok(())
}

async fn pods(client: &Client) -> anyhow::Result<Vec<PodLine>> {
    let listed = client.list_pods().await.context("the container runtime does not respond")?;
    let mut newest: BTreeMap<PodName, ObservedPod> = BTreeMap::new();
    for (uid, name, _) in listed.pods() {
        let (observed, _) = client.observe(uid, name, Mono::ZERO).await?;
        let created = |pod: &ObservedPod| pod.newest_sandbox().map(|s| s.created);
        // The runtime also lists exited pods; only the newest pod of a name is shown.
        match newest.get(name) {
            Some(other) if created(other) >= created(&observed) => {}
            Some(_) | None => drop(newest.insert(name.clone(), observed)),
        }
    }
    Ok(newest.into_values().map(|pod| line(&pod)).collect())
}

fn line(pod: &ObservedPod) -> PodLine {
    let mut names: Vec<&str> = pod.instances.iter().map(|i| &*i.container).collect();
    names.sort_unstable();
    names.dedup();
    let current: Vec<&Instance> = names.iter().filter_map(|name| pod.newest(name)).collect();
    let ready = pod.ready_sandbox();
    let ip = ready.and_then(|s| s.ips.as_ref()?.first().map(ToString::to_string));
    let uid: &PodUid = &pod.uid;
    PodLine {
        namespace: pod.name.namespace.to_string(),
        name: pod.name.name.to_string(),
        uid: uid.to_string(),
        ready_sandbox: ready.is_some(),
        ip,
        running: current.iter().filter(|i| matches!(i.state, State::Running { .. })).count(),
        containers: current.len(),
        restarts: current.iter().map(|i| i.attempt).sum(),
        since: pod.newest_sandbox().map(|s| s.created),
    }
}

fn text(status: &Status, now: Timestamp) -> String {
    let state = |up: bool| if up { "running" } else { "not running" };
    let mut text = format!("agent {}, runtime {}\n", state(status.agent), state(status.runtime));
    if let Some(note) = &status.containerd {
        for line in [note.problem(now), note.recent_restart(now)].into_iter().flatten() {
            text.push_str(&format!("{}\n", printable(&line)));
        }
    }
    if let Some(node) = &status.node {
        text.push_str(&node.to_string());
    }
    for download in &status.pulling {
        let ImageDownload { image, total, rate, .. } = download;
        let (image, percent) = (printable(image), download.percent());
        let (total, rate) = (bytes(*total), bytes(*rate));
        text.push_str(&format!("pulling {image}: {percent}% of {total} at {rate}/s\n"));
    }
    if status.pods.is_empty() {
        // Pods keep running without their runtime, but only it knows them.
        let runs = status.runtime || !status.agent;
        text.push_str(if runs { "no pods\n" } else { "pods unknown until the runtime runs\n" });
        return text;
    }
    let mut rows =
        vec![["NAMESPACE", "NAME", "RUNNING", "RESTARTS", "IP", "AGE"].map(str::to_owned)];
    rows.extend(status.pods.iter().map(|pod| {
        let age = pod.since.map_or(0, |since| now.duration_since(since).as_secs().max(0));
        [
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{}/{}", pod.running, pod.containers),
            pod.restarts.to_string(),
            pod.ip.clone().unwrap_or_else(|| "-".into()),
            short_age(age),
        ]
    }));
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..6).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// `5s`, `3m`, `2h`, `4d`.
fn short_age(seconds: i64) -> String {
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{}m", s / 60),
        s if s < 172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_a_missing_ip_is_a_dash() {
        let pod = |name: &str, ip: Option<&str>| PodLine {
            namespace: "default".into(),
            name: name.into(),
            uid: "u".into(),
            ready_sandbox: ip.is_some(),
            ip: ip.map(Into::into),
            running: 1,
            containers: 2,
            restarts: 0,
            since: Some(Timestamp::UNIX_EPOCH),
        };
        let pods = vec![pod("a", Some("10.0.0.2")), pod("longer", None)];
        let now = Timestamp::from_second(300).unwrap();
        let pulling = vec![ImageDownload {
            image: "r.io/app".into(),
            done: 1_000_000,
            total: 4_000_000,
            rate: 1000,
        }];
        let status =
            Status { agent: true, runtime: true, containerd: None, node: None, pods, pulling };
        assert_eq!(
            text(&status, now),
            "agent running, runtime running\n\
             pulling r.io/app: 25% of 4.0 MB at 1.0 kB/s\n\
             NAMESPACE  NAME    RUNNING  RESTARTS  IP        AGE\n\
             default    a       1/2      0         10.0.0.2  5m\n\
             default    longer  1/2      0         -         5m\n"
        );
    }
}
