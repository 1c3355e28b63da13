//! OpenAPI definitions of the types of objects.

use std::collections::BTreeSet;

use podwright_api::schema::{self, Field, Merge, Ownership, Side, Struct, Type};
use serde_json::{Map, Value, json};

use super::Form;
use super::descriptions::Descriptions;
use crate::json_edit;
use crate::registry::{Resource, Verb};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const CORE: &str = "io.k8s.api.core.v1";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
/// Extension that names the kind of a definition.
pub(super) const GVK: &str = "x-kubernetes-group-version-kind";

/// Definitions of these kinds, of their lists, and of all types in them.
pub(super) fn of(resources: impl Iterator<Item = &'static Resource>, form: Form) -> Value {
    let mut all = shared(form);
    let mut seen = BTreeSet::new();
    for resource in resources {
        let Some(shape) = schema::kind(resource.group, resource.kind) else {
            // A review, which is not stored.
            let kind = json!({"type": "object", GVK: [kind_of(resource, resource.kind)]});
            all.insert(format!("io.k8s.api.{}.{}", resource.group, resource.kind), kind);
            continue;
        };
        let mut waiting = vec![shape];
        while let Some(shape) = waiting.pop() {
            if seen.insert(shape.name) {
                all.insert(name_of(shape), definition(shape, form));
                waiting.extend(
                    shown(shape).filter_map(|field| schema::find(field.ty.innermost_struct()?)),
                );
            }
        }
        if let Some(kind) = all.get_mut(&name_of(shape)) {
            put_type(kind);
            json_edit::put(kind, &[GVK], Some(json!([kind_of(resource, resource.kind)])));
        }
        if resource.verbs.contains(&Verb::List) {
            all.insert(format!("{}List", name_of(shape)), list_of(resource, shape, form));
        }
    }
    match form {
        Form::V2 => {}
        Form::V3 => Descriptions::unpack().add_to(&mut all),
    }
    Value::Object(all)
}

pub(super) fn kind_of(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": kind})
}

/// Types that are not structs, and the metadata of lists.
fn shared(form: Form) -> Map<String, Value> {
    let time = json!({"type": "string", "format": "date-time"});
    let either = match form {
        Form::V2 => json!({"type": "string", "format": "int-or-string"}),
        Form::V3 => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
    };
    let list = json!({"type": "object", "properties": {
        "continue": {"type": "string"},
        "remainingItemCount": {"type": "integer", "format": "int64"},
        "resourceVersion": {"type": "string"},
        "selfLink": {"type": "string"},
    }});
    [
        (QUANTITY.to_owned(), json!({"type": "string"})),
        (INT_OR_STRING.to_owned(), either),
        (format!("{META}.Time"), time.clone()),
        (format!("{META}.MicroTime"), time),
        (format!("{META}.ListMeta"), list),
    ]
    .into_iter()
    .collect()
}

/// The Go package of a type upstream; clients show only the last part.
fn name_of(shape: &Struct) -> String {
    let package = match shape.name {
        "ObjectMeta"
        | "OwnerReference"
        | "ManagedFieldsEntry"
        | "LabelSelector"
        | "LabelSelectorRequirement"
        | "Condition" => META,
        "Lease" | "LeaseSpec" => "io.k8s.api.coordination.v1",
        "RuntimeClass" | "Overhead" | "Scheduling" => "io.k8s.api.node.v1",
        "PriorityClass" => "io.k8s.api.scheduling.v1",
        "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding" | "PolicyRule"
        | "AggregationRule" | "Subject" | "RoleRef" => "io.k8s.api.rbac.v1",
        name if name.starts_with("events.") => "io.k8s.api.events.v1",
        _ => CORE,
    };
    format!("{package}.{}", shape.short_name())
}

