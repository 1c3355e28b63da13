//! Comparison of the kubelet server's pages while the recorded pod runs: upstream's fields and
//! series, and its values where they do not depend on the machine.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use podwright_e2e::netns::NODE_ADDRESS;
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::difference::{Difference, first};
use super::golden_node::GoldenNode;
use super::names::is_time;
use crate::privilege::{needs_root, skipped};

/// Settings of this test node that differ from the recording: its cgroups and disks are shared with
/// others, and its pages are readable without authorization.
const OWN_SETTINGS: [&str; 4] =
    ["cgroupRoot", "imageGCHighThresholdPercent", "authentication", "authorization"];

/// Intended differences; see `docs/differences.md`.
const INTENDED: [&str; 3] = [
    // The remainder below a limit, if there is no limit: upstream reports 0.
    ".pods[].containers[b].memory.availableBytes",
    // Values that upstream does not get from this runtime.
    ".pods[].network.",
    ".pods[].process_stats.",
];

#[tokio::test]
async fn server_pages_match_upstream() {
    needs_root!();
    let Some(golden) = std::env::var_os("PODWRIGHT_GOLDEN") else {
        return skipped("PODWRIGHT_GOLDEN is not set to a directory of recordings");
    };
    let recorded = Recorded::read(&Path::new(&golden).join("server")).unwrap();
    let golden_node = GoldenNode::start_with(recorded.configuration()).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(golden_node.client.clone());
    pods.create(&PostParams::default(), &recorded.posted().unwrap()).await.unwrap();
    // Disks are measured after the first request, a rate needs two samples, a probe its first
    // result.
    let alike = async || {
        let differences = recorded.compared(&golden_node).await?;
        let reported: String = differences.iter().map(Difference::to_string).collect();
        anyhow::ensure!(differences.is_empty(), "\n{reported}");
        Ok(true)
    };
    let seen = wait::until_true("the pages to be as recorded", super::LIMIT, alike).await;
    golden_node.close();
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
    fn read(directory: &Path) -> Result<Self> {
        let text = |name: &str| {
            std::fs::read_to_string(directory.join(name)).with_context(|| format!("reading {name}"))
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

    /// The applicable recorded settings, and a server without authorization.
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
        Ok(serde_json::from_str(applied.context("the recording has no applied pod")?)?)
    }

    async fn compared(&self, golden_node: &GoldenNode) -> Result<Vec<Difference>> {
        let json = async |path: &str| -> Result<Value> {
            Ok(serde_json::from_str(&golden_node.page(path).await?)?)
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
            fields.retain(|field| !is_intended(field));
            fields
        };
        let (want, ours) = (compared(&self.summary), compared(&summary));
        differences.extend(set_differences("/stats/summary", &want, &ours));
        for (path, want) in
            [("/metrics/resource", &self.resource), ("/metrics/probes", &self.probes)]
        {
            let ours = golden_node.page(path).await?;
            differences.extend(set_differences(path, &series(&text(want)), &series(&text(&ours))));
        }
        Ok(differences)
    }
}

fn is_intended(field: &str) -> bool {
    // Upstream did not find this runtime, and reports zeros for one at the default path.
    let pressure = field.starts_with(".pods[].containers[") && field.contains(".psi.");
    pressure || INTENDED.iter().any(|intended| field.starts_with(intended))
}

/// With ids, times and addresses replaced by names.
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

/// Without the fields that the API server and the client store in a pod.
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

/// Without settings of this test node; of paths only their presence is compared.
fn general(configz: &Value) -> Value {
    let mut configz = configz.clone();
    if let Some(settings) = configz["kubeletconfig"].as_object_mut() {
        settings.retain(|name, _| !OWN_SETTINGS.contains(&name.as_str()));
        // A bed sets a higher log verbosity.
        if let Some(logging) = settings.get_mut("logging").and_then(Value::as_object_mut) {
            logging.remove("verbosity");
        }
    }
    let is_path = |text: &str| text.starts_with('/') || text.contains("<") || text.contains("://");
    in_value(&configz, &|text| if is_path(text) { "<path>".into() } else { text.to_owned() })
}

/// Every field that has a value. List entries are identified by name, except links, which depend on
/// the machine.
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

/// Every line without its values, and whether it has a timestamp. Probes that failed before the
/// server listened depend on timing.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| {
        !line.is_empty() && !line.starts_with("# HELP") && !line.contains("result=\"failed\"")
    });
    let reported = |line: &str| {
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
    lines.map(reported).collect()
}

/// Entries that only one of two sets has.
fn set_differences(
    page: &str,
    recorded: &BTreeSet<String>,
    ours: &BTreeSet<String>,
) -> Vec<Difference> {
    let missing =
        recorded.difference(ours).map(|one| Difference::new(page, one, "there", "absent"));
    let extra = ours.difference(recorded).map(|one| Difference::new(page, one, "absent", "there"));
    missing.chain(extra).collect()
}
