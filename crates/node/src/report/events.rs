//! Event recorder: sends Kubernetes events to the API server.
//!
//! Recording never waits and never fails: an event goes into a bounded queue, and one task sends it
//! to the API server. Aggregation and rate limits are decided by [`podwright_core::event`]. Without
//! an API server events are only logged.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use podwright_core::event::{Correlation, Correlator, EventRate, IncomingEvent};
use podwright_core::explain::excerpt;
use podwright_core::pod::{Container, Pod};
use podwright_core::throttle::Throttle;
use podwright_host::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::report::heartbeat::own_node::OwnNode;

/// A full queue means that the API server is unreachable, or that the node's event rate is exceeded
/// for long; further events are dropped.
const QUEUE: usize = 1024;
/// Events that are kept for `podwright top`, and the characters of their messages.
const RECENT: usize = 128;
const RECENT_LENGTH: usize = 200;
const TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event before aggregation.
#[derive(Clone, Debug, PartialEq)]
pub struct Occurrence {
    pub object: v1::ObjectReference,
    pub severity: Severity,
    /// Most are constants; that of a rejection may name a resource.
    pub reason: Cow<'static, str>,
    pub message: String,
    /// Of the Event object.
    pub annotations: Vec<(&'static str, String)>,
    pub at: Timestamp,
    /// The time in the event's name, unique even if the clock is set back.
    pub unique: Timestamp,
}

#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Occurrence>,
    clock: Clock,
    /// The time in the last event's name. Names contain the time, so these times are unique.
    last: Arc<Mutex<Timestamp>>,
    /// Events that did not fit into the queue.
    dropped: Arc<AtomicU64>,
    recent: RecentEvents,
}

/// An event as `podwright top` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentEvent {
    #[serde(rename = "at")]
    pub at: Timestamp,
    #[serde(rename = "warning")]
    pub warning: bool,
    #[serde(rename = "kind")]
    pub kind: String,
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "reason")]
    pub reason: String,
    /// An excerpt.
    #[serde(rename = "message")]
    pub message: String,
    /// How often it came in a row.
    #[serde(rename = "times")]
    pub times: u32,
}

/// The last events of this agent, the oldest first. The API keeps more and longer, but not every
/// node has one.
#[derive(Clone, Debug, Default)]
pub struct RecentEvents(Arc<Mutex<VecDeque<RecentEvent>>>);

impl RecentEvents {
    pub fn list(&self) -> Vec<RecentEvent> {
        self.0.lock().iter().cloned().collect()
    }

    fn note(&self, occurrence: &Occurrence) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let object = &occurrence.object;
        let event = RecentEvent {
            at: occurrence.at,
            warning: occurrence.severity == Severity::Warning,
            kind: text(&object.kind),
            namespace: text(&object.namespace),
            name: text(&object.name),
            reason: occurrence.reason.to_string(),
            message: excerpt(&occurrence.message, RECENT_LENGTH),
            times: 1,
        };
        let mut recent = self.0.lock();
        if let Some(last) = recent.back_mut()
            && (RecentEvent { at: last.at, times: last.times, ..event.clone() }) == *last
        {
            last.at = event.at;
            last.times = last.times.saturating_add(1);
            return;
        }
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(event);
    }
}

impl Recorder {
    /// A recorder and the receiver for [`deliver`].
    pub fn new(clock: Clock) -> (Self, mpsc::Receiver<Occurrence>) {
        let (queue, events) = mpsc::channel(QUEUE);
        let (last, dropped, recent) = (Arc::default(), Arc::default(), RecentEvents::default());
        (Self { queue, clock, last, dropped, recent }, events)
    }

    pub fn recent(&self) -> RecentEvents {
        self.recent.clone()
    }

    pub fn pod(
        &self,
        pod: &Pod,
        severity: Severity,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.record(reference(pod, None), severity, reason, message);
    }

