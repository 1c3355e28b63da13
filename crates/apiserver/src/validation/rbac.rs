//! Validation of roles and bindings.

use podwright_api::rbac::GROUP;
use podwright_api::schema::{self, Path, Type};
use podwright_api::validation::affinity::label_selector;
use podwright_api::validation::field::{Errors, Internal};
use podwright_api::validation::format;
use serde_json::Value;

use super::{path_segment, text};

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn texts(value: &Value, name: &str) -> Vec<String> {
    list(value, name).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(super) fn role(namespaced: bool, object: &Value, errors: &mut Errors) {
    let field = Path::new("rules");
    for (index, rule) in list(object, "rules").iter().enumerate() {
        policy_rule(namespaced, rule, &field.index(index), errors);
    }
    let Some(aggregation) = object.get("aggregationRule").filter(|rule| rule.is_object()) else {
        return;
    };
    let field = Path::new("aggregationRule");
    let field = field.child("clusterRoleSelectors");
    let selectors = list(aggregation, "clusterRoleSelectors");
    if selectors.is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(&field, detail);
    }
    for (index, selector) in selectors.iter().enumerate() {
        match schema::typed(selector) {
            Ok(selector) => label_selector(Some(&selector), &field.index(index), errors),
            Err(_) => {
                let shown = selector.to_string();
                errors.invalid(&field.index(index), &shown, "invalid label selector.");
            }
        }
    }
}

fn policy_rule(namespaced: bool, rule: &Value, field: &Path<'_>, errors: &mut Errors) {
    if list(rule, "verbs").is_empty() {
        errors.required(&field.child("verbs"), "verbs must contain at least one value");
    }
    let urls = texts(rule, "nonResourceURLs");
    let groups = list(rule, "apiGroups");
    let resources = list(rule, "resources");
    if !urls.is_empty() {
        let at = field.child("nonResourceURLs");
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid(&at, urls.as_slice(), detail);
        }
        let objects = [groups, resources, list(rule, "resourceNames")];
        if objects.iter().any(|list| !list.is_empty()) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&at, urls.as_slice(), detail);
        }
        return;
    }
    if groups.is_empty() {
        let detail = "resource rules must supply at least one api group";
        errors.required(&field.child("apiGroups"), detail);
    }
    if resources.is_empty() {
        let detail = "resource rules must supply at least one resource";
        errors.required(&field.child("resources"), detail);
    }
}

pub(super) fn binding(namespaced: bool, object: &Value, errors: &mut Errors) {
    let field = Path::new("roleRef");
    let group = text(object, "/roleRef/apiGroup");
    if group != GROUP {
        errors.not_supported(&field.child("apiGroup"), group, &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = text(object, "/roleRef/kind");
    if !kinds.contains(&kind) {
        errors.not_supported(&field.child("kind"), kind, kinds);
    }
    match text(object, "/roleRef/name") {
        "" => errors.required(&field.child("name"), ""),
        name => errors.malformed(&field.child("name"), name, &path_segment(name)),
    }
    let field = Path::new("subjects");
    for (index, it) in list(object, "subjects").iter().enumerate() {
        subject(namespaced, it, &field.index(index), errors);
    }
}

fn subject(namespaced: bool, subject: &Value, field: &Path<'_>, errors: &mut Errors) {
    let name = text(subject, "/name");
    let group = text(subject, "/apiGroup");
    if name.is_empty() {
        errors.required(&field.child("name"), "");
    }
    match text(subject, "/kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.malformed(&field.child("name"), name, &format::dns_subdomain(name));
            }
            if !group.is_empty() {
                errors.not_supported(&field.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(subject, "/namespace").is_empty() {
                errors.required(&field.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.not_supported(&field.child("apiGroup"), group, &[GROUP]);
            }
        }
        kind => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.not_supported(&field.child("kind"), kind, &kinds);
        }
    }
}

pub(super) fn binding_change(new: &Value, old: &Value, errors: &mut Errors) {
    let (before, now) = (old.get("roleRef"), new.get("roleRef"));
    if before != now {
        let shown = Internal(Type::Struct("RoleRef"), &now);
        errors.invalid(&Path::new("roleRef"), shown, "cannot change roleRef");
    }
}
