//! Permissions of a user in a namespace, for `kubectl auth can-i --list`.
//!
//! They come from the same policy that authorizes requests. What a node may do depends on its pods,
//! so its list is incomplete and marked so.

use podwright_api::rbac::User;
use serde::Serialize;

use super::{Identity, IdentityKind};
use crate::server::ApiServer;
use crate::status::ApiError;

/// The status of a SelfSubjectRulesReview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rules {
    resource_rules: Vec<ResourceRule>,
    non_resource_rules: Vec<PathRule>,
    incomplete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceRule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resource_names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PathRule {
    verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    paths: Vec<String>,
}

impl ApiServer {
    /// Permissions of `identity` in a namespace.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> Result<Rules, ApiError> {
        let user = User { name: &identity.user, groups: &identity.groups };
        let mut rules = Rules {
            incomplete: matches!(identity.kind(), IdentityKind::Node(_)),
            ..Rules::default()
        };
        for rule in self.policy()?.rules_of(user, namespace) {
            if !rule.resources.is_empty() {
                rules.resource_rules.push(ResourceRule {
                    verbs: rule.verbs.clone(),
                    api_groups: rule.api_groups,
                    resources: rule.resources,
                    resource_names: rule.resource_names,
                });
            }
            if !rule.non_resource_urls.is_empty() {
                let paths = rule.non_resource_urls;
                rules.non_resource_rules.push(PathRule { verbs: rule.verbs, paths });
            }
        }
        Ok(rules)
    }
}
