//! Resource metrics: metrics.k8s.io, which `kubectl top` and autoscalers read.
//!
//! In a cluster, metrics-server scrapes every node in the background. Here the node measures itself
//! when it is asked, so a node that nobody looks at does no work. The items are the pods and nodes
//! in the store, with their labels; one without measured usage is left out.

use std::collections::HashMap;
use std::time::Duration;

use podwright_api::quantity::Quantity;
use podwright_core::stats::usage::{MeasuredUsage, NodeUsage, PodUsage, UsageReport};
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::document::Document;
use crate::encode::Encoder;
use crate::object::Object;
use crate::options::ListOptions;
use crate::registry::{NODE_METRICS, NODES, POD_METRICS, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::selector::Selector;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};

/// Whether the objects of the resource are measured.
pub(crate) fn is_measured(resource: &Resource) -> bool {
    resource == &NODE_METRICS || resource == &POD_METRICS
}

/// The response to a get or list.
pub(crate) async fn serve(
    server: &ApiServer,
    info: &RequestInfo,
    options: &ListOptions,
    encoder: Encoder,
) -> Result<Vec<u8>, ApiError> {
    // A request that asks for nothing is not worth a measurement.
    let measured = Measured { server, info, objects: objects(server, info)? };
    let report = measured.report().await?;
    let now = server.now();
    if info.verb == Verb::Get {
        let item = measured.items(&report).pop().ok_or_else(|| measured.absent())?;
        let object =
            Object::try_from(item).map_err(|error| ApiError::internal(error.to_string()))?;
        return Ok(encoder.object(object, now));
    }
    let mut items = measured.items(&report);
    retain(&mut items, &options.selector)?;
    Ok(encoder.list(items, &json!({}), now))
}

/// The stored pods or nodes of a request.
fn objects(server: &ApiServer, info: &RequestInfo) -> Result<Vec<Object>, ApiError> {
    let resource = if info.resource == &POD_METRICS { &PODS } else { &NODES };
    if info.verb == Verb::Get {
        let key = Key::new(resource, &info.namespace, &info.name);
        let object = server.read(resource, &key)?;
        return Ok(vec![object.ok_or_else(|| ApiError::not_found(resource, &info.name))?]);
    }
    let (documents, _) =
        server.store().list(&Scope::new(resource, info.namespace_option()), None)?;
    let objects = documents.into_iter().map(|(_, document)| document.object(resource));
    Ok(objects.collect::<Result<_, _>>()?)
}

/// A request, with the stored objects that it is about.
struct Measured<'a> {
    server: &'a ApiServer,
    info: &'a RequestInfo,
    objects: Vec<Object>,
}

impl Measured<'_> {
    async fn report(&self) -> Result<UsageReport, ApiError> {
        let report = self.server.connector()?.usage().await;
        report.ok_or_else(|| ApiError::unavailable("the node is starting; retry in a few seconds"))
    }

    /// One item for each object whose usage was measured, sorted as in the store.
    fn items(&self, report: &UsageReport) -> Vec<Value> {
        let time = rfc3339(report.at);
        if self.info.resource == &NODE_METRICS {
            let connector = self.server.settings().node_connector.as_ref();
            let connected = connector.and_then(|connector| connector.node());
            let measured = |object: &Object| {
                let usage = report.node.as_ref()?;
                (connected.as_deref() == Some(object.name())).then(|| of_node(object, usage, &time))
            };
            return self.objects.iter().filter_map(measured).collect();
        }
        let pods: HashMap<(&str, &str), &PodUsage> =
            report.pods.iter().map(|pod| ((&*pod.name.namespace, &*pod.name.name), pod)).collect();
        let measured = |object: &Object| {
            let usage = pods.get(&(object.namespace(), object.name()))?;
            Some(of_pod(object, usage, &time))
        };
        self.objects.iter().filter_map(measured).collect()
    }

    /// Why there are no metrics of an object that exists.
    fn absent(&self) -> ApiError {
        let name = &self.info.name;
        if self.info.resource == &NODE_METRICS {
            let why = "its CPU and memory were not measured";
            return ApiError::no_metrics("nodemetrics", name, name, why);
        }
        let shown = format!("{}/{name}", self.info.namespace);
        let phase = self.objects.first().map_or("", |pod| pod.text("/status/phase"));
        let why = match phase {
            "Succeeded" | "Failed" => "the pod has finished",
            "Running" => "not all of its containers were measured yet; retry in a few seconds",
            _ => "none of its containers run",
        };
        ApiError::no_metrics("podmetrics", name, &shown, why)
    }
}

fn of_node(node: &Object, measured: &NodeUsage, time: &str) -> Value {
    let mut item = item(&NODE_METRICS, node, measured.window, time);
    item.set("usage", Some(usage(measured.usage)));
    item.into_value()
}

fn of_pod(pod: &Object, measured: &PodUsage, time: &str) -> Value {
    let mut item = item(&POD_METRICS, pod, measured.window, time);
    let containers = measured.containers.iter();
    let containers = containers.map(|(name, used)| json!({"name": name, "usage": usage(*used)}));
    item.set("containers", Some(containers.collect()));
    item.into_value()
}

/// What the items of both kinds have.
fn item(resource: &Resource, object: &Object, window: Duration, time: &str) -> Object {
    let mut item = Object::default();
    item.set("kind", Some(resource.kind.into()));
    item.set("apiVersion", Some(resource.api_version().into()));
    item.set_meta("name", Some(object.name().into()));
    if resource.namespaced {
        item.set_meta("namespace", Some(object.namespace().into()));
    }
    item.set_meta("labels", object.meta().get("labels").cloned());
    item.set_meta("creationTimestamp", Some(time.into()));
    item.set("timestamp", Some(time.into()));
    item.set("window", Some(seconds(window).into()));
    item
}

fn usage(used: MeasuredUsage) -> Value {
    json!({
        "cpu": Quantity::from_nanos(used.nano_cores).to_string(),
        "memory": Quantity::from_bytes(used.memory_bytes).to_string(),
    })
}

/// A duration in Go's form, to the millisecond.
fn seconds(window: Duration) -> String {
    let text = format!("{}.{:03}", window.as_secs(), window.subsec_millis());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Keeps what the selector of a list matches.
fn retain(items: &mut Vec<Value>, selector: &Selector) -> Result<(), ApiError> {
    if selector.is_empty() {
        return Ok(());
    }
    let mut kept = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        let object = Object::try_from(item).unwrap_or_default();
        let document = Document { revision: 0, text: Document::text(object.clone()) };
        if selector.matches(&document)? {
            kept.push(object.into_value());
        }
    }
    *items = kept;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_a_duration_of_go() {
        for (millis, want) in [(1_005, "1.005s"), (15_000, "15s"), (30_120, "30.12s"), (0, "0s")] {
            assert_eq!(seconds(Duration::from_millis(millis)), want);
        }
    }
}
