//! Label and field selectors of lists and watches.
//!
//! Why [`Facets`]: a selector can only use labels and a few fields, so matching a stored object
//! reads only those from its text; and a write keeps the old text for watchers only if these values
//! changed.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::document::{Document, DocumentError};
use crate::registry::Resource;

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;

/// Label and field selector of one request.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

/// Why a selector is invalid; the text is the whole message for the client.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

impl Selector {
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, SelectorError> {
        let label_selector = LabelSelector::parse(labels)?;
        let field_selector = FieldSelector::parse(fields)?;
        if let Some(unknown) = field_selector.unsupported(resource) {
            return Err(SelectorError(format!("field label not supported: {unknown}")));
        }
        Ok(Self { labels: label_selector, fields: field_selector })
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, document: &Document) -> Result<bool, DocumentError> {
        if self.is_empty() {
            return Ok(true);
        }
        Ok(self.matches_facets(&document.extract::<Facets>()?))
    }

    pub fn matches_facets(&self, facets: &Facets) -> bool {
        self.labels.matches(&facets.metadata.labels.0) && self.fields.matches(facets)
    }
}

/// The fields of an object that a selector can use. A value of the wrong type counts as absent.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facets {
    metadata: MetaFacets,
    spec: SpecFacets,
    status: StatusFacets,
    #[serde(rename = "type")]
    kind: Value,
    reason: Value,
    reporting_component: Value,
    source: SourceFacets,
    involved_object: ReferenceFacets,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct MetaFacets {
    name: String,
    namespace: String,
    labels: Labels,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Option<BTreeMap<String, String>>")]
struct Labels(BTreeMap<String, String>);

impl From<Option<BTreeMap<String, String>>> for Labels {
    fn from(labels: Option<BTreeMap<String, String>>) -> Self {
        Self(labels.unwrap_or_default())
    }
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecFacets {
    node_name: Value,
    restart_policy: Value,
    scheduler_name: Value,
    service_account_name: Value,
    host_network: Value,
    unschedulable: Value,
    #[serde(rename = "clusterIP")]
    cluster_ip: Value,
    #[serde(rename = "type")]
    kind: Value,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusFacets {
    phase: Value,
    #[serde(rename = "podIP")]
    pod_ip: Value,
    #[serde(rename = "podIPs")]
    pod_ips: Value,
    nominated_node_name: Value,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SourceFacets {
    component: Value,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReferenceFacets {
    kind: Value,
    namespace: Value,
    name: Value,
    uid: Value,
    api_version: Value,
    resource_version: Value,
    field_path: Value,
}

impl Facets {
    /// From a parsed object; `None` if it does not have the structure of one.
    pub fn of(object: &Value) -> Option<Self> {
        Self::deserialize(object).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    fn selected(labels: &str, fields: &str, object: &Value) -> bool {
        let selector =
            Selector::parse(&registry::PODS, labels, fields).unwrap_or_else(|e| panic!("{e}"));
        Facets::of(object).is_some_and(|facets| selector.matches_facets(&facets))
    }

    #[test]
    fn pod_is_selected_by_labels_and_fields_together() {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "n": "3"}},
            "spec": {"nodeName": "n1", "hostNetwork": true, "restartPolicy": "Always"},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd::1"}]}
        });
        for (labels, fields, want) in [
            ("", "", true),
            ("app=web", "spec.nodeName=n1", true),
            ("app=web", "spec.nodeName=n2", false),
            ("app=db", "spec.nodeName=n1", false),
            ("app in (web,db),!gone", "status.phase!=Failed,status.phase!=Succeeded", true),
            ("n>2,n<4", "metadata.name=web,metadata.namespace=default", true),
            ("", "spec.hostNetwork=true", true),
            ("", "status.podIP=10.0.0.1", true),
            ("", "status.podIPs=fd::1", true),
            ("", "status.podIPs=fd::2", false),
            ("", "status.nominatedNodeName=", true),
        ] {
            assert_eq!(selected(labels, fields, &pod), want, "{labels} {fields}");
        }
    }

    #[test]
    fn unsupported_field_is_named_in_the_error() {
        let error = Selector::parse(&registry::PODS, "a=b", "spec.nope=x").map(|_| ());
        assert_eq!(
            error.map_err(|e| e.to_string()),
            Err("field label not supported: spec.nope".to_owned())
        );
    }
}