fn shown(shape: &'static Struct) -> impl Iterator<Item = &'static Field> {
    shape.fields.iter().filter(|field| field.side != Side::Internal)
}

fn definition(shape: &'static Struct, form: Form) -> Value {
    let properties: Map<String, Value> =
        shown(shape).map(|field| (field.name.to_owned(), property(field, form))).collect();
    // Fields that are written even when empty are required upstream.
    let required: Vec<&str> = shown(shape)
        .filter(|field| field.always && !matches!(field.ty, Type::Pointer(_)))
        .map(|field| field.name)
        .collect();
    let mut definition = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        json_edit::put(&mut definition, &["required"], Some(json!(required)));
    }
    if shape.atomic {
        json_edit::put(&mut definition, &["x-kubernetes-map-type"], Some("atomic".into()));
    }
    definition
}

/// Every kind has these fields, which are not in the tables.
fn put_type(kind: &mut Value) {
    for name in ["apiVersion", "kind"] {
        json_edit::put(kind, &["properties", name], Some(json!({"type": "string"})));
    }
}

fn list_of(resource: &Resource, shape: &Struct, form: Form) -> Value {
    let mut list = json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": form.reference(&name_of(shape))},
            "metadata": form.reference(&format!("{META}.ListMeta")),
        },
        GVK: [kind_of(resource, &format!("{}List", resource.kind))],
    });
    put_type(&mut list);
    list
}

fn property(field: &Field, form: Form) -> Value {
    let mut property = schema_of(&field.ty, form);
    put_ownership(&mut property, field);
    let (strategy, key) = match (field.merge, field.retain_keys) {
        (Merge::Replace, false) => return property,
        (Merge::Replace, true) => ("retainKeys", None),
        (Merge::Set, _) => ("merge", None),
        (Merge::ByKey(key), false) => ("merge", Some(key)),
        (Merge::ByKey(key), true) => ("merge,retainKeys", Some(key)),
    };
    json_edit::put(&mut property, &["x-kubernetes-patch-strategy"], Some(strategy.into()));
    json_edit::put(&mut property, &["x-kubernetes-patch-merge-key"], key.map(Value::from));
    property
}

/// How server-side apply divides the value. A list without a type is atomic, and so is a struct
/// whose definition says so.
fn put_ownership(property: &mut Value, field: &Field) {
    let is_list = matches!(field.ty.target(), Type::List(_));
    let put = |property: &mut Value, name: &str, value: Value| {
        json_edit::put(property, &[name], Some(value));
    };
    match (field.ownership, field.merge) {
        (Some(Ownership::Atomic), _) if is_list => {
            put(property, "x-kubernetes-list-type", "atomic".into());
        }
        (Some(Ownership::Atomic), _) => put(property, "x-kubernetes-map-type", "atomic".into()),
        (Some(Ownership::Granular), _) => {
            put(property, "x-kubernetes-map-type", "granular".into());
        }
        (None, Merge::Set) => put(property, "x-kubernetes-list-type", "set".into()),
        (None, _) if !field.keys.is_empty() => {
            put(property, "x-kubernetes-list-type", "map".into());
            put(property, "x-kubernetes-list-map-keys", json!(field.keys));
        }
        (None, _) => {}
    }
    if let Some(default) = field.key_default {
        put(property, "default", default.into());
    }
}

fn schema_of(ty: &Type, form: Form) -> Value {
    match ty {
        Type::String(_) => json!({"type": "string"}),
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Quantity => form.reference(QUANTITY),
        Type::Time => form.reference(&format!("{META}.Time")),
        Type::MicroTime => form.reference(&format!("{META}.MicroTime")),
        Type::IntOrString => form.reference(INT_OR_STRING),
        Type::Any => json!({"type": "object"}),
        Type::Pointer(inner) => schema_of(inner, form),
        Type::List(inner) => json!({"type": "array", "items": schema_of(inner, form)}),
        Type::Map(inner) => {
            json!({"type": "object", "additionalProperties": schema_of(inner, form)})
        }
        Type::Struct(name) => match schema::find(name) {
            Some(shape) => form.reference(&name_of(shape)),
            None => json!({"type": "object"}),
        },
    }
}
