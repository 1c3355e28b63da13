//! `podwright status`: summary of the node and its pods.
//!
//! The pods are those of the API server, with the figures that `kubectl get pods` prints and the
//! reason of each that is not well. While the API server does not respond, they are read from the
//! runtime, so that they are shown even when the agent is down.

pub(super) mod node;
pub(super) mod pod;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use podwright_core::ids::PodName;
use podwright_core::image::download::ImageDownload;
use podwright_core::observed::ObservedPod;
use podwright_core::time::Mono;
use podwright_cri::Client;
use podwright_node::server::debug_socket::PodReason;
use podwright_node::sources::problems::ManifestProblem;
use serde::Serialize;

use self::node::NodeLine;
use self::pod::PodLine;
use super::images::list::bytes;
use super::objects::Objects;
use super::why::agent::Agent as DebugSocket;
use super::why::page::manifest_text;
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
    /// Manifests that are not used as they are written.
    #[serde(rename = "manifests")]
    manifests: Vec<ManifestProblem>,
}

pub fn run(arguments: &StatusArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let status = service::runtime()?.block_on(read(&layout))?;
    let mut out = std::io::stdout();
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        Output::Text => write!(out, "{}", text(&status, Timestamp::now()))?,
    }
    Ok(())
}

async fn read(layout: &Layout) -> anyhow::Result<Status> {
    let now = Timestamp::now();
    let of_node = layout.record()?.map(|record| Runtime::of(layout, &record)).transpose()?;
    let mut runtime = match &of_node {
        Some(of_node) => of_node.is_up().await?,
        None => false,
    };
    let agent = Agent::of(layout).daemon().running()?.is_some();
    let objects = match agent {
        true => Objects::read(&layout.kubeconfig()).await.ok(),
        false => None,
    };
    let (mut reasons, mut manifests) = (Vec::<PodReason>::new(), Vec::new());
    // Best effort: an agent that is starting has no socket yet.
    if agent && let Ok(socket) = DebugSocket::find(&[layout.root_dir()]).await {
        reasons = socket.ask("/reasons").await.unwrap_or_default();
        manifests = socket.ask("/manifests").await.unwrap_or_default();
    }
    let node = objects.as_ref().and_then(Objects::node);
    let pods = match (&objects, &of_node) {
        (Some(objects), _) => pod::of_api(&objects.pods, &reasons, now),
        (None, Some(of_node)) if runtime => {
            match tokio::time::timeout(PODS_TIMEOUT, of_runtime(&of_node.client()?)).await {
                Ok(Ok(pods)) => pods.iter().map(|pod| pod::of_runtime(pod, now)).collect(),
                // It is hanging or starting: the agent says which.
                Ok(Err(_)) | Err(_) => {
                    runtime = false;
                    Vec::new()
                }
            }
        }
        (None, _) => Vec::new(),
    };
    let mut pulling = Vec::new();
    if runtime && let Some(of_node) = &of_node {
        let client = of_node.client()?;
        // Only containerd reports it.
        let downloads = tokio::time::timeout(DOWNLOADS_TIMEOUT, client.downloads()).await;
        pulling = downloads.ok().and_then(Result::ok).unwrap_or_default();
    }
    let containerd = agent.then(|| SupervisionNote::read(layout)).flatten();
    Ok(Status { agent, runtime, containerd, node, pods, pulling, manifests })
}

/// The newest pod of each name.
async fn of_runtime(client: &Client) -> anyhow::Result<Vec<ObservedPod>> {
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
    Ok(newest.into_values().collect())
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
        // Pods keep running without their runtime and API server, but only these know them.
        let known = status.runtime || !status.agent || status.node.is_some();
        text.push_str(if known { "no pods\n" } else { "pods unknown until the runtime runs\n" });
    } else {
        text.push_str(&table(&status.pods));
    }
    for manifest in &status.manifests {
        text.push_str(&format!("manifest {}\n", printable(&manifest_text(manifest))));
    }
    text
}

/// The pods, and below each that is not well its reason.
fn table(pods: &[PodLine]) -> String {
    let header = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"];
    let cells = |pod: &PodLine| {
        [
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{}/{}", pod.ready, pod.containers),
            printable(&pod.status).into_owned(),
            pod.restarts_text.clone(),
            pod.age.clone(),
            pod.ip.clone().unwrap_or_else(|| "<none>".into()),
        ]
    };
    let rows: Vec<[String; 7]> =
        std::iter::once(header.map(str::to_owned)).chain(pods.iter().map(cells)).collect();
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let reasons = std::iter::once(None).chain(pods.iter().map(|pod| pod.reason.as_deref()));
    let mut text = String::new();
    for (row, reason) in rows.iter().zip(reasons) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
        if let Some(reason) = reason {
            text.push_str(&format!("  {}\n", printable(reason)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use podwright_node::sources::problems::ManifestEffect;

    use super::*;

    #[test]
    fn columns_are_aligned_and_each_pod_that_is_not_well_has_its_reason() {
        let pod = |name: &str, ip: Option<&str>, status: &str, reason: Option<&str>| PodLine {
            namespace: "default".into(),
            name: name.into(),
            uid: "u".into(),
            ready_sandbox: ip.is_some(),
            ip: ip.map(Into::into),
            ready: 1,
            running: 1,
            containers: 2,
            status: status.into(),
            reason: reason.map(Into::into),
            restarts: 3,
            since: Some(Timestamp::UNIX_EPOCH),
            restarts_text: "3 (9s ago)".into(),
            age: "5m".into(),
        };
        let pods = vec![
            pod("a", Some("10.0.0.2"), "Running", None),
            pod("longer", None, "CrashLoopBackOff", Some("app: \u{1b}[2J back-off")),
        ];
        let manifests = vec![ManifestProblem {
            file: "/m/web.yaml".into(),
            line: Some(3),
            error: "no image".into(),
            effect: ManifestEffect::Ignored,
            since: Timestamp::UNIX_EPOCH,
        }];
        let pulling = vec![ImageDownload {
            image: "r.io/app".into(),
            done: 1_000_000,
            total: 4_000_000,
            rate: 1000,
        }];
        let (agent, runtime) = (true, true);
        let status =
            Status { agent, runtime, containerd: None, node: None, pods, pulling, manifests };
        assert_eq!(
            text(&status, Timestamp::UNIX_EPOCH),
            "agent running, runtime running\n\
             pulling r.io/app: 25% of 4.0 MB at 1.0 kB/s\n\
             NAMESPACE  NAME    READY  STATUS            RESTARTS    AGE  IP\n\
             default    a       1/2    Running           3 (9s ago)  5m   10.0.0.2\n\
             default    longer  1/2    CrashLoopBackOff  3 (9s ago)  5m   <none>\n  \
             app: \\u{1b}[2J back-off\n\
             manifest /m/web.yaml:3: no image; the manifest is ignored until it is fixed\n"
        );
    }
}
