//! The pages of the kubelet server while the recorded pod runs: upstream's fields and series, and
//! its values wherever they are not the machine's.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use podwright_e2e::netns::NODE_ADDRESS;
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::difference::{Difference, first};
use super::names::is_time;
use super::stage::Stage;
use crate::privilege::{needs_root, skipped};

/// Settings of this stage that are not the recording's: its cgroups and disks are shared with
/// others, and everybody may read its pages.
const OWN_SETTINGS: [&str; 4] =
    ["cgroupRoot", "imageGCHighThresholdPercent", "authentication", "authorization"];

/// Where ours means to differ; `docs/differences.md` says why.
const MEANT: [&str; 3] = [
    // What is left below a limit, where there is none: upstream says 0.
    ".pods[].containers[b].memory.availableBytes",
    // Of what upstream does not learn from this runtime.
    ".pods[].network.",
    ".pods[].process_stats.",
];

#[tokio::test]
async fn the_server_shows_what_upstreams_shows() {
    needs_root!();
    let Some(golden) = std::env::var_os("PODWRIGHT_GOLDEN") else {
        return skipped("PODWRIGHT_GOLDEN names no folder of recordings");
    };
    let recorded = Recorded::read(&Path::new(&golden).join("server")).unwrap();
    let stage = Stage::set_with(recorded.configuration()).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(stage.client.clone());
    pods.create(&PostParams::default(), &recorded.posted().unwrap()).await.unwrap();
    // Disks are measured beside the first question, a rate needs two, a probe its first answer.
    let alike = async || {
        let differences = recorded.compared(&stage).await?;
        let told: String = differences.iter().map(Difference::to_string).collect();
        anyhow::ensure!(differences.is_empty(), "\n{told}");
        Ok(true)
    };
    let seen = wait::until_true("the pages to be as recorded", super::PATIENCE, alike).await;
    stage.strike();
    seen.unwrap();
}

struct Recorded {
    pods: Value,
    running: Value,
    configz: Value,
    summary: Value,
    resource: String,
    probes: String,
}

impl Recorded {
    fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            std::fs::read_to_string(folder.join(name)).with_context(|| format!("reading {name}"))
        };
        let json = |name: &str| Ok::<Value, anyhow::Error>(serde_json::from_str(&text(name)?)?);
        Ok(Self {
            pods: json("pods.json")?,
            running: json("runningpods.json")?,
            configz: json("configz.json")?,
            summary: json("stats-summary.json")?,
            resource: text("metrics-resource.txt")?,
            probes: text("metrics-probes.txt")?,
        })
    }

    /// The recorded settings that can be ours, and a server that lets everybody in.
    fn configuration(&self) -> Value {
        let mut settings = self.configz["kubeletconfig"].clone();
        if let Some(settings) = settings.as_object_mut() {
            settings.retain(|name, value| {
                !OWN_SETTINGS.contains(&name.as_str()) && !value.to_string().contains('<')
            });
            settings.insert("authentication".into(), json!({ "anonymous": { "enabled": true } }));
            settings.insert("authorization".into(), json!({ "mode": "AlwaysAllow" }));
        }
        settings
    }

    /// The pod as it was applied.
    fn posted(&self) -> Result<Pod> {
        let applied = "kubectl.kubernetes.io/last-applied-configuration";
        let applied = self.pods["items"][0]["metadata"]["annotations"][applied].as_str();
        Ok(serde_json::from_str(applied.context("the recording does not say what was applied")?)?)
    }

    async fn compared(&self, stage: &Stage) -> Result<Vec<Difference>> {
        let json = async |path: &str| -> Result<Value> {
            Ok(serde_json::from_str(&stage.page(path).await?)?)
        };
        let pods = json("/pods").await?;
        let item = &pods["items"][0];
        let place = [&item["metadata"]["uid"], &item["status"]["podIP"]];
        let [uid, ip] = place.map(|value| value.as_str().unwrap_or_default());
        let place = [(uid, "<uid>"), (ip, "<podIP>"), (&NODE_ADDRESS.to_string(), "<nodeIP>")];
        let text = |text: &str| in_text(text, &place);
        let value = |value: &Value| in_value(value, &text);

        let (running, settings) = (json("/runningpods/").await?, json("/configz").await?);
        let differences = [
            first("/pods", &of_the_node(value(&self.pods)), &of_the_node(value(&pods))),
            first("/runningpods/", &sorted(value(&self.running)), &sorted(value(&running))),
            first("/configz", &general(&self.configz), &general(&settings)),
        ];
        let mut differences: Vec<Difference> = differences.into_iter().flatten().collect();
        let summary = json("/stats/summary").await?;
        let compared = |summary: &Value| {
            let mut fields = fields(&value(summary));
            fields.retain(|field| !is_meant(field));
            fields
        };
        let (want, ours) = (compared(&self.summary), compared(&summary));
        differences.extend(apart("/stats/summary", &want, &ours));
        for (path, want) in
            [("/metrics/resource", &self.resource), ("/metrics/probes", &self.probes)]
        {
            let ours = stage.page(path).await?;
            differences.extend(apart(path, &series(&text(want)), &series(&text(&ours))));
        }
        Ok(differences)
    }
}

