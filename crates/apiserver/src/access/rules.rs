//! Permissions of a user in a namespace, for `kubectl auth can-i --list`.
//!
//! They are computed from the same roles that authorize requests. What a node may do depends on its
//! pods, so its list is incomplete and marked so.

use serde::Serialize;

use super::roles::Role;
use super::{AUTHENTICATED, Identity, IdentityKind, MASTERS};
use crate::registry::{
    RESOURCES, Resource, SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
};
use crate::server::ApiServer;

/// Reviews that every authenticated user may create.
pub(super) const SELF_REVIEWS: [&str; 3] = [
    SELF_SUBJECT_ACCESS_REVIEWS.plural,
    SELF_SUBJECT_REVIEWS.plural,
    SELF_SUBJECT_RULES_REVIEWS.plural,
];

const READ: &[&str] = &["get", "list", "watch"];
const ALL: &str = "*";

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
    verbs: Vec<&'static str>,
    api_groups: Vec<&'static str>,
    resources: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PathRule {
    verbs: Vec<&'static str>,
    #[serde(rename = "nonResourceURLs")]
    paths: Vec<&'static str>,
}

impl ApiServer {
    /// Permissions of `identity` in a namespace.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> Rules {
        if identity.is_in(MASTERS) {
            return everything();
        }
        let mut rules = Rules::default();
        if identity.is_in(AUTHENTICATED) {
            rules.resource_rules.extend(self_review_rules());
            rules.non_resource_rules.push(PathRule { verbs: vec!["get"], paths: vec![ALL] });
        }
        match identity.kind() {
            IdentityKind::Node(_) => rules.incomplete = true,
            IdentityKind::ServiceAccount { namespace: own, name } => {
                match self.role_of(own, name) {
                    Some(Role::Admin) => return everything(),
                    Some(role) if own == namespace => rules.resource_rules.extend(role_rules(role)),
                    Some(_) | None => {}
                }
            }
            IdentityKind::Other => {}
        }
        rules
    }
}

fn everything() -> Rules {
    let resources = rule(vec![ALL], ALL, vec![ALL.to_owned()]);
    let paths = PathRule { verbs: vec![ALL], paths: vec![ALL] };
    Rules { resource_rules: vec![resources], non_resource_rules: vec![paths], incomplete: false }
}

fn self_review_rules() -> [ResourceRule; 3] {
    [&SELF_SUBJECT_ACCESS_REVIEWS, &SELF_SUBJECT_REVIEWS, &SELF_SUBJECT_RULES_REVIEWS]
        .map(|review| rule(vec!["create"], review.group, vec![review.plural.to_owned()]))
}

fn rule(verbs: Vec<&'static str>, group: &'static str, resources: Vec<String>) -> ResourceRule {
    ResourceRule { verbs, api_groups: vec![group], resources }
}

/// Permissions of a role, resource by resource, as the role authorizes.
fn role_rules(role: Role) -> impl Iterator<Item = ResourceRule> {
    let stored = |resource: &&&Resource| resource.namespaced && !resource.storage.is_empty();
    RESOURCES.iter().filter(stored).flat_map(move |resource| {
        let parts = resource.subresources.iter().map(|part| part.name);
        [""].into_iter().chain(parts).filter_map(move |part| {
            let verbs = match (role.writes(resource.plural), role.reads(resource.plural, part)) {
                (true, _) => vec![ALL],
                (false, true) => READ.to_vec(),
                (false, false) => return None,
            };
            let name = match part {
                "" => resource.plural.to_owned(),
                part => format!("{}/{part}", resource.plural),
            };
            Some(rule(verbs, resource.group, vec![name]))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_permissions_match_the_role() {
        let listed = |role: Role, resource: &str| {
            let rules: Vec<ResourceRule> = role_rules(role).collect();
            rules.iter().find(|rule| rule.resources == [resource]).map(|rule| rule.verbs.join(","))
        };
        for (resource, view, edit) in [
            ("pods", Some("get,list,watch"), Some("*")),
            ("pods/log", Some("get,list,watch"), Some("*")),
            ("pods/exec", None, Some("*")),
            ("secrets", None, Some("*")),
            ("serviceaccounts", Some("get,list,watch"), Some("get,list,watch")),
            ("nodes", None, None),
        ] {
            assert_eq!(listed(Role::View, resource).as_deref(), view, "view {resource}");
            assert_eq!(listed(Role::Edit, resource).as_deref(), edit, "edit {resource}");
        }
    }
}