    /// With annotations of the Event object.
    pub fn annotated_pod(
        &self,
        pod: &Pod,
        severity: Severity,
        reason: &'static str,
        message: String,
        annotations: Vec<(&'static str, String)>,
    ) {
        self.enqueue(reference(pod, None), severity, reason.into(), message, annotations);
    }

    pub fn container(
        &self,
        pod: &Pod,
        container: &Container,
        severity: Severity,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.record(reference(pod, Some(container)), severity, reason, message);
    }

    /// An event of the node itself, with the node's name as both name and UID, as upstream.
    pub fn node(
        &self,
        node: &str,
        severity: Severity,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.record(node_reference(node), severity, reason, message);
    }

    pub fn record(
        &self,
        object: v1::ObjectReference,
        severity: Severity,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.enqueue(object, severity, reason.into(), message, Vec::new());
    }

    fn enqueue(
        &self,
        object: v1::ObjectReference,
        severity: Severity,
        reason: Cow<'static, str>,
        message: String,
        annotations: Vec<(&'static str, String)>,
    ) {
        let name = object.name.as_deref().unwrap_or_default();
        let namespace = object.namespace.as_deref().unwrap_or_default();
        match severity {
            Severity::Normal => {
                tracing::info!(namespace, name, reason = &*reason, message, "event");
            }
            Severity::Warning => {
                tracing::warn!(namespace, name, reason = &*reason, message, "event");
            }
        }
        let at = self.clock.now().wall;
        let unique = {
            let mut last = self.last.lock();
            let after = last.saturating_add(Duration::from_nanos(1)).unwrap_or(*last);
            *last = at.max(after);
            *last
        };
        let occurrence = Occurrence { object, severity, reason, message, annotations, at, unique };
        self.recent.note(&occurrence);
        if self.queue.try_send(occurrence).is_err() {
            let dropped = self.dropped.fetch_add(1, Relaxed).saturating_add(1);
            tracing::debug!(dropped, "event queue full, event dropped");
        }
    }
}

fn reference(pod: &Pod, container: Option<&Container>) -> v1::ObjectReference {
    v1::ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.name.namespace.to_string()),
        name: Some(pod.name.name.to_string()),
        uid: Some(pod.uid.to_string()),
        resource_version: pod.object.metadata.resource_version.clone(),
        field_path: container.map(Container::field_path),
    }
}

/// Reference to the node. Until the Node object is known, its name stands for its UID: `kubectl
/// describe node` finds events by either.
fn node_reference(name: &str) -> v1::ObjectReference {
    v1::ObjectReference {
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..v1::ObjectReference::default()
    }
}

/// The rate at which a node sends events.
pub struct EventLimiter {
    throttle: Option<Throttle>,
    clock: Clock,
}

impl EventLimiter {
    pub fn new(rate: EventRate, clock: Clock) -> Self {
        Self { throttle: rate.throttle(clock.now().mono), clock }
    }

    /// Waits until one more event may be sent.
    async fn admit(&mut self) {
        let Some(throttle) = &mut self.throttle else { return };
        let wait = throttle.reserve(self.clock.now().mono);
        if !wait.is_zero() {
            tracing::debug!(?wait, "node's event rate exceeded, event delayed");
            tokio::time::sleep(wait).await;
        }
    }
}

