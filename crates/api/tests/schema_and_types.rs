//! Consistency of the type table and the generated structs.
//!
//! An object with every field of the table set is converted to the generated struct and back
//! without loss, so neither misses a field, and both agree on names and types.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    Service, ServiceAccount,
};
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use podwright_api::schema::{self, Side, Struct, Type};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

fn full(shape: &Struct) -> Value {
    let fields = shape.fields.iter().filter(|field| field.side != Side::Internal);
    fields.map(|field| (field.name.to_owned(), sample(&field.ty))).collect::<Map<_, _>>().into()
}

fn sample(ty: &Type) -> Value {
    match ty {
        Type::String(_) => json!("text"),
        Type::Bool => json!(true),
        Type::Int32 | Type::Int64 | Type::IntOrString => json!(7),
        Type::Bytes => json!("eA=="),
        Type::Quantity => json!("3"),
        Type::Time => json!("2026-01-02T03:04:05Z"),
        Type::MicroTime => json!("2026-01-02T03:04:05.000006Z"),
        Type::Any => json!({"f:a": {}}),
        Type::Pointer(inner) => sample(inner),
        Type::List(inner) => json!([sample(inner)]),
        Type::Map(inner) => json!({"key": sample(inner)}),
        Type::Struct(name) => full(schema::find(name).unwrap()),
    }
}

fn agrees<T: Serialize + DeserializeOwned>(group: &str, kind: &str) {
    let shape = schema::kind(group, kind).unwrap();
    let object = full(shape);
    let decoded = schema::decode(shape, &object).unwrap();
    assert_eq!(decoded.unknown, [""; 0], "{kind}");
    assert_eq!(decoded.value, object, "{kind}: every field of the table is written");
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    let mut written = serde_json::to_value(&typed).unwrap();
    for name in ["apiVersion", "kind"] {
        written.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(schema::decode(shape, &written).unwrap().value, object, "{kind}: the struct has it");
}

#[test]
fn table_and_structs_agree_on_every_field() {
    agrees::<Pod>("", "Pod");
    agrees::<Role>("rbac.authorization.k8s.io", "Role");
    agrees::<ClusterRole>("rbac.authorization.k8s.io", "ClusterRole");
    agrees::<RoleBinding>("rbac.authorization.k8s.io", "RoleBinding");
    agrees::<ClusterRoleBinding>("rbac.authorization.k8s.io", "ClusterRoleBinding");
    agrees::<Node>("", "Node");
    agrees::<Namespace>("", "Namespace");
    agrees::<ConfigMap>("", "ConfigMap");
    agrees::<Secret>("", "Secret");
    agrees::<ServiceAccount>("", "ServiceAccount");
    agrees::<Event>("", "Event");
    agrees::<PersistentVolume>("", "PersistentVolume");
    agrees::<PersistentVolumeClaim>("", "PersistentVolumeClaim");
    agrees::<Service>("", "Service");
    agrees::<NewEvent>("events.k8s.io", "Event");
    agrees::<Lease>("coordination.k8s.io", "Lease");
    agrees::<RuntimeClass>("node.k8s.io", "RuntimeClass");
    agrees::<PriorityClass>("scheduling.k8s.io", "PriorityClass");
}
