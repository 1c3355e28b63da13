//! Validation of object metadata, common to all kinds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::field::{Errors, Internal, Unset, quote};
use super::format::{self, Problems};
use crate::schema::{Path, Type};

const ANNOTATIONS_LIMIT: usize = 256 * 1024;
const IMMUTABLE: &str = "field is immutable";
const STANDARD_FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

/// Rules for the metadata of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub namespaced: bool,
    pub name: fn(&str) -> Problems,
    /// A finalizer without a domain must be one of the API server's own.
    pub known_finalizers: bool,
}

/// Validates the metadata of a new object, or of a changed one by itself.
pub fn check(meta: &ObjectMeta, rules: Rules, field: &Path<'_>, errors: &mut Errors) {
    if let Some(prefix) = text(meta.generate_name.as_ref()) {
        let problems = format::as_prefix(rules.name, prefix);
        errors.malformed(&field.child("generateName"), prefix, &problems);
    }
    let name = field.child("name");
    match text(meta.name.as_ref()) {
        None => errors.required(&name, "name or generateName is required"),
        Some(given) => errors.malformed(&name, given, &(rules.name)(given)),
    }
    let namespace = field.child("namespace");
    match (rules.namespaced, text(meta.namespace.as_ref())) {
        (true, None) => errors.required(&namespace, ""),
        (true, Some(given)) => errors.malformed(&namespace, given, &format::dns_label(given)),
        (false, None) => {}
        (false, Some(_)) => errors.forbidden(&namespace, "not allowed on this type"),
    }
    if let Some(generation) = meta.generation.filter(|generation| *generation < 0) {
        let detail = "must be greater than or equal to 0";
        errors.invalid(&field.child("generation"), generation, detail);
    }
    parts(meta, field, errors);
    finalizers(meta, field, errors);
    if rules.known_finalizers {
        known_finalizers(meta, field, errors);
    }
}

/// Validates a change of the metadata.
pub fn check_update(
    new: &ObjectMeta,
    old: &ObjectMeta,
    rules: Rules,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    if old.deletion_timestamp.is_some() {
        no_new_finalizers(new, old, &field.child("finalizers"), errors);
    }
    if text(new.resource_version.as_ref()).is_none() {
        errors.invalid(&field.child("resourceVersion"), "", "must be specified for an update");
    }
    if new.generation.unwrap_or(0) < old.generation.unwrap_or(0) {
        let given = new.generation.unwrap_or(0);
        errors.invalid(&field.child("generation"), given, "must not be decremented");
    }
    let texts = [
        ("name", &new.name, &old.name),
        ("namespace", &new.namespace, &old.namespace),
        ("uid", &new.uid, &old.uid),
    ];
    for (name, new, old) in texts {
        if text(new.as_ref()) != text(old.as_ref()) {
            let given = new.as_deref().unwrap_or_default();
            errors.invalid(&field.child(name), given, IMMUTABLE);
        }
    }
    let times = [
        ("creationTimestamp", &new.creation_timestamp, &old.creation_timestamp),
        ("deletionTimestamp", &new.deletion_timestamp, &old.deletion_timestamp),
    ];
    for (name, new, old) in times.into_iter().filter(|(_, new, old)| new != old) {
        let _ = old;
        match new {
            Some(time) => errors.invalid(&field.child(name), &time.0.to_string(), IMMUTABLE),
            None => errors.invalid(&field.child(name), Unset, IMMUTABLE),
        }
    }
    if new.deletion_grace_period_seconds != old.deletion_grace_period_seconds {
        let name = field.child("deletionGracePeriodSeconds");
        match new.deletion_grace_period_seconds {
            Some(seconds) => errors.invalid(&name, seconds, IMMUTABLE),
            None => errors.invalid(&name, Unset, IMMUTABLE),
        }
    }
    parts(new, field, errors);
    if rules.known_finalizers {
        known_finalizers(new, field, errors);
    }
}

fn parts(meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    labels(meta.labels.as_ref(), &field.child("labels"), errors);
    annotations(meta.annotations.as_ref(), &field.child("annotations"), errors);
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owner_references(owners, &field.child("ownerReferences"), errors);
}

/// Keys and values of labels and label selectors.
pub fn labels(labels: Option<&BTreeMap<String, String>>, field: &Path<'_>, errors: &mut Errors) {
    for (key, value) in labels.into_iter().flatten() {
        errors.malformed(field, key, &format::qualified_name(key));
        errors.malformed(field, value, &format::label_value(value));
    }
}

pub fn annotations(
    annotations: Option<&BTreeMap<String, String>>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        errors.malformed(field, key, &format::qualified_name(&key.to_lowercase()));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_LIMIT {
        errors.too_long(field, ANNOTATIONS_LIMIT);
    }
}

