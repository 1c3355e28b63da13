//! Aggregated ClusterRoles: roles whose rules are those of the roles that their selectors match.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{PolicyRule, union};

/// A ClusterRole, as far as aggregation needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedRole {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub rules: Vec<PolicyRule>,
    /// Selectors of an aggregated role; none if its rules are its own.
    pub selectors: Option<Vec<Selector>>,
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Selector {
    #[serde(rename = "matchLabels")]
    match_labels: Option<BTreeMap<String, String>>,
    #[serde(rename = "matchExpressions")]
    match_expressions: Option<Vec<Requirement>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Requirement {
    #[serde(rename = "key")]
    key: String,
    #[serde(rename = "operator")]
    operator: String,
    #[serde(rename = "values")]
    values: Option<Vec<String>>,
}

impl Selector {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let mut requirements = self.match_expressions.iter().flatten();
        self.match_labels.iter().flatten().all(equal) && requirements.all(|it| it.matches(labels))
    }
}

impl Requirement {
    /// An unknown operator matches nothing: validation refuses it.
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.iter().flatten().any(|it| it == value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

/// The aggregated roles whose rules change, with their new rules. Aggregated roles may be sources
/// of others.
pub fn aggregate(roles: &[AggregatedRole]) -> BTreeMap<String, Vec<PolicyRule>> {
    let mut rules: BTreeMap<&str, Vec<PolicyRule>> =
        roles.iter().map(|role| (role.name.as_str(), role.rules.clone())).collect();
    // A chain of aggregated roles is at most as long as there are roles.
    for _ in 0..roles.len() {
        let mut changed = false;
        for role in roles {
            let Some(selectors) = &role.selectors else { continue };
            let labels: BTreeMap<&str, &BTreeMap<String, String>> =
                roles.iter().map(|other| (other.name.as_str(), &other.labels)).collect();
            let is_source = |name: &str| {
                name != role.name
                    && labels
                        .get(name)
                        .is_some_and(|labels| selectors.iter().any(|it| it.matches(labels)))
            };
            let sources = rules.iter().filter(|(name, _)| is_source(name));
            let wanted = union(sources.map(|(_, rules)| rules.as_slice()));
            if rules.get(role.name.as_str()) != Some(&wanted) {
                rules.insert(&role.name, wanted);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let changed = roles.iter().filter(|role| rules.get(role.name.as_str()) != Some(&role.rules));
    changed
        .filter_map(|role| Some((role.name.clone(), rules.get(role.name.as_str())?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(resource: &str) -> PolicyRule {
        PolicyRule { resources: vec![resource.to_owned()], ..PolicyRule::default() }
    }

    fn role(name: &str, label: &str, resource: &str, selector: Option<&str>) -> AggregatedRole {
        let selector = selector.map(|text| {
            vec![serde_json::from_str::<Selector>(text).unwrap_or_else(|error| panic!("{error}"))]
        });
        AggregatedRole {
            name: name.to_owned(),
            labels: BTreeMap::from([(label.to_owned(), "true".to_owned())]),
            rules: if resource.is_empty() { Vec::new() } else { vec![rule(resource)] },
            selectors: selector,
        }
    }

    #[test]
    fn rules_pass_through_a_chain_of_aggregated_roles() {
        let roles = [
            role("a-admin", "none", "stale", Some(r#"{"matchLabels": {"to-admin": "true"}}"#)),
            role("edit", "to-admin", "", Some(r#"{"matchLabels": {"to-edit": "true"}}"#)),
            role("secrets", "to-edit", "secrets", None),
            role("pods", "to-edit", "pods", None),
            role("twice", "to-edit", "pods", None),
            role("other", "other", "nodes", None),
        ];
        let both = vec![rule("pods"), rule("secrets")];
        let want =
            BTreeMap::from([("a-admin".to_owned(), both.clone()), ("edit".to_owned(), both)]);
        assert_eq!(aggregate(&roles), want);
    }

    #[test]
    fn selector_has_all_operators() {
        for (selector, want) in [
            (r#"{}"#, true),
            (
                r#"{"matchExpressions": [{"key": "l", "operator": "In", "values": ["x", "true"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions": [{"key": "l", "operator": "NotIn", "values": ["true"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions": [{"key": "m", "operator": "NotIn", "values": ["true"]}]}"#,
                true,
            ),
            (r#"{"matchExpressions": [{"key": "l", "operator": "Exists"}]}"#, true),
            (r#"{"matchExpressions": [{"key": "l", "operator": "DoesNotExist"}]}"#, false),
            (r#"{"matchExpressions": [{"key": "l", "operator": "Odd"}]}"#, false),
            (r#"{"matchLabels": {"l": "false"}}"#, false),
        ] {
            let roles = [role("r", "none", "", Some(selector)), role("s", "l", "pods", None)];
            assert_eq!(!aggregate(&roles).is_empty(), want, "{selector}");
        }
    }
}
