//! Replay of a case: created, patched, awaited and deleted as in the recording.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Request;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use kube::api::{Api, ListParams};
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::difference::Difference;
use super::golden_node::{GoldenNode, NODE};
use super::observation::{Event, Observation, compare, transition};
use super::recording::{RecordedPatch, Recording};
use super::{calls, cgroups, intended};

/// Time limit for events and calls that are still in progress after the pod is gone.
const SETTLING: Duration = Duration::from_secs(60);

/// Replays a case and returns the differences from its recording.
pub(super) async fn replay_case(
    golden_node: &GoldenNode,
    recording: &Recording,
    limit: Duration,
) -> Vec<Difference> {
    match Replay::of(golden_node, recording, limit).await {
        Ok(replay) => replay.differences().await,
        Err(error) => {
            vec![Difference::new("performance", "", "as recorded", format!("{error:#}"))]
        }
    }
}

struct Replay<'a> {
    golden_node: &'a GoldenNode,
    recording: &'a Recording,
    /// Time limit of each wait.
    limit: Duration,
    /// Name of the pod in the API.
    name: String,
    /// UID of the pod on the node.
    uid: String,
    /// Number of calls and pages at the time of deletion.
    deleted_at: (usize, usize),
    cgroups: BTreeMap<String, Value>,
}

impl<'a> Replay<'a> {
    async fn of(
        golden_node: &'a GoldenNode,
        recording: &'a Recording,
        limit: Duration,
    ) -> Result<Self> {
        let (name, manifest) = post(golden_node, recording).await?;
        let mut uid = None;
        golden_node
            .history
            .until(&name, limit, |pages| {
                uid = pages.first().and_then(node_uid);
                uid.is_some()
            })
            .await;
        let uid = uid.context("the pod did not appear in the API")?;
        let cgroups = BTreeMap::new();
        let mut this =
            Self { golden_node, recording, limit, name, uid, deleted_at: (0, 0), cgroups };
        if !recording.then.is_empty() {
            this.until_ready().await?;
            this.read_cgroups();
            for then in &recording.then {
                this.patch(then).await?;
            }
        }
        this.until_the_end().await;
        if recording.then.is_empty() {
            this.read_cgroups();
        }
        this.delete(manifest).await?;
        Ok(this)
    }

    async fn until_ready(&self) -> Result<()> {
        let ready = |page: &Value| {
            let reported = transition(page);
            reported["conditions"]["ContainersReady"][0] == "True"
        };
        let seen =
            self.golden_node.history.until(&self.name, self.limit, |pages| pages.iter().any(ready));
        if !seen.await {
            bail!("containers did not become ready, pod not patched");
        }
        Ok(())
    }

    /// Waits until the end of the recording is reached: its last status was reported, its calls
    /// were made, its warnings were sent. Anything that does not occur is missing from the result.
    async fn until_the_end(&self) {
        let want = self.recording.observation.last_status();
        let mut read = 0;
        let reached = |pages: &[Value]| {
            let (calls, _, names) = self.golden_node.calls(&self.uid, usize::MAX, &ip_in(pages));
            if calls::exceed(&calls, &self.recording.observation.calls) {
                return true; // past the end; it does not return
            }
            let mut unread = pages.iter().skip(read);
            read = pages.len();
            unread.any(|page| intended::is_status(want, &names.in_value(&page["status"])))
        };
        if !self.golden_node.history.until(&self.name, self.limit, reached).await {
            return;
        }
        let recorded = &self.recording.observation;
        let complete = async || {
            let pages = self.golden_node.history.read(&self.name, <[_]>::to_vec);
            let (calls, _, names) = self.golden_node.calls(&self.uid, usize::MAX, &ip_in(&pages));
            let observation =
                Observation { calls, events: self.events().await?, ..Observation::default() };
            let ours = observation.renamed(&names);
            if calls::exceed(&ours.calls, &recorded.calls) {
                return Ok(true);
            }
            let calls = calls::compare("", &recorded.calls, &ours.calls).is_none();
            let mut warnings = recorded
                .events
                .difference(&ours.events)
                .filter(|event| event.kind == "Warning" && !intended::event_may_be_missing(event));
            Ok(calls && warnings.next().is_none())
        };
        // On timeout the comparison reports what is missing.
        let _ = wait::until_true("the recorded calls", self.limit, complete).await;
    }

    fn read_cgroups(&mut self) {
        let root = self.golden_node.agent.cgroup_root();
        self.cgroups = cgroups::of_pod(root, &self.uid);
    }

    async fn patch(&self, then: &RecordedPatch) -> Result<()> {
        let path = match then.subresource.as_str() {
            "" => format!("/api/v1/namespaces/default/pods/{}", self.name),
            subresource => format!("/api/v1/namespaces/default/pods/{}/{subresource}", self.name),
        };
        let request = Request::patch(path)
            .header("Content-Type", "application/strategic-merge-patch+json")
            .body(serde_json::to_vec(&then.patch)?)?;
        self.golden_node.client.request::<Value>(request).await.context("patching the pod")?;
        Ok(())
    }