fn owner_references(owners: &[OwnerReference], field: &Path<'_>, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in owners {
        let version = owner.api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            let name = field.child("apiVersion");
            errors.invalid(&name, &owner.api_version, "version must not be empty");
        }
        for (name, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                errors.invalid(&field.child(name), value, "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.invalid(field, Internal(Type::Struct("OwnerReference"), owner), detail);
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let all = Type::List(Box::new(Type::Struct("OwnerReference")));
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in \
                         references for {first} and {this}"
                    );
                    errors.invalid(field, Internal(all, &owners), &detail);
                }
            }
        }
    }
}

fn finalizers(meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("finalizers");
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    for name in finalizers {
        errors.malformed(&field, name, &format::qualified_name(name));
    }
    let has = |wanted: &str| finalizers.iter().any(|name| name == wanted);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(&field, finalizers, detail);
    }
}

fn known_finalizers(meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("finalizers");
    for (index, name) in meta.finalizers.iter().flatten().enumerate() {
        known_finalizer(name, &field.index(index), errors);
    }
}

/// A finalizer must be one of the API server's own, or have a domain.
pub fn known_finalizer(name: &str, field: &Path<'_>, errors: &mut Errors) {
    if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.invalid(field, name, detail);
    }
}

/// An object that is being deleted must not get new finalizers.
fn no_new_finalizers(new: &ObjectMeta, old: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    let known: BTreeSet<&String> = old.finalizers.iter().flatten().collect();
    let extra: BTreeSet<&String> =
        new.finalizers.iter().flatten().filter(|name| !known.contains(name)).collect();
    if !extra.is_empty() {
        let names: Vec<String> = extra.into_iter().map(|name| quote(name)).collect();
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            names.join(", ")
        );
        errors.forbidden(field, &detail);
    }
}

fn text(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULES: Rules =
        Rules { namespaced: true, name: format::dns_subdomain, known_finalizers: true };

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn problems(value: Value) -> Vec<String> {
        let mut errors = Errors::new();
        check(&meta(value), RULES, &Path::new("metadata"), &mut errors);
        errors.into_vec().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_and_namespaces() {
        assert_eq!(problems(json!({"name": "a", "namespace": "b"})), [""; 0]);
        assert_eq!(
            problems(json!({})),
            [
                "metadata.name: Required value: name or generateName is required",
                "metadata.namespace: Required value"
            ]
        );
        let bad = problems(json!({"name": "A", "generateName": "BB-", "namespace": "c.d"}));
        assert!(bad[0].starts_with("metadata.generateName: Invalid value: \"BB-\": a lowercase"));
        assert!(bad[1].starts_with("metadata.name: Invalid value: \"A\": a lowercase"));
        assert_eq!(bad[2], "metadata.namespace: Invalid value: \"c.d\": must not contain dots");
    }

    #[test]
    fn annotations_are_limited_to_256_kibibytes() {
        let with = |size: usize| {
            problems(json!({"name": "a", "namespace": "b", "annotations": {"k": "x".repeat(size)}}))
        };
        assert_eq!(with(ANNOTATIONS_LIMIT - 1), [""; 0]);
        assert_eq!(
            with(ANNOTATIONS_LIMIT),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
    }

    #[test]
    fn owner_references_are_complete_with_one_controller() {
        let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        assert_eq!(
            problems(
                json!({"name": "a", "namespace": "b", "ownerReferences": [owner("x"), owner("y")]})
            ),
            ["metadata.ownerReferences: Invalid value: \
              [{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"x\",\"uid\":\"u\",\"controller\":true},\
              {\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"y\",\"uid\":\"u\",\"controller\":true}]: \
              Only one reference can have Controller set to true. Found \"true\" in references for Pod/x and Pod/y"]
        );
        assert_eq!(
            problems(
                json!({"name": "a", "namespace": "b", "ownerReferences": [{"apiVersion": "g/", "kind": "", "name": "n", "uid": ""}]})
            ),
            [
                "metadata.ownerReferences.apiVersion: Invalid value: \"g/\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"
            ]
        );
    }

    #[test]
    fn finalizer_needs_a_domain() {
        assert_eq!(
            problems(
                json!({"name": "a", "namespace": "b", "finalizers": ["x.io/y", "mine", "orphan"]})
            ),
            [
                "metadata.finalizers[1]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
            ]
        );
    }

    #[test]
    fn identity_does_not_change() {
        let old = meta(json!({"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}));
        let new =
            meta(json!({"name": "a", "namespace": "c", "uid": "u", "finalizers": ["x/y", "x/z"]}));
        let mut errors = Errors::new();
        check_update(&new, &old, RULES, &Path::new("metadata"), &mut errors);
        let got: Vec<String> = errors.into_vec().iter().map(ToString::to_string).collect();
        assert_eq!(
            got,
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x/z\"}",
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
                "metadata.namespace: Invalid value: \"c\": field is immutable",
                "metadata.deletionTimestamp: Invalid value: null: field is immutable",
            ]
        );
    }
}
