//! A case performed: posted, patched, waited for and deleted, as it was when it was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Request;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use kube::api::{Api, ListParams};
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::account::{Account, Event, compare, transition};
use super::difference::Difference;
use super::recording::{Recording, Then};
use super::stage::{NODE, Stage};
use super::{calls, cgroups, meant};

/// How long events and calls may be under way after the pod is gone.
const SETTLING: Duration = Duration::from_secs(60);

/// Performs a case and says where it differs from its recording.
pub(super) async fn perform(
    stage: &Stage,
    recording: &Recording,
    patience: Duration,
) -> Vec<Difference> {
    match Performance::of(stage, recording, patience).await {
        Ok(performance) => performance.judged().await,
        Err(error) => {
            vec![Difference::new("performance", "", "as recorded", format!("{error:#}"))]
        }
    }
}

struct Performance<'a> {
    stage: &'a Stage,
    recording: &'a Recording,
    /// How long to wait for any one thing.
    patience: Duration,
    /// As the API calls it.
    name: String,
    /// As the node calls it.
    uid: String,
    /// How many calls and pages there were when it was deleted.
    deleted_at: (usize, usize),
    cgroups: BTreeMap<String, Value>,
}

impl<'a> Performance<'a> {
    async fn of(stage: &'a Stage, recording: &'a Recording, patience: Duration) -> Result<Self> {
        let (name, manifest) = post(stage, recording).await?;
        let mut uid = None;
        stage
            .chronicle
            .until(&name, patience, |pages| {
                uid = pages.first().and_then(node_uid);
                uid.is_some()
            })
            .await;
        let uid = uid.context("the API never showed it")?;
        let cgroups = BTreeMap::new();
        let mut this = Self { stage, recording, patience, name, uid, deleted_at: (0, 0), cgroups };
        if !recording.then.is_empty() {
            this.until_ready().await?;
            this.look_at_cgroups();
            for then in &recording.then {
                this.patch(then).await?;
            }
        }
        this.until_the_end().await;
        if recording.then.is_empty() {
            this.look_at_cgroups();
        }
        this.delete(manifest).await?;
        Ok(this)
    }

    async fn until_ready(&self) -> Result<()> {
        let ready = |page: &Value| {
            let told = transition(page);
            told["conditions"]["ContainersReady"][0] == "True"
        };
        let seen =
            self.stage.chronicle.until(&self.name, self.patience, |pages| pages.iter().any(ready));
        if !seen.await {
            bail!("its containers did not become ready, so it was not patched");
        }
        Ok(())
    }

    /// Waits until the recording's end is reached: its last status was shown, its calls were made,
    /// its warnings told. What does not come is missing from the account.
    async fn until_the_end(&self) {
        let want = self.recording.account.last_status();
        let mut read = 0;
        let reached = |pages: &[Value]| {
            let (calls, _, names) = self.stage.calls(&self.uid, usize::MAX, &ip_in(pages));
            if calls::outnumber(&calls, &self.recording.account.calls) {
                return true; // it went past the end, and that will not come back
            }
            let mut news = pages.iter().skip(read);
            read = pages.len();
            news.any(|page| meant::is_status(want, &names.in_value(&page["status"])))
        };
        if !self.stage.chronicle.until(&self.name, self.patience, reached).await {
            return;
        }
        let recorded = &self.recording.account;
        let complete = async || {
            let pages = self.stage.chronicle.read(&self.name, <[_]>::to_vec);
            let (calls, _, names) = self.stage.calls(&self.uid, usize::MAX, &ip_in(&pages));
            let account = Account { calls, events: self.events().await?, ..Account::default() };
            let ours = account.renamed(&names);
            if calls::outnumber(&ours.calls, &recorded.calls) {
                return Ok(true);
            }
            let calls = calls::compare("", &recorded.calls, &ours.calls).is_none();
            let mut warnings = recorded
                .events
                .difference(&ours.events)
                .filter(|event| event.kind == "Warning" && !meant::event_may_lack(event));
            Ok(calls && warnings.next().is_none())
        };
        // If it never is, the comparison says what is missing.
        let _ = wait::until_true("the recorded calls", self.patience, complete).await;
    }

    fn look_at_cgroups(&mut self) {
        let root = self.stage.agent.cgroup_root();
        self.cgroups = cgroups::of_pod(root, &self.uid);
    }

    async fn patch(&self, then: &Then) -> Result<()> {
        let path = match then.subresource.as_str() {
            "" => format!("/api/v1/namespaces/default/pods/{}", self.name),
            subresource => format!("/api/v1/namespaces/default/pods/{}/{subresource}", self.name),
        };
        let request = Request::patch(path)
            .header("Content-Type", "application/strategic-merge-patch+json")
            .body(serde_json::to_vec(&then.patch)?)?;
        self.stage.client.request::<Value>(request).await.context("patching it")?;
        Ok(())
    }