    async fn delete(&mut self, manifest: Option<PathBuf>) -> Result<()> {
        let pages = self.golden_node.history.read(&self.name, <[_]>::len);
        self.deleted_at = (self.golden_node.count_calls(), pages);
        match manifest {
            Some(manifest) => std::fs::remove_file(manifest)?,
            None => {
                let path = format!("/api/v1/namespaces/default/pods/{}", self.name);
                let request = Request::delete(path).body(Vec::new())?;
                self.golden_node
                    .client
                    .request::<Value>(request)
                    .await
                    .context("deleting the pod")?;
            }
        }
        let gone = |pages: &[Value]| pages.last().is_some_and(|page| page["gone"] == true);
        self.golden_node.history.until(&self.name, self.limit, gone).await;
        Ok(())
    }

    /// Compares until there is no difference or nothing is in progress any more.
    async fn differences(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let agree = async || {
            found = compare(&self.recording.observation, &self.observation().await?);
            Ok(found.is_empty())
        };
        match wait::until_true("the accounts to agree", SETTLING, agree).await {
            Ok(()) => Vec::new(),
            Err(error) if found.is_empty() => {
                vec![Difference::new("account", "", "as recorded", format!("{error:#}"))]
            }
            Err(_) => found,
        }
    }

    async fn observation(&self) -> Result<Observation> {
        let pages = self.golden_node.history.read(&self.name, <[_]>::to_vec);
        let (calls, deletion_calls, names) =
            self.golden_node.calls(&self.uid, self.deleted_at.0, &ip_in(&pages));
        let (before, after) = pages.split_at(self.split(&pages));
        let transitions = |pages: &[Value]| {
            let mut reported: Vec<Value> = pages.iter().map(reported).collect();
            reported.dedup();
            reported
        };
        let observation = Observation {
            calls,
            transitions: transitions(self.up_to_last_status(before)),
            statuses: before.iter().map(|page| page["status"].clone()).collect(),
            cgroups: self.cgroups.clone(),
            deletion_calls,
            deletion_transitions: transitions(after),
            events: self.events().await?,
            is_mirrored: self.recording.is_static(),
        };
        Ok(observation.renamed(&names))
    }

    /// Index of the first page of the deletion: the first with a deletion timestamp or, for a
    /// static pod, the removal of its file.
    fn split(&self, pages: &[Value]) -> usize {
        if self.recording.is_static() {
            return self.deleted_at.1.min(pages.len());
        }
        let deleting =
            |page: &Value| page["gone"] == true || !page["metadata"]["deletionTimestamp"].is_null();
        pages.iter().position(deleting).unwrap_or(pages.len())
    }

    /// Truncates at the end of the recording; a crash loop continues.
    fn up_to_last_status<'p>(&self, pages: &'p [Value]) -> &'p [Value] {
        let want = self.recording.observation.last_status();
        let (_, _, names) = self.golden_node.calls(&self.uid, usize::MAX, &ip_in(pages));
        let is_last = |page: &Value| intended::is_status(want, &names.in_value(&page["status"]));
        let last = pages.iter().position(is_last);
        last.and_then(|last| pages.get(..=last)).unwrap_or(pages)
    }

    async fn events(&self) -> Result<BTreeSet<Event>> {
        let events: Api<ApiEvent> = Api::default_namespaced(self.golden_node.client.clone());
        let about = format!("involvedObject.name={}", self.name);
        let list = events.list(&ListParams::default().fields(&about)).await?;
        let events = list.items.iter().map(serde_json::to_value);
        let events: Vec<Value> = events.collect::<Result<_, _>>()?;
        Ok(events.iter().map(Event::in_api).collect())
    }
}

/// Creates the objects; returns the pod's name in the API, and the file if it is static.
async fn post(
    golden_node: &GoldenNode,
    recording: &Recording,
) -> Result<(String, Option<PathBuf>)> {
    let pod = recording.pod().context("the recording has no pod")?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if recording.is_static() {
        let file = golden_node.agent.add_manifest(&name, pod)?;
        return Ok((format!("{name}-{NODE}"), Some(file)));
    }
    for object in &recording.objects {
        let path = collection(object)?;
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(object)?)?;
        let kind = &object["kind"];
        golden_node
            .client
            .request::<Value>(request)
            .await
            .with_context(|| format!("posting {kind}"))?;
    }
    Ok((name, None))
}

/// API path for objects of this kind.
fn collection(object: &Value) -> Result<String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    Ok(match object["kind"].as_str().unwrap_or_default() {
        kind @ ("Pod" | "ConfigMap" | "Secret" | "ServiceAccount") => {
            format!("{root}/namespaces/default/{}s", kind.to_lowercase())
        }
        "RuntimeClass" => format!("{root}/runtimeclasses"),
        "PriorityClass" => format!("{root}/priorityclasses"),
        kind => bail!("no API path known for {kind}"),
    })
}

fn reported(page: &Value) -> Value {
    match page["gone"] == true {
        true => json!({ "gone": true }),
        false => transition(page),
    }
}

/// The UID on the node: for a static pod the hash of its manifest, not the mirror pod's UID.
fn node_uid(page: &Value) -> Option<String> {
    let hash = &page["metadata"]["annotations"]["kubernetes.io/config.hash"];
    let uid = hash.as_str().or_else(|| page["metadata"]["uid"].as_str());
    uid.map(str::to_owned)
}

/// The pod's IP address, if it had one.
fn ip_in(pages: &[Value]) -> String {
    let own = |page: &Value| {
        let ip = page["status"]["podIP"].as_str()?;
        (page["spec"]["hostNetwork"] != true).then(|| ip.to_owned())
    };
    pages.iter().rev().find_map(own).unwrap_or_default()
}
