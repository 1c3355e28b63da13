//! Pod admission: sets or validates service account, priority, runtime class and tolerations.

pub(crate) mod pod_security;
mod runtime_class;

use podwright_api::annotations::ANNOTATION_MIRROR;
use serde_json::{Value, json};

use crate::json_edit;
use crate::object::Object;
use crate::registry::{self, PODS};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// One hour and seven seconds: an odd number, to distinguish it from one that a user chose.
const TOKEN_SECONDS: i64 = 3607;

impl ApiServer {
    /// Applied to every pod before it is validated and stored.
    pub(crate) fn admit_pod(&self, pod: &mut Object) -> Result<(), ApiError> {
        // A mirror pod represents a running static pod, so nothing is defaulted.
        if pod.annotation(ANNOTATION_MIRROR).is_some() {
            admit_mirror(pod)?;
        } else {
            self.admit_service_account(pod)?;
        }
        self.admit_runtime_class(pod)?;
        self.admit_priority(pod)?;
        tolerate_lost_nodes(pod);
        Ok(())
    }

    fn admit_service_account(&self, pod: &mut Object) -> Result<(), ApiError> {
        let name = match pod.text("/spec/serviceAccountName") {
            "" => "default".to_owned(),
            name => name.to_owned(),
        };
        let key = Key::new(&registry::SERVICE_ACCOUNTS, pod.namespace(), &name);
        let Some(account) = self.read(&registry::SERVICE_ACCOUNTS, &key)? else {
            return Err(forbid(
                pod,
                &format!(
                    "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
                    pod.namespace()
                ),
            ));
        };
        let automount = pod
            .value()
            .pointer("/spec/automountServiceAccountToken")
            .or_else(|| account.get("automountServiceAccountToken"))
            .and_then(Value::as_bool)
            .unwrap_or(true);
        let volume = format!("{TOKEN_VOLUME}{}", self.ids().suffix());
        pod.edit(|value| {
            let spec = json_edit::at(value, &["spec"]);
            json_edit::put(spec, &["serviceAccountName"], Some(name.clone().into()));
            json_edit::put(spec, &["serviceAccount"], Some(name.into()));
            if automount {
                mount_token(spec, volume);
            }
            let secrets = account.get("imagePullSecrets").filter(|list| list.is_array());
            if let Some(secrets) = secrets
                && spec.get("imagePullSecrets").is_none_or(is_empty)
            {
                json_edit::put(spec, &["imagePullSecrets"], Some(secrets.clone()));
            }
        });
        Ok(())
    }

    fn admit_runtime_class(&self, pod: &mut Object) -> Result<(), ApiError> {
        let name = pod.text("/spec/runtimeClassName").to_owned();
        let class = if name.is_empty() {
            None
        } else {
            let key = Key::new(&registry::RUNTIME_CLASSES, "", &name);
            let found = self.read(&registry::RUNTIME_CLASSES, &key)?;
            let missing =
                || forbid(pod, &format!("pod rejected: RuntimeClass \"{name}\" not found"));
            Some(found.ok_or_else(missing)?)
        };
        let class = class.as_ref().map(Object::value);
        let mut applied = Ok(());
        pod.edit(|value| {
            applied = runtime_class::apply(json_edit::at(value, &["spec"]), class);
        });
        applied.map_err(|why| forbid(pod, &why))
    }

    fn admit_priority(&self, pod: &mut Object) -> Result<(), ApiError> {
        let name = pod.text("/spec/priorityClassName").to_owned();
        let class = if name.is_empty() {
            self.default_priority_class()?
        } else {
            let key = Key::new(&registry::PRIORITY_CLASSES, "", &name);
            let found = self.read(&registry::PRIORITY_CLASSES, &key)?;
            Some(found.ok_or_else(|| {
                forbid(pod, &format!("no PriorityClass with name {name} was found"))
            })?)
        };
        let value_of = |class: &Object| class.get("value").and_then(Value::as_i64);
        let priority = class.as_ref().and_then(value_of).unwrap_or(0);
        let policy = class.as_ref().map_or("", |class| class.text("/preemptionPolicy"));
        let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
        if let Some(given) = pod.value().pointer("/spec/priority").and_then(Value::as_i64)
            && given != priority
        {
            return Err(forbid(
                pod,
                &format!(
                    "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
                     controller computed {priority} from the given PriorityClass name"
                ),
            ));
        }
        let given = pod.text("/spec/preemptionPolicy");
        if !given.is_empty() && given != policy {
            return Err(forbid(
                pod,
                &format!(
                    "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority \
                     admission controller computed {policy} from the given PriorityClass name"
                ),
            ));
        }
        pod.put(&["spec", "priority"], Some(priority.into()));
        pod.put(&["spec", "preemptionPolicy"], Some(policy.into()));
        if let Some(class) = class.as_ref().filter(|_| name.is_empty()) {
            pod.put(&["spec", "priorityClassName"], Some(class.name().into()));
        }
        Ok(())
    }

