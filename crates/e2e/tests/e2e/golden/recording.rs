//! Recording of a case: the posted objects, the patches, and the observed behaviour of upstream.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::names::Names;
use super::observation::{Call, Event, Observation};

pub(super) struct Recording {
    pub(super) name: String,
    pub(super) about: String,
    /// In the order in which they were posted; the pod is the last.
    pub(super) objects: Vec<Value>,
    pub(super) then: Vec<RecordedPatch>,
    pub(super) observation: Observation,
}

/// A patch that was applied while the pod ran.
pub(super) struct RecordedPatch {
    /// The subresource, such as `resize`; empty for the pod itself.
    pub(super) subresource: String,
    pub(super) patch: Value,
}

impl Recording {
    /// Every recording in a directory, by name.
    pub(super) fn all(directory: &Path) -> Result<Vec<Self>> {
        let directory = directory.join("pods");
        let entries = std::fs::read_dir(&directory);
        let mut paths: Vec<_> = entries
            .with_context(|| format!("no recordings in {}", directory.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("reading {}", path.display());
        let text = std::fs::read(path).with_context(cannot)?;
        let document: Value = serde_json::from_slice(&text).with_context(cannot)?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let then = list(&document["then"]).into_iter().map(|then| RecordedPatch {
            subresource: text(&then["sub"]).trim_start_matches('/').to_owned(),
            patch: then["body"].clone(),
        });
        Ok(Self {
            name: text(&document["case"]),
            about: text(&document["about"]),
            objects: list(&document["objects"]),
            then: then.collect(),
            observation: observation(&document),
        })
    }

    pub(super) fn pod(&self) -> Option<&Value> {
        self.objects.iter().find(|object| object["kind"] == "Pod")
    }

    /// Whether its resources were changed while it ran.
    pub(super) fn is_resized(&self) -> bool {
        self.then.iter().any(|then| then.subresource == "resize")
    }

    /// Whether its pod was a static pod.
    pub(super) fn is_static(&self) -> bool {
        self.observation.is_mirrored
    }
}

/// A pod without an assigned node was a static pod.
fn is_static(objects: &Value) -> bool {
    let mut objects = objects.as_array().into_iter().flatten();
    objects.any(|object| object["kind"] == "Pod" && object["spec"]["nodeName"].is_null())
}

fn observation(document: &Value) -> Observation {
    let calls = |list: &Value| -> Vec<Call> {
        let call = |call: &Value| Call {
            method: call["method"].as_str().unwrap_or_default().to_owned(),
            request: call["request"].clone(),
            error: call["error"].as_str().map(str::to_owned),
        };
        list.as_array().into_iter().flatten().map(call).collect()
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let deletion = &document["on_delete"];
    let events = list(&document["events"]);
    let cgroups = document["cgroups"].as_object().cloned().unwrap_or_default();
    let observation = Observation {
        calls: calls(&document["cri"]),
        transitions: list(&document["transitions"]),
        statuses: vec![document["status"].clone()],
        cgroups: cgroups.into_iter().collect(),
        deletion_calls: calls(&deletion["cri"]),
        deletion_transitions: list(&deletion["transitions"]),
        events: events.iter().map(Event::recorded).collect(),
        is_mirrored: is_static(&document["objects"]),
    };
    let names = Names::recorded(&observation);
    observation.renamed(&names)
}
