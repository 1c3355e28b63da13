//! A recording: what was posted, what was done to it, and upstream's account of it.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::account::{Account, Call, Event};
use super::names::Names;

pub(super) struct Recording {
    pub(super) name: String,
    pub(super) about: String,
    /// In the order in which they were posted; the pod is the last.
    pub(super) objects: Vec<Value>,
    pub(super) then: Vec<Then>,
    pub(super) account: Account,
}

/// A patch that was applied while the pod ran.
pub(super) struct Then {
    /// The subresource, such as `resize`; empty for the pod itself.
    pub(super) subresource: String,
    pub(super) patch: Value,
}

impl Recording {
    /// Every recording in a folder, by name.
    pub(super) fn all(folder: &Path) -> Result<Vec<Self>> {
        let folder = folder.join("pods");
        let entries = std::fs::read_dir(&folder);
        let mut paths: Vec<_> = entries
            .with_context(|| format!("no recordings in {}", folder.display()))?
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
        let then = list(&document["then"]).into_iter().map(|then| Then {
            subresource: text(&then["sub"]).trim_start_matches('/').to_owned(),
            patch: then["body"].clone(),
        });
        Ok(Self {
            name: text(&document["case"]),
            about: text(&document["about"]),
            objects: list(&document["objects"]),
            then: then.collect(),
            account: account(&document),
        })
    }

    pub(super) fn pod(&self) -> Option<&Value> {
        self.objects.iter().find(|object| object["kind"] == "Pod")
    }

    /// Whether its resources were changed while it ran.
    pub(super) fn is_resized(&self) -> bool {
        self.then.iter().any(|then| then.subresource == "resize")
    }

    /// Whether its pod was a file on the node.
    pub(super) fn is_static(&self) -> bool {
        self.account.is_mirrored
    }
}

/// A pod that nobody assigned was a file.
fn is_static(objects: &Value) -> bool {
    let mut objects = objects.as_array().into_iter().flatten();
    objects.any(|object| object["kind"] == "Pod" && object["spec"]["nodeName"].is_null())
}

fn account(document: &Value) -> Account {
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
    let account = Account {
        calls: calls(&document["cri"]),
        transitions: list(&document["transitions"]),
        statuses: vec![document["status"].clone()],
        cgroups: cgroups.into_iter().collect(),
        deletion_calls: calls(&deletion["cri"]),
        deletion_transitions: list(&deletion["transitions"]),
        events: events.iter().map(Event::recorded).collect(),
        is_mirrored: is_static(&document["objects"]),
    };
    let names = Names::recorded(&account);
    account.renamed(&names)
}