    /// The one marked as the default; of several, the one with the lowest value.
    fn default_priority_class(&self) -> Result<Option<Object>, ApiError> {
        let scope = Scope::new(&registry::PRIORITY_CLASSES, None);
        let (documents, _) = self.store().list(&scope, None)?;
        let mut found: Option<Object> = None;
        for (_, document) in documents {
            let class = document.object(&registry::PRIORITY_CLASSES)?;
            if class.get("globalDefault") != Some(&Value::Bool(true)) {
                continue;
            }
            let value_of = |class: &Object| class.get("value").and_then(Value::as_i64).unwrap_or(0);
            if found.as_ref().is_none_or(|other| value_of(&class) < value_of(other)) {
                found = Some(class);
            }
        }
        Ok(found)
    }
}

/// Restores fields that the server set and that a client may leave out when it replaces a pod.
pub(crate) fn admit_pod_update(new: &mut Object, old: &Object) {
    for field in ["priority", "preemptionPolicy"] {
        let given = new.get("spec").and_then(|spec| spec.get(field));
        if given.is_none_or(Value::is_null) {
            let kept = old.get("spec").and_then(|spec| spec.get(field)).cloned();
            new.put(&["spec", field], kept);
        }
    }
    tolerate_lost_nodes(new);
}

fn forbid(pod: &Object, why: &str) -> ApiError {
    ApiError::forbidden(&PODS, pod.shown_name(), why)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// A mirror pod is already running as its manifest says; it cannot use objects of the API.
fn admit_mirror(pod: &Object) -> Result<(), ApiError> {
    if !pod.text("/spec/serviceAccountName").is_empty() {
        return Err(forbid(pod, "a mirror pod may not reference service accounts"));
    }
    let spec = pod.get("spec").cloned().unwrap_or_default();
    if spec.get("imagePullSecrets").is_some_and(|list| !is_empty(list))
        || mentions(&spec, &["secret", "secretKeyRef", "secretRef", "nodePublishSecretRef"])
    {
        return Err(forbid(pod, "a mirror pod may not reference secrets"));
    }
    if mentions(&spec, &["serviceAccountToken"]) {
        let why = "a mirror pod may not use ServiceAccountToken volume projections";
        return Err(forbid(pod, why));
    }
    Ok(())
}

/// Whether any of these fields occurs anywhere in a value.
fn mentions(value: &Value, fields: &[&str]) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, value)| {
            (fields.contains(&name.as_str()) && !value.is_null()) || mentions(value, fields)
        }),
        Value::Array(list) => list.iter().any(|value| mentions(value, fields)),
        _ => false,
    }
}

/// Mounts a service account token in every container that has no mount at its path.
fn mount_token(spec: &mut Value, fresh_name: String) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let name_of = |volume: &Value| volume.get("name").and_then(Value::as_str).map(str::to_owned);
    let existing = volumes
        .into_iter()
        .flatten()
        .filter_map(name_of)
        .find(|name| name.starts_with(TOKEN_VOLUME));
    let name = existing.clone().unwrap_or(fresh_name);
    let mut mounted = false;
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|c| c.is_object()) {
            let mounts = json_edit::list_at(container, &["volumeMounts"]);
            let at_path =
                |mount: &Value| mount.get("mountPath").and_then(Value::as_str) == Some(TOKEN_PATH);
            if !mounts.iter().any(at_path) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH}));
                mounted = true;
            }
        }
    }
    if mounted && existing.is_none() {
        json_edit::list_at(spec, &["volumes"]).push(token_volume(&name));
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{
                "path": "namespace",
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
            }]}}
        ]
    }})
}

fn add_toleration(spec: &mut Value, toleration: Value) {
    let tolerations = json_edit::list_at(spec, &["tolerations"]);
    if !tolerations.contains(&toleration) {
        tolerations.push(toleration);
    }
}

/// Adds the default tolerations of five minutes, unless the pod has its own.
fn tolerate_lost_nodes(pod: &mut Object) {
    pod.edit(|value| {
        let spec = json_edit::at(value, &["spec"]);
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let given = spec.get("tolerations").and_then(Value::as_array);
            let text = |toleration: &Value, field: &str| {
                toleration.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let has_own = given.into_iter().flatten().any(|toleration| {
                let named = text(toleration, "key");
                let effect = text(toleration, "effect");
                (named == key || named.is_empty()) && (effect == "NoExecute" || effect.is_empty())
            });
            if !has_own {
                add_toleration(
                    spec,
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
                );
            }
        }
    });
}
