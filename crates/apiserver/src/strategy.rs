//! What the server itself decides about an object that a client sends: which parts of it count
//! at this address, and what is filled in.

use serde_json::{Value, json};

use k8s_openapi::api::core::v1::Pod;
use podwright_core::qos::QosClass;
use podwright_core::schema;

use crate::object::Object;
use crate::registry::{self, Resource};
use crate::tree;

/// A client cannot create an object that already has a history.
pub fn prepare_create(resource: &Resource, object: &mut Object) {
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
        "generation",
    ] {
        object.set_meta(field, None);
    }
    match resource.storage {
        "pods" => {
            object.set_generation(1);
            object.set("status", Some(json!({"phase": "Pending"})));
            let class = qos_class(object).map(Value::from);
            object.put(&["status", "qosClass"], class);
        }
        "namespaces" => prepare_namespace(object),
        "persistentvolumes" | "persistentvolumeclaims" => {
            object.set("status", Some(json!({"phase": "Pending"})));
        }
        "priorityclasses" => object.set_generation(1),
        _ => {}
    }
}

fn qos_class(pod: &Object) -> Option<&'static str> {
    let pod: Pod = schema::typed(pod.value()).ok()?;
    QosClass::of(&pod).ok().map(QosClass::as_str)
}

/// Held by the server until the namespace is empty.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";

fn prepare_namespace(object: &mut Object) {
    let name = object.name().to_owned();
    object.put(&["status"], Some(json!({"phase": "Active"})));
    object.edit(|value| {
        let finalizers = tree::list_at(value, &["spec", "finalizers"]);
        if !finalizers.iter().any(|entry| entry == NAMESPACE_FINALIZER) {
            finalizers.push(NAMESPACE_FINALIZER.into());
        }
    });
    label_namespace(object, &name);
}

fn label_namespace(object: &mut Object, name: &str) {
    // One that is still to be generated gets its label when it is.
    if !name.is_empty() {
        object.put(&["metadata", "labels", "kubernetes.io/metadata.name"], Some(name.into()));
    }
}

/// Once the name is known.
pub fn finish_create(resource: &Resource, object: &mut Object) {
    if resource.storage == "namespaces" {
        let name = object.name().to_owned();
        label_namespace(object, &name);
    }
}

/// Leaves of the new object only what this address may change.
pub fn prepare_update(
    resource: &Resource,
    subresource: Option<&str>,
    new: &mut Object,
    old: &Object,
) {
    keep_history(new, old);
    match subresource {
        Some("status") => {
            keep(new, old, "spec");
            if resource.storage == "pods" {
                // Old agents corrupt owner references when they report a status.
                let owners = old.meta().get("ownerReferences").cloned();
                new.set_meta("ownerReferences", owners);
                keep_qos(new, old);
                keep_observed_generations(new, old);
            }
        }
        Some("ephemeralcontainers") => only_from(new, old, ephemeral_containers),
        Some("resize") => only_from(new, old, resources),
        Some("finalize") => {
            let finalizers = new.value().pointer("/spec/finalizers").cloned();
            let mut result = old.clone();
            result.put(&["spec", "finalizers"], finalizers);
            copy_version(&mut result, new);
            *new = result;
        }
        Some(_) | None => match resource.storage {
            "pods" | "nodes" | "persistentvolumes" | "persistentvolumeclaims" => {
                keep(new, old, "status");
            }
            "namespaces" => {
                keep(new, old, "status");
                let finalizers = old.value().pointer("/spec/finalizers").cloned();
                new.put(&["spec", "finalizers"], finalizers);
                label_namespace(new, old.name());
            }
            _ => {}
        },
    }
    if resource == &registry::PODS && new.get("spec") != old.get("spec") {
        new.set_generation(old.generation() + 1);
    }
}

