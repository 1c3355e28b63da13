//! Policy rules: what one rule allows, and whether rules cover others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize};

use super::Request;

const ALL: &str = "*";
/// Number of permissions in the rules of one role that somebody grants who may not grant all; all
/// permissions of Kubernetes itself are some thousands.
pub(super) const MAX_PARTS: usize = 100_000;
/// Bytes of rules that are compared for that, at most: well below a second.
const MAX_COMPARED: usize = 2 << 30;
/// Bytes of missing permissions after which no more are listed.
const MAX_LISTED: usize = 128 << 10;

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

/// One verb on one resource with at most one name, or on one path.
#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Object { verb: &'a str, group: &'a str, resource: &'a str, name: Option<&'a str> },
    Path { verb: &'a str, url: &'a str },
}

impl Part<'_> {
    /// Bytes of its description, about.
    fn size(self) -> usize {
        const FIELDS: usize = 64;
        FIELDS
            + match self {
                Self::Object { verb, group, resource, name } => {
                    verb.len() + group.len() + resource.len() + name.map_or(0, str::len)
                }
                Self::Path { verb, url } => verb.len() + url.len(),
            }
    }

    /// As a rule, and its verb.
    fn rule(self) -> (PolicyRule, String) {
        let one = |text: &str| vec![text.to_owned()];
        match self {
            Self::Object { verb, group, resource, name } => {
                let rule = PolicyRule {
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: name.into_iter().map(str::to_owned).collect(),
                    ..PolicyRule::default()
                };
                (rule, verb.to_owned())
            }
            Self::Path { verb, url } => (
                PolicyRule { non_resource_urls: one(url), ..PolicyRule::default() },
                verb.to_owned(),
            ),
        }
    }
}

/// The lists of a rule without duplicates.
struct Lists<'a> {
    verbs: Vec<&'a str>,
    groups: Vec<&'a str>,
    resources: Vec<&'a str>,
    names: Vec<&'a str>,
    urls: Vec<&'a str>,
}

fn distinct(list: &[String]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    list.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect()
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

    /// The permissions that are together this rule.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let Lists { verbs, groups, resources, names, urls } = self.lists();
        let named: Vec<Option<&str>> = match names.as_slice() {
            [] => vec![None],
            names => names.iter().copied().map(Some).collect(),
        };
        let of_paths: Vec<Part<'_>> = urls
            .iter()
            .flat_map(|&url| verbs.iter().map(move |&verb| Part::Path { verb, url }))
            .collect();
        let groups = groups.into_iter();
        let objects = groups.flat_map(move |group| {
            let (verbs, named) = (verbs.clone(), named.clone());
            resources.clone().into_iter().flat_map(move |resource| {
                let named = named.clone();
                verbs.clone().into_iter().flat_map(move |verb| {
                    let named = named.clone().into_iter();
                    named.map(move |name| Part::Object { verb, group, resource, name })
                })
            })
        });
        objects.chain(of_paths)
    }

    /// Number of [`Self::parts`].
    fn part_count(&self) -> usize {
        let Lists { verbs, groups, resources, names, urls } = self.lists();
        let sizes = [groups.len(), resources.len(), verbs.len(), names.len().max(1)];
        let objects = sizes.into_iter().fold(1, usize::saturating_mul);
        objects.saturating_add(urls.len().saturating_mul(verbs.len()))
    }

    /// Without duplicates, which would multiply.
    fn lists(&self) -> Lists<'_> {
        Lists {
            verbs: distinct(&self.verbs),
            groups: distinct(&self.api_groups),
            resources: distinct(&self.resources),
            names: distinct(&self.resource_names),
            urls: distinct(&self.non_resource_urls),
        }
    }

    /// Bytes that are compared to find out whether this rule contains a part, at most.
    fn weight(&self) -> usize {
        let lists = [
            &self.verbs,
            &self.api_groups,
            &self.resources,
            &self.resource_names,
            &self.non_resource_urls,
        ];
        lists.into_iter().flatten().map(|text| text.len() + 8).sum()
    }

    /// Whether this rule contains a part.
    fn covers(&self, part: Part<'_>) -> bool {
        match part {
            Part::Object { verb, group, resource, name } => {
                let of_any_resource = || {
                    let part = resource.split_once('/').map(|(_, part)| part);
                    part.is_some_and(|part| {
                        self.resources.iter().any(|own| own.strip_prefix("*/") == Some(part))
                    })
                };
                has_or_all(&self.verbs, verb)
                    && has_or_all(&self.api_groups, group)
                    && (has_or_all(&self.resources, resource) || of_any_resource())
                    && (self.resource_names.is_empty()
                        || name.is_some_and(|name| has(&self.resource_names, name)))
            }
            Part::Path { verb, url } => {
                self.resource_names.is_empty()
                    && has_or_all(&self.verbs, verb)
                    && self.non_resource_urls.iter().any(|own| url_covers(own, url))
            }
        }
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

/// Whether the permissions in `wanted` are few enough to be compared with `held`: a rule of a few
/// kilobytes can have more than any machine can list.
pub(super) fn is_comparable(held: &[PolicyRule], wanted: &[PolicyRule]) -> bool {
    let add = |sum: usize, rule: &PolicyRule| sum.saturating_add(rule.part_count());
    let parts = wanted.iter().fold(0, add);
    let weight: usize = held.iter().map(PolicyRule::weight).sum();
    parts <= MAX_PARTS && parts.saturating_mul(weight) <= MAX_COMPARED
}

/// Descriptions of what `wanted` contains and `held` does not, sorted. Parts that differ only in
/// their verb are one description. If there are many, not all are listed.
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<String> {
    let parts = wanted.iter().flat_map(PolicyRule::parts);
    let uncovered = parts.filter(|part| !held.iter().any(|rule| rule.covers(*part)));
    let mut merged: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    let mut described = BTreeSet::new();
    let mut listed = 0;
    for part in uncovered {
        listed += part.size();
        let (rule, verb) = part.rule();
        match part {
            Part::Object { .. } => merged.entry(rule).or_default().push(verb),
            Part::Path { .. } => {
                described.insert(PolicyRule { verbs: vec![verb], ..rule }.describe());
            }
        }
        if listed > MAX_LISTED {
            break;
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
