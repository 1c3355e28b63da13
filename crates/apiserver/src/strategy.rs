//! Create and update strategy: which fields a client may set at a path, and which the server fills
//! in.

use serde_json::{Value, json};

use k8s_openapi::api::core::v1::Pod;
use podwright_api::qos::QosClass;
use podwright_api::schema;

use crate::json_edit;
use crate::object::Object;
use crate::registry::{self, Resource};

/// Clears the fields that only the server sets.
pub fn prepare_create(resource: &Resource, object: &mut Object) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
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
        "persistentvolumes" => prepare_storage(object, VOLUME_PROTECTION),
        "persistentvolumeclaims" => prepare_storage(object, CLAIM_PROTECTION),
        "priorityclasses" => object.set_generation(1),
        _ => {}
    }
}

fn qos_class(pod: &Object) -> Option<&'static str> {
    let pod: Pod = schema::typed(pod.value()).ok()?;
    QosClass::of(&pod).ok().map(QosClass::as_str)
}

/// Finalizer of a claim: it stays while a pod uses it.
pub(crate) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of a volume: it stays while it is bound to a claim.
pub(crate) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

fn prepare_storage(object: &mut Object, finalizer: &str) {
    object.set("status", Some(json!({"phase": "Pending"})));
    let mut finalizers: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    if !finalizers.iter().any(|held| held == finalizer) {
        finalizers.push(finalizer.to_owned());
        object.set_finalizers(&finalizers);
    }
}

/// Finalizer that the server removes once the namespace is empty.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";

fn prepare_namespace(object: &mut Object) {
    let name = object.name().to_owned();
    object.put(&["status"], Some(json!({"phase": "Active"})));
    object.edit(|value| {
        let finalizers = json_edit::list_at(value, &["spec", "finalizers"]);
        if !finalizers.iter().any(|entry| entry == NAMESPACE_FINALIZER) {
            finalizers.push(NAMESPACE_FINALIZER.into());
        }
    });
    label_namespace(object, &name);
}

fn label_namespace(object: &mut Object, name: &str) {
    // A generated name gets its label once it exists.
    if !name.is_empty() {
        object.put(&["metadata", "labels", "kubernetes.io/metadata.name"], Some(name.into()));
    }
}

/// Completes a new object once its name is known.
pub fn finish_create(resource: &Resource, object: &mut Object) {
    if resource.storage == "namespaces" {
        let name = object.name().to_owned();
        label_namespace(object, &name);
    }
}

/// Resets everything that a request to this path may not change.
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

/// Keeps the fields that only the server sets.
fn keep_history(new: &mut Object, old: &Object) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
        new.set_meta(field, old.meta().get(field).cloned());
    }
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

/// A client that does not know `observedGeneration` does not clear it.
fn keep_observed_generations(new: &mut Object, old: &Object) {
    const FIELD: &str = "observedGeneration";
    let generation = |value: &Value| value.get(FIELD).and_then(Value::as_i64).unwrap_or(0);
    let old_status = old.get("status").cloned().unwrap_or_default();
    let old_conditions = old_status.get("conditions").and_then(Value::as_array);
    new.edit(|value| {
        let status = json_edit::at(value, &["status"]);
        if generation(status) == 0 {
            json_edit::put(status, &[FIELD], old_status.get(FIELD).cloned());
        }
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter(|each| generation(each) == 0) {
            let same = |other: &&Value| other.get("type") == condition.get("type");
            let observed = old_conditions.into_iter().flatten().find(same);
            let observed = observed.and_then(|other| other.get(FIELD)).cloned();
            json_edit::put(condition, &[FIELD], observed);
        }
    });
}

/// The old object with one part taken from the new one; conditional writes stay conditional, and
/// the managers are those after the write. If the
/// part cannot be taken, the new object is left as it is and validation refuses it.
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
    for field in ["resourceVersion", "managedFields"] {
        result.set_meta(field, new.meta().get(field).cloned());
    }
}

fn ephemeral_containers(from: &Value, to: &mut Value) -> bool {
    let list = from.pointer("/spec/ephemeralContainers").cloned();
    json_edit::put(to, &["spec", "ephemeralContainers"], list);
    true
}

/// Resources and resize policies, container by container. The containers must be the same, in the
/// same order.
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
                json_edit::put(container, &[field], wanted.get(field).cloned());
            }
        }
    }
    json_edit::put(to, &["spec", "resources"], from.pointer("/spec/resources").cloned());
    true
}

/// Whether an update of a missing object creates it.
pub fn creates_on_update(resource: &Resource) -> bool {
    matches!(
        resource.storage,
        "events"
            | "leases"
            | "runtimeclasses"
            | "roles"
            | "rolebindings"
            | "clusterroles"
            | "clusterrolebindings"
    )
}

/// Whether a client may replace an object without a `resourceVersion`.
pub fn updates_unconditionally(resource: &Resource) -> bool {
    !matches!(resource.storage, "leases" | "runtimeclasses")
}

/// Whether a deletion returns the object rather than a Status.
pub fn shows_deleted(resource: &Resource) -> bool {
    matches!(
        resource.storage,
        "namespaces" | "pods" | "persistentvolumes" | "persistentvolumeclaims" | "serviceaccounts"
    )
}
