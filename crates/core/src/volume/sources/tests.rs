#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::builders::pod;

#[derive(Default)]
struct FakeObjects {
    config_maps: BTreeMap<String, v1::ConfigMap>,
    secrets: BTreeMap<String, v1::Secret>,
    token: Option<String>,
}

impl FakeObjects {
    fn config_map(mut self, name: &str, object: Value) -> Self {
        self.config_maps.insert(name.into(), serde_json::from_value(object).unwrap());
        self
    }

    fn secret(mut self, name: &str, key: &str, value: &str) -> Self {
        let data = BTreeMap::from([(key.to_owned(), ByteString(value.into()))]);
        let secret = v1::Secret { data: Some(data), ..v1::Secret::default() };
        self.secrets.insert(name.into(), secret);
        self
    }
}

impl Objects for FakeObjects {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        self.config_maps.get(name).map_or(Lookup::Missing, Lookup::Found)
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        self.secrets.get(name).map_or(Lookup::Missing, Lookup::Found)
    }

    fn token(&self, _: &token::TokenSpec) -> Result<&str, String> {
        self.token.as_deref().ok_or_else(|| "the server refused".to_owned())
    }
}

fn built_files(source: Value, known: &FakeObjects) -> Result<Vec<(String, String, u32)>, String> {
    let pod = pod("web")
        .edit(|pod| pod["metadata"]["labels"] = json!({"app": "web", "tier": "a\"b"}))
        .container_with("c", json!({"resources": {"limits": {"cpu": "1500m"}}}))
        .build();
    let mut volume = source;
    volume["name"] = json!("v");
    let volume = serde_json::from_value(volume).unwrap();
    let node = ResourceList::from([("memory".to_owned(), "4Gi".parse().unwrap())]);
    let payload = payload(&pod, &volume, &node, known).map_err(|error| error.to_string())?;
    let file = |(path, file): (&str, &File)| {
        (path.to_owned(), String::from_utf8_lossy(&file.bytes).into_owned(), file.mode)
    };
    Ok(payload.files().map(file).collect())
}

fn files(files: &[(&str, &str, u32)]) -> Result<Vec<(String, String, u32)>, String> {
    Ok(files.iter().map(|(p, t, m)| ((*p).to_owned(), (*t).to_owned(), *m)).collect())
}

#[test]
fn config_map_has_a_file_per_key_or_per_item() {
    let map = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"raw": "AAH/"}});
    let known = FakeObjects::default().config_map("m", map);
    assert_eq!(
        built_files(json!({"configMap": {"name": "m", "defaultMode": 0o440}}), &known),
        files(&[("a", "1", 0o440), ("b", "2", 0o440), ("raw", "\0\u{1}\u{fffd}", 0o440)])
    );
    let items =
        json!([{"key": "a", "path": "sub/a.txt", "mode": 0o600}, {"key": "b", "path": "b"}]);
    assert_eq!(
        built_files(json!({"configMap": {"name": "m", "items": items}}), &known),
        files(&[("b", "2", 0o644), ("sub/a.txt", "1", 0o600)])
    );
}

