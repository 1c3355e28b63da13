//! Policy rules: what one rule allows, and whether rules cover others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize};

use super::Request;

const ALL: &str = "*";

/// A request for objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectRequest<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    /// Empty for the whole cluster.
    pub namespace: &'a str,
    /// Empty for all.
    pub name: &'a str,
}

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    #[serde(rename = "verbs", deserialize_with = "list")]
    pub verbs: Vec<String>,
    #[serde(
        rename = "apiGroups",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub api_groups: Vec<String>,
    #[serde(
        rename = "resources",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resources: Vec<String>,
    #[serde(
        rename = "resourceNames",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resource_names: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

/// An empty list may be stored as `null`.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl PolicyRule {
    pub fn allows(&self, request: &Request<'_>) -> bool {
        match request {
            Request::Objects(request) => {
                has_or_all(&self.verbs, request.verb)
                    && has_or_all(&self.api_groups, request.group)
                    && self.names_resource(request.resource, request.subresource)
                    && (self.resource_names.is_empty() || has(&self.resource_names, request.name))
            }
            Request::Path { verb, path } => {
                let urls = &self.non_resource_urls;
                has_or_all(&self.verbs, verb) && urls.iter().any(|url| url_covers(url, path))
            }
        }
    }

    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|name| {
            if name == ALL {
                return true;
            }
            match (name.split_once('/'), subresource) {
                (None, "") => name == resource,
                (None, _) | (Some(_), "") => false,
                (Some((parent, part)), _) => {
                    part == subresource && (parent == ALL || parent == resource)
                }
            }
        })
    }

    /// Rules with one verb, one resource and at most one name each, that are together this one.
    fn parts(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        let one = |text: &String| vec![text.clone()];
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Self {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(part);
                        continue;
                    }
                    parts.extend(
                        self.resource_names
                            .iter()
                            .map(|name| Self { resource_names: one(name), ..part.clone() }),
                    );
                }
            }
        }
        for url in &self.non_resource_urls {
            parts.extend(self.verbs.iter().map(|verb| Self {
                verbs: one(verb),
                non_resource_urls: one(url),
                ..Self::default()
            }));
        }
        parts
    }

    /// Whether this rule contains a part.
    fn covers(&self, part: &Self) -> bool {
        let resources = |resource: &String| {
            has_or_all(&self.resources, resource)
                || resource
                    .split_once('/')
                    .is_some_and(|(_, part)| has(&self.resources, &format!("*/{part}")))
        };
        let urls = |url: &String| self.non_resource_urls.iter().any(|own| url_covers(own, url));
        let all_names = self.resource_names.is_empty();
        part.verbs.iter().all(|verb| has_or_all(&self.verbs, verb))
            && part.api_groups.iter().all(|group| has_or_all(&self.api_groups, group))
            && part.resources.iter().all(resources)
            && part.non_resource_urls.iter().all(urls)
            && (all_names
                || (!part.resource_names.is_empty()
                    && part.resource_names.iter().all(|name| has(&self.resource_names, name))))
    }

    /// As kube-apiserver prints it.
    fn describe(&self) -> String {
        let mut text = String::new();
        for (name, list) in [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ] {
            if list.is_empty() {
                continue;
            }
            let comma = if text.is_empty() { "" } else { ", " };
            let quoted: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
            let _ = write!(text, "{comma}{name}:[{}]", quoted.join(" "));
        }
        format!("{{{text}}}")
    }
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

fn has_or_all(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == ALL || item == text)
}

/// A URL that ends in `*` is a prefix.
fn url_covers(url: &str, path: &str) -> bool {
    url == path || (url.ends_with('*') && path.starts_with(url.trim_end_matches('*')))
}

/// Descriptions of what `wanted` contains and `held` does not, sorted. Parts that differ only in
/// their verb are one description.
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<String> {
    let parts = wanted.iter().flat_map(PolicyRule::parts);
    let uncovered = parts.filter(|part| !held.iter().any(|rule| rule.covers(part)));
    let mut merged: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    let mut described = BTreeSet::new();
    for mut part in uncovered {
        if part.non_resource_urls.is_empty() {
            let verbs = std::mem::take(&mut part.verbs);
            merged.entry(part).or_default().extend(verbs);
        } else {
            described.insert(part.describe());
        }
    }
    for (rule, verbs) in merged {
        described.insert(PolicyRule { verbs, ..rule }.describe());
    }
    described.into_iter().collect()
}

/// The rules of several roles without duplicates, in the order given.
pub fn union<'a>(roles: impl IntoIterator<Item = &'a [PolicyRule]>) -> Vec<PolicyRule> {
    let mut seen = BTreeSet::new();
    let rules = roles.into_iter().flatten();
    rules.filter(|rule| seen.insert((*rule).clone())).cloned().collect()
}
