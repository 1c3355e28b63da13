//! Pod subresources that are operations: binding and eviction.

use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::json_edit;
use crate::object::Object;
use crate::options::DeleteOptions;
use crate::registry::PODS;
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

use super::{ATTEMPTS, lost_race, precondition_failed, put};

impl ApiServer {
    /// `POST …/binding`: assigns the pod to a node, permanently.
    pub async fn bind(
        &self,
        info: &RequestInfo,
        binding: &Object,
        dry_run: bool,
    ) -> Result<(), ApiError> {
        if binding.name() != info.name {
            return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
        }
        check_target(binding)?;
        for _ in 0..ATTEMPTS {
            let (key, pod, revision) = self.named(info)?;
            may_bind(info, &pod, binding)?;
            let mut new = pod.clone();
            assign(&mut new, binding, &rfc3339(self.now()));
            if dry_run {
                return Ok(());
            }
            match self.store().commit(vec![put(key, Some((&pod, revision)), &new)]).await {
                Ok(_) => return Ok(()),
                Err(error) => lost_race(error)?,
            }
        }
        Err(ApiError::stale(&PODS, &info.name))
    }

    /// `POST …/eviction`: a deletion with a reason. There are no disruption budgets.
    pub async fn evict(
        &self,
        info: &RequestInfo,
        eviction: &Object,
        dry_run: bool,
    ) -> Result<(), ApiError> {
        if eviction.name() != info.name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options = match eviction.get("deleteOptions") {
            None | Some(Value::Null) => DeleteOptions::default(),
            Some(options) => DeleteOptions::from_value(options)?,
        };
        options.dry_run |= dry_run;
        let now = rfc3339(self.now());
        self.delete_marked(info, &options, |pod| {
            let condition = json!({
                "type": "DisruptionTarget",
                "status": "True",
                "lastProbeTime": null,
                "lastTransitionTime": now,
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            set_condition(pod, condition);
        })
        .await?;
        Ok(())
    }
}

/// kube-apiserver reports a bad target without a reason and as an internal error.
fn check_target(binding: &Object) -> Result<(), ApiError> {
    let kind = binding.text("/target/kind");
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        errors.push(format!(
            "target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\""
        ));
    }
    if binding.text("/target/name").is_empty() {
        errors.push("target.name: Required value".to_owned());
    }
    match errors.as_slice() {
        [] => Ok(()),
        [error] => Err(ApiError::unclassified(error)),
        errors => Err(ApiError::unclassified(format!("[{}]", errors.join(", ")))),
    }
}

fn may_bind(info: &RequestInfo, pod: &Object, binding: &Object) -> Result<(), ApiError> {
    for (what, requested, found) in [
        ("UID", binding.uid(), pod.uid()),
        ("ResourceVersion", binding.resource_version(), pod.resource_version()),
    ] {
        if !requested.is_empty() && requested != found {
            return Err(precondition_failed(info, what, requested, found));
        }
    }
    let name = &info.name;
    if pod.is_being_deleted() {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(conflict(name, &why));
    }
    let bound = pod.text("/spec/nodeName");
    if !bound.is_empty() {
        let why = format!("pod {name} is already assigned to node \"{bound}\"");
        return Err(conflict(name, &why));
    }
    let gates = pod.value().pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return Err(conflict(name, &format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    Ok(())
}

fn conflict(name: &str, why: &str) -> ApiError {
    ApiError::conflict("pods/binding", "", name, why)
}

fn assign(pod: &mut Object, binding: &Object, now: &str) {
    pod.put(&["spec", "nodeName"], Some(binding.text("/target/name").into()));
    pod.put(&["status", "nominatedNodeName"], None);
    for field in ["labels", "annotations"] {
        let added = binding.meta().get(field).and_then(Value::as_object);
        for (key, text) in added.into_iter().flatten().filter(|(_, text)| text.is_string()) {
            pod.put(&["metadata", field, key], Some(text.clone()));
        }
    }
    set_condition(
        pod,
        json!({
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": now,
        }),
    );
}

/// Sets the condition of its type; the transition time changes only with the status.
pub(crate) fn set_condition(pod: &mut Object, mut condition: Value) {
    pod.edit(|value| {
        let conditions = json_edit::list_at(value, &["status", "conditions"]);
        let same = conditions.iter_mut().find(|other| other.get("type") == condition.get("type"));
        let Some(old) = same else { return conditions.push(condition) };
        if old.get("status") == condition.get("status") {
            let since = old.get("lastTransitionTime").cloned();
            json_edit::put(&mut condition, &["lastTransitionTime"], since);
        }
        *old = condition;
    });
}