#[test]
fn missing_sources_have_upstreams_messages() {
    let known = FakeObjects::default().config_map("m", json!({})).secret("s", "k", "v");
    let item = json!([{"key": "zzz", "path": "z"}]);
    for (source, want) in [
        (json!({"configMap": {"name": "absent"}}), r#"configmap "absent" not found"#),
        (json!({"secret": {"secretName": "absent"}}), r#"secret "absent" not found"#),
        (
            json!({"configMap": {"name": "m", "items": item}}),
            "configmap references non-existent config key: zzz",
        ),
        (
            json!({"secret": {"secretName": "s", "items": item}}),
            "references non-existent secret key: zzz",
        ),
        (
            json!({"projected": {"sources": [
                {"configMap": {"name": "absent"}}, {"serviceAccountToken": {"path": "t"}}]}}),
            r#"[configmap "absent" not found, failed to fetch token: the server refused]"#,
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}]}}),
            "ClusterTrustBundle projection is not supported by this node",
        ),
        (
            json!({"downwardAPI": {"items": [
                {"path": "x", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            "unsupported fieldPath: spec.nodeName",
        ),
    ] {
        assert_eq!(built_files(source, &known), Err(want.to_owned()));
    }
}

#[test]
fn optional_objects_and_keys_may_be_missing() {
    let known = FakeObjects::default().secret("s", "k", "v");
    for source in [
        json!({"configMap": {"name": "absent", "optional": true}}),
        json!({"configMap": {"name": "absent", "optional": true,
            "items": [{"key": "a", "path": "a"}]}}),
        json!({"secret": {"secretName": "s", "optional": true,
            "items": [{"key": "zzz", "path": "z"}]}}),
        json!({"projected": {"sources": [{"secret": {"name": "absent", "optional": true}}]}}),
    ] {
        assert_eq!(built_files(source.clone(), &known), Ok(vec![]), "{source}");
    }
}

#[test]
fn projected_volume_has_all_sources_and_the_later_file_wins() {
    let known = FakeObjects { token: Some("jwt".into()), ..FakeObjects::default() }
        .config_map("m", json!({"data": {"same": "from the map", "a": "1"}}))
        .secret("s", "same", "from the secret");
    let source = json!({"projected": {"defaultMode": 0o640, "sources": [
        {"configMap": {"name": "m"}},
        {"secret": {"name": "s"}},
        {"serviceAccountToken": {"path": "token"}},
        {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o600},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu",
                "divisor": "1m"}},
            {"path": "memory", "resourceFieldRef": {"containerName": "c",
                "resource": "limits.memory", "divisor": "1Gi"}}]}},
    ]}});
    assert_eq!(
        built_files(source, &known),
        files(&[
            ("a", "1", 0o640),
            ("cpu", "1500", 0o640),
            ("labels", "app=\"web\"\ntier=\"a\\\"b\"", 0o600),
            ("memory", "4", 0o640),
            ("name", "web", 0o640),
            ("same", "from the secret", 0o640),
            ("token", "jwt", 0o640),
        ])
    );
}

#[test]
fn key_cannot_lead_out_of_the_volume() {
    let map = json!({"data": {"..": "x"}});
    let known = FakeObjects::default().config_map("m", map);
    let error = built_files(json!({"configMap": {"name": "m"}}), &known).unwrap_err();
    assert_eq!(error, "invalid path: must not contain '..': ..");
    let long = "p".repeat(5000);
    let items = json!([{"key": "..", "path": long}]);
    let error =
        built_files(json!({"configMap": {"name": "m", "items": items}}), &known).unwrap_err();
    assert_eq!(error, "invalid path: must be less than or equal to 4096 characters");
}

#[test]
fn one_megabyte_is_kept_whole() {
    let big = "x".repeat(1 << 20);
    let known = FakeObjects::default().config_map("m", json!({"data": {"big": big}}));
    let got = built_files(json!({"configMap": {"name": "m"}}), &known).unwrap();
    assert_eq!(got[0].1.len(), 1 << 20);
}

#[test]
fn volume_sources_are_listed_before_the_files_are_built() {
    let volume = json!({"name": "v", "projected": {"sources": [
        {"configMap": {"name": "m"}}, {"secret": {"name": "s"}},
        {"serviceAccountToken": {"path": "t", "audience": "x", "expirationSeconds": 600}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}});
    let pod = pod("p").container("c").build();
    let got = wanted(&pod, &serde_json::from_value(volume).unwrap());
    let names: Vec<_> = got.objects.iter().map(|(kind, name)| (kind.as_str(), &**name)).collect();
    assert_eq!(names, [("ConfigMap", "m"), ("Secret", "s")]);
    assert_eq!((got.tokens[0].seconds, got.tokens[0].audience.as_deref()), (600, Some("x")));
    assert!(!got.pod, "a name and a namespace stay the same");
    let labels = json!({"name": "v", "downwardAPI": {"items": [
        {"path": "l", "fieldRef": {"fieldPath": "metadata.labels['a']"}}]}});
    assert!(wanted(&pod, &serde_json::from_value(labels).unwrap()).pod);
}