fn is_meant(field: &str) -> bool {
    // Upstream did not find this runtime, and has zeros for one at its usual place.
    let pressure = field.starts_with(".pods[].containers[") && field.contains(".psi.");
    pressure || MEANT.iter().any(|meant| field.starts_with(meant))
}

/// With ids, times and addresses called by what they are.
fn in_text(text: &str, place: &[(&str, &str)]) -> String {
    if is_time(text) {
        return "<time>".into();
    }
    let mut text = text.to_owned();
    for (from, to) in place.iter().filter(|(from, _)| !from.is_empty()) {
        text = text.replace(from, to);
    }
    for (start, random) in
        [("sha256:", "<id>"), ("containerd://", "<id>"), ("kube-api-access-", "<rand>")]
    {
        if text.starts_with(start) {
            return format!("{start}{random}");
        }
    }
    text
}

fn in_value(value: &Value, rename: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(rename(text)),
        Value::Array(list) => list.iter().map(|value| in_value(value, rename)).collect(),
        Value::Object(object) => {
            let fields = object.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name.clone(), in_value(value, rename))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Without what the API server and the client keep in a pod.
fn of_the_node(mut list: Value) -> Value {
    for metadata in items(&mut list).filter_map(|pod| pod["metadata"].as_object_mut()) {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| name.starts_with("kubernetes.io/config."));
        }
    }
    list
}

/// The runtime lists containers in any order.
fn sorted(mut list: Value) -> Value {
    let containers = items(&mut list).filter_map(|pod| pod["spec"]["containers"].as_array_mut());
    for containers in containers {
        containers.sort_by_key(|container| container["name"].to_string());
    }
    list
}

fn items(list: &mut Value) -> impl Iterator<Item = &mut Value> {
    list["items"].as_array_mut().into_iter().flatten()
}

/// Without what is this stage's own; of paths only that they are there.
fn general(configz: &Value) -> Value {
    let mut configz = configz.clone();
    if let Some(settings) = configz["kubeletconfig"].as_object_mut() {
        settings.retain(|name, _| !OWN_SETTINGS.contains(&name.as_str()));
        // A bed wants to read more.
        if let Some(logging) = settings.get_mut("logging").and_then(Value::as_object_mut) {
            logging.remove("verbosity");
        }
    }
    let is_path = |text: &str| text.starts_with('/') || text.contains("<") || text.contains("://");
    in_value(&configz, &|text| if is_path(text) { "<path>".into() } else { text.to_owned() })
}

/// Every field that has a value. What has a name is told apart by it, but for links: those are the
/// machine's.
fn fields(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![(String::new(), value)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(object) => {
                open.extend(object.iter().map(|(name, value)| (format!("{path}.{name}"), value)));
            }
            Value::Array(list) => open.extend(list.iter().map(|item| {
                let name = item["name"].as_str().filter(|_| !path.ends_with("interfaces"));
                (format!("{path}[{}]", name.unwrap_or_default()), item)
            })),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                found.insert(path);
            }
        }
    }
    found
}

/// Every line without its figures, and whether it tells when it was measured. Probes that failed
/// before the server listened are chance.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| {
        !line.is_empty() && !line.starts_with("# HELP") && !line.contains("result=\"failed\"")
    });
    let told = |line: &str| {
        if line.starts_with('#') {
            return line.to_owned();
        }
        let end = line.rfind('}').map_or(0, |end| end + 1);
        let (labels, rest) = line.split_at(end);
        let mut words = rest.split_whitespace();
        let name = if labels.is_empty() { words.next().unwrap_or_default() } else { labels };
        let timed = if words.count() > 1 { " at a time" } else { "" };
        format!("{name}{timed}")
    };
    lines.map(told).collect()
}

/// What only one of two sets has.
fn apart(page: &str, recorded: &BTreeSet<String>, ours: &BTreeSet<String>) -> Vec<Difference> {
    let missing =
        recorded.difference(ours).map(|one| Difference::new(page, one, "there", "absent"));
    let extra = ours.difference(recorded).map(|one| Difference::new(page, one, "absent", "there"));
    missing.chain(extra).collect()
}
