//! What the server adds to a new pod from other objects, or refuses it for: the account it runs
//! as, its priority, its runtime class, and how long it stays on a node that is lost.

use podwright_core::pod::ANNOTATION_MIRROR;
use serde_json::{Value, json};

use crate::object::Object;
use crate::registry::{self, PODS};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};
use crate::tree;

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// One hour and some: an odd number, so that it can be told from one that a person chose.
const TOKEN_SECONDS: i64 = 3607;

impl ApiServer {
    /// Applied to every pod before it is validated and stored.
    pub(crate) fn admit_pod(&self, pod: &mut Object) -> Result<(), ApiError> {
        // The agent's picture of a static pod: it exists already, so nothing is decided about it.
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
            let spec = tree::at(value, &["spec"]);
            tree::put(spec, &["serviceAccountName"], Some(name.clone().into()));
            tree::put(spec, &["serviceAccount"], Some(name.into()));
            if automount {
                mount_token(spec, volume);
            }
            let secrets = account.get("imagePullSecrets").filter(|list| list.is_array());
            if let Some(secrets) = secrets
                && spec.get("imagePullSecrets").is_none_or(is_empty)
            {
                tree::put(spec, &["imagePullSecrets"], Some(secrets.clone()));
            }
        });
        Ok(())
    }

    fn admit_runtime_class(&self, pod: &mut Object) -> Result<(), ApiError> {
        let name = pod.text("/spec/runtimeClassName").to_owned();
        if name.is_empty() {
            return Ok(());
        }
        let key = Key::new(&registry::RUNTIME_CLASSES, "", &name);
        let Some(class) = self.read(&registry::RUNTIME_CLASSES, &key)? else {
            return Err(forbid(pod, &format!("pod rejected: RuntimeClass \"{name}\" not found")));
        };
        let overhead = class.value().pointer("/overhead/podFixed").cloned();
        match (overhead, pod.value().pointer("/spec/overhead").cloned()) {
            (Some(wanted), Some(given)) if wanted != given => Err(forbid(
                pod,
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            )),
            (None, Some(_)) => Err(forbid(
                pod,
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            )),
            (overhead, _) => {
                pod.edit(|value| {
                    if let Some(overhead) = overhead {
                        tree::put(value, &["spec", "overhead"], Some(overhead));
                    }
                    take_scheduling(tree::at(value, &["spec"]), &class);
                });
                Ok(())
            }
        }
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

    /// The one marked as the default; of several, the lowest.
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

/// What a client that replaces a whole pod may leave out, because the server had put it there.
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

/// A mirror pod runs already, with what its manifest gave it; it can have nothing from here.
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

/// Whether any of these fields stands anywhere in a value.
fn mentions(value: &Value, fields: &[&str]) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, value)| {
            (fields.contains(&name.as_str()) && !value.is_null()) || mentions(value, fields)
        }),
        Value::Array(list) => list.iter().any(|value| mentions(value, fields)),
        _ => false,
    }
}

/// Gives every container that has nothing at the usual path a token of the pod's account.
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
            let mounts = tree::list_at(container, &["volumeMounts"]);
            let at_path =
                |mount: &Value| mount.get("mountPath").and_then(Value::as_str) == Some(TOKEN_PATH);
            if !mounts.iter().any(at_path) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH}));
                mounted = true;
            }
        }
    }
    if mounted && existing.is_none() {
        tree::list_at(spec, &["volumes"]).push(token_volume(&name));
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

/// Where pods of the class may run is added to where the pod itself wants to.
fn take_scheduling(spec: &mut Value, class: &Object) {
    let selector = class.value().pointer("/scheduling/nodeSelector").and_then(Value::as_object);
    if let Some(selector) = selector {
        let wanted = tree::map_at(spec, &["nodeSelector"]);
        wanted.extend(selector.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    let tolerations = class.value().pointer("/scheduling/tolerations").and_then(Value::as_array);
    for toleration in tolerations.into_iter().flatten() {
        add_toleration(spec, toleration.clone());
    }
}

fn add_toleration(spec: &mut Value, toleration: Value) {
    let tolerations = tree::list_at(spec, &["tolerations"]);
    if !tolerations.contains(&toleration) {
        tolerations.push(toleration);
    }
}

/// Five minutes, unless the pod says something itself.
fn tolerate_lost_nodes(pod: &mut Object) {
    pod.edit(|value| {
        let spec = tree::at(value, &["spec"]);
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let given = spec.get("tolerations").and_then(Value::as_array);
            let text = |toleration: &Value, field: &str| {
                toleration.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let says = given.into_iter().flatten().any(|toleration| {
                let named = text(toleration, "key");
                let effect = text(toleration, "effect");
                (named == key || named.is_empty()) && (effect == "NoExecute" || effect.is_empty())
            });
            if !says {
                add_toleration(
                    spec,
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
                );
            }
        }
    });
}
