//! Discovery: groups, versions, resources and verbs. Kinds that are not served have no verbs, see
//! [`crate::unserved`].

use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::registry::{RESOURCES, Resource, Subresource, Verb, group_version};
use crate::unserved::{UNSERVED, UnservedKind};

/// The Kubernetes release of this API.
pub const KUBERNETES_MINOR: &str = "36";
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// `/api`
pub fn core_versions(service: Option<SocketAddr>) -> Value {
    let address = service.map_or_else(|| "localhost".to_owned(), |service| service.to_string());
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`
pub fn groups() -> Value {
    let groups: Vec<Group> =
        served_groups().into_iter().map(|name| Group::new(name, false)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`
pub fn group(name: &'static str) -> Value {
    json!(Group::new(name, true))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    name: &'static str,
    versions: [GroupVersion; 1],
    preferred_version: GroupVersion,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: &'static str,
}

impl Group {
    /// Every group has one version here.
    fn new(name: &'static str, alone: bool) -> Self {
        let version = version_of(name);
        let entry = GroupVersion { group_version: group_version(name, version), version };
        Self {
            kind: alone.then_some("APIGroup"),
            api_version: alone.then_some("v1"),
            name,
            versions: [entry.clone()],
            preferred_version: entry,
        }
    }
}

fn version_of(group: &str) -> &'static str {
    let served = RESOURCES.iter().map(|resource| (resource.group, resource.version));
    let mut known = served.chain(UNSERVED.iter().map(|kind| (kind.group, kind.version)));
    known.find(|(name, _)| *name == group).map_or("v1", |(_, version)| version)
}

/// All groups but the core group, in the order of the table.
fn served_groups() -> Vec<&'static str> {
    let mut groups = Vec::new();
    let served = RESOURCES.iter().map(|resource| resource.group);
    for group in served.chain(UNSERVED.iter().map(|kind| kind.group)) {
        if !group.is_empty() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// `/api/v1`, `/apis/{group}/{version}`
pub fn resources(group: &str, version: &str) -> Value {
    let resources: Vec<Entry> = in_group(group, version)
        .flat_map(|resource| {
            let parts = resource.subresources.iter().map(|sub| Entry::part(resource, sub));
            std::iter::once(Entry::whole(resource)).chain(parts)
        })
        .chain(unserved_in(group, version).map(Entry::unserved))
        .collect();
    json!(ResourceList {
        kind: "APIResourceList",
        // The list of the core group has no `apiVersion`.
        api_version: (!group.is_empty()).then_some("v1"),
        group_version: group_version(group, version),
        resources,
    })
}

fn in_group<'a>(group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Resource> + 'a {
    let same = move |resource: &&Resource| resource.group == group && resource.version == version;
    RESOURCES.iter().copied().filter(same)
}

fn unserved_in<'a>(
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'static UnservedKind> + 'a {
    UNSERVED.iter().filter(move |kind| kind.group == group && kind.version == version)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    group_version: String,
    resources: Vec<Entry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    singular_name: &'static str,
    namespaced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    kind: &'static str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'static [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'static [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_version_hash: Option<String>,
}

impl Entry {
    fn whole(resource: &Resource) -> Self {
        Self {
            name: resource.plural.to_owned(),
            singular_name: resource.singular,
            namespaced: resource.namespaced,
            group: None,
            version: None,
            kind: resource.kind,
            verbs: names(resource.verbs),
            short_names: resource.short_names,
            categories: resource.categories,
            storage_version_hash: (!resource.storage.is_empty()).then(|| storage_hash(resource)),
        }
    }

    fn unserved(kind: &UnservedKind) -> Self {
        Self {
            name: kind.plural.to_owned(),
            singular_name: kind.singular,
            namespaced: kind.namespaced,
            group: None,
            version: None,
            kind: kind.kind,
            verbs: Vec::new(),
            short_names: kind.short_names,
            categories: &[],
            storage_version_hash: None,
        }
    }

    fn part(resource: &Resource, sub: &Subresource) -> Self {
        Self {
            name: format!("{}/{}", resource.plural, sub.name),
            singular_name: "",
            namespaced: resource.namespaced,
            group: sub.group_version.map(|(group, _)| group),
            version: sub.group_version.map(|(_, version)| version),
            kind: sub.kind,
            verbs: names(sub.verbs),
            short_names: &[],
            categories: &[],
            storage_version_hash: None,
        }
    }
}

fn names(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.as_str()).collect()
}

/// Changes when the stored form of a kind changes. Both event groups are stored alike.
fn storage_hash(resource: &Resource) -> String {
    let group = if resource.storage == "events" { "" } else { resource.group };
    let digest = Sha256::digest(format!("{group}/{}/{}", resource.version, resource.kind));
    BASE64_STANDARD.encode(digest.get(..8).unwrap_or_default())
}

/// Everything below `/api` or `/apis` in one document.
pub fn aggregated(core: bool) -> Value {
    let groups: Vec<&str> = if core { vec![""] } else { served_groups() };
    let items: Vec<Value> = groups.into_iter().map(aggregated_group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(group: &str) -> Value {
    let version = version_of(group);
    let served = in_group(group, version).map(Aggregated::new);
    let unserved = unserved_in(group, version).map(Aggregated::unserved);
    let resources: Vec<Aggregated> = served.chain(unserved).collect();
    let metadata = match group {
        "" => json!({"creationTimestamp": null}),
        name => json!({"name": name, "creationTimestamp": null}),
    };
    json!({
        "metadata": metadata,
        "versions": [{"version": version, "resources": resources, "freshness": "Current"}],
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Aggregated {
    resource: &'static str,
    response_kind: ResponseKind,
    scope: &'static str,
    singular_resource: &'static str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'static [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'static [&'static str],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<AggregatedPart>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedPart {
    subresource: &'static str,
    response_kind: ResponseKind,
    verbs: Vec<&'static str>,
}

#[derive(Serialize)]
struct ResponseKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

impl Aggregated {
    fn unserved(kind: &UnservedKind) -> Self {
        Self {
            resource: kind.plural,
            response_kind: ResponseKind {
                group: kind.group,
                version: kind.version,
                kind: kind.kind,
            },
            scope: scope(kind.namespaced),
            singular_resource: kind.singular,
            verbs: Vec::new(),
            short_names: kind.short_names,
            categories: &[],
            subresources: Vec::new(),
        }
    }

    fn new(resource: &Resource) -> Self {
        let part = |sub: &Subresource| {
            let (group, version) = sub.group_version.unwrap_or((resource.group, resource.version));
            AggregatedPart {
                subresource: sub.name,
                response_kind: ResponseKind { group, version, kind: sub.kind },
                verbs: names(sub.verbs),
            }
        };
        Self {
            resource: resource.plural,
            response_kind: ResponseKind {
                group: resource.group,
                version: resource.version,
                kind: resource.kind,
            },
            scope: scope(resource.namespaced),
            singular_resource: resource.singular,
            verbs: names(resource.verbs),
            short_names: resource.short_names,
            categories: resource.categories,
            subresources: resource.subresources.iter().map(part).collect(),
        }
    }
}

fn scope(namespaced: bool) -> &'static str {
    if namespaced { "Namespaced" } else { "Cluster" }
}

/// `/version`
pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "emulationMajor": "1",
        "emulationMinor": KUBERNETES_MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": format!("{KUBERNETES_VERSION}+podwright-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
