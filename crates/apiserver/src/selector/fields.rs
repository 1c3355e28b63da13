//! Field selectors: `spec.nodeName=n1,status.phase!=Failed`.

use serde_json::Value;

use super::{Facets, SelectorError};
use crate::registry::Resource;

/// Requirements that must all hold; none select everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    field: String,
    equal: bool,
    value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for term in terms(text) {
            if term.is_empty() {
                continue;
            }
            let Some((field, equal, value)) = split(&term) else {
                return Err(SelectorError(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                )));
            };
            let value = unescape(value).ok_or_else(|| {
                SelectorError(format!(
                    "invalid field selector: invalid escape sequence in '{term}'"
                ))
            })?;
            requirements.push(Requirement { field: field.to_owned(), equal, value });
        }
        Ok(Self(requirements))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only name that it selects.
    pub fn name(&self) -> Option<&str> {
        let mut names = self.0.iter().filter(|of| of.equal && of.field == "metadata.name");
        names.next().map(|of| of.value.as_str())
    }

    /// The first field that this resource does not support in selectors.
    pub(super) fn unsupported(&self, resource: &Resource) -> Option<&str> {
        let field = self.0.iter().find(|requirement| !supported(resource, &requirement.field))?;
        Some(&field.field)
    }

    pub(super) fn matches(&self, facets: &Facets) -> bool {
        self.0.iter().all(|requirement| {
            let equal = match requirement.field.as_str() {
                // A pod has several addresses; one match is enough.
                "status.podIPs" => has_address(&facets.status.pod_ips, &requirement.value),
                field => text_of(facets, field) == requirement.value,
            };
            equal == requirement.equal
        })
    }
}

/// Selectable fields of each kind, beside its name and namespace.
fn supported(resource: &Resource, field: &str) -> bool {
    match field {
        "metadata.name" => return true,
        "metadata.namespace" => return resource.namespaced,
        _ => {}
    }
    let fields: &[&str] = match resource.storage {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        "nodes" => &["spec.unschedulable"],
        "namespaces" => &["status.phase"],
        "secrets" => &["type"],
        "services" => &["spec.clusterIP", "spec.type"],
        "events" if resource.group.is_empty() => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "events" => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        _ => &[],
    };
    fields.contains(&field)
}

fn text_of(facets: &Facets, field: &str) -> String {
    let involved = &facets.involved_object;
    let value = match field {
        "metadata.name" => return facets.metadata.name.clone(),
        "metadata.namespace" => return facets.metadata.namespace.clone(),
        "spec.nodeName" => &facets.spec.node_name,
        "spec.restartPolicy" => &facets.spec.restart_policy,
        "spec.schedulerName" => &facets.spec.scheduler_name,
        "spec.serviceAccountName" => &facets.spec.service_account_name,
        "spec.hostNetwork" => return flag(&facets.spec.host_network),
        "spec.unschedulable" => return flag(&facets.spec.unschedulable),
        "spec.clusterIP" => &facets.spec.cluster_ip,
        "spec.type" => &facets.spec.kind,
        "status.phase" => &facets.status.phase,
        "status.podIP" => &facets.status.pod_ip,
        "status.nominatedNodeName" => &facets.status.nominated_node_name,
        "type" => &facets.kind,
        "reason" => &facets.reason,
        "reportingComponent" | "reportingController" => &facets.reporting_component,
        // The two fields in which an event may name its source.
        "source" if facets.source.component.as_str().is_none_or(str::is_empty) => {
            &facets.reporting_component
        }
        "source" => &facets.source.component,
        "involvedObject.kind" | "regarding.kind" => &involved.kind,
        "involvedObject.namespace" | "regarding.namespace" => &involved.namespace,
        "involvedObject.name" | "regarding.name" => &involved.name,
        "involvedObject.uid" | "regarding.uid" => &involved.uid,
        "involvedObject.apiVersion" | "regarding.apiVersion" => &involved.api_version,
        "involvedObject.resourceVersion" | "regarding.resourceVersion" => {
            &involved.resource_version
        }
        "involvedObject.fieldPath" | "regarding.fieldPath" => &involved.field_path,
        _ => return String::new(),
    };
    value.as_str().unwrap_or_default().to_owned()
}

fn flag(value: &Value) -> String {
    value.as_bool().unwrap_or(false).to_string()
}

fn has_address(addresses: &Value, wanted: &str) -> bool {
    let list = addresses.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().any(|entry| entry.get("ip").and_then(Value::as_str) == Some(wanted))
}

/// Splits at commas without a preceding backslash.
fn terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(term) = terms.last_mut() {
            term.push(c);
        }
    }
    terms
}

/// The leftmost operator wins; of two at one position, the longer.
fn split(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find(['!', '=']).filter(|at| {
        term.get(*at..).is_some_and(|rest| rest.starts_with('=') || rest.starts_with("!="))
    })?;
    let (field, rest) = term.split_at(at);
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(value) = rest.strip_prefix(operator) {
            return Some((field, equal, value));
        }
    }
    None
}

fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return None,
            },
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors_are_parsed_or_refused() {
        let one = |field: &str, equal, value: &str| {
            vec![Requirement { field: field.to_owned(), equal, value: value.to_owned() }]
        };
        for (text, want) in [
            ("", Ok(vec![])),
            (",", Ok(vec![])),
            ("a=b", Ok(one("a", true, "b"))),
            ("a==b", Ok(one("a", true, "b"))),
            ("a!=b", Ok(one("a", false, "b"))),
            ("a=", Ok(one("a", true, ""))),
            (r"a=b\,c", Ok(one("a", true, "b,c"))),
            ("a", Err("invalid selector: 'a'; can't understand 'a'".to_owned())),
            ("a!b", Err("invalid selector: 'a!b'; can't understand 'a!b'".to_owned())),
            (r"a=\x", Err(r"invalid field selector: invalid escape sequence in 'a=\x'".to_owned())),
        ] {
            let parsed = FieldSelector::parse(text).map(|s| s.0).map_err(|e| e.to_string());
            assert_eq!(parsed, want, "{text}");
        }
    }
}
