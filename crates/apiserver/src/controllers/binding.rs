//! Binding controller: assigns pods to a node, the scheduler of a single-machine cluster.
//!
//! There is one node, rarely more, so nodes are not scored: a pod fits, or it stays pending and its
//! condition says why. The checks are the node's own admission checks
//! ([`podwright_core::admission`]), so that a bound pod is not refused by the node. Pending pods
//! are retried when a pod, a node or a claim changes, highest priority first, then oldest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_core::admission::scheduling::{SchedulingFailure, scheduling_failures};
use podwright_core::pod::{Pod, Source};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock::rfc3339;
use crate::document::{Document, Revision};
use crate::object::Object;
use crate::options::WriteOptions;
use crate::registry::{EVENTS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::rest::set_condition;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{EventType, HistoryError, Key, Scope};

use super::namespaces::named;
use super::wait_for_change;

const SCHEDULER: &str = "default-scheduler";
/// Kinds whose changes can make a pending pod fit.
const WATCHED: [&Resource; 3] = [&PODS, &NODES, &PERSISTENT_VOLUME_CLAIMS];
const BATCH: usize = 64;

/// Pods without a node, and the revision up to which the log has been read.
#[derive(Default)]
struct PendingPods {
    pods: BTreeSet<Key>,
    revision: Option<Revision>,
}

/// Decision about a pending pod.
#[derive(Debug, PartialEq, Eq)]
enum BindDecision<'n> {
    Bind { node: &'n str },
    Wait { reason: &'static str, message: String },
}

impl ApiServer {
    pub(super) async fn run_binding_controller(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut pending = PendingPods::default();
        loop {
            let now = *changes.borrow_and_update();
            let changed =
                pending.revision.is_none_or(|revision| self.any_changed(&WATCHED, revision));
            let result = match self.update_pending(&mut pending, now) {
                Ok(()) if changed && !pending.pods.is_empty() => self.bind_pending(&pending).await,
                other => other,
            };
            if let Err(error) = &result {
                tracing::warn!(%error, "bind pods failed, retrying shortly");
                pending.revision = None;
            }
            if !wait_for_change(&mut changes, result.is_err(), &stop).await {
                return;
            }
        }
    }

    fn update_pending(&self, pending: &mut PendingPods, now: Revision) -> Result<(), ApiError> {
        let scope = Scope::new(&PODS, None);
        let Some(mut revision) = pending.revision else {
            pending.pods.clear();
            let (pods, listed_at) = self.store().list(&scope, None)?;
            for (key, document) in pods {
                pending.record(key, &document, EventType::Created)?;
            }
            pending.revision = Some(listed_at);
            return Ok(());
        };
        while revision < now {
            match self.store().history(&scope, revision, BATCH) {
                Ok(history) => {
                    for event in history.events {
                        pending.record(event.key.clone(), &event.document(), event.event_type)?;
                    }
                    revision = history.upto;
                    pending.revision = Some(revision);
                }
                Err(HistoryError::TooOld { .. }) => {
                    pending.revision = None;
                    return self.update_pending(pending, now);
                }
                Err(HistoryError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn bind_pending(&self, pending: &PendingPods) -> Result<(), ApiError> {
        let nodes: Vec<v1::Node> = self.all(&NODES)?.into_values().collect();
        let pods = self.all_pods()?;
        let mut pods_by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods.values().filter(|pod| !pod.api_phase.is_terminal()) {
            if let Some(node) = node_of(pod) {
                pods_by_node.entry(node).or_default().push(pod);
            }
        }
        let mut queue: Vec<(&Key, &Arc<Pod>)> =
            pending.pods.iter().filter_map(|key| Some((key, pods.get(key)?))).collect();
        queue.sort_by_key(|(key, pod)| {
            let priority = pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            let created = pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (Reverse(priority), created, (*key).clone())
        });
        for (key, pod) in queue {
            let decision = match self.unmet_claim(key.namespace(), &pod.object)? {
                Some(message) => BindDecision::Wait { reason: "Unschedulable", message },
                None => decide_node(pod, &nodes, &pods_by_node),
            };
            match decision {
                BindDecision::Bind { node } => {
                    self.assign(key, &pod.object, node).await?;
                    pods_by_node.entry(node).or_default().push(pod);
                }
                BindDecision::Wait { reason, message } => {
                    self.set_pod_scheduled_false(key, &pod.object, reason, &message).await?;
                }
            }
        }
        Ok(())
    }

    fn all_pods(&self) -> Result<BTreeMap<Key, Arc<Pod>>, ApiError> {
        let objects: BTreeMap<Key, v1::Pod> = self.all(&PODS)?;
        let mut pods = BTreeMap::new();
        for (key, object) in objects {
            match Pod::parse(object, Source::Api) {
                Ok(pod) => _ = pods.insert(key, Arc::new(pod)),
                Err(error) => tracing::warn!(%key, %error, "cannot parse pod, skipping it"),
            }
        }
        Ok(pods)
    }

    /// All objects of a kind. One that cannot be parsed is logged and skipped.
    pub(super) fn all<T: serde::de::DeserializeOwned>(
        &self,
        resource: &'static Resource,
    ) -> Result<BTreeMap<Key, T>, ApiError> {
        let (documents, _) = self.store().list(&Scope::new(resource, None), None)?;
        let mut objects = BTreeMap::new();
        for (key, document) in documents {
            match document.extract() {
                Ok(object) => _ = objects.insert(key, object),
                Err(error) => tracing::warn!(%key, %error, "cannot parse object, skipping it"),
            }
        }
        Ok(objects)
    }

    /// Why a claim of the pod keeps it pending, if one does.
    fn unmet_claim(&self, namespace: &str, pod: &v1::Pod) -> Result<Option<String>, ApiError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        for volume in volumes.into_iter().flatten() {
            let Some(source) = &volume.persistent_volume_claim else { continue };
            let name = &source.claim_name;
            let key = Key::new(&PERSISTENT_VOLUME_CLAIMS, namespace, name);
            let Some(claim) = self.read(&PERSISTENT_VOLUME_CLAIMS, &key)? else {
                return Ok(Some(format!("persistentvolumeclaim \"{name}\" not found")));
            };
            if claim.is_being_deleted() {
                return Ok(Some(format!("persistentvolumeclaim \"{name}\" is being deleted")));
            }
            if claim.text("/status/phase") != "Bound" {
                let why = format!("pod has unbound immediate PersistentVolumeClaims: {name}");
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    async fn assign(&self, key: &Key, pod: &v1::Pod, node: &str) -> Result<(), ApiError> {
        let info = RequestInfo {
            verb: Verb::Create,
            subresource: PODS.subresource("binding"),
            ..named(&PODS, key.namespace(), key.name())
        };
        let binding = json!({
            "metadata": {"name": key.name(), "uid": pod.metadata.uid},
            "target": {"kind": "Node", "name": node},
        });
        let binding = Object::try_from(binding).unwrap_or_default();
        match self.bind(&info, &binding, false).await {
            Ok(()) => {}
            // Deleted, or bound by another client meanwhile.
            Err(error) if matches!(error.code, 404 | 409) => return Ok(()),
            Err(error) => return Err(error),
        }
        let message = format!("Successfully assigned {}/{} to {node}", key.namespace(), key.name());
        self.record_event(key, pod, "Normal", "Scheduled", &message).await;
        Ok(())
    }

    /// Sets the PodScheduled condition to the reason why the pod is pending.
    async fn set_pod_scheduled_false(
        &self,
        key: &Key,
        pod: &v1::Pod,
        reason: &str,
        message: &str,
    ) -> Result<(), ApiError> {
        let now = rfc3339(self.now());
        let written = self
            .amend(&PODS, key, |object| {
                if Some(object.uid()) != pod.metadata.uid.as_deref() {
                    return;
                }
                let condition = json!({
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": null,
                    "lastTransitionTime": now,
                    "reason": reason,
                    "message": message,
                });
                set_condition(object, condition);
            })
            .await?;
        if written && reason == "Unschedulable" {
            self.record_event(key, pod, "Warning", "FailedScheduling", message).await;
        }
        Ok(())
    }

    /// Records an event about a pod, best effort.
    async fn record_event(
        &self,
        key: &Key,
        pod: &v1::Pod,
        kind: &str,
        reason: &str,
        message: &str,
    ) {
        let now = rfc3339(self.now());
        let event = json!({
            "metadata": {
                "name": format!("{}.{}", key.name(), self.ids().suffix()),
                "namespace": key.namespace(),
            },
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": key.namespace(),
                "name": key.name(),
                "uid": pod.metadata.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": SCHEDULER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        let info = RequestInfo { verb: Verb::Create, ..named(&EVENTS, key.namespace(), "") };
        let event = Object::try_from(event).unwrap_or_default();
        if let Err(error) = self.create(&info, event, &WriteOptions::of_server()).await {
            tracing::debug!(%error, pod = %key, "cannot record event");
        }
    }
}

impl PendingPods {
    fn record(
        &mut self,
        key: Key,
        document: &Document,
        event_type: EventType,
    ) -> Result<(), ApiError> {
        let pod: PodFields = document.extract()?;
        let is_pending = event_type != EventType::Deleted
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.node_name.is_none_or(|name| name.is_empty())
            && pod.spec.scheduler_name.is_none_or(|name| name == SCHEDULER);
        match is_pending {
            true => _ = self.pods.insert(key),
            false => _ = self.pods.remove(&key),
        }
        Ok(())
    }
}

/// The fields of a pod that decide whether it is pending.
#[derive(serde::Deserialize)]
struct PodFields {
    metadata: PodMetaFields,
    #[serde(default)]
    spec: PodSpecFields,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetaFields {
    deletion_timestamp: Option<Value>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecFields {
    node_name: Option<String>,
    scheduler_name: Option<String>,
}

fn node_of(pod: &Pod) -> Option<&str> {
    let name = pod.object.spec.as_ref()?.node_name.as_deref();
    name.filter(|name| !name.is_empty())
}

fn decide_node<'n>(
    pod: &Pod,
    nodes: &'n [v1::Node],
    pods_by_node: &BTreeMap<&str, Vec<&Arc<Pod>>>,
) -> BindDecision<'n> {
    let gates = pod.object.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    if gates.is_some_and(|gates| !gates.is_empty()) {
        let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
        return BindDecision::Wait { reason: "SchedulingGated", message };
    }
    if nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return BindDecision::Wait { reason: "Unschedulable", message };
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let others = pods_by_node.get(name).map(Vec::as_slice).unwrap_or_default();
        let found = scheduling_failures(pod, others, node);
        if found.is_empty() {
            return BindDecision::Bind { node: name };
        }
        for reason in found.iter().map(SchedulingFailure::to_string) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let reasons: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let message = format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", "));
    BindDecision::Wait { reason: "Unschedulable", message }
}