/// What happened to an object is not the client's to say.
fn keep_history(new: &mut Object, old: &Object) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
        new.set_meta(field, old.meta().get(field).cloned());
    }
    new.set_meta("managedFields", None);
    for field in ["uid", "creationTimestamp", "name", "namespace"] {
        let missing = match new.meta().get(field) {
            None | Some(Value::Null) => true,
            Some(value) => value.as_str().is_some_and(str::is_empty),
        };
        if missing {
            new.set_meta(field, old.meta().get(field).cloned());
        }
    }
}

fn keep(new: &mut Object, old: &Object, field: &str) {
    new.set(field, old.get(field).cloned());
}

fn keep_qos(new: &mut Object, old: &Object) {
    if new.text("/status/qosClass").is_empty()
        && let Some(class) = old.value().pointer("/status/qosClass").cloned()
    {
        new.put(&["status", "qosClass"], Some(class));
    }
}

/// A client that knows nothing of `observedGeneration` does not clear it.
fn keep_observed_generations(new: &mut Object, old: &Object) {
    const FIELD: &str = "observedGeneration";
    let generation = |value: &Value| value.get(FIELD).and_then(Value::as_i64).unwrap_or(0);
    let old_status = old.get("status").cloned().unwrap_or_default();
    let old_conditions = old_status.get("conditions").and_then(Value::as_array);
    new.edit(|value| {
        let status = tree::at(value, &["status"]);
        if generation(status) == 0 {
            tree::put(status, &[FIELD], old_status.get(FIELD).cloned());
        }
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter(|each| generation(each) == 0) {
            let same = |other: &&Value| other.get("type") == condition.get("type");
            let observed = old_conditions.into_iter().flatten().find(same);
            let observed = observed.and_then(|other| other.get(FIELD)).cloned();
            tree::put(condition, &[FIELD], observed);
        }
    });
}

/// The old object with one part taken over from the new; conditional writes stay conditional. If
/// the part cannot be taken over, the new object stays as it is, and is refused as such.
fn only_from(new: &mut Object, old: &Object, take: fn(&Value, &mut Value) -> bool) {
    let mut result = old.clone();
    let mut taken = false;
    result.edit(|value| taken = take(new.value(), value));
    if taken {
        copy_version(&mut result, new);
        *new = result;
    }
}

fn copy_version(result: &mut Object, new: &Object) {
    result.set_meta("resourceVersion", new.meta().get("resourceVersion").cloned());
}

fn ephemeral_containers(from: &Value, to: &mut Value) -> bool {
    let list = from.pointer("/spec/ephemeralContainers").cloned();
    tree::put(to, &["spec", "ephemeralContainers"], list);
    true
}

/// Container by container: their resources, and what to do when these change. They must be the
/// same containers in the same order.
fn resources(from: &Value, to: &mut Value) -> bool {
    for list in ["/spec/containers", "/spec/initContainers"] {
        let wanted = from.pointer(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let containers = to.pointer_mut(list).and_then(Value::as_array_mut);
        let containers = containers.map_or(&mut [][..], Vec::as_mut_slice);
        if wanted.len() != containers.len() {
            return false;
        }
        for (container, wanted) in containers.iter_mut().zip(wanted) {
            if container.get("name") != wanted.get("name") {
                return false;
            }
            for field in ["resources", "resizePolicy"] {
                tree::put(container, &[field], wanted.get(field).cloned());
            }
        }
    }
    tree::put(to, &["spec", "resources"], from.pointer("/spec/resources").cloned());
    true
}

/// A write to an object that is not there creates it.
pub fn creates_on_update(resource: &Resource) -> bool {
    matches!(resource.storage, "events" | "leases" | "runtimeclasses")
}

/// Whether an object may be replaced by a client that does not say which version it has seen.
pub fn updates_unconditionally(resource: &Resource) -> bool {
    !matches!(resource.storage, "leases" | "runtimeclasses")
}

/// Whether a deletion answers with the object rather than with a mere success.
pub fn shows_deleted(resource: &Resource) -> bool {
    matches!(
        resource.storage,
        "namespaces" | "pods" | "persistentvolumes" | "persistentvolumeclaims" | "serviceaccounts"
    )
}
