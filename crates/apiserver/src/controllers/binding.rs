//! Gives pods their node: what a scheduler is on a machine that is a whole cluster.
//!
//! There is one node, rarely more, so there is nothing to weigh: a pod fits, or it waits and says
//! what it waits for. Whether it fits is asked of the same checks that the node itself makes
//! ([`podwright_core::admission`]), so that what is bound here is not refused there. A waiting pod is
//! looked at again when a pod, a node or a claim changes, highest priority first, then oldest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_core::admission::scheduling::{Misfit, misfits};
use podwright_core::pod::{Pod, Source};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock::rfc3339;
use crate::document::{Document, Revision};
use crate::object::Object;
use crate::registry::{EVENTS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::rest::set_condition;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{HistoryError, Key, Scope, What};

use super::namespaces::named;
use super::next_look;

const SCHEDULER: &str = "default-scheduler";
/// Whatever decides about a pod's place.
const DECISIVE: [&Resource; 3] = [&PODS, &NODES, &PERSISTENT_VOLUME_CLAIMS];
const BATCH: usize = 64;

/// Pods without a node, and up to where the log has been read.
#[derive(Default)]
struct Waiting {
    pods: BTreeSet<Key>,
    seen: Option<Revision>,
}

/// What is to become of a waiting pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'n> {
    Bind { node: &'n str },
    Wait { reason: &'static str, message: String },
}

impl ApiServer {
    pub(super) async fn tend_bindings(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut waiting = Waiting::default();
        loop {
            let now = *changes.borrow_and_update();
            let stirred = waiting.seen.is_none_or(|seen| self.touched(&DECISIVE, seen));
            let worked = match self.learn_waiting(&mut waiting, now) {
                Ok(()) if stirred && !waiting.pods.is_empty() => self.bind_waiting(&waiting).await,
                other => other,
            };
            if let Err(error) = &worked {
                tracing::warn!(%error, "cannot bind pods to their node; trying again shortly");
                waiting.seen = None;
            }
            if !next_look(&mut changes, worked.is_err(), &stop).await {
                return;
            }
        }
    }

    fn learn_waiting(&self, waiting: &mut Waiting, now: Revision) -> Result<(), ApiError> {
        let scope = Scope::new(&PODS, None);
        let Some(mut seen) = waiting.seen else {
            waiting.pods.clear();
            let (pods, revision) = self.store().list(&scope, None)?;
            for (key, document) in pods {
                waiting.note(key, &document, What::Created)?;
            }
            waiting.seen = Some(revision);
            return Ok(());
        };
        while seen < now {
            match self.store().history(&scope, seen, BATCH) {
                Ok(history) => {
                    for event in history.events {
                        waiting.note(event.key.clone(), &event.document(), event.what)?;
                    }
                    seen = history.upto;
                    waiting.seen = Some(seen);
                }
                Err(HistoryError::TooOld { .. }) => {
                    waiting.seen = None;
                    return self.learn_waiting(waiting, now);
                }
                Err(HistoryError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn bind_waiting(&self, waiting: &Waiting) -> Result<(), ApiError> {
        let nodes: Vec<v1::Node> = self.all(&NODES)?.into_values().collect();
        let pods = self.all_pods()?;
        let mut there: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods.values().filter(|pod| !pod.api_phase.is_terminal()) {
            if let Some(node) = node_of(pod) {
                there.entry(node).or_default().push(pod);
            }
        }
        let mut queue: Vec<(&Key, &Arc<Pod>)> =
            waiting.pods.iter().filter_map(|key| Some((key, pods.get(key)?))).collect();
        queue.sort_by_key(|(key, pod)| {
            let priority = pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            let created = pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (Reverse(priority), created, (*key).clone())
        });
        for (key, pod) in queue {
            let verdict = match self.unmet_claim(key.namespace(), &pod.object)? {
                Some(message) => Verdict::Wait { reason: "Unschedulable", message },
                None => judge(pod, &nodes, &there),
            };
            match verdict {
                Verdict::Bind { node } => {
                    self.assign(key, &pod.object, node).await?;
                    there.entry(node).or_default().push(pod);
                }
                Verdict::Wait { reason, message } => {
                    self.hold(key, &pod.object, reason, &message).await?;
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
                Err(error) => tracing::warn!(%key, %error, "a pod cannot be read"),
            }
        }
        Ok(pods)
    }

    /// All objects of a kind. One that cannot be read is nobody's: it is told and left out.
    pub(super) fn all<T: serde::de::DeserializeOwned>(
        &self,
        resource: &'static Resource,
    ) -> Result<BTreeMap<Key, T>, ApiError> {
        let (documents, _) = self.store().list(&Scope::new(resource, None), None)?;
        let mut objects = BTreeMap::new();
        for (key, document) in documents {
            match document.extract() {
                Ok(object) => _ = objects.insert(key, object),
                Err(error) => tracing::warn!(%key, %error, "an object cannot be read"),
            }
        }
        Ok(objects)
    }

    /// Why the claims of a pod keep it waiting.
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
            // Deleted, or bound by somebody else meanwhile.
            Err(error) if matches!(error.code, 404 | 409) => return Ok(()),
            Err(error) => return Err(error),
        }
        let message = format!("Successfully assigned {}/{} to {node}", key.namespace(), key.name());
        self.tell(key, pod, "Normal", "Scheduled", &message).await;
        Ok(())
    }

    /// Says on the pod what it waits for.
    async fn hold(
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
            self.tell(key, pod, "Warning", "FailedScheduling", message).await;
        }
        Ok(())
    }

    /// An event about a pod; one that gets lost is lost.
    async fn tell(&self, key: &Key, pod: &v1::Pod, kind: &str, reason: &str, message: &str) {
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
        if let Err(error) = self.create(&info, event, false).await {
            tracing::debug!(%error, pod = %key, "an event is lost");
        }
    }
}

impl Waiting {
    fn note(&mut self, key: Key, document: &Document, what: What) -> Result<(), ApiError> {
        let pod: Sketch = document.extract()?;
        let waits = what != What::Deleted
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.node_name.is_none_or(|name| name.is_empty())
            && pod.spec.scheduler_name.is_none_or(|name| name == SCHEDULER);
        match waits {
            true => _ = self.pods.insert(key),
            false => _ = self.pods.remove(&key),
        }
        Ok(())
    }
}

/// As much of a pod as tells whether it waits.
#[derive(serde::Deserialize)]
struct Sketch {
    metadata: SketchMeta,
    #[serde(default)]
    spec: SketchSpec,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct SketchMeta {
    deletion_timestamp: Option<Value>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SketchSpec {
    node_name: Option<String>,
    scheduler_name: Option<String>,
}

fn node_of(pod: &Pod) -> Option<&str> {
    let name = pod.object.spec.as_ref()?.node_name.as_deref();
    name.filter(|name| !name.is_empty())
}

fn judge<'n>(
    pod: &Pod,
    nodes: &'n [v1::Node],
    there: &BTreeMap<&str, Vec<&Arc<Pod>>>,
) -> Verdict<'n> {
    let gates = pod.object.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    if gates.is_some_and(|gates| !gates.is_empty()) {
        let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
        return Verdict::Wait { reason: "SchedulingGated", message };
    }
    if nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return Verdict::Wait { reason: "Unschedulable", message };
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let others = there.get(name).map(Vec::as_slice).unwrap_or_default();
        let found = misfits(pod, others, node);
        if found.is_empty() {
            return Verdict::Bind { node: name };
        }
        for reason in found.iter().map(Misfit::to_string) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let reasons: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let message = format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", "));
    Verdict::Wait { reason: "Unschedulable", message }
}
