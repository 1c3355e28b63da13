//! All that somebody may do in a namespace, for `kubectl auth can-i --list`.
//!
//! It is told from the same roles that requests are judged by; what a node may do depends on its
//! pods, so that its list is no more than a beginning and says so.

use serde::Serialize;

use super::roles::Role;
use super::{AUTHENTICATED, Identity, MASTERS, Part};
use crate::registry::{
    RESOURCES, Resource, SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
};
use crate::server::ApiServer;

/// What everybody may create who is known.
pub(super) const ABOUT_ONESELF: [&str; 3] = [
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
    /// What `who` may do in a namespace.
    pub(crate) fn rules_of(&self, who: &Identity, namespace: &str) -> Rules {
        if who.is_in(MASTERS) {
            return everything();
        }
        let mut rules = Rules::default();
        if who.is_in(AUTHENTICATED) {
            rules.resource_rules.extend(about_oneself());
            rules.non_resource_rules.push(PathRule { verbs: vec!["get"], paths: vec![ALL] });
        }
        match who.part() {
            Part::Node(_) => rules.incomplete = true,
            Part::ServiceAccount { namespace: home, name } => match self.role_of(home, name) {
                Some(Role::Admin) => return everything(),
                Some(role) if home == namespace => rules.resource_rules.extend(at_home(role)),
                Some(_) | None => {}
            },
            Part::Other => {}
        }
        rules
    }
}

fn everything() -> Rules {
    let resources = rule(vec![ALL], ALL, vec![ALL.to_owned()]);
    let paths = PathRule { verbs: vec![ALL], paths: vec![ALL] };
    Rules { resource_rules: vec![resources], non_resource_rules: vec![paths], incomplete: false }
}

fn about_oneself() -> [ResourceRule; 3] {
    [&SELF_SUBJECT_ACCESS_REVIEWS, &SELF_SUBJECT_REVIEWS, &SELF_SUBJECT_RULES_REVIEWS]
        .map(|review| rule(vec!["create"], review.group, vec![review.plural.to_owned()]))
}

fn rule(verbs: Vec<&'static str>, group: &'static str, resources: Vec<String>) -> ResourceRule {
    ResourceRule { verbs, api_groups: vec![group], resources }
}

/// What a role opens, resource by resource, as the role itself judges.
fn at_home(role: Role) -> impl Iterator<Item = ResourceRule> {
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
    fn a_list_of_rights_says_what_the_role_judges() {
        let told = |role: Role, resource: &str| {
            let rules: Vec<ResourceRule> = at_home(role).collect();
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
            assert_eq!(told(Role::View, resource).as_deref(), view, "view {resource}");
            assert_eq!(told(Role::Edit, resource).as_deref(), edit, "edit {resource}");
        }
    }
}
