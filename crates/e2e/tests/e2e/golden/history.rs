//! Watch history of every pod, in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, WatchEvent, WatchParams};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Every version of every pod; a deleted pod is represented by `{"gone": true}`.
#[derive(Clone)]
pub(super) struct PodHistory {
    pages: Arc<Mutex<HashMap<String, Vec<Value>>>>,
    written: watch::Receiver<u64>,
}

impl PodHistory {
    /// Starts the watch; from now on no change is missed.
    pub(super) async fn begin(client: kube::Client) -> Result<Self> {
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let pods: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
        let pages: Arc<Mutex<HashMap<String, Vec<Value>>>> = Arc::default();
        let (count, written) = watch::channel(0);
        let book = pages.clone();
        let mut events =
            pods.watch(&WatchParams::default(), "0").await.context("watching pods")?.boxed();
        tokio::spawn(async move {
            let mut version = "0".to_owned();
            loop {
                while let Ok(Some(event)) = events.try_next().await {
                    let Some((name, page, at)) = page(event) else { continue };
                    version = at;
                    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
                    book.entry(name).or_default().push(page);
                    count.send_modify(|count| *count += 1);
                }
                // The server closes a watch after some minutes; the next one resumes.
                let Ok(next) = pods.watch(&WatchParams::default(), &version).await else { return };
                events = next.boxed();
            }
        });
        Ok(Self { pages, written })
    }

    /// Passes the versions of one pod so far to `inspect`.
    pub(super) fn read<T>(&self, pod: &str, inspect: impl FnOnce(&[Value]) -> T) -> T {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        inspect(pages.get(pod).map_or(&[], Vec::as_slice))
    }

    /// Waits until the versions of a pod satisfy the predicate; returns whether they did in time.
    pub(super) async fn until(
        &self,
        pod: &str,
        limit: Duration,
        mut predicate: impl FnMut(&[Value]) -> bool,
    ) -> bool {
        let mut written = self.written.clone();
        let response = async {
            while !self.read(pod, &mut predicate) {
                if written.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(limit, response).await.unwrap_or(false)
    }
}

/// Pod name, content and resource version of an event.
fn page(event: WatchEvent<DynamicObject>) -> Option<(String, Value, String)> {
    let (pod, gone) = match event {
        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
        WatchEvent::Deleted(pod) => (pod, true),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return None,
    };
    let page = match serde_json::to_value(&pod) {
        Ok(_) if gone => json!({ "gone": true }),
        Ok(pod) => pod,
        Err(error) => json!({ "unreadable": error.to_string() }),
    };
    Some((pod.metadata.name?, page, pod.metadata.resource_version?))
}