    async fn delete(&mut self, manifest: Option<PathBuf>) -> Result<()> {
        let pages = self.stage.chronicle.read(&self.name, <[_]>::len);
        self.deleted_at = (self.stage.count_calls(), pages);
        match manifest {
            Some(manifest) => std::fs::remove_file(manifest)?,
            None => {
                let path = format!("/api/v1/namespaces/default/pods/{}", self.name);
                let request = Request::delete(path).body(Vec::new())?;
                self.stage.client.request::<Value>(request).await.context("deleting it")?;
            }
        }
        let gone = |pages: &[Value]| pages.last().is_some_and(|page| page["gone"] == true);
        self.stage.chronicle.until(&self.name, self.patience, gone).await;
        Ok(())
    }

    /// Compares until nothing differs or nothing can still be on its way.
    async fn judged(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let agree = async || {
            found = compare(&self.recording.account, &self.account().await?);
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

    async fn account(&self) -> Result<Account> {
        let pages = self.stage.chronicle.read(&self.name, <[_]>::to_vec);
        let (calls, deletion_calls, names) =
            self.stage.calls(&self.uid, self.deleted_at.0, &ip_in(&pages));
        let (before, after) = pages.split_at(self.split(&pages));
        let transitions = |pages: &[Value]| {
            let mut told: Vec<Value> = pages.iter().map(told).collect();
            told.dedup();
            told
        };
        let account = Account {
            calls,
            transitions: transitions(self.up_to_last_status(before)),
            statuses: before.iter().map(|page| page["status"].clone()).collect(),
            cgroups: self.cgroups.clone(),
            deletion_calls,
            deletion_transitions: transitions(after),
            events: self.events().await?,
            is_mirrored: self.recording.is_static(),
        };
        Ok(account.renamed(&names))
    }

    /// Where the deletion begins among the pages: with the first that says so, or, of a static
    /// pod, with the removal of its file.
    fn split(&self, pages: &[Value]) -> usize {
        if self.recording.is_static() {
            return self.deleted_at.1.min(pages.len());
        }
        let deleting =
            |page: &Value| page["gone"] == true || !page["metadata"]["deletionTimestamp"].is_null();
        pages.iter().position(deleting).unwrap_or(pages.len())
    }

    /// The story ends where the recording ends; a crash loop goes on.
    fn up_to_last_status<'p>(&self, pages: &'p [Value]) -> &'p [Value] {
        let want = self.recording.account.last_status();
        let (_, _, names) = self.stage.calls(&self.uid, usize::MAX, &ip_in(pages));
        let is_last = |page: &Value| meant::is_status(want, &names.in_value(&page["status"]));
        let last = pages.iter().position(is_last);
        last.and_then(|last| pages.get(..=last)).unwrap_or(pages)
    }

    async fn events(&self) -> Result<BTreeSet<Event>> {
        let events: Api<ApiEvent> = Api::default_namespaced(self.stage.client.clone());
        let about = format!("involvedObject.name={}", self.name);
        let list = events.list(&ListParams::default().fields(&about)).await?;
        let events = list.items.iter().map(serde_json::to_value);
        let events: Vec<Value> = events.collect::<Result<_, _>>()?;
        Ok(events.iter().map(Event::in_api).collect())
    }
}

/// Posts the objects; returns what the API calls the pod, and the file if it is static.
async fn post(stage: &Stage, recording: &Recording) -> Result<(String, Option<PathBuf>)> {
    let pod = recording.pod().context("the recording has no pod")?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if recording.is_static() {
        let file = stage.agent.add_manifest(&name, pod)?;
        return Ok((format!("{name}-{NODE}"), Some(file)));
    }
    for object in &recording.objects {
        let path = collection(object)?;
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(object)?)?;
        let kind = &object["kind"];
        stage.client.request::<Value>(request).await.with_context(|| format!("posting {kind}"))?;
    }
    Ok((name, None))
}

/// Where objects of this kind are posted.
fn collection(object: &Value) -> Result<String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    Ok(match object["kind"].as_str().unwrap_or_default() {
        kind @ ("Pod" | "ConfigMap" | "Secret" | "ServiceAccount") => {
            format!("{root}/namespaces/default/{}s", kind.to_lowercase())
        }
        "RuntimeClass" => format!("{root}/runtimeclasses"),
        "PriorityClass" => format!("{root}/priorityclasses"),
        kind => bail!("nobody knows where to post a {kind}"),
    })
}

fn told(page: &Value) -> Value {
    match page["gone"] == true {
        true => json!({ "gone": true }),
        false => transition(page),
    }
}

/// The UID on the node: that of a static pod is the hash of its manifest, not its mirror's.
fn node_uid(page: &Value) -> Option<String> {
    let hash = &page["metadata"]["annotations"]["kubernetes.io/config.hash"];
    let uid = hash.as_str().or_else(|| page["metadata"]["uid"].as_str());
    uid.map(str::to_owned)
}

/// The pod's own address, if it had one.
fn ip_in(pages: &[Value]) -> String {
    let own = |page: &Value| {
        let ip = page["status"]["podIP"].as_str()?;
        (page["spec"]["hostNetwork"] != true).then(|| ip.to_owned())
    };
    pages.iter().rev().find_map(own).unwrap_or_default()
}