/// Sends events to the API server until stopped.
pub async fn deliver(
    mut events: mpsc::Receiver<Occurrence>,
    mut limiter: EventLimiter,
    client: Option<kube::Client>,
    node: Arc<str>,
    own_node: watch::Receiver<OwnNode>,
    stop: CancellationToken,
) {
    let mut correlator = Correlator::default();
    let work = async {
        while let Some(mut event) = events.recv().await {
            if let Some(client) = &client {
                if event.object.kind.as_deref() == Some("Node")
                    && let Some(object) = own_node.borrow().object()
                {
                    event.object.uid.clone_from(&object.metadata.uid);
                }
                report(client, &node, event, &mut correlator, &mut limiter).await;
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

async fn report(
    client: &kube::Client,
    node: &str,
    event: Occurrence,
    correlator: &mut Correlator,
    limiter: &mut EventLimiter,
) {
    let namespace = event.object.namespace.clone().unwrap_or_else(|| "default".into());
    let api: Api<v1::Event> = Api::namespaced(client.clone(), &namespace);
    let subject = subject(&event.object);
    let (key, message) = match correlator.correlate(&news(&event, &subject)) {
        Correlation::Suppressed => {
            return tracing::debug!(reason = &*event.reason, "event rate-limited");
        }
        Correlation::New { key, message } => {
            limiter.admit().await;
            (key, message)
        }
        Correlation::Repeated { key, name, count, message } => {
            limiter.admit().await;
            let at = Time(event.at);
            let patch =
                serde_json::json!({ "count": count, "lastTimestamp": at, "message": message });
            let patched = retry(|| async {
                let patch = Patch::Strategic(&patch);
                api.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            });
            if patched.await {
                return;
            }
            // The API server deletes events after an hour; create a new one.
            correlator.forget(&key);
            (key, message)
        }
    };
    let name = event_name(&event);
    let object = object(&Occurrence { message, ..event }, &name, &namespace, node);
    let posted = retry(|| async { api.create(&PostParams::default(), &object).await.map(drop) });
    if posted.await {
        correlator.record(key, name);
    }
}

/// Identity of an object. A pod that was recreated with the same name is another object.
fn subject(object: &v1::ObjectReference) -> String {
    let parts = [&object.kind, &object.namespace, &object.name, &object.uid];
    parts.map(|part| part.as_deref().unwrap_or_default()).join("/")
}

fn news<'a>(event: &'a Occurrence, subject: &'a str) -> IncomingEvent<'a> {
    IncomingEvent {
        object: subject,
        part: event.object.field_path.as_deref().unwrap_or_default(),
        severity: event.severity.as_str(),
        reason: &event.reason,
        message: &event.message,
        at: event.at,
    }
}

/// Retries while the server is unreachable. A response, even a rejection, is final: one event that
/// the server rejects must not hold up all others.
async fn retry<F: Future<Output = Result<(), kube::Error>>>(mut call: impl FnMut() -> F) -> bool {
    for _ in 0..TRIES {
        match call().await {
            Ok(()) => return true,
            Err(kube::Error::Api(status)) => {
                tracing::debug!(message = status.message, "send event rejected");
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "send event failed, retrying");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    false
}

/// The object's name and the time in hex, as client-go names events.
fn event_name(event: &Occurrence) -> String {
    let name = event.object.name.as_deref().unwrap_or("unknown");
    format!("{name}.{:x}", event.unique.as_nanosecond())
}

fn object(event: &Occurrence, name: &str, namespace: &str, node: &str) -> v1::Event {
    v1::Event {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            annotations: annotations(&event.annotations),
            ..ObjectMeta::default()
        },
        involved_object: event.object.clone(),
        reason: Some(event.reason.to_string()),
        message: Some(event.message.clone()),
        type_: Some(event.severity.as_str().into()),
        source: Some(v1::EventSource {
            component: Some("kubelet".into()),
            host: Some(node.into()),
        }),
        reporting_component: Some("kubelet".into()),
        reporting_instance: Some(node.into()),
        first_timestamp: Some(Time(event.at)),
        last_timestamp: Some(Time(event.at)),
        count: Some(1),
        ..v1::Event::default()
    }
}

fn annotations(pairs: &[(&'static str, String)]) -> Option<BTreeMap<String, String>> {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    Some(pairs.collect()).filter(|map: &BTreeMap<_, _>| !map.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::Instant;

    use super::*;

    /// Records events about different pods, and returns when each reached the server, in ms.
    async fn sent_after(rate: EventRate, number: usize) -> Vec<u128> {
        let began = Instant::now();
        let (sent, mut arrived) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |_: Request<Body>| {
            sent.send(began.elapsed().as_millis()).unwrap();
            let event = serde_json::json!({ "metadata": {}, "involvedObject": {} });
            let body = Body::from(event.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        let client = kube::Client::new(service, "default");
        let clock = Clock::simulated(Timestamp::UNIX_EPOCH);
        let (recorder, events) = Recorder::new(clock.clone());
        for pod in 0..number {
            let object = v1::ObjectReference {
                namespace: Some("default".into()),
                name: Some(format!("pod-{pod}")),
                ..Default::default()
            };
            recorder.record(object, Severity::Normal, "Started", "Started".into());
        }
        drop(recorder);
        let own_node = watch::channel(OwnNode::default()).1;
        let limiter = EventLimiter::new(rate, clock);
        let stop = CancellationToken::new();
        deliver(events, limiter, Some(client), "node-1".into(), own_node, stop).await;
        let mut times = Vec::new();
        while let Ok(at) = arrived.try_recv() {
            times.push(at);
        }
        times
    }

    #[test]
    fn event_after_the_clock_was_set_back_has_the_new_time_and_a_name_of_its_own() {
        let clock = Clock::manual(podwright_core::builders::t(7200));
        let (recorder, mut events) = Recorder::new(clock.clone());
        let record = || recorder.node("node-1", Severity::Normal, "Starting", String::new());
        record();
        clock.step_wall(jiff::SignedDuration::from_hours(-1));
        record();
        record();
        let recorded: Vec<Occurrence> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        let seconds: Vec<i64> = recorded.iter().map(|event| event.at.as_second()).collect();
        let first = seconds[0];
        assert_eq!(seconds, [first, first - 3600, first - 3600]);
        let names: std::collections::BTreeSet<String> = recorded.iter().map(event_name).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    /// The UID of the involved object in an event of the node.
    async fn uid_in_node_event(own_node: OwnNode) -> serde_json::Value {
        let (sent, mut arrived) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sent = sent.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                sent.send(event["involvedObject"]["uid"].clone()).unwrap();
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(body.to_vec())))
            }
        });
        let client = kube::Client::new(service, "default");
        let clock = Clock::simulated(Timestamp::UNIX_EPOCH);
        let (recorder, events) = Recorder::new(clock.clone());
        recorder.node("node-1", Severity::Normal, "Starting", String::new());
        drop(recorder);
        let limiter = EventLimiter::new(EventRate::default(), clock);
        let (own_node, stop) = (watch::channel(own_node).1, CancellationToken::new());
        deliver(events, limiter, Some(client), "node-1".into(), own_node, stop).await;
        arrived.try_recv().unwrap()
    }

    /// kubernetes#139921
    #[tokio::test(start_paused = true)]
    async fn event_of_the_node_has_the_uid_of_the_node_object() {
        let metadata = ObjectMeta { uid: Some("uid-1".into()), ..ObjectMeta::default() };
        let node = v1::Node { metadata, ..v1::Node::default() };
        assert_eq!(uid_in_node_event(OwnNode::Present(Arc::new(node))).await, "uid-1");
        assert_eq!(uid_in_node_event(OwnNode::Absent).await, "node-1", "its name stands for it");
    }

    #[tokio::test(start_paused = true)]
    async fn events_beyond_the_burst_are_sent_at_the_rate_of_the_node() {
        let limited = sent_after(EventRate { per_second: 10, burst: 3 }, 6).await;
        // A timer may fire one millisecond late.
        let rounded: Vec<u128> = limited.iter().map(|at| at / 10 * 10).collect();
        assert_eq!(rounded, [0, 0, 0, 100, 200, 300]);
        let unlimited = sent_after(EventRate { per_second: 0, burst: 3 }, 300).await;
        assert_eq!((unlimited.len(), unlimited.last()), (300, Some(&0)));
    }
}
