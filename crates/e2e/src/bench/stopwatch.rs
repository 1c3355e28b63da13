//! Stopwatch: the times at which an API watcher saw the states of each pod.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::sync::watch;

/// The first time each state was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    pub ready: Option<Instant>,
    /// In a terminal phase.
    pub ended: Option<Instant>,
    pub gone: Option<Instant>,
}

pub struct Stopwatch {
    seen: watch::Receiver<HashMap<String, Moments>>,
    watching: tokio::task::JoinHandle<()>,
}

const LIMIT: Duration = Duration::from_secs(300);

impl Stopwatch {
    /// Watches from now on.
    pub async fn start(pods: Api<Pod>) -> Result<Self> {
        let version = pods.list(&ListParams::default()).await?.metadata.resource_version;
        let mut version = version.context("a list has a version")?;
        let (note, seen) = watch::channel(HashMap::new());
        let watching = tokio::spawn(async move {
            loop {
                let Ok(changes) = pods.watch(&WatchParams::default(), &version).await else {
                    return;
                };
                pin_mut!(changes);
                while let Some(Ok(change)) = changes.next().await {
                    let now = Instant::now();
                    let (pod, gone) = match change {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                        WatchEvent::Deleted(pod) => (pod, true),
                        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                    };
                    version = pod.metadata.resource_version.clone().unwrap_or(version);
                    note.send_modify(|all| write_down(all, &pod, gone, now));
                }
            }
        });
        Ok(Self { seen, watching })
    }

    /// Waits until all of `names` have reached the state, and returns the times.
    pub async fn all(
        &mut self,
        names: &[String],
        what: &str,
        moment: impl Fn(&Moments) -> Option<Instant>,
    ) -> Result<Vec<Instant>> {
        let mut times = Vec::with_capacity(names.len());
        // Each name is looked up only until it was seen, however many changes arrive.
        let all_seen = self.seen.wait_for(|all| {
            let unseen = names.iter().skip(times.len());
            let seen: Vec<_> = unseen.map_while(|name| moment(all.get(name)?)).collect();
            times.extend(seen);
            times.len() == names.len()
        });
        let all_seen = tokio::time::timeout(LIMIT, all_seen).await;
        let all_seen = all_seen.map(|seen| seen.map(drop));
        let reported = || format!("{} of {} pods were {what}, in order", times.len(), names.len());
        all_seen.with_context(reported)?.context("the watch ended")?;
        Ok(times)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn write_down(all: &mut HashMap<String, Moments>, pod: &Pod, gone: bool, now: Instant) {
    let Some(name) = pod.metadata.name.clone() else { return };
    let moments = all.entry(name).or_default();
    if gone {
        moments.gone.get_or_insert(now);
        return;
    }
    let Some(status) = &pod.status else { return };
    let conditions = status.conditions.iter().flatten();
    if conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        moments.ready.get_or_insert(now);
    }
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        moments.ended.get_or_insert(now);
    }
}
