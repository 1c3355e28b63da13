//! Names shared by both sides: an id is replaced by what it identifies, so that neither the order
//! of calls nor the machine affects the comparison.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::observation::{Call, Observation};

/// Replacements, longest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Vec<(String, String)>);

impl Names {
    /// Of a recording, whose ids are `<id0>`, `<id1>` … in order of appearance. The responses to
    /// its calls are not recorded: a container's id is the next one that is started.
    pub(super) fn recorded(observation: &Observation) -> Self {
        let mut names = Ids::default();
        let mut created = Vec::new();
        for call in observation.calls.iter().chain(&observation.deletion_calls) {
            let sandbox = call.request["pod_sandbox_id"].as_str().unwrap_or_default();
            let container = call.request["container_id"].as_str().unwrap_or_default();
            names.sandbox(sandbox);
            if call.method == "CreateContainer" {
                names.image(call);
                created.push(container_name(call));
            } else if call.method == "StartContainer"
                && !created.is_empty()
                && !names.0.contains_key(container)
            {
                names.0.insert(container.to_owned(), created.remove(0));
            }
        }
        Self::new(names.0)
    }

    /// Of our agent: from calls with the ids in their responses, and other values of our machine.
    pub(super) fn ours<'a>(
        calls: impl IntoIterator<Item = (&'a Call, Option<&'a str>)>,
        place: BTreeMap<String, String>,
    ) -> Self {
        let mut names = Ids(place);
        for (call, id) in calls {
            match (call.method.as_str(), id) {
                ("RunPodSandbox", Some(id)) => names.sandbox(id),
                ("CreateContainer", Some(id)) => {
                    names.image(call);
                    names.0.insert(id.to_owned(), container_name(call));
                }
                _ => {}
            }
        }
        Self::new(names.0)
    }

    fn new(names: BTreeMap<String, String>) -> Self {
        let mut names: Vec<_> = names.into_iter().filter(|(from, _)| !from.is_empty()).collect();
        names.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Self(names)
    }

    pub(super) fn in_text(&self, text: &str) -> String {
        if is_time(text) {
            return "<time>".into();
        }
        let mut text = text.to_owned();
        for (from, to) in &self.0 {
            text = text.replace(from, to);
        }
        without_random_suffix(text)
    }

    /// In every string of a value; null fields are removed, because absent and null are equivalent.
    pub(super) fn in_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.in_text(text)),
            Value::Array(list) => list.iter().map(|value| self.in_value(value)).collect(),
            Value::Object(object) => object
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(field, value)| (field.clone(), self.in_value(value)))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

/// Ids and their names.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    fn sandbox(&mut self, id: &str) {
        let known = self.0.values().filter(|name| name.starts_with("<sandbox")).count();
        if !id.is_empty() && !self.0.contains_key(id) {
            self.0.insert(id.to_owned(), format!("<sandbox {known}>"));
        }
    }

    fn image(&mut self, call: &Call) {
        let image = call.request["config"]["image"]["image"].as_str().unwrap_or_default();
        if let Some(digest) = image.strip_prefix("sha256:") {
            self.0.insert(digest.to_owned(), "<image>".into());
        }
    }
}

fn container_name(call: &Call) -> String {
    let metadata = &call.request["config"]["metadata"];
    let attempt = metadata["attempt"].as_u64().unwrap_or(0);
    format!("<{} {attempt}>", metadata["name"].as_str().unwrap_or_default())
}

pub(super) fn is_time(text: &str) -> bool {
    text.len() >= "2026-01-01T00:00:00Z".len() && text.parse::<Timestamp>().is_ok()
}

/// Names with a random suffix: the file of a termination message, and the volume of a
/// ServiceAccount token.
fn without_random_suffix(text: String) -> String {
    if let Some((head, _)) = text.rsplit_once("kube-api-access-") {
        return format!("{head}kube-api-access-<rand>");
    }
    let directories: Vec<&str> = text.split('/').collect();
    match directories.as_slice() {
        ["<root>", "pods", _, "containers", _, _] => {
            let head = directories.get(..5).unwrap_or_default().join("/");
            format!("{head}/<rand>")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn random_suffixes_and_times_are_replaced() {
        let names = Names::new([("abc".into(), "<c 0>".into())].into());
        for (text, want) in [
            ("<root>/pods/<uid>/containers/c/1f2e3d4c", "<root>/pods/<uid>/containers/c/<rand>"),
            ("<root>/pods/<uid>/etc-hosts", "<root>/pods/<uid>/etc-hosts"),
            ("kube-api-access-x2c4d", "kube-api-access-<rand>"),
            ("2026-11-16T00:02:18Z", "<time>"),
            ("2026-11-16T00:02:18.123456789Z", "<time>"),
            ("containerd://abc", "containerd://<c 0>"),
            ("5", "5"),
        ] {
            assert_eq!(names.in_text(text), want);
        }
        assert_eq!(names.in_value(&json!({"a": null, "b": ["abc"]})), json!({"b": ["<c 0>"]}));
    }
}
