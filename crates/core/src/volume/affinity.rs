//! Node affinity of persistent volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;

/// The node as selectors match it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// Terms are alternatives; all requirements of a term must match, and an empty term matches
/// nothing.
pub fn fits(selector: &v1::NodeSelector, node: &NodeView) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let labels = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
        let label = |key: &str| node.labels.get(key).map(String::as_str);
        !(labels.is_empty() && fields.is_empty())
            && labels.iter().all(|requirement| holds(requirement, label(&requirement.key)))
            && fields.iter().all(|requirement| holds(requirement, field(&requirement.key)))
    })
}

fn holds(requirement: &v1::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|known| known == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let compared = |compare: fn(&i64, &i64) -> bool| {
        let bound = number(values.first().map(String::as_str));
        number(value).zip(bound).is_some_and(|(value, bound)| compare(&value, &bound))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn node_matches_if_all_requirements_of_one_term_match() {
        let labels = [("zone", "a"), ("cores", "8")];
        let node = NodeView {
            name: "n1".into(),
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        };
        let term = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (terms, want) in [
            (json!([term("zone", "In", json!(["b", "a"]))]), true),
            (json!([term("zone", "In", json!(["b"]))]), false),
            (json!([term("zone", "In", json!(["b"])), term("zone", "Exists", json!([]))]), true),
            (json!([term("zone", "NotIn", json!(["a"]))]), false),
            (json!([term("rack", "NotIn", json!(["a"]))]), true),
            (json!([term("rack", "DoesNotExist", json!([]))]), true),
            (json!([term("cores", "Gt", json!(["4"]))]), true),
            (json!([term("cores", "Lt", json!(["4"]))]), false),
            (json!([term("zone", "Gt", json!(["4"]))]), false),
            (json!([term("zone", "Like", json!(["a"]))]), false),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In",
                "values": ["n1"]}]}]),
                true,
            ),
            (json!([{}]), false),
            (json!([]), false),
        ] {
            let selector = json!({ "nodeSelectorTerms": terms });
            let selector = serde_json::from_value(selector).unwrap();
            assert_eq!(fits(&selector, &node), want, "{terms}");
        }
    }
}
